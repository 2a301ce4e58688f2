"""The invariants of what an entry publishes: the versions that it names, and the tables that it changes (F4)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointingMode
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName, VertexId
from checkpointing.messages import (
    CompactFiles,
    Effect,
    Fact,
    FilesCompacted,
    NotifyComplete,
    Publication,
    PublishTable,
    SliceOffered,
)
from checkpointing.metadata.record import (
    CheckpointRecord,
    FileCompaction,
    RenameKind,
    RowKind,
    TableRecord,
    VertexRecord,
)
from spec.history import (
    Begun,
    CheckpointEnded,
    CheckpointTriggered,
    ColumnMissed,
    CompactionTold,
    CutsCorrected,
    CutWritten,
    DoorStarted,
    EntriesLost,
    History,
    PowerLost,
    RowCommitted,
    RowsErased,
    TableChanged,
    TableRestored,
)
from spec.reference.contents import expected, first_cuts, in_flight, line_of, read_on, renames_of
from spec.reference.pipeline import (
    LATER,
    NEWEST,
    NEWEST_TABLE,
    ORDERS,
    SPLITS,
    TOTALS,
    delivery_of,
    first_id,
    first_table,
    rows_of,
    site_of,
    source_rows,
)
from spec.rules import rule
from spec.rules.rollbacks import at_rest, goes_back
from spec.rules.savepoints import drained_rows, plain_savepoints
from spec.rules.watching import DoorJudge, Watched, drafted

_Versions = Mapping[TableName, int]


@rule("tables-follow")
def tables_follow(history: History) -> Iterator[str]:
    """Yield every table of a tick's entry with a version other than in its parent's cut, or with other files than due.

    If an upsert or state table has other files than at the parent, the entry publishes exactly these files, or an empty
    table if none are left. An append table gets no file that the parent's cut shows already. Entries that no tick wrote
    describe their changes in another way. But any entry that takes files out of an append table records the checkpoint
    that the table showed then. Otherwise nobody would notice if the table's log lost entries before the publication.
    """
    began: dict[Generation, DoorStarted] = {}
    entries: dict[CheckpointId, CheckpointRecord] = {}
    cuts: dict[CheckpointId, _Versions] = {NO_CHECKPOINT: {}}
    shown: dict[CheckpointId, Mapping[TableName, frozenset[str]]] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation):
                began[generation] = event
            case CutWritten(checkpoint, versions):
                cuts.setdefault(checkpoint, dict(versions))
                shown.setdefault(checkpoint, dict(event.active))
            case CutsCorrected(corrected):
                cuts |= {checkpoint: dict(versions) for checkpoint, versions in corrected}
            case RowsErased(after=after):
                entries |= {each.checkpoint: each for each in after}
            case RowCommitted(record):
                entries[record.checkpoint] = record
                yield from _planned_on_nothing(record)
                if record.generation in began and not at_rest(record):
                    door = began[record.generation]
                    restored = door.restored
                    is_first = restored is not None and restored.checkpoint == record.parent
                    parent = restored if is_first else entries.get(record.parent)
                    yield from _versions_other(record, cuts.get(record.parent))
                    yield from _added_again(record, shown.get(record.parent, {}))
                    if parent is not None or record.parent == NO_CHECKPOINT:
                        yield from _files_other(record, parent, door.graph)
            case _:
                pass


def _versions_other(record: CheckpointRecord, cut: _Versions | None) -> Iterator[str]:
    for table in record.tables if cut is not None else ():
        due = (cut or {}).get(table.table, 0)
        if table.parent_version != due:
            yield f"entry {record.checkpoint} builds on version {table.parent_version} of {table.table}, not on {due}"


def _added_again(record: CheckpointRecord, shown: Mapping[TableName, frozenset[str]]) -> Iterator[str]:
    for table in record.tables:
        again = shown.get(table.table, frozenset()).intersection(file.path for file in table.adds)
        if again:
            yield f"entry {record.checkpoint} adds {min(again)} to {table.table}, which its parent's cut shows already"


def _planned_on_nothing(record: CheckpointRecord) -> Iterator[str]:
    for table in record.tables:
        on = table.planned_on or NO_CHECKPOINT
        if table.removes and not NO_CHECKPOINT < on < record.checkpoint:
            yield f"entry {record.checkpoint} takes files out of {table.table}, and says that it showed {on}"


def _files_other(record: CheckpointRecord, parent: CheckpointRecord | None, graph: JobGraph) -> Iterator[str]:
    published = {table.table: {file.path for file in table.files} for table in record.tables}
    now, before = _by_name(record), _by_name(parent)
    for vertex in graph.operators():
        for table in (each for each in vertex.tables if each.mode is not TableMode.APPEND):
            due, was = _files(table, now.get(vertex.id)), _files(table, before.get(vertex.id))
            said = published.get(table.name, was)
            if said != due:
                strange = sorted(said ^ due)
                yield f"entry {record.checkpoint} publishes {table.name} otherwise than its state says: {strange}"


def _by_name(record: CheckpointRecord | None) -> "dict[VertexId, VertexRecord]":
    return {vertex.vertex: vertex for vertex in record.vertices} if record is not None else {}


def _files(table: Table, vertex: VertexRecord | None) -> set[str]:
    """Return the files of a table, as the snapshots of its vertex name them."""
    found = set[str]()
    for subtask in vertex.subtasks if vertex is not None else ():
        if table.mode is TableMode.STATE and not table.broadcast:
            found |= {keyed.file.path for keyed in subtask.state}
        else:
            found |= {keyed.file.path for own in subtask.ranges if own.table == table.name for keyed in own.files}
    return found


# ------------------------------------------------------------------
# The invariants of names: a declared rename changes names and nothing else (G2).


@rule("names-follow")
def names_follow(history: History) -> Iterator[str]:
    """Yield every door that begins with a cut that differs from its entry in more than names, and every wrong rename.

    An entry must list every rename that its pipeline declares. The first checkpoint after a table's rename publishes
    the whole table under the new name. Every micro-batch finds the values of a renamed column in the older files.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    graphs: dict[Generation, JobGraph] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph, restored):
                graphs[generation] = graph
                if restored is not None and restored.checkpoint in rows:
                    yield from _changed(rows[restored.checkpoint], restored, graph)
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                if record.generation in graphs and not at_rest(record):
                    yield from _untold(record, rows.get(record.parent), graphs[record.generation])
            case ColumnMissed(path, wanted):
                yield f"{path} has the column {wanted} under another name, and its values were not found"
            case _:
                pass


