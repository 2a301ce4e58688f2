"""Restored state and tables under a changed pipeline. Changes are found before the claim, and refused or planned (D6).

The footers of the cut's files decide which columns the files have, not the logs of their tables: a fork's tables are
new, and after a rollback the log of a state table may be ahead of its files. The cut's entry decides what the columns
mean. `checkpointing.state_evolution` and `checkpointing.state_meaning` decide which changes are allowed,
`checkpointing.commit.columns` for output tables, and `checkpointing.renamed_columns` for renamed columns. The first
time that its vertex runs, a subtask rewrites its whole range of the state and of the upsert table. So these tables are
published with their new columns once all of their files have them, and until then with the old ones. Any engine can
read the tables at all times, without Delta's type widening, with which only Spark could commit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from checkpointing.channel_items import StagedSegment
from checkpointing.columns import TableColumn, columns_then
from checkpointing.commit.columns import columns_of, differ, table_changes
from checkpointing.event_time import Expiry
from checkpointing.graph import JobGraph
from checkpointing.handles import FileHandle
from checkpointing.identifiers import VertexId
from checkpointing.job.restoring import CutDoesNotFitError, in_flight
from checkpointing.metadata.paths import is_state_table
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.renamed_columns import ColumnRenames, column_renames, renamed_columns
from checkpointing.state_evolution import (
    Change,
    ChangeKind,
    Column,
    Compatibility,
    StateSchema,
    changes,
    first_refused,
    renamed_inside,
    under_new_names,
    verdict,
    with_hints,
)
from checkpointing.state_meaning import ColumnMeaning, meaning_changes, renaming_of, still_held
from checkpointing.state_meaning import under_new_names as meanings_under_new_names
from jobs.operators.keyed_vertices import BROADCAST_ROWS
from jobs.operators.process import UnknownOutputError, of_output
from jobs.operators.spec import InputPlan, KeyedSpec, VertexPlan, arrow_schema, nullable_schema
from jobs.pipeline.job_plan import JobPlan
from jobs.state.backend import keys_of
from jobs.state.files import schemas_of
from jobs.state.merge import DELETED, KEY_GROUP
from jobs.state.worker_copy import Aged
from jobs.storage.address import Root
from jobs.warehouse.table_columns import declared_columns


@dataclass(frozen=True, slots=True)
class StateMigration:
    """How the state of one operator changes.

    `outdated` are the paths of restored files with other columns. `meanings` are the meanings that the next checkpoint
    records.
    """

    changes: tuple[Change, ...] = ()
    outdated: frozenset[str] = frozenset()
    meanings: tuple[ColumnMeaning, ...] = ()


Migrations = Mapping[VertexId, StateMigration]


def plan_with_migrations(plan: JobPlan, restored: CheckpointRecord, root: Root) -> JobPlan:
    """Return the plan, with the restored files that its keyed vertices must rewrite. `root` is the warehouse.

    Raise CutDoesNotFitError, naming operator and column, if a vertex's state cannot serve the plan.
    """
    return migrated(plan, restored, find_migrations(plan, restored, root), root)


def migrated(plan: JobPlan, restored: CheckpointRecord, migrations: Migrations, root: Root) -> JobPlan:
    """Return the plan with these migrations of the restored entry. Raises as `plan_with_migrations` does."""
    refused = first_refused((*all_changes(plan, restored, migrations), *_of_rows_in_flight(plan, restored, root)))
    if refused is not None:
        raise CutDoesNotFitError(f"checkpoint {restored.checkpoint}: {refused}")
    outdated = {vertex: migration.outdated for vertex, migration in migrations.items()}
    for vertex, ranges in _outdated_ranges(plan, restored, root):
        outdated[vertex] = outdated.get(vertex, frozenset()) | ranges
    vertices = {name: _rewriting(planned, outdated.get(name)) for name, planned in plan.vertices.items()}
    vertices |= {
        was.vertex: _no_longer_expiring(vertices[was.vertex], was)
        for was in restored.vertices
        if was.vertex in vertices
    }
    in_graph = tuple(
        replace(vertex, meanings=migrations[vertex.id].meanings) if vertex.id in migrations else vertex
        for vertex in plan.graph.vertices
    )
    return replace(plan, vertices=vertices, graph=replace(plan.graph, vertices=in_graph))


def all_changes(plan: JobPlan, restored: CheckpointRecord, migrations: Migrations) -> tuple[Change, ...]:
    """Return the changes of every operator's state, in the order of the cut's vertices, then those of tables."""
    of_state = (change for migration in migrations.values() for change in migration.changes)
    return (*of_state, *table_changes(plan.graph, restored))


def _of_rows_in_flight(plan: JobPlan, restored: CheckpointRecord, root: Root) -> Iterator[Change]:
    """Yield a refused change for each renamed column that rows in flight have only under its old name.

    The column would be null in these rows.

    Raises CutDoesNotFitError for rows in flight of a named output that the pipeline no longer has.
    """
    for channel, segment in in_flight(restored):
        edge = channel.edge
        if not isinstance(segment, StagedSegment) or edge not in plan.graph.edges:
            continue
        reads = plan.vertices[edge.downstream].inputs[edge.input]
        files, now = _files_of_output(restored, edge.upstream, segment, reads), reads.schema.names
        above = _renamed_up_to(plan.graph, edge.downstream)
        for footer in schemas_of(str(root), files) if above else ():
            for new, old in columns_then(now, footer.names if footer is not None else (), above).items():
                refused = (
                    f"these rows have the name {old}. Run the version with the name {old} until it is caught up, and "
                    "then the new one"
                )
                thing = f"rows in flight from {edge.upstream!r}"
                yield Change(kind=ChangeKind.NAME, thing=thing, column=new, was=old, now=new, refused=refused)


def _files_of_output(
    restored: CheckpointRecord, upstream: VertexId, segment: StagedSegment, reads: InputPlan
) -> tuple[FileHandle, ...]:
    """Return the files that the input reads. Other files on its channel belong to other outputs, with other columns."""
    try:
        of_input = tuple(of_output([segment], reads.output, reads.outputs))
    except UnknownOutputError as error:
        raise CutDoesNotFitError(f"checkpoint {restored.checkpoint}, vertex {upstream!r}: {error}") from error
    return tuple(file for own in of_input if isinstance(own, StagedSegment) for file in own.files)


def _renamed_up_to(graph: JobGraph, vertex: VertexId) -> dict[str, str]:
    """Return a dict from new to old names of columns that this vertex and the vertices upstream of it rename."""
    found: dict[str, str] = {}
    for edge in graph.upstream(vertex):
        found |= _renamed_up_to(graph, edge.upstream)
    return found | dict(graph.vertex(vertex).columns_renamed_from)


def _rewriting(planned: VertexPlan, outdated: frozenset[str] | None) -> VertexPlan:
    spec = planned.spec
    if not outdated or not isinstance(spec, KeyedSpec):
        return planned
    return replace(planned, spec=replace(spec, outdated=outdated))


def _no_longer_expiring(planned: VertexPlan, was: VertexRecord) -> VertexPlan:
    """Return the plan of a vertex.

    If its state no longer expires, rows that had expired at the cut do not come back.
    """
    spec, then = planned.spec, was.expiry
    if then is None or not isinstance(spec, KeyedSpec) or spec.expires is not None:
        return planned
    lapsed = Aged(Expiry(then.ttl_ms, by_clock=then.by_clock), then.now_ms)
    return replace(planned, spec=replace(spec, lapsed=lapsed))


def _outdated_ranges(
    plan: JobPlan, restored: CheckpointRecord, root: Root
) -> Iterator[tuple[VertexId, frozenset[str]]]:
    """Yield for each upsert table whose columns change the files that were written with other columns (D6)."""
    before = columns_of(restored)
    for was in restored.vertices:
        spec = plan.vertices[was.vertex].spec if was.vertex in plan.vertices else None
        if not isinstance(spec, KeyedSpec) or spec.table is None:
            continue
        now, table = declared_columns(arrow_schema(spec.output)), spec.table.name
        if differ(before.get(table), now):
            ranges = (ranges for snapshot in was.subtasks for ranges in snapshot.ranges if ranges.table == table)
            files = {keyed.file.path: keyed.file for each in ranges for keyed in each.files}
            footers = zip(files, schemas_of(str(root), files.values()), strict=True)
            yield was.vertex, frozenset(path for path, footer in footers if _is_other(footer, now))


def _is_other(footer: pa.Schema | None, columns: tuple[TableColumn, ...]) -> bool:
    return footer is not None and differ(declared_columns(footer), columns)


def find_migrations(plan: JobPlan, restored: CheckpointRecord, root: Root) -> Migrations:
    """Return the changes for each operator whose restored state differs from what the plan declares.

    A file that is missing or damaged is ignored here. The micro-batch that needs the file reports it.
    """
    return dict(_migrations(plan, restored, root))


def _migrations(plan: JobPlan, restored: CheckpointRecord, root: Root) -> Iterator[tuple[VertexId, StateMigration]]:
    keyed = [was for was in restored.vertices if was.vertex in plan.vertices]
    specs = {was.vertex: plan.vertices[was.vertex].spec for was in keyed}
    schemas = _schemas([was for was in keyed if isinstance(specs[was.vertex], KeyedSpec)], root)
    for was in keyed:
        spec = specs[was.vertex]
        if isinstance(spec, KeyedSpec):
            vertex = plan.graph.vertex(was.vertex)
            renames = column_renames(vertex, restored), _renamed_up_to(plan.graph, vertex.id)
            migration = _with_broadcast(_migration(spec, was, schemas, *renames), spec, was, schemas)
            if migration.changes or migration.meanings != spec.meanings:
                yield was.vertex, migration


def _with_broadcast(
    migration: StateMigration, spec: KeyedSpec, was: VertexRecord, schemas: "_Schemas"
) -> StateMigration:
    """Return the migration with the changes of the vertex's broadcast state added (D1)."""
    taken = spec.broadcast
    if taken is None:
        return migration
    thing, files = f"broadcast state of operator {spec.vertex!r}", _broadcast_files(was)
    now = StateSchema(_columns(arrow_schema(taken.schema)), taken.kept.keys)
    of_file = {path: changes(thing, schemas[path], now) for path in files if path in schemas}
    outdated = {path for path, found in of_file.items() if verdict(found) is not Compatibility.AS_IS}
    found = dict.fromkeys(change for path in outdated for change in of_file[path])
    then, meant = (_of_broadcast(meanings) for meanings in (was.meanings, spec.meanings))
    told = meaning_changes(thing, then or None, meant, {BROADCAST_ROWS} if files else ())
    return replace(migration, changes=(*told, *migration.changes, *found), outdated=migration.outdated | outdated)


