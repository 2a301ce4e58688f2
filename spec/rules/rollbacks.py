"""The invariants of rollbacks and resets: the line of entries, and what a rollback brings back (K2).

To an observer, a rollback is an entry like any other: it is appended, tables change, a cut is written. So these rules
read the same history as all other rules. They also judge a history without rollbacks, whose entries form one line.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.metadata.record import CheckpointRecord, RowKind, VertexRecord
from spec.history import (
    CameToRest,
    CutsCorrected,
    CutWritten,
    DoorStarted,
    EntryAtRest,
    ErasureAsked,
    ErasureOver,
    FilesDiscarded,
    History,
    ImportBegun,
    JobClaimed,
    ResetAsked,
    RowCommitted,
    RowsErased,
    SavepointDisposed,
    TableChanged,
)
from spec.reference.contents import ended_at, named_files
from spec.reference.pipeline import key_of
from spec.rules import rule


def goes_back(record: CheckpointRecord) -> bool:
    """Return whether an entry may continue from an entry before the end of the line, or from a savepoint's."""
    return record.kind is RowKind.ROLLBACK


def at_rest(record: CheckpointRecord) -> bool:
    """Return whether no tick wrote the entry. Such an entry rolls the job back, resets a source, or erases rows."""
    return record.kind in {RowKind.ROLLBACK, RowKind.RESET, RowKind.FORGET}


@dataclass(frozen=True, slots=True)
class Turned:
    """What a rollback does to the existing entries, computed from its parent's ancestors alone."""

    dropped: tuple[CheckpointId, ...]
    abandoned: tuple[CheckpointId, ...]
    adopted: tuple[CheckpointId, ...]


@dataclass(slots=True)
class Line:
    """The existing entries, and which of them are off the line that ends in the newest one."""

    there: dict[CheckpointId, CheckpointRecord] = field(default_factory=dict)
    off: set[CheckpointId] = field(default_factory=set)

    @property
    def stood_upon(self) -> set[CheckpointId]:
        """The entries after which an existing plain savepoint, or a held cut, was taken. They stay."""
        return {row.parent for row in self.there.values() if not row.commits}

    def turn(self, record: CheckpointRecord) -> Turned | None:
        """Return what a rollback does to the existing entries, or None if the entry is no rollback to one of them."""
        if not goes_back(record) or record.parent not in self.there:
            return None
        off = self._off_after(record.parent)
        staying = {each for each, row in self.there.items() if row.is_savepoint} | self.stood_upon
        return Turned(
            dropped=tuple(sorted(off - staying)),
            abandoned=tuple(sorted(off & staying - self.off)),
            adopted=tuple(sorted(self.off - off)),
        )

    def take(self, record: CheckpointRecord, kept: tuple[CheckpointId, ...]) -> None:
        """Record a committed entry, and which entries the table holds afterwards."""
        if self.turn(record) is not None:
            self.off = self._off_after(record.parent)
        self.there = {each: row for each, row in self.there.items() if each in kept} | {record.checkpoint: record}
        self.off &= self.there.keys()

    def drop(self, checkpoint: CheckpointId) -> None:
        """Record that a savepoint was disposed of."""
        self.there.pop(checkpoint, None)
        self.off.discard(checkpoint)

    def _off_after(self, to: CheckpointId) -> set[CheckpointId]:
        """Return which entries are off the line once it ends in this existing entry.

        Below the oldest existing entry of the line, the entries' parents are unknown. Entries there stay on or off the
        line as they were. The line ends at an entry whose parent is not older, since such an entry breaks another rule.
        """
        line, at = [to], self.there[to].parent
        while at in self.there and at < line[-1]:
            line.append(at)
            at = self.there[at].parent
        on = {*line, at}
        stands_on = {each: each if row.commits else row.parent for each, row in self.there.items()}
        off = {each for each, base in stands_on.items() if not {each, base} & on}
        return {each for each in off if stands_on[each] > at or each in self.off}


@rule("line")
def off_the_line(history: History) -> Iterator[str]:
    """Yield every tick that began from another entry than the end of the line, and every wrong rollback.

    A rollback is wrong if its id is not above all others (also for a reset), if its parent did not exist, if entries
    stayed that nobody had pinned, or if savepoints were deleted. Entries from before the history are unknown, so the
    line begins with the first one in it. A tick whose job was taken over before it began is not judged. `parent-line`
    judges the parents of other entries.
    """
    line = Line()
    highest, newest, holder = NO_CHECKPOINT, NO_CHECKPOINT, Generation(0)
    for event in history.without_flow:
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


@rule("marks")
def marks(history: History) -> Iterator[str]:
    """Yield every commit after which an entry off the line is not marked as abandoned, or an entry on the line is (K2).

    Entries that are older than the history are not judged, because the history does not show on which line they are.
    """
    line, told = Line(), set[CheckpointId]()
    for event in history.without_flow:
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


