"""What must be true of rollbacks and resets in every run: the line of the rows, and what going back brings back (K2).

To an observer a rollback is a row like any other: it is appended, tables change, a cut is written. So the
predicates read the same history as all others, and a history without rollbacks is judged too: its rows are one line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, RowKind
from checkpointing.snapshots import SubtaskSnapshot
from spec.history import CutWritten, DoorStarted, History, JobClaimed, RowCommitted, SavepointDisposed


def goes_back(record: CheckpointRecord) -> bool:
    """Return whether a row builds on one that is not the end of the line; it may be a savepoint's."""
    return record.kind is RowKind.ROLLBACK


def at_rest(record: CheckpointRecord) -> bool:
    """Return whether no tick wrote the row: it takes the job back, or moves a source."""
    return record.kind in {RowKind.ROLLBACK, RowKind.RESET}


@dataclass(frozen=True, slots=True)
class Turned:
    """What a rollback does to the rows that are there, told by the line alone: the rows that its parent builds on."""

    dropped: tuple[CheckpointId, ...]
    abandoned: tuple[CheckpointId, ...]
    adopted: tuple[CheckpointId, ...]


@dataclass(slots=True)
class Line:
    """The rows that are there, and which of them lie off the line that the newest row ends."""

    there: dict[CheckpointId, CheckpointRecord] = field(default_factory=dict)
    off: set[CheckpointId] = field(default_factory=set)

    def turn(self, record: CheckpointRecord) -> Turned | None:
        """Return what a row does to those that are there: None unless it goes back to one of them."""
        if not goes_back(record) or record.parent not in self.there:
            return None
        off = self._off_after(record.parent)
        savepoints = {each for each, row in self.there.items() if row.is_savepoint}
        return Turned(
            dropped=tuple(sorted(off - savepoints)),
            abandoned=tuple(sorted(off & savepoints - self.off)),
            adopted=tuple(sorted(self.off - off)),
        )

    def take(self, record: CheckpointRecord, kept: tuple[CheckpointId, ...]) -> None:
        """Note a row that is in, and which ones the table holds then."""
        if self.turn(record) is not None:
            self.off = self._off_after(record.parent)
        self.there = {each: row for each, row in self.there.items() if each in kept} | {record.checkpoint: record}
        self.off &= self.there.keys()

    def drop(self, checkpoint: CheckpointId) -> None:
        """Note that a savepoint was disposed of."""
        self.there.pop(checkpoint, None)
        self.off.discard(checkpoint)

    def _off_after(self, to: CheckpointId) -> set[CheckpointId]:
        """Return which rows lie off the line once it ends in a row that is there.

        Below the oldest row of the line that is there nobody knows who built on whom: rows there stay what they were.
        The line ends at a row that names a parent which is not older: such a row breaks a rule of its own.
        """
        line, at = [to], self.there[to].parent
        while at in self.there and at < line[-1]:
            line.append(at)
            at = self.there[at].parent
        on = {*line, at}
        stands_on = {each: each if row.commits else row.parent for each, row in self.there.items()}
        off = {each for each, base in stands_on.items() if not {each, base} & on}
        return {each for each in off if stands_on[each] > at or each in self.off}


def off_the_line(history: History) -> Iterator[str]:
    """Yield every tick that began from another row than the end of the line, and every rollback that turns it wrongly.

    Wrong are an id that is not above all others (a reset's too), a parent that was not there, rows that stayed although
    nobody pinned them, savepoints that went. Rows from before the history are not known: the first one that is seen
    ends the line. Of a tick that was overtaken before it began nothing is said. What other rows build on is
    `parent-line`'s.
    """
    line = Line()
    highest, newest, holder = NO_CHECKPOINT, NO_CHECKPOINT, Generation(0)
    for event in history.events:
        match event:
            case JobClaimed(claim):
                holder = max(holder, claim.generation)
            case DoorStarted(generation, _, restored) if newest and generation >= holder:
                began = restored.checkpoint if restored else NO_CHECKPOINT
                if began != newest:
                    yield f"generation {generation} began from {began}, and the line ends in {newest}"
            case RowCommitted(record, kept):
                if at_rest(record) and record.checkpoint <= highest:
                    yield f"{record.kind.value} {record.checkpoint} came after row {highest}"
                if goes_back(record):
                    yield from _turned_wrongly(record, line.turn(record), kept)
                line.take(record, kept)
                highest = max(highest, record.checkpoint)
                newest = record.checkpoint if record.commits else newest
            case SavepointDisposed(checkpoint):
                line.drop(checkpoint)
            case _:
                pass


