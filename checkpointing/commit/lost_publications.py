"""Decides about tables that show less than a recorded cut: publish them again, or refuse with an error that names them.

A log loses entries when a power cut takes what was not synced, when somebody deletes files, or when a table's folder is
restored from an older backup than `checkpoints`. A recorded cut then names versions that no longer exist, or that have
another content. The invariant is: **before a tick claims the job, every version that a recorded cut names is the one
that was published for it.** `in_doubt` finds the tables that break it. `decide_repairs` decides how to repair them:

- An upsert or state table needs one entry of `checkpoints`, since each entry names all its files.
- An append table needs every entry since the checkpoint that it shows, since each entry names only its own files. The
  entries must be retained without a gap, and the table must be in the state before the first of these entries.

A table that cannot be repaired with certainty is not repaired, but named as lost. `corrected` then computes the
cuts with the versions at which the tables show them again.

A committed entry that is not published yet may take files out of an append table. It was planned when the table showed
a certain checkpoint. If the table shows an older checkpoint now, it has files that the entry does not take out. So the
table is lost too, unless that certain checkpoint can be published again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.net_files import keyed_tables
from checkpointing.commit.recovery import publication_of, unpublished
from checkpointing.graph import TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, JobName, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind, TableRecord

Versions = Mapping[TableName, int]
"""The Delta version of each table at a cut."""

Cuts = Mapping[CheckpointId, Versions]


@dataclass(frozen=True, slots=True)
class Entry:
    """The checkpoint that one entry of a table's log published, for the first time or `again`."""

    checkpoint: CheckpointId
    again: bool = False