@rule("retention")
def retention(history: History) -> Iterator[str]:
    """Yield every commit after which the kept checkpoints, savepoints aside, are not the newest `retained` ones.

    A checkpoint also stays if an existing plain savepoint was taken right after it. A rollback drops only the
    checkpoints that it abandons. An approval drops only the held cut, and a reset drops nothing. The next checkpoint
    drops the rest.
    """
    line, retained, savepoints = Line(), list(history.baseline), set(history.pinned)
    held: set[CheckpointId] = set()
    for event in history.without_flow:
        if isinstance(event, SavepointDisposed):
            line.drop(event.checkpoint)
            held.discard(event.checkpoint)
            retained = [each for each in retained if each != event.checkpoint]
        if not isinstance(event, RowCommitted):
            continue
        record, turn, stays = event.record, line.turn(event.record), line.stood_upon.union(history.stood_upon)
        line.take(record, event.kept)
        if turn is not None:
            retained = [*(each for each in retained if each not in turn.dropped), record.checkpoint]
        elif record.is_savepoint:
            savepoints.add(record.checkpoint)
            held |= {record.checkpoint} if record.kind is RowKind.HELD else set()
        elif at_rest(record) or not held.issubset(event.kept):
            retained = [*retained, record.checkpoint]
        else:
            whole = [*retained, record.checkpoint]
            newest = [each for each in whole if each not in line.off][-history.retained :]
            retained = [each for each in whole if each in newest or each in stays]
        held &= set(event.kept)
        kept = [checkpoint for checkpoint in event.kept if checkpoint not in savepoints]
        if kept != retained:
            yield f"after row {record.checkpoint} rows {kept} are kept, due are {retained}"


@rule("way-back-stays")
def way_back_stays(history: History) -> Iterator[str]:
    """Yield every entry whose commit drops the entry from which it continues.

    The entry may never be published, because a table or an outside sink refuses it for good. Then a rollback needs the
    entry before it.
    """
    kept = {*history.baseline, *history.pinned}
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            before = event.record.parent
            if event.record.commits and before in kept and before not in event.kept:
                yield f"row {event.record.checkpoint} drops {before}, and nobody can go back from it"
            kept = set(event.kept)


@rule("gone-back")
def gone_back(history: History) -> Iterator[str]:
    """Yield each part of a rollback that differs from its parent: positions, state or ranges, files in its cut.

    A rollback to a plain savepoint has no cut of its parent to compare with. `savepoints` judges what such a rollback
    restores.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    cuts: dict[CheckpointId, CutWritten] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                if goes_back(record) and record.parent in rows and _cut_of(record) != _cut_of(rows[record.parent]):
                    yield f"rollback {record.checkpoint} holds other positions or state than {record.parent}"
            case RowsErased(after=after):
                rows |= {each.checkpoint: each for each in after}
                cuts = {each: _erased_from(cut, event) for each, cut in cuts.items()}
            case CutWritten(checkpoint) if checkpoint not in cuts:
                cuts[checkpoint] = event
                record_of = rows.get(checkpoint)
                if record_of is not None and goes_back(record_of) and record_of.parent in cuts:
                    yield from _other_files(history, event, cuts[record_of.parent])
            case _:
                pass


def _erased_from(cut: CutWritten, event: RowsErased) -> CutWritten:
    return replace(cut, active=tuple((table, event.successors(files)) for table, files in cut.active))


def _cut_of(record: CheckpointRecord) -> dict[str, tuple[SubtaskSnapshot, ...]]:
    """Return the cut as a restore reads it, without staged files. These belong to the tables."""
    return {
        vertex.vertex: tuple(replace(snapshot, staged=()) for snapshot in vertex.subtasks) for vertex in record.vertices
    }


def _other_files(history: History, cut: CutWritten, parent: CutWritten) -> Iterator[str]:
    """Yield every table with other files, unless these hold the same rows. A neighbour may have compacted the files."""
    before = dict(parent.active)
    for table, active in cut.active:
        then = before.get(table, frozenset())
        if active != then and (not (rows := history.multiset(active)) or rows != history.multiset(then)):
            yield f"{table} shows other files at rollback {cut.checkpoint} than at checkpoint {parent.checkpoint}"


# ------------------------------------------------------------------
# The invariants of resets: exactly the positions that somebody asked for move, and nothing else changes (K2).
#
# To an observer, a reset is an entry like any other. The reference (`reference.contents`) determines what tables hold
# afterwards: rows that are sent again count again, and skipped rows never count.


Splits = dict[tuple[str, str], str | None]
"""(source, split) -> its position."""


@rule("only-positions-move")
def only_positions_move(history: History) -> Iterator[str]:
    """Yield what a reset changed in its entry or its cut besides the positions that the user asked it to move.

    If the history does not show who asked for a reset, the reset must at least move splits of one source only.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    cuts: dict[CheckpointId, dict[TableName, int]] = {}
    asked: Mapping[str, str | None] | None = None
    for event in history.without_flow:
        match event:
            case ResetAsked(positions):
                asked = dict(positions)
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                if record.kind is RowKind.RESET:
                    yield from _of_row(record, rows.get(record.parent), asked)
                    asked = None
            case CutWritten(checkpoint, versions) if checkpoint not in cuts:
                cuts[checkpoint] = dict(versions)
                record_of = rows.get(checkpoint)
                if record_of is not None and record_of.kind is RowKind.RESET and record_of.parent in cuts:
                    before = cuts[record_of.parent]
                    if dict(versions) != before:
                        yield f"the cut of reset {checkpoint} is {versions}, that of {record_of.parent} was {before}"
            case CutsCorrected(changed):
                cuts |= {checkpoint: dict(versions) for checkpoint, versions in changed}
            case _:
                pass


