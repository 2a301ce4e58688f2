"""Determines a lost cut from entries and the tables' logs, if they prove it.

A cut says at which version each table belongs to a checkpoint. Two other places say the same. For each table that an
entry changes, it names the version that the table had at its parent's cut. The tables that it does not change have the
same version at both cuts. And a table's log says which log entry published which checkpoint. If neither place tells,
nothing is guessed.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from checkpointing.commit.behind import Cuts, Standing, Versions, holes, wanted
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, RowKind


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The cuts that could be determined, and a table of the newest entry's cut whose version could not."""

    cuts: Cuts
    unknown: TableName | None = None


def lacks_cuts(seen: Standing) -> bool:
    """Return whether a cut is lost: it is not recorded, and its entry is not the one that is still to be published."""
    newest = newest_checkpoint(seen.rows)
    pending = newest.checkpoint if newest is not None and _builds_on_a_known_cut(seen, newest) else None
    return any(row.commits and row.checkpoint not in (*seen.cuts, pending) for row in seen.rows)


def known_tables(seen: Standing) -> tuple[TableName, ...]:
    """Return the tables of the newest cut, as far as the entries and the other cuts tell."""
    newest = newest_checkpoint(seen.rows)
    said = {columns.table for columns in newest.columns} if newest is not None else set()
    return tuple(sorted({*seen.logs, *said}))


def rebuilt(seen: Standing, tables: Collection[TableName]) -> Rebuilt:
    """Return the lost cuts. `tables` are all tables of the newest cut, and their logs must have been read whole."""
    known = dict(seen.cuts)
    newest = newest_checkpoint(seen.rows)
    if newest is not None and newest.checkpoint not in known and not _builds_on_a_known_cut(seen, newest):
        versions = {table: _version_at(seen, newest, table) for table in tables}
        unknown = next((table for table, version in sorted(versions.items()) if version is None), None)
        if unknown is not None:
            return Rebuilt({}, unknown)
        known[newest.checkpoint] = {table: version for table, version in versions.items() if version is not None}
    for row in sorted(seen.rows, key=lambda each: -each.checkpoint):
        parent = seen.known.get(row.parent)
        if row.checkpoint in known and parent is not None and parent.commits and parent.checkpoint not in known:
            cut = _parents_cut(seen, row, parent, known[row.checkpoint])
            if cut is not None:
                known[parent.checkpoint] = cut
    return Rebuilt({checkpoint: cut for checkpoint, cut in known.items() if checkpoint not in seen.cuts})


def _builds_on_a_known_cut(seen: Standing, row: CheckpointRecord) -> bool:
    return row.parent == NO_CHECKPOINT or row.parent in seen.cuts or row.kind is RowKind.ROLLBACK


def _version_at(seen: Standing, row: CheckpointRecord, table: TableName) -> int | None:
    """Return the version at which a table first showed its content at an entry, or None if no log entry tells."""
    log, named = seen.logs.get(table), wanted(seen, row.checkpoint, table).named
    if log is None:
        return None
    if named is None:
        return 0 if log.shows == NO_CHECKPOINT else None
    return _published(seen, table).get(named)


def _published(seen: Standing, table: TableName) -> dict[CheckpointId, int]:
    return {entry.checkpoint: version for version, entry in sorted(seen.logs[table].published.items())}


def _parents_cut(
    seen: Standing, row: CheckpointRecord, parent: CheckpointRecord, cut: Versions
) -> dict[TableName, int] | None:
    """Return the cut of an entry's parent, or None if a table's log contradicts it or the entry is a rollback.

    If a log has lost the parent's publication and has a newer one, the cut counts nevertheless. It then proves that the
    table lacks rows.
    """
    if row.kind is RowKind.ROLLBACK:
        return None
    before = {each.table: each.parent_version for each in row.tables}
    found = {table: before.get(table, version) for table, version in cut.items()}
    asked = {table: wanted(seen, parent.checkpoint, table) for table in found if table in seen.logs}
    contradict = [table for table, each in asked.items() if not seen.logs[table].is_as_published(found[table], each)]
    told = replace(seen, cuts={**seen.cuts, row.checkpoint: cut, parent.checkpoint: found})
    lacks_rows = any(asked[table].named in holes(told, table) for table in contradict)
    return found if lacks_rows or not contradict else None