def _of_broadcast(meanings: Iterable[ColumnMeaning] | None) -> tuple[ColumnMeaning, ...]:
    return tuple(each for each in meanings or () if each.column == BROADCAST_ROWS)


def _migration(
    spec: KeyedSpec, was: VertexRecord, schemas: "_Schemas", renames: ColumnRenames, above: Mapping[str, str]
) -> StateMigration:
    thing = f"state of operator {spec.vertex!r}"
    now = StateSchema(_columns(spec.stored), spec.state_keys)
    of_columns: dict[Change, None] = {}
    outdated: set[str] = set()
    held: set[str] = set()
    called: dict[str, str] = {}
    names = [column.name for column in now.columns]
    for path in (path for path in _state_files(was) if path in schemas):
        before = schemas[path]
        there = [column.name for column in before.columns]
        then = columns_then(names, there, renames.now)
        of_file = (
            *renamed_columns(ChangeKind.STATE_SCHEMA, thing, names, there, renames),
            *_renamed_inside(thing, before, now, above),
            *changes(thing, under_new_names(before, then), now),
        )
        held.update(there)
        called.update(then)
        if verdict(of_file) is not Compatibility.AS_IS:
            outdated.add(path)
            of_columns.update(dict.fromkeys(of_file))
    before_now = meanings_under_new_names(was.meanings, called)
    of_meanings = meaning_changes(thing, before_now, spec.meanings, held | called.keys())
    recorded = still_held(was.meanings, spec.meanings, held)
    told = with_hints(tuple(of_columns), partial(renaming_of, was.meanings, spec.meanings))
    return StateMigration((*of_meanings, *told), frozenset(outdated), recorded)


