"""Tells a lost cut again from rows and tables' logs, where that can be proven.

A cut says at which version each table belongs to a checkpoint. Two things tell the same. A row says of each table that
it changes at which version its parent's cut had it, and the tables that it leaves alone are at its own cut's versions.
And a table's log says which entry published a row. What neither tells is not guessed.
"""

from collections.abc import Collection
from dataclasses import dataclass

from checkpointing.commit.behind import Cuts, Standing, Versions, wanted
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, RowKind


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The cuts that could be told again, and a table of the newest row's cut that could not."""

    cuts: Cuts
    unknown: TableName | None = None


def lacks_cuts(seen: Standing) -> bool:
    """Return whether a cut is lost: one that is not recorded, of another row than one that is yet to be published."""
    newest = newest_checkpoint(seen.rows)
    pending = newest.checkpoint if newest is not None and _builds_on_a_known_cut(seen, newest) else None
    return any(row.commits and row.checkpoint not in (*seen.cuts, pending) for row in seen.rows)


def rebuilt(seen: Standing, tables: Collection[TableName]) -> Rebuilt:
    """Return the lost cuts; `tables` are all that the newest cut names, and their logs were looked at whole."""
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
    """Return the version at which a table came to show what it shows at a row, None if no log entry tells."""
    log, named = seen.logs[table], wanted(seen, row.checkpoint, table).named
    if named is None:
        return 0 if log.shows == NO_CHECKPOINT else None
    return _published(seen, table).get(named)


def _published(seen: Standing, table: TableName) -> dict[CheckpointId, int]:
    return {entry.checkpoint: version for version, entry in sorted(seen.logs[table].published.items())}


def _parents_cut(
    seen: Standing, row: CheckpointRecord, parent: CheckpointRecord, cut: Versions
) -> dict[TableName, int] | None:
    """Return the cut of a row's parent; None if a table's log contradicts, or the row went back to it."""
    if row.kind is RowKind.ROLLBACK:
        return None
    before = {each.table: each.parent_version for each in row.tables}
    found = {table: before.get(table, version) for table, version in cut.items()}
    agree = all(
        seen.logs[table].is_as_published(version, wanted(seen, parent.checkpoint, table))
        for table, version in found.items()
        if table in seen.logs
    )
    return found if agree else None