def _changed(row: CheckpointRecord, began: CheckpointRecord, graph: JobGraph) -> Iterator[str]:
    """Yield each vertex of the entry that the door lacks at its beginning, under both its old and its declared name."""
    called = {rename.was: rename.now for rename in renames_of(graph) if rename.kind is RenameKind.VERTEX}
    there = {vertex.vertex: _held(vertex) for vertex in began.vertices}
    for vertex in row.vertices:
        names = (str(vertex.vertex), called.get(vertex.vertex))
        if _held(vertex) not in [there[name] for name in there if name in names]:
            yield f"from row {row.checkpoint} the state or the positions of {vertex.vertex} were not taken along"


def _held(vertex: VertexRecord) -> tuple[object, ...]:
    """Return what a vertex holds, without the vertex's own name and the names of its tables and files."""
    return (
        vertex.splits,
        tuple(snapshot.position for snapshot in vertex.subtasks),
        tuple(
            tuple(replace(keyed, file=replace(keyed.file, path="")) for keyed in snapshot.state)
            for snapshot in vertex.subtasks
        ),
        tuple(
            tuple(keyed.version for ranges in snapshot.ranges for keyed in ranges.files) for snapshot in vertex.subtasks
        ),
    )


def _untold(record: CheckpointRecord, parent: CheckpointRecord | None, graph: JobGraph) -> Iterator[str]:
    if frozenset(record.renames) != renames_of(graph):
        yield f"row {record.checkpoint} does not list the renames of its pipeline"
    if parent is None or not parent.columns:
        return
    renamed = {TableName(one.now) for one in record.renames if one.kind is RenameKind.TABLE}
    missing = renamed - {each.table for each in parent.columns} - {each.table for each in record.tables}
    for table in sorted(missing):
        yield f"row {record.checkpoint} has table {table}, which row {parent.checkpoint} lacks, and does not publish it"


# ------------------------------------------------------------------
# The invariant that a subtask has only files of its own key groups (D2).
#
# A restore at another parallelism divides the key groups into new ranges. A subtask that also gets files of other
# ranges computes the right rows, but it reads all state, and keeps files alive that it does not need.