_NOTHING: Final[Mapping[int, Entry]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LogSeen:
    """What a table's log contains: its newest version (None: there is no log), and the checkpoint that the table shows.

    `published` has the job's own log entries among those that were read, by version. `oldest` is the oldest entry that
    the log still has. Older entries were deleted as usual, and their content is in a Delta log checkpoint.
    """

    version: int | None
    shows: CheckpointId = NO_CHECKPOINT
    published: Mapping[int, Entry] = field(default_factory=lambda: _NOTHING)
    oldest: int = 0

    def is_as_published(self, version: int, wanted: "Wanted") -> bool:
        """Return whether this version of the table is still as it was published for the cut."""
        if version == 0:
            return True  # version 0 is an empty table, so nothing can be lost
        if self.version is None or version > self.version:
            return False
        if version < self.oldest:
            return True
        entry = self.published.get(version)
        return entry is not None and wanted.is_met_by(entry.checkpoint)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The publication that a table must show at a cut: `named`, or any one up to `until` if `named` is None."""

    named: CheckpointId | None
    until: CheckpointId

    def is_met_by(self, checkpoint: CheckpointId) -> bool:
        """Return whether a table that shows this checkpoint shows what the cut needs."""
        return checkpoint == self.named if self.named is not None else checkpoint <= self.until


@dataclass(frozen=True, slots=True)
class Standing:
    """What was observed: the entries of checkpoints and savepoints, the recorded cuts, and the logs that were read."""

    job: JobName
    rows: tuple[CheckpointRecord, ...]
    cuts: Cuts
    logs: Mapping[TableName, LogSeen]

    @property
    def known(self) -> Mapping[CheckpointId, CheckpointRecord]:
        """The entries by checkpoint id."""
        return {row.checkpoint: row for row in self.rows}


@dataclass(frozen=True, slots=True)
class Reference:
    """A recorded cut that the tables must show before the tick does anything else, and the entries that lead to it.

    `line` has the retained entries among these, newest first. `pending` is the entry that continues from the cut, if
    there is one.
    """

    checkpoint: CheckpointId
    line: tuple[CheckpointRecord, ...]
    pending: CheckpointRecord | None

    @property
    def checkpoints(self) -> frozenset[CheckpointId]:
        """The checkpoints of the line, including the reference itself."""
        return frozenset({self.checkpoint, *(row.checkpoint for row in self.line)})


@dataclass(frozen=True, slots=True)
class Again:
    """A publication to repeat, so that the table shows this checkpoint."""

    checkpoint: CheckpointId
    publication: Publication


@dataclass(frozen=True, slots=True)
class Lost:
    """A table that cannot be repaired: what it shows, the newest cut, and a checkpoint whose rows it lacks.

    `lacks` is None if only the recorded version shows that something is missing.
    """

    table: TableName
    shows: CheckpointId
    cut: CheckpointId
    lacks: CheckpointId | None


@dataclass(frozen=True, slots=True)
class Repairs:
    """The publications to repeat, in this order, and the lost tables. If a table is lost, nothing is published."""

    tables: frozenset[TableName] = frozenset()
    """The tables in doubt. The recorded cuts that name them must be corrected."""
    again: tuple[Again, ...] = ()
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class Doubt:
    """What was observed of the tables, and how to repair those in doubt. `is_none` if there is nothing to repair.

    `rebuilt` has lost cuts that were determined from entries and logs. `seen` contains them. They must be recorded.
    """

    seen: Standing
    repairs: Repairs
    rebuilt: Cuts = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        """True if every table and every cut is as it should be."""
        return not self.repairs.tables and not self.rebuilt


def in_doubt(seen: Standing) -> frozenset[TableName]:
    """Return the tables whose logs contradict the recorded cuts.

    Of the logs, only the cuts' versions must have been read.
    """
    cuts = [(checkpoint, table, version) for checkpoint, cut in seen.cuts.items() for table, version in cut.items()]
    unfit = {
        table
        for checkpoint, table, version in cuts
        if table in seen.logs and not seen.logs[table].is_as_published(version, wanted(seen, checkpoint, table))
    }
    at = reference(seen)
    behind = {
        table.table
        for row in (at.line if at is not None else ())
        for table in row.tables
        if table.table in seen.logs and _is_behind(seen, row, table.table)
    }
    return frozenset(unfit | behind).union(_shows_too_little(seen))


def _shows_too_little(seen: Standing) -> Mapping[TableName, CheckpointId]:
    """Return the tables that show less than the pending entry was planned on, with the checkpoint they must show."""
    pending = unpublished(seen.rows, seen.cuts)
    planned = {each.table: each.planned_on or NO_CHECKPOINT for each in (pending.tables if pending is not None else ())}
    return {table: on for table, on in planned.items() if table in seen.logs and seen.logs[table].shows < on}


def _is_behind(seen: Standing, row: CheckpointRecord, table: TableName) -> bool:
    return row.commits and seen.logs[table].shows < row.checkpoint


def reference(seen: Standing) -> Reference | None:
    """Return the newest recorded cut on the line, or None if no cut of the line is recorded.

    If the newest entry is committed and not published yet, the answer is the cut of its parent. The parent's own entry
    may be subsumed.
    """
    newest = newest_checkpoint(seen.rows)
    line = tuple(_line(seen, newest)) if newest is not None else ()
    for place, row in enumerate(line):
        if row.checkpoint in seen.cuts:
            return Reference(row.checkpoint, line[place:], line[place - 1] if place else None)
    if line and line[-1].parent in seen.cuts:
        return Reference(line[-1].parent, (), line[-1])
    return None


def wanted(seen: Standing, checkpoint: CheckpointId, table: TableName) -> Wanted:
    """Return which publication a table must show at a checkpoint's cut, as far as the retained entries show."""
    row = seen.known.get(checkpoint)
    if row is None:
        return Wanted(None, checkpoint)
    named = next((each.checkpoint for each in _line(seen, row) if each.commits and _names(each, table)), None)
    return Wanted(named, checkpoint)


def decide_repairs(seen: Standing) -> Repairs:
    """Return how to repair the tables in doubt. All publications in their logs must have been read."""
    doubtful, at = in_doubt(seen), reference(seen)
    again: list[Again] = []
    lost: list[Lost] = []
    for table in sorted(doubtful):
        due = _due(seen, at, table) if at is not None else []
        lacks = _lacks(seen, at, table, due)
        if due is None or lacks is not None:
            cut = at.checkpoint if at is not None else NO_CHECKPOINT
            lost.append(Lost(table, seen.logs[table].shows, cut, lacks))
        else:
            again += due
    return Repairs(doubtful, () if lost else tuple(again), tuple(lost))


def _due(seen: Standing, at: Reference, table: TableName) -> list[Again] | None:
    """Return what to publish again for one table, oldest first, or None if the table is lost."""
    naming, missing = _naming(at, table), _missing(seen, at, table)
    tail = [row for row in missing if row.checkpoint > seen.logs[table].shows]
    if mode_of(seen, table) is not TableMode.APPEND:
        return _due_whole(seen, at, table, naming, tail)
    if holes(seen, table):
        return None
    if not tail:
        return [] if naming or _is_right(seen, at, table) else None
    return [_again(row, _named(row, table)) for row in tail] if _has_no_gap(seen, tail, table) else None


def holes(seen: Standing, table: TableName) -> frozenset[CheckpointId]:
    """Return the checkpoints of the line whose rows an append table lacks, although it shows a newer checkpoint.

    A missing publication can't be inserted before a newer one. All publications in the table's log must have been read.
    """
    at = reference(seen)
    if at is None or mode_of(seen, table) is not TableMode.APPEND:
        return frozenset()
    return frozenset(row.checkpoint for row in _missing(seen, at, table) if row.checkpoint <= seen.logs[table].shows)


def _lacks(seen: Standing, at: Reference | None, table: TableName, due: list[Again] | None) -> CheckpointId | None:
    """Return a checkpoint that a table lacks and that nothing brings back.

    None: it lacks none, or nobody knows which.
    """
    if due is None:
        return next((row.checkpoint for row in _missing(seen, at, table)), None) if at is not None else None
    on = _shows_too_little(seen).get(table, NO_CHECKPOINT)
    return on if all(each.checkpoint < on for each in due) and on else None


def _due_whole(
    seen: Standing, at: Reference, table: TableName, naming: list[CheckpointRecord], tail: list[CheckpointRecord]
) -> list[Again] | None:
    """Return what to publish again for an upsert or state table.

    Any entry restores it whole, even without a change to it.
    """
    if naming:
        return [_again(row, _named(row, table)) for row in tail]
    if _is_right(seen, at, table):
        return []
    if at.line:
        oldest = min((row for row in at.line if row.commits), key=lambda row: row.checkpoint)
        return _whole(seen, oldest, oldest.checkpoint, table)
    if at.pending is None or _names(at.pending, table):
        return []
    return _whole(seen, at.pending, at.checkpoint, table)


def _whole(seen: Standing, row: CheckpointRecord, checkpoint: CheckpointId, table: TableName) -> list[Again] | None:
    """Return the publication that makes a table show a checkpoint, from an entry that did not change the table."""
    files = dict(keyed_tables(row, seen.job)).get(table)
    return None if files is None else [replace(_again(row, files), checkpoint=checkpoint)]


def _naming(at: Reference, table: TableName) -> list[CheckpointRecord]:
    """Return the retained entries that change the table, oldest first."""
    return [row for row in reversed(at.line) if row.commits and _names(row, table)]


def _missing(seen: Standing, at: Reference, table: TableName) -> list[CheckpointRecord]:
    """Return the retained entries that change the table and are missing in its log, oldest first."""
    log = seen.logs[table]
    there = {log.shows, *(entry.checkpoint for entry in log.published.values())}
    return [row for row in _naming(at, table) if row.checkpoint not in there and not _is_older(seen, row, log, table)]


def _is_older(seen: Standing, row: CheckpointRecord, log: LogSeen, table: TableName) -> bool:
    """Return whether the log entry that published this entry was deleted as usual, as one older than the log keeps."""
    version = seen.cuts.get(row.checkpoint, {}).get(table)
    return version is not None and version < log.oldest


def _is_right(seen: Standing, at: Reference, table: TableName) -> bool:
    version = seen.cuts[at.checkpoint].get(table, 0)
    return seen.logs[table].is_as_published(version, wanted(seen, at.checkpoint, table))


def _has_no_gap(seen: Standing, tail: list[CheckpointRecord], table: TableName) -> bool:
    """Return whether the table is in the state before the first of these entries, and each continues from the last."""
    log, first = seen.logs[table], tail[0]
    if not all(_builds_on_a_cut(seen, row) for row in tail[1:]):
        return False
    entry = log.published.get(_named(first, table).parent_version)
    if entry is not None and entry.checkpoint == log.shows and not entry.again:
        return True
    if not _builds_on_a_cut(seen, first):
        return False
    *_, oldest = _line(seen, first)
    line = {row.checkpoint for row in _line(seen, first)} | {oldest.parent}
    had_nothing = 0 in (seen.cuts.get(first.parent, {}).get(table), _named(first, table).parent_version)
    return (log.shows == NO_CHECKPOINT and had_nothing) or (log.shows >= oldest.parent and log.shows in line)


def _builds_on_a_cut(seen: Standing, row: CheckpointRecord) -> bool:
    """Return whether what an entry publishes is relative to its parent's cut.

    A rollback's changes are relative to the cut that it abandons, which is not retained. If it rolled back to a
    committed entry, a table that shows that entry needs no repair first: the rollback removes files that are not there,
    and adds files that are there already.
    """
    if row.kind is not RowKind.ROLLBACK:
        return True
    parent = seen.known.get(row.parent)
    return parent is not None and parent.commits


def mode_of(seen: Standing, table: TableName) -> TableMode:
    """Return a table's mode as an entry records it. A table that no entry names counts as an append table."""
    for row in seen.rows:
        for each in (*row.tables, *dict(keyed_tables(row, seen.job)).values()):
            if each.table == table:
                return each.mode
    return TableMode.APPEND


def _names(row: CheckpointRecord, table: TableName) -> bool:
    return any(each.table == table for each in row.tables)


def _named(row: CheckpointRecord, table: TableName) -> TableRecord:
    return next(each for each in row.tables if each.table == table)


def _again(row: CheckpointRecord, table: TableRecord) -> Again:
    whole = table.mode is not TableMode.APPEND
    return Again(row.checkpoint, replace(publication_of(row, table), no_others=whole))


def _line(seen: Standing, row: CheckpointRecord) -> Iterator[CheckpointRecord]:
    """Yield an entry and its ancestors, newest first, as far as they are retained."""
    known, at = seen.known, row
    while True:
        yield at
        if at.parent not in known or at.parent >= at.checkpoint:
            return
        at = known[at.parent]


# ------------------------------------------------------------------
# Determines a lost cut from entries and from the tables' logs, if they prove it.
#
# A cut says at which version each table belongs to a checkpoint. Two other places record the same. For each table that
# an entry changes, it names the version that the table had at its parent's cut. The tables that it does not change have
# the same version at both cuts. And a table's log says which log entry published which checkpoint. If neither place has
# the version, it is not guessed.


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The cuts that could be determined, and a table of the newest entry's cut whose version is unknown."""

    cuts: Cuts
    unknown: TableName | None = None


def lacks_cuts(seen: Standing) -> bool:
    """Return whether a cut is lost: it is not recorded, although its entry does not wait to be published."""
    newest = newest_checkpoint(seen.rows)
    pending = newest.checkpoint if newest is not None and _builds_on_a_known_cut(seen, newest) else None
    return any(row.commits and row.checkpoint not in (*seen.cuts, pending) for row in seen.rows)


def known_tables(seen: Standing) -> tuple[TableName, ...]:
    """Return the tables of the newest cut, as far as the entries and the other cuts show."""
    newest = newest_checkpoint(seen.rows)
    said = {columns.table for columns in newest.columns} if newest is not None else set()
    return tuple(sorted({*seen.logs, *said}))


def rebuilt(seen: Standing, tables: Collection[TableName]) -> Rebuilt:
    """Return the lost cuts. `tables` are all tables of the newest cut. Their logs must have been read completely."""
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
    """Return the version at which a table first showed its content at an entry, or None if no log entry shows it."""
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

    If a log has lost the parent's publication and has a newer one, the cut is returned all the same. It then proves
    that the table lacks rows.
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


# ------------------------------------------------------------------
# Corrects the recorded cuts after tables that had lost log entries were published again.
#
# A corrected cut has the versions at which its tables show the checkpoint again. If an append table's version at a cut
# cannot be determined, the cut is dropped.


@dataclass(frozen=True, slots=True)
class Correction:
    """The cuts to record again with other versions, and the cuts to drop because a version cannot be determined."""

    changed: Cuts
    dropped: tuple[CheckpointId, ...]


def corrected(seen: Standing, published: Mapping[TableName, Mapping[CheckpointId, int]]) -> Correction:
    """Return the corrections of the cuts. `published` has the versions at which repaired tables show each checkpoint.

    An upsert or state table whose version cannot be determined is left out of its cut. A rollback to the cut needs only
    the cut's entry for such a table. A cut that lacks an append table's version is dropped, except the reference, since
    the pending entry continues from the reference.
    """
    at = reference(seen)
    changed: dict[CheckpointId, Versions] = {}
    dropped: list[CheckpointId] = []
    for checkpoint, cut in sorted(seen.cuts.items()):
        now = {
            table: version if table not in published else _version_now(seen, at, checkpoint, table, published[table])
            for table, version in cut.items()
        }
        told = {table: version for table, version in now.items() if version is not None}
        untold = [table for table in now if table not in told and mode_of(seen, table) is TableMode.APPEND]
        if untold and (at is None or checkpoint != at.checkpoint):
            dropped.append(checkpoint)
        elif told != cut:
            changed[checkpoint] = told
    return Correction(changed, tuple(dropped))


def _version_now(
    seen: Standing,
    at: Reference | None,
    checkpoint: CheckpointId,
    table: TableName,
    published: Mapping[CheckpointId, int],
) -> int | None:
    """Return a table's version at a cut after all repairs, or None if it cannot be determined."""
    version, want = seen.cuts[checkpoint][table], wanted(seen, checkpoint, table)
    if seen.logs[table].is_as_published(version, want):
        return version
    if want.named is not None:
        return published.get(want.named)
    if at is None or checkpoint not in at.checkpoints or mode_of(seen, table) is TableMode.APPEND:
        return None
    shown = max((each for each in published if each <= checkpoint), default=NO_CHECKPOINT)
    return published[shown] if shown in at.checkpoints else None
