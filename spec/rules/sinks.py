"""The invariants of outside sinks."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.graph import TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import (
    LEAVES_OUTSIDE_EVERY,
    CutWritten,
    DoorStarted,
    Event,
    History,
    JobReleased,
    OutsidePassedOver,
    OutsidePreCommitted,
    OutsidePublished,
    OutsideRecovered,
    OutsideRefused,
    OutsideRolledBack,
    RowCommitted,
    TableChanged,
    TickOver,
)
from spec.rules import rule


@rule("outside-follows")
def outside_follows(history: History) -> Iterator[str]:
    """Yield every publication to an outside sink that comes before its commit point, out of order, or with wrong files.

    No publication may come twice. A target may skip only a publication that it got before, because otherwise the rows
    are lost. A rollback abandons the entries after the one that it restores. A process whose job was taken over may
    still publish the rows of such an entry. The entry of a rollback names the same outside sinks as the newest entry
    before it. If the user asks the rollback to leave outside sinks as they are, its entry does not name the sinks of
    upsert tables.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    taken: dict[TableName, list[CheckpointId]] = {}
    newest: CheckpointRecord | None = None
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                if record.kind is RowKind.ROLLBACK and newest is not None:
                    yield from _sinks_lost(record, newest, entries.get(record.parent))
                entries[record.checkpoint] = record
                newest = record if record.commits else newest
            case OutsidePublished(checkpoint, table, paths):
                before = taken.setdefault(table, [])
                if before and before[-1] >= checkpoint:
                    yield f"{table} gets checkpoint {checkpoint} outside after {before[-1]}"
                before.append(checkpoint)
                due = due_outside(entries[checkpoint]).get(table) if checkpoint in entries else None
                if due != paths:
                    yield f"{table} gets {paths} outside for checkpoint {checkpoint}, due is {due}"
            case OutsidePassedOver(checkpoint, table) if checkpoint not in taken.get(table, []):
                yield f"{table} never got checkpoint {checkpoint} outside, and is past it"
            case _:
                pass


def _sinks_lost(rollback: CheckpointRecord, newest: CheckpointRecord, target: CheckpointRecord | None) -> Iterator[str]:
    if target is None:
        yield f"rollback {rollback.checkpoint} goes back to {rollback.parent}, but no entry has that id"
        return
    written = {
        keys.table
        for record in (newest, target)
        for vertex in record.vertices
        for keys in vertex.table_keys
        if keys.mode is TableMode.UPSERT
    }
    emptied = {each.table for record in (newest, target) for each in record.tables if each.mode is TableMode.UPSERT}
    left = written | emptied if rollback.parent % LEAVES_OUTSIDE_EVERY == 0 else set()
    due = {table for table in newest.outside if table not in left}
    if due != set(rollback.outside):
        yield f"rollback {rollback.checkpoint} has the sinks of {sorted(rollback.outside)}, due are {sorted(due)}"


@rule("outside-completely")
def outside_completely(history: History) -> Iterator[str]:
    """Yield every checkpoint whose cut is recorded before the outside sinks have the checkpoint's rows.

    The next checkpoint waits for the cut, so nothing stays unpublished for good.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    taken: set[tuple[CheckpointId, TableName]] = set()
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                entries[record.checkpoint] = record
            case OutsidePublished(checkpoint, table):
                taken.add((checkpoint, table))
            case CutWritten(checkpoint) if checkpoint in entries:
                missing = [table for table in due_outside(entries[checkpoint]) if (checkpoint, table) not in taken]
                if missing:
                    yield f"cut {checkpoint} is recorded, and {missing[0]} has not got its rows outside"
            case _:
                pass


@rule("outside-last")
def outside_last(history: History) -> Iterator[str]:
    """Yield every outside sink that gets an entry before all tables of the entry show it.

    A table may refuse the entry. Then no outside sink may have its rows, because a sink of an append table cannot take
    rows back.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    shown: dict[TableName, CheckpointId] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                entries[record.checkpoint] = record
            case TableChanged(checkpoint, publication):
                shown[publication.table] = max(checkpoint, shown.get(publication.table, NO_CHECKPOINT))
            case OutsidePublished(checkpoint, table) if checkpoint in entries:
                late = (each.table for each in entries[checkpoint].tables)
                for each in (name for name in late if shown.get(name, NO_CHECKPOINT) < checkpoint):
                    yield f"{table} gets checkpoint {checkpoint} outside, and {each} does not show it yet"
            case _:
                pass