@rule("state-in-range")
def state_in_range(history: History) -> Iterator[str]:
    """Yield every file of state, or of an upsert table, that an entry gives to a subtask without one of its keys."""
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            yield from _foreign(event.record, history.max_parallelism)


def _foreign(record: CheckpointRecord, max_parallelism: int) -> Iterator[str]:
    for vertex in record.vertices:
        for index, subtask in enumerate(vertex.subtasks):
            files = [*subtask.state, *(keyed for entry in subtask.ranges for keyed in entry.files)]
            own = set(_key_groups(vertex, index, max_parallelism)) if files else set()
            for keyed in files:
                if own.isdisjoint(range(keyed.first_key_group, keyed.last_key_group + 1)):
                    groups = f"{keyed.first_key_group} to {keyed.last_key_group}"
                    yield (
                        f"entry {record.checkpoint}: subtask {index} of {vertex.vertex} has {keyed.file.path}, which "
                        f"holds key groups {groups}"
                    )


def _key_groups(vertex: VertexRecord, index: int, max_parallelism: int) -> Iterator[int]:
    """Yield the key groups that this subtask owns (Flink: `computeOperatorIndexForKeyGroup`)."""
    parallelism = len(vertex.subtasks)
    return (group for group in range(max_parallelism) if group * parallelism // max_parallelism == index)


# ------------------------------------------------------------------
# The invariant of tables that are new in a pipeline.


@rule("new-tables-begin-empty")
def new_tables_begin_empty(history: History) -> Iterator[str]:
    """Yield every new table that shows a file which its first entry does not name.

    A table of that name may have existed before. The old content belongs to older cuts.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
            case CutWritten(checkpoint, _, active) if checkpoint in rows and rows[checkpoint].parent in rows:
                record = rows[checkpoint]
                new = _tables(record) - _tables(rows[record.parent]) - _renamed(record)
                named = {file.path for table in record.tables for file in (*table.adds, *table.files)}
                for table, files in active:
                    if record.kind is RowKind.CHECKPOINT and table in new and files - named:
                        yield f"new table {table} shows {min(files - named)} at {checkpoint}, from before"
            case _:
                pass


def _tables(record: CheckpointRecord) -> set[str]:
    return {str(each.table) for each in record.columns}


def _renamed(record: CheckpointRecord) -> set[str]:
    return {str(rename.now) for rename in record.renames if rename.kind is RenameKind.TABLE}


# ------------------------------------------------------------------
# The invariants of compaction: it changes which files an append table shows, none of its rows, and is committed.


@rule("compaction-keeps-rows")
def compaction_keeps_rows(history: History) -> Iterator[str]:
    """Yield every compaction that an entry may not name, and every publication that applies only part of one.

    Only a checkpoint of a tick names compactions, and only for append tables. A file replaces at least two others, and
    has as many rows as these together. After the publication, the table shows the new file and none of the others, or
    it still shows all others that it had. No other file leaves the table, unless the entry removes it.
    """
    shown: dict[TableName, tuple[int, frozenset[str]]] = {}
    rows: dict[str, int] = {}
    named = set[str]()
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                for table in record.tables:
                    rows |= {file.path: file.rows for file in table.adds}
                    for compaction in table.compactions:
                        if table.mode is not TableMode.APPEND or record.kind not in (RowKind.CHECKPOINT, RowKind.HELD):
                            yield f"{record.kind.value} {record.checkpoint} compacts {table.table}"
                        yield from _otherwise(compaction, rows)
                        rows[compaction.into.path] = compaction.into.rows
                        if record.kind is RowKind.CHECKPOINT and compaction.into.path in named:
                            yield f"checkpoint {record.checkpoint} compacts {table.table} as one before it"
                        named |= {compaction.into.path} if record.kind is RowKind.CHECKPOINT else set()
            case TableChanged(_, publication, version, active) if publication.mode is TableMode.APPEND:
                was, before = shown.get(publication.table, (0, frozenset()))
                if was == version - 1:
                    yield from _in_part(publication.compactions, before, active)
                    leave = {file.path for file in publication.removes}
                    leave |= {path for each in publication.compactions for path in each.of}
                    lost = sorted(before - active - leave)
                    if lost:
                        yield f"{lost[0]} leaves {publication.table} with checkpoint {event.checkpoint}, unasked"
                shown[publication.table] = version, active
            case RowsErased():
                shown = {table: (version, event.successors(was)) for table, (version, was) in shown.items()}
            case PowerLost() | TableRestored() | EntriesLost():
                shown.clear()
            case _:
                pass


@rule("compaction-is-committed")
def compaction_is_committed(history: History) -> Iterator[str]:
    """Yield every compaction that was reported to a tick and that the tick's next checkpoints do not name.

    One checkpoint that was triggered after the report may leave the compaction out: the one before it may have had the
    compaction and been declined meanwhile. The next checkpoint must name the compaction.
    """
    waiting: dict[Generation, tuple[frozenset[str], list[CheckpointId]]] = {}
    left_out: dict[Generation, int] = {}
    for event in history.without_flow:
        match event:
            case CompactionTold(generation, into):
                waiting[generation], left_out[generation] = (into, []), 0
            case CheckpointTriggered(generation, checkpoint) if generation in waiting:
                waiting[generation][1].append(checkpoint)
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT and record.generation in waiting:
                into, triggered = waiting[record.generation]
                if into <= {each.into.path for table in record.tables for each in table.compactions}:
                    del waiting[record.generation]
                elif record.checkpoint in triggered:
                    left_out[record.generation] += 1
                    if left_out[record.generation] > 1:
                        yield f"checkpoint {record.checkpoint} leaves out {min(into)}, as the one before it"
            case _:
                pass


def _otherwise(compaction: FileCompaction, rows: dict[str, int]) -> Iterator[str]:
    if len({*compaction.of} - {compaction.into.path}) < 2:  # noqa: PLR2004 - one file needs no other
        yield f"{compaction.into.path} takes the place of {len(compaction.of)} files"
    known = [rows.get(path) for path in compaction.of]
    if all(each is not None for each in known) and sum(each or 0 for each in known) != compaction.into.rows:
        yield f"{compaction.into.path} has {compaction.into.rows} rows, and the files in its place had {known}"


def _in_part(compactions: tuple[FileCompaction, ...], before: frozenset[str], active: frozenset[str]) -> Iterator[str]:
    for each in compactions:
        had = before.intersection(each.of)
        done, left_out = had.isdisjoint(active), had <= active
        if (each.into.path in active and not (done and len(had) == len(each.of))) or (
            each.into.path not in active and not left_out
        ):
            yield f"{each.into.path} took the place of {sorted(had - active)}, and not of {sorted(had & active)}"


# ------------------------------------------------------------------
# The invariants of overwrite tables: a cut shows the rows of the greatest version of each partition, and no others.
#
# The judges know the rows and the deliveries of the small pipeline, and parse the names of folders themselves. They use
# none of the product's code for overwrite tables.


_NUMBERED: Final = re.compile(r"(?P<folders>.*)/version\.number\.(?P<version>-?[0-9]+)/[^/]+")
_WORDED: Final = re.compile(r"(?P<folders>.*)/version\.(?:date|time|text)\.(?P<version>[^/]*)/[^/]+")


@rule("overwrites-show-newest")
def overwrites_show_newest(history: History) -> Iterator[str]:
    """Yield every site for which a cut shows rows other than those of the greatest delivery that was read (F3).

    In at-least-once mode, the table may already have rows from after the barrier. Then a cut may show a later delivery,
    or rows more than once, but never two deliveries.
    """
    exactly = history.mode is CheckpointingMode.EXACTLY_ONCE
    for record, cut in (*first_cuts(history), *plain_savepoints(history)):
        if not any(first_id(was.vertex) == NEWEST for was in record.vertices):
            continue
        active = (files for table, files in cut.active if first_table(table) == NEWEST_TABLE)
        shown = Counter({row: times for (row,), times in history.multiset(next(active, frozenset())).items()})
        read = _read(history, record)
        for site in sorted({site_of(row) for row in (*read, *shown)}):
            due, there = _newest(read, site), _of_site(shown, site)
            if there != due and (exactly or not _may_be_ahead(due, there)):
                yield f"checkpoint {record.checkpoint} shows {_told(there)} of site {site}, and {_told(due)} is due"


def _read(history: History, record: "CheckpointRecord") -> Counter[int]:
    """Return the orders that were read before the cut, without orders in flight to the table."""
    read = read_on(line_of(history, record))
    splits = (*SPLITS[ORDERS], LATER)
    rows = Counter(row for each in splits for begin, end in read.get(each, ()) for row in source_rows(each, begin, end))
    for held in in_flight(record):
        if first_id(held.channel.edge.downstream) == NEWEST:
            for segment in (each for each in held.segments if isinstance(each, SourceSlice)):
                rows -= Counter(rows_of(segment))
    return rows


def _of_site(rows: Counter[int], site: int) -> Counter[int]:
    return Counter({row: times for row, times in rows.items() if site_of(row) == site})


def _newest(rows: Counter[int], site: int) -> Counter[int]:
    mine = _of_site(rows, site)
    greatest = max(map(delivery_of, mine), default=0)
    return Counter({row: times for row, times in mine.items() if delivery_of(row) == greatest})


def _may_be_ahead(due: Counter[int], there: Counter[int]) -> bool:
    deliveries = {*map(delivery_of, there)}
    if len(deliveries) > 1:
        return False
    return not due - there or min(deliveries, default=0) > max(map(delivery_of, due))


def _told(rows: Counter[int]) -> str:
    return str([(row, delivery_of(row), times) for row, times in sorted(rows.items())])


@rule("overwrites-only-rise")
def overwrites_only_rise(history: History) -> Iterator[str]:
    """Yield every partition of an overwrite table where an entry names two versions, or a version below its parent's.

    Only a rollback may have a smaller version than its parent.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            record = event.record
            before = _versions(entries[record.parent]) if record.parent in entries else {}
            now = _versions(record)
            for table, versions in now.items():
                for folders, found in versions.items():
                    if len(found) > 1:
                        yield f"entry {record.checkpoint} has versions {sorted(found)} of {table} in {folders!r}"
            if not goes_back(record):
                yield from _smaller(record, before, now)
            entries[record.checkpoint] = record


_VersionsOfOverwriting = Mapping[str, set[tuple[int, str]]]


def _smaller(
    record: "CheckpointRecord",
    before: "Mapping[TableName, _VersionsOfOverwriting]",
    now: "Mapping[TableName, _VersionsOfOverwriting]",
) -> Iterator[str]:
    for table, versions in before.items():
        for folders, found in versions.items():
            if table in now and max(now[table].get(folders, {(0, "")})) < max(found):
                yield f"entry {record.checkpoint} has a smaller version of {table} in {folders!r} than its parent"


def _versions(record: "CheckpointRecord") -> "dict[TableName, _VersionsOfOverwriting]":
    """Return the versions whose files an entry names, for each table and each partition's folder.

    Only overwrite tables have such folders.
    """
    found: dict[TableName, dict[str, set[tuple[int, str]]]] = {}
    for was in record.vertices:
        for own in (own for subtask in was.subtasks for own in subtask.ranges):
            for keyed in own.files:
                place = _place(keyed.file.path.removeprefix(f"{own.table}/_data/"))
                if place is not None:
                    _, _, folders = place[0].partition("/")
                    found.setdefault(own.table, {}).setdefault(folders, set()).add(place[1])
    return dict(found)


def _place(inside: str) -> tuple[str, tuple[int, str]] | None:
    """Return the folders above the version's folder, and the version, from a path below `_data`."""
    numbered = _NUMBERED.fullmatch(inside)
    if numbered is not None:
        return numbered["folders"], (int(numbered["version"]), "")
    worded = _WORDED.fullmatch(inside)
    return (worded["folders"], (0, worded["version"])) if worded is not None else None


# ------------------------------------------------------------------
# Judges when a tick asks to compact small files: at its first slice, and again when enough files have been added.
#
# When a tick begins, it does not know how many small files its tables have. So all append tables are due at the first
# slice. A table that the pipeline has renamed is not due until an entry has published it under its new name. Later, a
# table is due again when checkpoints have added as many files as the setting says, or when the last compaction left
# small files behind.


@rule("compacts-first")
class CompactsFirst(DoorJudge):
    """Judges the first request of a door to compact files."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._is_first = False
        """True if the judged step offers the first slice."""
        self._has_read = False
        tables = (table for table in door.setup.graph.tables() if table.mode is TableMode.APPEND)
        self._due = {table.name for table in tables} - set(door.setup.renamed)
        if door.setup.config.compact_files_min is None:
            self._due = set()

    @property
    def applies(self) -> bool:
        return self.door.setup.config.compact_files_min is not None

    def told(self, fact: Begun | Fact) -> None:
        """Record the first slice. A tick that stops drops slices, so only a tick that certainly reads is judged.

        If a checkpoint completed before that slice, nothing is judged here. The checkpoint's entry may have published a
        renamed table, which is then due. `CompactsAgain` judges that case.
        """
        offered = isinstance(fact, SliceOffered)
        self._is_first = offered and not self._has_read and self.door.reads and not self.door.completed
        self._has_read |= offered

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, CompactFiles) and self._is_first:
            if set(effect.tables) != self._due:
                self.wrong(f"{sorted(effect.tables)} are compacted first, due are {sorted(self._due)}")
            self._is_first = False

    def rested(self, given: tuple[object, ...]) -> None:  # noqa: ARG002 - the form of a judge
        if self._is_first and self._due:
            self.wrong(f"nothing is compacted at the first slice, due are {sorted(self._due)}")
        self._is_first = False


@rule("compacts-again")
class CompactsAgain(DoorJudge):
    """Judges every request of a door to compact files.

    The request must name the due tables, and only one compaction may run at a time.
    """

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._min = door.setup.config.compact_files_min
        tables = [table.name for table in door.setup.graph.tables() if table.mode is TableMode.APPEND]
        self._added = {name: 0 if name in door.setup.renamed else self._min or 0 for name in tables}
        """How many files each table got since the last request to compact it."""
        self._runs = False
        """True while a compaction is under way."""
        self._waits = False
        """True if the last compaction wrote files that no checkpoint has yet. Meanwhile the door need not ask again."""
        self._reads = False
        """True if the judged step offers rows to a door that goes on reading."""
        self._entries: dict[CheckpointId, CheckpointRecord] = {}

    @property
    def applies(self) -> bool:
        return self.door.setup.config.compact_files_min is not None

    def told(self, fact: Begun | Fact) -> None:
        self._reads = isinstance(fact, SliceOffered) and self.door.reads
        if isinstance(fact, FilesCompacted):
            self._runs, self._waits = False, bool(fact.found)
            self._added |= dict.fromkeys(fact.more, self._min or 0)

    def asked(self, effect: Effect) -> None:
        match effect:
            case CompactFiles():
                due = self._due()
                if self._runs:
                    self.wrong("a second compaction begins while one is under way")
                if {*effect.tables} != due:
                    self.wrong(f"{sorted(effect.tables)} are compacted, due are {sorted(due)}")
                if (effect.files_min, effect.bytes_max) != (self._min, self.door.setup.config.compacted_bytes_max):
                    self.wrong(f"files are compacted as {effect} says, not as the settings say")
                self._added |= dict.fromkeys(effect.tables, 0)
                self._runs, self._waits = True, False
            case NotifyComplete() if effect.checkpoint in self._entries:
                self._complete(self._entries.pop(effect.checkpoint))
            case _ if self._min is not None and (record := drafted(effect)) is not None:
                self._entries[record.checkpoint] = record

    def rested(self, given: tuple[CheckpointId, ...]) -> None:  # noqa: ARG002 - the form of a judge
        if self._reads and not (self._runs or self._waits) and self._min is not None and self._due():
            self.wrong(f"nothing is compacted, due are {sorted(self._due())}")
        self._reads = False

    def _due(self) -> set[TableName]:
        return {table for table, files in self._added.items() if files >= (self._min or 1)}

    def _complete(self, record: CheckpointRecord) -> None:
        for table in record.tables:
            if table.table in self._added:
                self._added[table.table] += len(table.adds)
            self._waits &= not table.compactions


# ------------------------------------------------------------------
# The invariant of the positions in the notification of a completion: users may delete input up to them (F2).


Split = tuple[str, str]
"""(source, split)."""
Slices = set[tuple[str, str]]
"""The slices of a split that are in flight: (start, end)."""


@rule("positions-are-true")
def positions_are_true(history: History) -> Iterator[str]:
    """Yield every notified position that contradicts its entry, and every position missing from a notification.

    An entry only describes a slice in flight: its rows are in no table, no state and no file. So the notified position
    lies before the slice. Only a source can compare its positions. But each slice begins where the one before it ends.
    So the slices in flight must lead from the notified position to the entry's position.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                entries[record.checkpoint] = record
            case CheckpointEnded(_, checkpoint, None, told) if checkpoint in entries:
                yield from (f"completion {checkpoint}: {what}" for what in _wrong(entries[checkpoint], told))
            case _:
                pass


def _wrong(entry: CheckpointRecord, told: tuple[tuple[str, str, str], ...]) -> Iterator[str]:
    times = Counter((source, split) for source, split, _ in told)
    yield from (f"{split} is told {count} times" for split, count in times.items() if count > 1)
    said = {(source, split): position for source, split, position in told}
    reached = {
        (str(vertex.vertex), split): subtask.position
        for vertex in entry.vertices
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
    }
    yield from (f"{split} is no split of the entry" for split in said if split not in reached)
    flying = _flying(entry)
    for split, end in reached.items():
        slices = flying.get(split, set())
        position = said.get(split)
        if position is not None and not _leads(position, slices, end):
            yield f"{split} is told as {position}; the entry says {end}, in flight are {sorted(slices)}"
        starts = {end, *(start for start, _ in slices)}
        if position is None and any(start is not None and _leads(start, slices, end) for start in starts):
            yield f"{split} is not told; the entry says {end}, in flight are {sorted(slices)}"


def _flying(entry: CheckpointRecord) -> dict[Split, Slices]:
    found: dict[Split, Slices] = {}
    for vertex in entry.vertices:
        for subtask in vertex.subtasks:
            for held in subtask.in_flight:
                for segment in held.segments:
                    if isinstance(segment, SourceSlice):
                        split = (str(held.channel.edge.upstream), str(segment.split))
                        found.setdefault(split, set()).add((segment.start, segment.end))
    return found


def _leads(position: str, slices: Slices, end: str | None) -> bool:
    """Return whether the slices, one after the other, lead from the position to the end, with none left over."""
    at, left = position, set(slices)
    while left:
        begin_here = [piece for piece in left if piece[0] == at]
        if len(begin_here) != 1:
            return False
        left.remove(begin_here[0])
        at = begin_here[0][1]
    return at == end


# ------------------------------------------------------------------
# Checks two rules of broadcast state (D1): every subtask holds the whole state, and the state counts the rows before
# the barrier.
#
# The small pipeline has a vertex `totals`. Its broadcast state counts, for each key, the pairs that reach the vertex
# at any subtask.


def broadcast_tables(vertex: VertexRecord) -> frozenset[TableName]:
    """Return the tables of the vertex's broadcast state.

    Unlike the files of keyed state, its files are listed in `ranges`.
    """
    return frozenset(own.table for each in vertex.subtasks for own in each.ranges if own.table.startswith("_tidemark/"))


def broadcast_files(vertex: VertexRecord, table: TableName) -> tuple[frozenset[str], ...]:
    """Return the files of a broadcast state that each subtask holds."""
    return tuple(
        frozenset(keyed.file.path for own in each.ranges if own.table == table for keyed in own.files)
        for each in vertex.subtasks
    )


@rule("broadcast-is-whole")
def broadcast_is_whole(history: History) -> Iterator[str]:
    """All subtasks of a vertex hold the same files of its broadcast state, at every entry (D1)."""
    for record in _entries(history):
        for vertex in record.vertices:
            for table in broadcast_tables(vertex):
                if len({*broadcast_files(vertex, table)}) > 1:
                    yield f"checkpoint {record.checkpoint}: the subtasks of {vertex.vertex} hold different {table}"


@rule("broadcast-is-exact")
def broadcast_is_exact(history: History) -> Iterator[str]:
    """The broadcast state of entry n holds the effect of the rows before barrier n once, except rows in flight at n.

    In at-least-once mode, counts may be too high.
    """
    drains, declared = drained_rows(history), set[tuple[Generation, TableName]]()
    for event in history.without_flow:
        if isinstance(event, DoorStarted):
            tables = (table for vertex in event.graph.vertices for table in vertex.tables if table.broadcast)
            declared |= {(event.generation, table.name) for table in tables}
        elif isinstance(event, RowCommitted):
            record = event.record
            totals = next(each for each in record.vertices if first_id(each.vertex) == TOTALS)
            said = {table for generation, table in declared if generation == record.generation}
            for table in said | broadcast_tables(totals):
                due = {key: count for key, (count, _) in expected(history, record, drains).totals.items()}
                yield from _differs(history, record, _counts(history, totals, table), due)


def _counts(history: History, totals: VertexRecord, table: TableName) -> dict[int, int]:
    files = [keyed for each in totals.subtasks for own in each.ranges if own.table == table for keyed in own.files]
    return {key: _number(value) for keyed in files for key, value in history.state(keyed).items()}


def _differs(history: History, record: CheckpointRecord, held: dict[int, int], due: dict[int, int]) -> Iterator[str]:
    fits = held == due
    if history.mode is not CheckpointingMode.EXACTLY_ONCE:
        fits = all(held.get(key, 0) >= count for key, count in due.items())
    if not fits:
        yield f"checkpoint {record.checkpoint}: the broadcast state counts {held}, and {due} came before its barrier"


def _entries(history: History) -> Iterator[CheckpointRecord]:
    return (event.record for event in history.of(RowCommitted))


def _number(value: tuple[object, ...] | None) -> int:
    return value[0] if value and isinstance(value[0], int) else 0


# ------------------------------------------------------------------
# Judges the changes since the parent's cut that a publication of an upsert or state table lists.
#
# If the table still shows the parent's cut, the store commits only the listed changes. Without a list, it compares all
# files. So a missing list only costs time, but a wrong list can go unnoticed. This rule looks at the entries alone.


@rule("changes-said")
class ChangesSaid(DoorJudge):
    """Judges the changes that a door lists when it publishes its own entries."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        restored = door.setup.restored
        self._entries: dict[CheckpointId, CheckpointRecord] = {restored.checkpoint: restored} if restored else {}

    def asked(self, effect: Effect) -> None:
        record = drafted(effect)
        if record is not None:
            self._entries[record.checkpoint] = record
        elif isinstance(effect, PublishTable) and effect.checkpoint in self._entries:
            entry = self._entries[effect.checkpoint]
            for what in self._wrong(entry, self._entries.get(entry.parent), effect.publication):
                self.wrong(f"checkpoint {entry.checkpoint}: {what}")

    def _wrong(
        self, entry: CheckpointRecord, parent: CheckpointRecord | None, publication: Publication
    ) -> Iterator[str]:
        if publication.mode is TableMode.APPEND or publication.outside:
            return
        if len(_paths(publication.files)) != len(publication.files):
            yield f"the publication of {publication.table} lists a file twice"
        said, before = publication.changes, _table(parent, publication.table)
        if said is None:
            if parent is not None and before is not None and self._compares(entry, parent, publication.table):
                yield f"{publication.table} is published, and nothing is said of what changed since {parent.checkpoint}"
            return
        were, are = _paths(before.files if before is not None else ()), _paths(publication.files)
        if (_paths(said.new), _paths(said.gone)) != (are - were, were - are):
            yield f"{publication.table} is said to get {_paths(said.new)} and to lose {_paths(said.gone)}"
        now = _table(entry, publication.table)
        if now is None or said.version != now.parent_version:
            yield f"the changes of {publication.table} count from version {said.version}"

    def _compares(self, entry: CheckpointRecord, parent: CheckpointRecord, table: TableName) -> bool:
        """Return whether the parent published the table under this name, and no two subtasks share a file of it."""
        if parent.kind is not RowKind.CHECKPOINT or table in self.door.setup.renamed:
            return False
        operators = self.door.setup.graph.operators()
        writers = {vertex.id for vertex in operators if any(each.name == table for each in vertex.tables)}
        both = [list(_held_of_changes_said(row, table, writers)) for row in (entry, parent)]
        return all(held and max(Counter(held).values()) == 1 for held in both)


def _held_of_changes_said(row: CheckpointRecord, table: TableName, writers: set[VertexId]) -> Iterator[str]:
    """Yield the files of a table, subtask by subtask. A file that two subtasks have is yielded twice."""
    for vertex in (each for each in row.vertices if each.vertex in writers):
        for subtask in vertex.subtasks:
            keyed = [each for entry in subtask.ranges if entry.table == table for each in entry.files]
            yield from (each.file.path for each in keyed or subtask.state)


def _table(record: CheckpointRecord | None, name: TableName) -> TableRecord | None:
    return next((each for each in (record.tables if record is not None else ()) if each.table == name), None)


def _paths(files: Iterable[FileHandle]) -> frozenset[str]:
    return frozenset(file.path for file in files)