def _of_row(
    record: CheckpointRecord, parent: CheckpointRecord | None, asked: Mapping[str, str | None] | None
) -> Iterator[str]:
    if parent is None:
        yield f"reset {record.checkpoint} moves positions of {record.parent}, which never was"
        return
    if record.tables or _moved_cut(record) != _moved_cut(parent):
        yield f"reset {record.checkpoint} holds another cut than {parent.checkpoint}, or publishes something"
    if record.is_savepoint:
        yield f"reset {record.checkpoint} stays for ever: nobody has taken it for a savepoint"
    was, now = _splits(parent), _splits(record)
    changed = {at for at in was.keys() | now if was.get(at) != now.get(at)}
    if len({source for source, _ in changed}) > 1:
        yield f"reset {record.checkpoint} moves splits of more than one source: {sorted(changed)}"
    if asked is None:
        return
    for (source, split), position in now.items():
        due = asked.get(split, was.get((source, split)))
        if position != due:
            yield f"reset {record.checkpoint} has split {split} at {position}, due is {due}"
        if split in asked and (source, split) in ended_at(record):
            yield f"reset {record.checkpoint} moves split {split}, which has ended nevertheless"


def _splits(record: CheckpointRecord) -> Splits:
    return {
        (vertex.vertex, split): subtask.position
        for vertex in record.vertices
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
    }


def _moved_cut(record: CheckpointRecord) -> tuple[VertexRecord, ...]:
    """Return the cut without positions, ends and staged files. Staged files belong to the tables."""
    return tuple(
        vertex.model_copy(
            update={
                "subtasks": tuple(replace(each, staged=(), position=None, finished=False) for each in vertex.subtasks),
                "time": None if vertex.time is None else vertex.time.model_copy(update={"drained": False}),
            }
        )
        for vertex in record.vertices
    )


# ------------------------------------------------------------------
# The rule `published-at-once`: rollbacks, resets, erasures and approvals end only when the tables show the new cut.
#
# A savepoint publishes nothing. The next tick publishes an imported entry.


_KINDS: Final = (RowKind.CHECKPOINT, RowKind.ROLLBACK, RowKind.RESET, RowKind.FORGET)
"""The kinds of entries that are published at once.

At rest, only approvals and imports append checkpoints, and the rule leaves imports out."""


@rule("published-at-once")
def published_at_once(history: History) -> Iterator[str]:
    """Yield each entry whose cut was not recorded although its process ended without a failure."""
    recorded, importers = set(), set()
    for event in history.without_flow:
        match event:
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case ImportBegun(generation):
                importers.add(generation)
            case EntryAtRest(record) if record.kind in _KINDS and record.generation not in importers:
                if record.checkpoint not in recorded:
                    yield f"the {record.kind.value} {record.checkpoint} is left to the next tick to publish"
            case _:
                pass


# ------------------------------------------------------------------
# The invariant of erasures: afterwards no cut and no entry leads to a row of the key, and nothing else changes (K6).
#
# The judge reads the files that entries and cuts lead to, before and afterwards. It shares no code with the core's own
# replacement of files in entries. `cut-is-exact` judges what later ticks compute from the remaining rows.


@dataclass(slots=True)
class _Erased:
    """The erasures so far: the key of each generation, what the cuts showed before, and all erased files."""

    keys: dict[Generation, int] = field(default_factory=dict)
    shown: dict[CheckpointId, tuple[int, dict[CheckpointId, Mapping[TableName, frozenset[str]]]]] = field(
        default_factory=dict
    )
    gone: set[str] = field(default_factory=set)


