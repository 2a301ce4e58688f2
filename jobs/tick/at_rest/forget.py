"""Erases the rows of a person from all tables, state and history of a job at rest, by one entry (K6, ADR 24).

The append of the entry is the commit point. If the process dies before it, nothing has been erased, and the next tick
deletes the written files. If the process dies after it, the next tick or command rolls the entry forward. Rows that
cannot be reached are reported.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from checkpointing.commit.at_rest import Forget, held_cut, waits_for_approval
from checkpointing.commit.erasure import in_the_way, rewritten_tables
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, JobName, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, ErasedFile
from checkpointing.tick.attempts import FORGET
from checkpointing.tick.messages import RowChosen, Work, Worked
from jobs.operators.scan.matching import ReadFile, columns_of_predicate, matching_rows
from jobs.suggestions import NotThereError, there_are
from jobs.tick.at_rest.erased_files import (
    SearchedTable,
    Successors,
    key_columns,
    must_be_erasable,
    older_names,
    older_rows_would_return,
    rows_at,
    shown_at,
    tables_of,
)
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.tick.rollback_plan import observe_sound, records_of
from jobs.warehouse.boundaries import WRITE_SUCCESSORS, Boundary, around, cross_freely
from jobs.warehouse.cuts_table import Cut, ReservationStore
from jobs.warehouse.job_stores import JobStores, must_have_run
from jobs.warehouse.warehouse import Warehouse

OpenSession = Callable[[], SparkSession]
"""Opens a Spark session that is not one of Spark Connect. It is called once, before the job is claimed."""


class ForgetRefusedError(Exception):
    """Rows cannot be erased now, and no entry was appended. The message says why, and what to do."""


class UnknownTableError(ForgetRefusedError, NotThereError):
    """The job has no table of that name."""


@dataclass(frozen=True, slots=True)
class ErasureAsked:
    """The user's request: to erase the matching rows of this table, and of all tables that have the same columns."""

    table: str
    predicate: str
    besides: tuple[str, ...] = ()
    """Tables in which nothing is erased."""


@dataclass(frozen=True, slots=True)
class MatchedTable:
    """A table or state with matching rows: how many it shows now and at each recorded cut, in how many files."""

    table: TableName
    is_state: bool
    rows: int
    at_cuts: Mapping[CheckpointId, int]
    files: int
    places: Mapping[str, Sequence[int]]
    """The numbers of the matching rows in each file."""