def _turned_wrongly(record: CheckpointRecord, turn: Turned | None, kept: tuple[CheckpointId, ...]) -> Iterator[str]:
    if turn is None:
        yield f"rollback {record.checkpoint} goes back to {record.parent}, which is not there"
        return
    for left in turn.dropped:
        if left in kept:
            yield f"row {left} is still there after rollback {record.checkpoint} to {record.parent}"
    for pinned in (*turn.abandoned, *turn.adopted):
        if pinned not in kept:
            yield f"savepoint {pinned} is gone after rollback {record.checkpoint} to {record.parent}"


def wrongly_marked(history: History) -> Iterator[str]:
    """Yield every commit after which rows off the line are not marked as abandoned, or rows on it are (K2).

    Rows that are older than the history are not judged: it does not say which line they lie on.
    """
    line, told = Line(), set[CheckpointId]()
    for event in history.events:
        match event:
            case RowCommitted(record, kept, abandoned):
                line.take(record, kept)
                told.add(record.checkpoint)
                if abandoned is not None and set(abandoned) & told != line.off & told:
                    due = sorted(line.off)
                    yield f"after row {record.checkpoint} rows {list(abandoned)} are marked as abandoned, due are {due}"
            case SavepointDisposed(checkpoint):
                line.drop(checkpoint)
            case _:
                pass


def wrongly_retained(history: History) -> Iterator[str]:
    """Yield every commit after which others are kept than the newest `retained` checkpoints, savepoints left out.

    A rollback only takes along what it leaves behind, a reset nothing: the checkpoint after it makes up for what is
    too much.
    """
    line, retained, savepoints = Line(), list(history.baseline), set(history.pinned)
    for event in history.events:
        if isinstance(event, SavepointDisposed):
            line.drop(event.checkpoint)
        if not isinstance(event, RowCommitted):
            continue
        record, turn = event.record, line.turn(event.record)
        line.take(record, event.kept)
        if turn is not None:
            retained = [*(each for each in retained if each not in turn.dropped), record.checkpoint]
        elif record.is_savepoint:
            savepoints.add(record.checkpoint)
        elif at_rest(record):
            retained = [*retained, record.checkpoint]
        else:
            retained = [*retained, record.checkpoint][-history.retained :]
        kept = [checkpoint for checkpoint in event.kept if checkpoint not in savepoints]
        if kept != retained:
            yield f"after row {record.checkpoint} rows {kept} are kept, due are {retained}"


def not_gone_back(history: History) -> Iterator[str]:
    """Yield what of a rollback is not its parent's: positions, state or ranges in the row, files in its cut.

    A plain savepoint has no cut to compare with; what it brings is judged with its restores (`savepoints`).
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    cuts: dict[CheckpointId, CutWritten] = {}
    for event in history.events:
        match event:
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                if goes_back(record) and record.parent in rows and _cut_of(record) != _cut_of(rows[record.parent]):
                    yield f"rollback {record.checkpoint} holds other positions or state than {record.parent}"
            case CutWritten(checkpoint) if checkpoint not in cuts:
                cuts[checkpoint] = event
                record_of = rows.get(checkpoint)
                if record_of is not None and goes_back(record_of) and record_of.parent in cuts:
                    yield from _other_files(history, event, cuts[record_of.parent])
            case _:
                pass


def _cut_of(record: CheckpointRecord) -> dict[str, tuple[SubtaskSnapshot, ...]]:
    """Return the cut as a restore reads it: staged files are the tables', not the snapshots'."""
    return {
        vertex.vertex: tuple(replace(snapshot, staged=()) for snapshot in vertex.subtasks) for vertex in record.vertices
    }


def _other_files(history: History, cut: CutWritten, parent: CutWritten) -> Iterator[str]:
    """Yield every table of other files, unless they hold the same rows: a neighbour may have compacted them since."""
    before = dict(parent.active)
    for table, active in cut.active:
        then = before.get(table, frozenset())
        if active != then and (not (rows := history.multiset(active)) or rows != history.multiset(then)):
            yield f"{table} shows other files at rollback {cut.checkpoint} than at checkpoint {parent.checkpoint}"