def _renamed_inside(thing: str, was: StateSchema, now: StateSchema, above: Mapping[str, str]) -> Iterator[Change]:
    """Yield as refused each field inside a state column that has the old name of a column renamed upstream."""
    for column, old, new in renamed_inside(was, now, above):
        refused = (
            f"rows that it holds have the name {old}, and a rename does not reach into them. Give the operator's input "
            f"the old name back, as in .with_column({old!r}, {new!r}, TYPE).drop({new!r})"
        )
        at = f"{column}.{new}"
        yield Change(kind=ChangeKind.STATE_SCHEMA, thing=thing, column=at, was=old, now=new, refused=refused)


_Schemas = Mapping[str, StateSchema]
"""From the path of each readable state file to its columns."""


def _schemas(of: Iterable[VertexRecord], root: Root) -> _Schemas:
    """Return a dict from the paths of all readable state files to their columns."""
    files = {path: file for was in of for path, file in (_state_files(was) | _broadcast_files(was)).items()}
    footers = zip(files, schemas_of(str(root), files.values()), strict=True)
    return {path: StateSchema(_columns(footer), keys_of(footer)) for path, footer in footers if footer is not None}


def _state_files(was: VertexRecord) -> dict[str, FileHandle]:
    return {keyed.file.path: keyed.file for snapshot in was.subtasks for keyed in snapshot.state}


def _broadcast_files(was: VertexRecord) -> dict[str, FileHandle]:
    ranges = (entry for snapshot in was.subtasks for entry in snapshot.ranges if is_state_table(entry.table))
    return {keyed.file.path: keyed.file for entry in ranges for keyed in entry.files}


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of a state row. Types have the names of Spark's JSON."""
    fields = nullable_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True)).jsonValue()["fields"]
    return tuple(Column(field["name"], field["type"]) for field in fields if field["name"] not in (KEY_GROUP, DELETED))
