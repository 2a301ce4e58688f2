"""Decides what to do about tables that show less than a recorded cut says: publish again, or refuse by name.

A log loses entries when a power cut takes what was not synced, when somebody deletes files, or when a table's folder
comes back from an older backup than `checkpoints`. A recorded cut then names versions that have gone, or that hold
something else. The invariant is: **before a tick claims the job, every version that a recorded cut names is the one
that was published for it.** `in_doubt` says which tables break it. `decide_repairs` says what brings them back:

- An upsert or state table needs one row, since each row names all its files.
- An append table needs every row since the checkpoint that it shows, since each row names only its own files. The
  rows must be retained without a gap, and the table must be just as it was before the first of them.

What cannot be proven is not repaired: the table is named as lost. `corrected` then says what the cuts are, with the
versions at which the tables came to show them again. A cut of which an append table cannot be told is dropped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.net import keyed_tables
from checkpointing.commit.recovery import publication_of
from checkpointing.graph import TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, JobName, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind, TableRecord

Versions = Mapping[TableName, int]
"""Table -> Delta version: what a cut says."""

Cuts = Mapping[CheckpointId, Versions]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one entry of a table's log published: a checkpoint, for the first time or `again`."""

    checkpoint: CheckpointId
    again: bool = False


_NOTHING: Final[Mapping[int, Entry]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LogSeen:
    """What a table's log says: its newest version (None: there is no log), and the checkpoint that it shows.

    `published` are the job's own entries among those that were looked at, by version. `oldest` is the oldest entry
    that the log still has: what came before it was dropped in order, and is in a Delta log checkpoint.
    """

    version: int | None
    shows: CheckpointId = NO_CHECKPOINT
    published: Mapping[int, Entry] = field(default_factory=lambda: _NOTHING)
    oldest: int = 0

    def is_as_published(self, version: int, wanted: "Wanted") -> bool:
        """Return whether that version of the table is the one that was published for a cut."""
        if version == 0:
            return True  # nothing had been published by then, so nothing can be lost
        if self.version is None or version > self.version:
            return False
        if version < self.oldest:
            return True
        entry = self.published.get(version)
        return entry is not None and wanted.is_met_by(entry.checkpoint)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which publication a table must show at a cut: exactly `named`, or else one up to `until`."""

    named: CheckpointId | None
    until: CheckpointId

    def is_met_by(self, checkpoint: CheckpointId) -> bool:
        """Return whether a table that shows this checkpoint is right."""
        return checkpoint == self.named if self.named is not None else checkpoint <= self.until


@dataclass(frozen=True, slots=True)
class Standing:
    """The facts: the rows of cuts, the recorded cuts, and what the logs of the tables that were looked at say."""

    job: JobName
    rows: tuple[CheckpointRecord, ...]
    cuts: Cuts
    logs: Mapping[TableName, LogSeen]

    @property
    def known(self) -> Mapping[CheckpointId, CheckpointRecord]:
        """The rows by id."""
        return {row.checkpoint: row for row in self.rows}


@dataclass(frozen=True, slots=True)
class Reference:
    """What the tables must show before anything else is done: a recorded cut, and the rows that lead to it.

    `line` are the retained ones, newest first; `pending` is the row that builds on it, if one does.
    """

    checkpoint: CheckpointId
    line: tuple[CheckpointRecord, ...]
    pending: CheckpointRecord | None

    @property
    def checkpoints(self) -> frozenset[CheckpointId]:
        """The checkpoints of the line, the reference itself among them."""
        return frozenset({self.checkpoint, *(row.checkpoint for row in self.line)})


@dataclass(frozen=True, slots=True)
class Again:
    """A publication to carry out again: the table comes to show that row."""

    checkpoint: CheckpointId
    publication: Publication


@dataclass(frozen=True, slots=True)
class Lost:
    """A table that cannot be brought back: what it shows, the newest cut, and a checkpoint whose rows it lacks.

    `lacks` is None where only the recorded version tells that something is gone.
    """

    table: TableName
    shows: CheckpointId
    cut: CheckpointId
    lacks: CheckpointId | None


@dataclass(frozen=True, slots=True)
class Repairs:
    """What to publish again, in this order, and the tables that are lost. Nothing is published if any is lost."""

    tables: frozenset[TableName] = frozenset()
    """The tables in doubt: recorded cuts that name them are to be corrected."""
    again: tuple[Again, ...] = ()
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class Correction:
    """Cuts that are to be recorded otherwise, whole, and those that nobody can tell any more."""

    changed: Cuts
    dropped: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class Doubt:
    """What was seen of the tables, and what brings those in doubt back; nothing to repair: `is_none`.

    `rebuilt` are cuts that were lost and told again from entries and logs. `seen` has them; they are to be recorded.
    """

    seen: Standing
    repairs: Repairs
    rebuilt: Cuts = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        """Whether every table and every cut is as it should be."""
        return not self.repairs.tables and not self.rebuilt


def in_doubt(seen: Standing) -> frozenset[TableName]:
    """Return the tables whose log is not what the recorded cuts say; it is enough to have looked at their versions."""
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
    return frozenset(unfit | behind)


def _is_behind(seen: Standing, row: CheckpointRecord, table: TableName) -> bool:
    return row.commits and seen.logs[table].shows < row.checkpoint


def reference(seen: Standing) -> Reference | None:
    """Return the newest recorded cut on the line; None if no cut of it is recorded.

    Of a row that is committed and not published yet it is the parent's, whose own row may be subsumed already.
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
    """Return which publication a table must show at the cut of a checkpoint, as far as the retained rows tell."""
    row = seen.known.get(checkpoint)
    if row is None:
        return Wanted(None, checkpoint)
    named = next((each.checkpoint for each in _line(seen, row) if each.commits and _names(each, table)), None)
    return Wanted(named, checkpoint)


def decide_repairs(seen: Standing) -> Repairs:
    """Return what brings the tables in doubt back; all publications in their logs must have been looked at."""
    doubtful, at = in_doubt(seen), reference(seen)
    if at is None:
        return Repairs(doubtful)
    again: list[Again] = []
    lost: list[Lost] = []
    for table in sorted(doubtful):
        due = _due(seen, at, table)
        if due is None:
            missing = _missing(seen, at, table)
            lacks = missing[0].checkpoint if missing else None
            lost.append(Lost(table, seen.logs[table].shows, at.checkpoint, lacks))
        else:
            again += due
    return Repairs(doubtful, () if lost else tuple(again), tuple(lost))


def corrected(seen: Standing, published: Mapping[TableName, Mapping[CheckpointId, int]]) -> Correction:
    """Return what the cuts are; `published` says at which version a table in doubt has come to show a checkpoint.

    An upsert or state table that nobody can tell is left out of its cut: who goes back to the cut needs only the row.
    A cut without an append table is dropped; the reference stays, since the pending row builds on it.
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
        untold = [table for table in now if table not in told and _mode(seen, table) is TableMode.APPEND]
        if untold and (at is None or checkpoint != at.checkpoint):
            dropped.append(checkpoint)
        elif told != cut:
            changed[checkpoint] = told
    return Correction(changed, tuple(dropped))


# ------------------------------------------------------------------ one table


def _due(seen: Standing, at: Reference, table: TableName) -> list[Again] | None:
    """Return what is to be published again of one table, oldest first; None if it is lost."""
    naming, missing = _naming(at, table), _missing(seen, at, table)
    tail = [row for row in missing if row.checkpoint > seen.logs[table].shows]
    if _mode(seen, table) is not TableMode.APPEND:
        return _due_whole(seen, at, table, naming, tail)
    if len(missing) > len(tail):
        return None  # a newer publication covers the hole, so nothing can be published there any more
    if not tail:
        return [] if naming or _is_right(seen, at, table) else None
    return [_again(row, _named(row, table)) for row in tail] if _has_no_gap(seen, tail, table) else None


def _due_whole(
    seen: Standing, at: Reference, table: TableName, naming: list[CheckpointRecord], tail: list[CheckpointRecord]
) -> list[Again] | None:
    """Return the same of an upsert or state table: any row brings it back whole, also one that does not change it."""
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
    """Return what lets a table show a checkpoint by the files of a row that did not change it since."""
    files = dict(keyed_tables(row, seen.job)).get(table)
    return None if files is None else [replace(_again(row, files), checkpoint=checkpoint)]


def _naming(at: Reference, table: TableName) -> list[CheckpointRecord]:
    """Return the retained rows that change the table, oldest first."""
    return [row for row in reversed(at.line) if row.commits and _names(row, table)]


def _missing(seen: Standing, at: Reference, table: TableName) -> list[CheckpointRecord]:
    """Return those of them that the table's log does not have, oldest first."""
    log = seen.logs[table]
    there = {entry.checkpoint for entry in log.published.values()}
    return [row for row in _naming(at, table) if row.checkpoint not in there and not _is_older(seen, row, log, table)]


def _is_older(seen: Standing, row: CheckpointRecord, log: LogSeen, table: TableName) -> bool:
    """Return whether a row was published by an entry that was dropped in order."""
    version = seen.cuts.get(row.checkpoint, {}).get(table)
    return version is not None and version < log.oldest


def _is_right(seen: Standing, at: Reference, table: TableName) -> bool:
    version = seen.cuts[at.checkpoint].get(table, 0)
    return seen.logs[table].is_as_published(version, wanted(seen, at.checkpoint, table))


def _has_no_gap(seen: Standing, tail: list[CheckpointRecord], table: TableName) -> bool:
    """Return whether the table is as it was before the first of these rows, and each builds on the one before."""
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
    untouched = log.shows == NO_CHECKPOINT and seen.cuts.get(first.parent, {}).get(table) == 0
    return untouched or (log.shows >= oldest.parent and log.shows in line)


def _builds_on_a_cut(seen: Standing, row: CheckpointRecord) -> bool:
    """Return whether a row adds to its parent's cut; a rollback adds to the cut that it leaves, which is not retained.

    Where the rollback went back to a committed row, tables at that row need nothing more: it takes files out that
    are not there, and brings in files that are.
    """
    if row.kind is not RowKind.ROLLBACK:
        return True
    parent = seen.known.get(row.parent)
    return parent is not None and parent.commits


def _version_now(
    seen: Standing,
    at: Reference | None,
    checkpoint: CheckpointId,
    table: TableName,
    published: Mapping[CheckpointId, int],
) -> int | None:
    """Return a table's version at a cut, once everything is published again; None if nobody can tell."""
    version, want = seen.cuts[checkpoint][table], wanted(seen, checkpoint, table)
    if seen.logs[table].is_as_published(version, want):
        return version
    if want.named is not None:
        return published.get(want.named)
    if at is None or checkpoint not in at.checkpoints or _mode(seen, table) is TableMode.APPEND:
        return None
    shown = max((each for each in published if each <= checkpoint), default=NO_CHECKPOINT)
    return published[shown] if shown in at.checkpoints else None


def _mode(seen: Standing, table: TableName) -> TableMode:
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
    """Yield a row and what it builds on, newest first, as far as the rows are retained."""
    known, at = seen.known, row
    while True:
        yield at
        if at.parent not in known or at.parent >= at.checkpoint:
            return
        at = known[at.parent]