def due_outside(record: CheckpointRecord) -> dict[TableName, tuple[str, ...]]:
    """Return the files of an entry that each outside sink gets. The sink of an upsert table shows only these then.

    A rollback empties an upsert table that its target does not have, or has under another name.
    """
    due: dict[TableName, tuple[str, ...]] = {}
    if record.kind is RowKind.CHECKPOINT:
        tables = (table for table in record.tables if table.table in record.outside and table.adds)
        due = {table.table: tuple(file.path for file in table.adds) for table in tables}
    if record.kind in (RowKind.CHECKPOINT, RowKind.ROLLBACK):
        emptied = (each.table for each in record.tables if each.mode is TableMode.UPSERT and not each.files)
        due |= {name: () for name in emptied if name in record.outside}
        for vertex in record.vertices:
            for name in (each.table for each in vertex.table_keys if each.table in record.outside):
                ranges = (own for each in vertex.subtasks for own in each.ranges if own.table == name)
                due[name] = tuple(sorted({keyed.file.path for own in ranges for keyed in own.files}))
    return due


# ------------------------------------------------------------------
# The invariants of outside sinks that vote: a checkpoint needs their votes, and no transaction is lost or forgotten.
#
# The graph with which each generation began shows which tables vote.


_Of = tuple[CheckpointId, TableName]


@dataclass(slots=True)
class _Left:
    """The transactions that targets have pre-committed, with their generations and files."""

    open: dict[_Of, OutsidePreCommitted] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        match event:
            case OutsidePreCommitted(_, checkpoint, table):
                self.open[checkpoint, table] = event
            case OutsidePublished(checkpoint, table) | OutsideRolledBack(checkpoint, table):
                self.open.pop((checkpoint, table), None)
            case _:
                pass


@rule("votes-count")
def votes_count(history: History) -> Iterator[str]:
    """Yield every checkpoint that was committed against a sink's vote, without it, or with other rows than voted on.

    Only sinks that vote are asked.
    """
    voters: dict[Generation, frozenset[TableName]] = {}
    refused: set[CheckpointId] = set()
    left = _Left()
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph):
                voters[generation] = frozenset(table.name for table in graph.tables() if table.votes)
            case OutsideRefused(checkpoint):
                refused.add(checkpoint)
            case OutsidePreCommitted(generation, checkpoint, table) if table not in voters.get(generation, (table,)):
                yield f"checkpoint {checkpoint} asks {table} for its vote, and that sink has none"
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT and record.generation in voters:
                if record.checkpoint in refused:
                    yield f"checkpoint {record.checkpoint} is committed, and an outside sink refused it"
                for table, paths in _due(record, voters[record.generation]):
                    vote = left.open.get((record.checkpoint, table))
                    if vote is None or vote.paths != paths:
                        yield f"checkpoint {record.checkpoint} is committed, {table} voted on {vote}, due is {paths}"
            case _:
                pass
        left.note(event)


def _due(record: CheckpointRecord, voters: frozenset[TableName]) -> Iterator[tuple[TableName, tuple[str, ...]]]:
    return ((table, paths) for table, paths in due_outside(record).items() if table in voters)


@rule("pre-committed-stays")
def pre_committed_stays(history: History) -> Iterator[str]:
    """Yield every transaction that was rolled back although its checkpoint was committed and not published yet.

    A rollback of the job may leave such a checkpoint behind.
    """
    committed: set[CheckpointId] = set()
    for event in history.without_flow:
        match event:
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT:
                committed.add(record.checkpoint)
            case RowCommitted(record) if record.kind is RowKind.ROLLBACK:
                committed.clear()
            case OutsideRolledBack(checkpoint, table) if checkpoint in committed:
                yield f"{table} rolled back what it had pre-committed for checkpoint {checkpoint}, which is committed"
            case _:
                pass


@rule("pre-committed-goes")
def pre_committed_goes(history: History) -> Iterator[str]:
    """Yield every open transaction of a held cut, of a tick that ended in order, or of an older generation.

    A target has at most one open transaction of a table. So the locks of a failed transaction never block the next one.
    """
    left, orderly = _Left(), set[Generation]()
    for event in history.without_flow:
        if isinstance(event, TickOver) and event.end.outcome is not TickOutcome.FAILED:
            orderly.add(event.generation)
        for each in left.open.values():
            why = _must_be_gone(each, event, orderly)
            if why is not None:
                yield f"{why}, and {each.table} keeps what it has pre-committed for checkpoint {each.checkpoint}"
        left.note(event)


def _must_be_gone(left: OutsidePreCommitted, event: Event, orderly: set[Generation]) -> str | None:
    match event:
        case OutsideRecovered(generation) if left.generation < generation:
            return f"generation {generation} has recovered"
        case JobReleased(release) if left.generation == release.generation and release.generation in orderly:
            return f"generation {release.generation} has ended in order"
        case RowCommitted(record) if record.kind is RowKind.HELD and record.checkpoint == left.checkpoint:
            return "the cut is held"
        case OutsidePreCommitted(_, checkpoint, table) if table == left.table:
            return f"checkpoint {checkpoint} is pre-committed"
        case _:
            return None