@dataclass(frozen=True, slots=True)
class LeftTable:
    """A table or state from which nothing is erased, and why."""

    table: TableName
    why: str


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """What is erased, and what cannot be erased.

    `clear` are tables and states that were searched and have no matching row. `sources` are the sources, which still
    have the rows. `outside` are tables whose outside sinks have the rows. `followers` are jobs that read this job's
    cuts. `opaque` are the states of hooks and of sources, which only user code understands.
    """

    job: JobName
    newest: CheckpointRecord
    columns: tuple[str, ...]
    matched: tuple[MatchedTable, ...]
    clear: tuple[TableName, ...]
    left: tuple[LeftTable, ...]
    sources: tuple[VertexId, ...]
    outside: tuple[TableName, ...]
    followers: tuple[str, ...]
    opaque: tuple[str, ...]
    savepoints: tuple[CheckpointId, ...]
    reserved: int
    """How many reservations of readers there are. Each reservation keeps the files that its cut's entry named."""
    folders: tuple[TableName, ...]
    """Tables whose partition folders have the values in their names.

    The names stay in log entries until these are dropped.
    """

    @property
    def rows(self) -> int:
        """How many matching rows tables and state show now."""
        return sum(each.rows for each in self.matched)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The outcome: the plan, the new entry, and the notes of the publication. None: there was no matching row."""

    plan: ForgetPlan
    record: CheckpointRecord | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Search:
    """The result of one search. `tables` are all searched tables. Their logs are rewritten."""

    plan: ForgetPlan
    tables: tuple[SearchedTable, ...]


def preview_forget(warehouse: Warehouse, asked: ErasureAsked, session: OpenSession) -> ForgetPlan:
    """Return what `forget` would do, without changing anything. Raises the errors of `forget` before its claim."""
    must_have_run(warehouse)
    stores = JobStores(warehouse, cross_freely)
    seen = observe_sound(stores)
    held = held_cut(seen.rows)
    if held is not None:
        raise ForgetRefusedError(f"{waits_for_approval(held)}; nothing was changed")
    _must_be_possible(warehouse, seen)
    return _searched(stores, seen, asked, session()).plan


def forget(
    warehouse: Warehouse, asked: ErasureAsked, session: OpenSession, *, boundary: Boundary = cross_freely
) -> Forgotten:
    """Erase rows of a job at rest from its tables, its state, all kept cuts and all savepoints. Return the report.

    If no row matches, no entry is appended. Raises NeverRunError, JobHeldError, CutAwaitsApprovalError,
    ForgetRefusedError, PredicateError, NotErasableError and LogNotRewrittenError before an entry is appended. Raises
    ClaimUnsettledError if it is unknown whether the entry was appended. Once the entry is committed, raises
    RollForwardError if a table cannot be published, and CutsNotRecordedError if a cut cannot be recorded. The next tick
    or command then publishes it.
    """
    must_have_run(warehouse)
    stores, spark = JobStores(warehouse, boundary), session()
    found: list[_Search] = []
    _searched(stores, observe_sound(stores), asked, spark, only_names=True)  # a wrong predicate claims nothing

    def possible(seen: Observed, _: RecoveryPlan) -> None:
        _must_be_possible(warehouse, seen)

    def chosen(work: Work) -> RowChosen | Worked:
        search = _searched(stores, stores.observe(), asked, spark)
        found.append(search)
        if not search.plan.matched:
            return Worked()
        warehouse.place(warehouse.paths.erasure).replace(str(work.claim.generation).encode())
        with around(boundary, WRITE_SUCCESSORS):
            erased = _written(warehouse, work, search)
        newest = search.plan.newest
        now = stores.cuts.read(newest.checkpoint) or {}
        versions = {table.name: now.get(table.name, 0) for table in search.tables if table.has_log}
        tables = rewritten_tables(newest, warehouse.paths.job, erased, versions)
        return RowChosen(Forget(newest, tables, erased))

    task = Task(errand=FORGET, do_work=chosen, possible=possible, observe=observe_sound)
    done = done_at_rest(stores, task, boundary)
    search = found[-1]
    if done.row is None:
        return Forgotten(search.plan, None)
    notes = (*done.published.notes, *_written_meanwhile(search, dict(done.published.versions)))
    return Forgotten(search.plan, done.row, notes)


def _written_meanwhile(search: _Search, versions: Mapping[TableName, int]) -> Iterator[str]:
    """Yield a note for each table to which another program wrote after the search: it can have copied erased rows."""
    known = (each for each in search.tables if each.name in versions)
    written = sorted(each.name for each in known if versions[each.name] != each.version + 1)
    if written:
        yield (
            f"another program wrote to {', '.join(written)} after the search, and may have copied erased rows, as "
            "OPTIMIZE does: do the same again"
        )


def _must_be_possible(warehouse: Warehouse, seen: Observed) -> None:
    records, job = records_of(seen), warehouse.paths.job
    if newest_checkpoint(records) is None:
        raise ForgetRefusedError(f"{job} has no completed checkpoint, so no table shows a row: nothing was changed")
    in_flight = in_the_way(records)
    if in_flight is not None:
        raise ForgetRefusedError(
            f"{in_flight.kind.value} {in_flight.checkpoint} of {job} is unaligned and holds rows in flight, which no "
            f"table shows yet: run 'tidemark run {job}' until no such checkpoint is retained, then do the same again; "
            "nothing was changed"
        )


def _searched(
    stores: JobStores, seen: Observed, asked: ErasureAsked, spark: SparkSession, *, only_names: bool = False
) -> _Search:
    """Search all files. With `only_names`, search no file, and only check that the request is possible."""
    warehouse, records = stores.warehouse, records_of(seen)
    newest = newest_checkpoint(records)
    if newest is None:
        raise ForgetRefusedError(f"{warehouse.paths.job} has no completed checkpoint")
    tables = tables_of(stores.held, records)
    known = {table.name: table for table in tables}
    for name in (asked.table, *asked.besides):
        if name not in known:
            shown = [table.name for table in tables if not table.is_state]
            raise UnknownTableError(f"{warehouse.paths.job} has no table {name!r}: {there_are(name, shown)}")
    schema = known[TableName(asked.table)].schema
    columns = columns_of_predicate(spark, asked.predicate, schema)
    cuts, older = stores.cuts.all(), older_names(records)
    searched, matched, left = list[SearchedTable](), list[MatchedTable](), list[LeftTable]()
    for table in tables if not only_names else ():
        why_not = _why_not(table, asked, columns)
        if why_not:
            left.append(LeftTable(table.name, why_not))
            continue
        places = _places(warehouse, spark, asked.predicate, columns, table, older)
        must_be_erasable(warehouse, table, places)
        if older_rows_would_return(warehouse, table, places, columns):
            keys = ", ".join(key_columns(warehouse, table))
            why = f"some keys have rows that match and rows that do not: only a predicate on its key ({keys}) fits it"
            left.append(LeftTable(table.name, why))
            continue
        searched.append(table)
        if places:
            matched.append(_matched(warehouse, table, places, cuts))
    found = tuple(searched)
    return _Search(_plan(stores, newest, columns, found, tuple(matched), tuple(left)), found)


def _why_not(table: SearchedTable, asked: ErasureAsked, columns: Collection[str]) -> str:
    """Return why a table is not searched, or an empty text if it is searched."""
    if table.name in asked.besides:
        return "left out with --except"
    lacks = [name for name in columns if not table.named(name)]
    several = next((found for name in columns if len(found := table.named(name)) > 1), None)
    if several is not None:
        return f"has the columns {' and '.join(several)}, and case does not say which one the predicate means"
    inside = table.within(lacks)
    if inside:
        return f"has {inside[0]} only inside another column, which the predicate does not reach"
    return f"has no column {lacks[0]}" if lacks else ""


def _places(
    warehouse: Warehouse,
    spark: SparkSession,
    predicate: str,
    columns: Sequence[str],
    table: SearchedTable,
    older: Mapping[str, Sequence[str]],
) -> dict[str, list[int]]:
    schema = pa.schema([table.schema.field(name) for name in table.own(columns)])
    files = [ReadFile(each.path, each.partition, each.inline) for each in table.files]
    return matching_rows(spark, str(warehouse.root), predicate, schema, files, older)


def _matched(
    warehouse: Warehouse, table: SearchedTable, places: dict[str, list[int]], cuts: Mapping[CheckpointId, Cut]
) -> MatchedTable:
    versions = {checkpoint: cut[table.name] for checkpoint, cut in cuts.items() if table.name in cut}
    shown = {version: shown_at(warehouse, table.name, version) for version in {*versions.values()} if table.has_log}
    at_cuts = {
        checkpoint: rows_at(table, places, shown.get(version, ())) for checkpoint, version in sorted(versions.items())
    }
    now = rows_at(table, places, shown_at(warehouse, table.name, None)) if table.has_log else 0
    return MatchedTable(table.name, table.is_state, now, at_cuts, len(places), places)


def _plan(
    stores: JobStores,
    newest: CheckpointRecord,
    columns: tuple[str, ...],
    searched: tuple[SearchedTable, ...],
    matched: tuple[MatchedTable, ...],
    left: tuple[LeftTable, ...],
) -> ForgetPlan:
    records = [row for row in stores.entries.rows() if isinstance(row, CheckpointRecord)]
    hit = {each.table for each in matched}
    named = {each.name for each in searched if not set(each.partitioned_by).isdisjoint(each.own(columns))}
    return ForgetPlan(
        job=stores.warehouse.paths.job,
        newest=newest,
        columns=columns,
        matched=matched,
        clear=tuple(each.name for each in searched if each.name not in hit),
        left=left,
        sources=tuple(each.vertex for each in newest.vertices if each.splits),
        outside=tuple(sorted({table for record in records for table in record.outside})),
        followers=tuple(dict.fromkeys(each.reader for each in ReservationStore(stores.warehouse).by_jobs())),
        opaque=tuple(dict.fromkeys(_opaque(newest))),
        savepoints=tuple(sorted(row.checkpoint for row in records if row.is_savepoint)),
        reserved=len(ReservationStore(stores.warehouse).reservations()),
        folders=tuple(sorted(named & hit)),
    )


def _opaque(newest: CheckpointRecord) -> Iterator[str]:
    yield from (f"master hook {held.hook}" for held in newest.hooks)
    yield from (f"source {vertex.vertex}" for vertex in newest.vertices if vertex.coordinator is not None)


def _written(warehouse: Warehouse, work: Work, search: _Search) -> tuple[ErasedFile, ...]:
    writer = Successors(warehouse, work.claim.generation)
    tables = {table.name: table for table in search.tables}
    return tuple(
        erased
        for each in search.plan.matched
        for erased in writer.of(tables[each.table], each.places, search.plan.columns)
    )
