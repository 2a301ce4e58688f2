"""Decides what outside sinks get of an entry, and what a rollback means for them (ADR 17).

The sink of an append table gets the rows that each checkpoint adds. It cannot follow a rollback. The sink of an upsert
table shows the table, and can follow a rollback.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from checkpointing.commit.at_rest import Rollback
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.live_files import each_once
from checkpointing.commit.recovery import publication_of
from checkpointing.graph import JobGraph, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind


def outside_publications(record: CheckpointRecord, parent: CheckpointRecord | None) -> tuple[Publication, ...]:
    """Return what outside sinks get of a committed entry, once its tables are published.

    The sink of an append table gets the rows that a tick's checkpoint adds. The sink of an upsert table gets every
    checkpoint, and every rollback to which the sink follows. It gets the files of the table at this cut and at the cut
    of `parent`, to see what has changed between the two. If the parent's entry does not exist any more, the sink gets
    the whole table.
    """
    upserted = _upserted(record, parent) if record.kind in (RowKind.CHECKPOINT, RowKind.ROLLBACK) else ()
    return (*_appended(record), *upserted)


def pre_commits(
    graph: JobGraph, compose: Callable[[], CheckpointRecord], parent: CheckpointRecord | None
) -> tuple[Publication, ...]:
    """Return what the voting sinks get of the checkpoint to commit. They vote on a held cut too.

    `compose` returns the checkpoint's entry. This costs time if there are many files, so it is called only if a sink
    votes.
    """
    voters = frozenset(table.name for table in graph.tables() if table.votes)
    if not voters:
        return ()
    record = compose().model_copy(update={"kind": RowKind.CHECKPOINT})
    return tuple(each for each in outside_publications(record, parent) if each.table in voters)


def _appended(record: CheckpointRecord) -> Iterator[Publication]:
    for table in record.tables if record.kind is RowKind.CHECKPOINT else ():
        if table.adds and table.table in record.outside:
            yield replace(publication_of(record, table), outside=True)


def _upserted(record: CheckpointRecord, parent: CheckpointRecord | None) -> Iterator[Publication]:
    for table in upsert_tables(record):
        if table in record.outside:
            known = parent is not None and table in parent.outside and table in upsert_tables(parent)
            yield Publication(
                table=table,
                mode=TableMode.UPSERT,
                files=_files_of(record, table),
                outside=True,
                since=parent.checkpoint if parent is not None and known else None,
                before=_shown_outside(parent, table) if parent is not None and known else (),
            )


def upsert_tables(record: CheckpointRecord) -> tuple[TableName, ...]:
    """Return the upsert tables of an entry: those that its vertices write, and those that it empties as a rollback."""
    keys = (each for vertex in record.vertices for each in vertex.table_keys)
    written = (each.table for each in keys if each.mode is TableMode.UPSERT)
    changed = (table.table for table in record.tables if table.mode is TableMode.UPSERT)
    return tuple(dict.fromkeys((*written, *changed)))


def _shown_outside(parent: CheckpointRecord, table: TableName) -> tuple[FileHandle, ...]:
    """Return the files whose rows the sink of an upsert table has at the parent's cut.

    The sink has no rows if the parent is a rollback that emptied the table. If another table is then renamed to this
    name, the parent has that table's files under this name already, but the sink does not have their rows.
    """
    changed = (each for each in parent.tables if each.table == table and each.mode is TableMode.UPSERT)
    is_emptied = parent.kind is RowKind.ROLLBACK and any(not each.files for each in changed)
    return () if is_emptied else _files_of(parent, table)


def _files_of(record: CheckpointRecord, table: TableName) -> tuple[FileHandle, ...]:
    """Return all files of an upsert table at a cut."""
    snapshots = (snapshot for vertex in record.vertices for snapshot in vertex.subtasks)
    return each_once([ranges.files for each in snapshots for ranges in each.ranges if ranges.table == table])


def beyond_recall(
    rows: Iterable[CheckpointRecord], rollback: Rollback, pending: CheckpointRecord | None
) -> frozenset[TableName]:
    """Return the append tables that would no longer show what their outside sinks have after this rollback.

    An append table shows the same rows as its sink. So rows must neither leave the table nor come back. A sink may also
    have the rows of a `pending` checkpoint that the rollback abandons.
    """
    outside = {table for row in rows for table in row.outside}
    changed = {each.table for each in rollback.tables if each.table in outside and (each.adds or each.removes)}
    left = pending is not None and pending.checkpoint != rollback.target.checkpoint
    due = {each.table for each in _appended(pending)} if pending is not None and left else set()
    return frozenset(changed | due)


def sinks_after(
    rows: Iterable[CheckpointRecord], target: CheckpointRecord, *, leave_outside: bool
) -> tuple[TableName, ...]:
    """Return the tables with outside sinks to list in a rollback's entry: the tables that have sinks now.

    The sinks of upsert tables follow the rollback. With `leave_outside` the entry leaves out these tables.
    """
    newest = newest_checkpoint(tuple(rows))
    if newest is None:
        return ()
    left = {*upsert_tables(newest), *upsert_tables(target)} if leave_outside else set()
    return tuple(table for table in newest.outside if table not in left)


# ------------------------------------------------------------------
# Decides when pre-committed transactions of outside sinks are rolled back (F3; Flink: `TwoPhaseCommitSinkFunction`).
#
# A sink that votes writes the rows of checkpoint n into a transaction before the commit point, and pre-commits it. From
# then on the target can commit the transaction in any case, and nobody sees its rows yet. If the target refuses the
# rows, the checkpoint is declined. Once the entry of checkpoint n is in, publishing commits the transaction.
#
# Invariant: a transaction is rolled back only if its checkpoint can never be published into this target any more.
#
# - Publishing checkpoint n, or pre-committing it, rolls back the transactions of older checkpoints. A checkpoint is
#   pre-committed only after the cut of the checkpoint before is recorded. So the older checkpoints have failed, or are
#   published.
# - A starting tick rolls back all transactions of ids older than its own, after it has rolled forward. Ids rise from
#   claim to claim. So a process that was taken over never rolls back a transaction of its successor.
# - A held cut may wait for days, and a pre-committed transaction holds locks. So the sinks vote on it, and roll back
#   their transactions at once.


@dataclass(frozen=True, slots=True)
class SinkTransaction:
    """A transaction with one checkpoint's rows for the sink of one table, written by a generation."""

    job: JobName
    table: TableName
    generation: Generation
    checkpoint: CheckpointId


def to_commit(left: Iterable[SinkTransaction], checkpoint: CheckpointId) -> tuple[SinkTransaction, ...]:
    """Return the pre-committed transaction that publishing this checkpoint commits. None if nobody has voted on it."""
    return tuple(each for each in left if each.checkpoint == checkpoint)


def to_roll_back(left: Iterable[SinkTransaction], before: CheckpointId) -> tuple[SinkTransaction, ...]:
    """Return the pre-committed transactions of checkpoints older than this id."""
    return tuple(each for each in left if each.checkpoint < before)