@rule("forgotten-is-gone")
def forgotten_is_gone(history: History) -> Iterator[str]:
    """After an erasure, no version of a table and no entry of a checkpoint or savepoint leads to an erased row.

    All other rows are where they were. No table shows an erased file ever again, and when the job has come to rest, no
    erased file is left.
    """
    erased, deleted = _Erased(), frozenset[str]()
    for event in history.without_flow:
        match event:
            case FilesDiscarded(paths):
                deleted |= frozenset(paths)  # a table that left the pipeline may still name such files
            case ErasureAsked(generation, key):
                erased.keys[generation] = key
            case RowsErased(record, into, before, after, cuts):
                key, were = erased.keys[record.generation], {each.checkpoint: named_files(each) for each in before}
                for each in (*after, record):
                    told = f"entry {each.checkpoint} after erasure {record.checkpoint} of key {key}"
                    was = were.get(each.checkpoint)
                    yield from _not_as_due(history, key, named_files(each), was, told)
                erased.shown[record.checkpoint] = key, {each: dict(tables) for each, tables in cuts}
                erased.gone |= into.keys()
            case ErasureOver(checkpoint, cuts) if checkpoint in erased.shown:
                key, before_it = erased.shown.pop(checkpoint)
                for cut, tables in cuts:
                    for table, files in tables:
                        was = before_it.get(cut, {}).get(table)
                        told = f"{table} at cut {cut} after erasure {checkpoint} of key {key}"
                        left = None if was is None else was - deleted
                        yield from _not_as_due(history, key, files - deleted, left, told)
            case TableChanged(checkpoint, publication, _, active) if erased.gone & active:
                yield f"{publication.table} shows erased {min(erased.gone & active)} with checkpoint {checkpoint}"
            case CameToRest(files) if erased.gone & files:
                yield f"erased {min(erased.gone & files)} is still there at rest"
            case _:
                pass


def _not_as_due(
    history: History, key: int, files: frozenset[str], before: frozenset[str] | None, told: str
) -> Iterator[str]:
    found = _lines(history, files)
    mine = [line for line in found if line[0] == key]
    if mine:
        yield f"{told} still leads to {mine[0]}"
    if before is not None:
        due = Counter({line: times for line, times in _lines(history, before).items() if line[0] != key})
        if found != due:
            yield f"{told} lacks {due - found}, and has {found - due} too much"


def _lines(history: History, paths: Iterable[str]) -> Counter[tuple[int, tuple[object, ...] | None]]:
    """Return the rows of files, and the state entries in them, each with its key. A source row is one number."""
    found: Counter[tuple[int, tuple[object, ...] | None]] = Counter()
    for path in (path for path in paths if "/manifests/" not in path):
        found.update((key_of(row[0]) if len(row) == 1 else row[0], row) for row in history.rows(path))
        keyed = KeyedFile(FileHandle(path, 0, 0, 0), KeyedFileKind.BASE, 0, 0, Version(Generation(0), 0))
        found.update(history.state(keyed).items())
    return found


# ------------------------------------------------------------------
# The invariant of imports: the new entry is the other warehouse's entry, under numbers that nobody has used (G1).


@rule("imports-are-new")
def imports_are_new(history: History) -> Iterator[str]:
    """Yield every import that differs from the original entry, or whose numbers the other warehouse has used.

    The entry is an ordinary checkpoint without a parent. It has the positions, state, rows in flight, columns, renames
    and hooks' states of the original. No outside sink gets rows from it. What its tables show is judged as for any
    other cut.
    """
    begun: dict[int, ImportBegun] = {}
    for event in history.without_flow:
        match event:
            case ImportBegun(generation):
                begun[generation] = event
                if generation <= event.last_generation:
                    yield f"an import has generation {generation}, and its origin reached {event.last_generation}"
            case RowCommitted(record) if record.generation in begun:
                origin = begun[record.generation]
                if record.checkpoint <= origin.last_id:
                    yield f"an import has id {record.checkpoint}, and its origin reached {origin.last_id}"
                yield from _other_than(record, origin.line[-1])
            case _:
                pass


def _other_than(record: CheckpointRecord, original: CheckpointRecord) -> Iterator[str]:
    told = f"the import of {original.checkpoint} as {record.checkpoint}"
    if record.kind is not RowKind.CHECKPOINT or record.parent != NO_CHECKPOINT:
        yield f"{told} is a {record.kind.value} after {record.parent}"
    if record.pinned or record.abandoned or record.outside:
        yield f"{told} is pinned, abandoned or for outside sinks"
    if _content(record) != _content(original):
        yield f"{told} has other content"


def _content(record: CheckpointRecord) -> tuple[object, ...]:
    """Return what a restore reads, without staged files. These belong to the tables."""
    vertices = {
        was.vertex: (was.splits, was.meanings, tuple(replace(each, staged=()) for each in was.subtasks))
        for was in record.vertices
    }
    return vertices, record.hooks, record.columns, record.renames, record.max_parallelism
