"""Restored state and tables under a changed pipeline: changes are found before the claim, and refused or planned (D6).

The files of the cut are the authority for their columns, by their own footers: a fork's tables are made anew, and
after a rollback the state table may be ahead of its files. The cut's row is the authority for what the columns mean.
What may change is decided in `checkpointing.state_evolution`, `checkpointing.state_meaning` and, for output tables,
`checkpointing.commit.columns`.
A subtask rewrites its whole range the first time that its vertex runs, of its state and of its upsert table. So these
tables are published in their new columns once all of their files have them, and until then in their old ones: any
engine can read them throughout, without Delta's type widening, under which nobody but Spark could commit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from checkpointing.columns import TableColumn
from checkpointing.commit.columns import columns_of, differ, table_changes
from checkpointing.evolution import Change, Compatibility, first_refused, verdict
from checkpointing.handles import FileHandle
from checkpointing.identifiers import VertexId
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.state_evolution import Column, StateSchema, changes
from checkpointing.state_meaning import ColumnMeaning, meaning_changes, still_held
from jobs.operators.schemas import arrow_schema, nullable_schema
from jobs.operators.spec import KeyedSpec, VertexPlan
from jobs.planner import JobPlan
from jobs.state.backend import keys_of
from jobs.state.files import schema_of
from jobs.state.merge import DELETED, KEY_GROUP
from jobs.stores.table_columns import declared_columns


@dataclass(frozen=True, slots=True)
class StateMigration:
    """How the state of one operator changes.

    `outdated` are the paths of restored files with other columns. `meanings` are what the next checkpoint records.
    """

    changes: tuple[Change, ...] = ()
    outdated: frozenset[str] = frozenset()
    meanings: tuple[ColumnMeaning, ...] = ()


Migrations = Mapping[VertexId, StateMigration]


def plan_with_migrations(plan: JobPlan, restored: CheckpointRecord, root: Path) -> JobPlan:
    """Return the plan, its keyed vertices knowing which restored files they must rewrite; `root` is the warehouse.

    Raise CutDoesNotFitError, naming operator and column, if a vertex's state cannot serve the plan.
    """
    return migrated(plan, restored, find_migrations(plan, restored, root), root)


def migrated(plan: JobPlan, restored: CheckpointRecord, migrations: Migrations, root: Path) -> JobPlan:
    """Return the plan with these migrations of the restored row; raises as `plan_with_migrations` does."""
    refused = first_refused(all_changes(plan, restored, migrations))
    if refused is not None:
        raise CutDoesNotFitError(f"checkpoint {restored.checkpoint}: {refused}")
    outdated = {vertex: migration.outdated for vertex, migration in migrations.items()}
    for vertex, ranges in _outdated_ranges(plan, restored, root):
        outdated[vertex] = outdated.get(vertex, frozenset()) | ranges
    vertices = {name: _rewriting(planned, outdated.get(name)) for name, planned in plan.vertices.items()}
    in_graph = tuple(
        replace(vertex, meanings=migrations[vertex.id].meanings) if vertex.id in migrations else vertex
        for vertex in plan.graph.vertices
    )
    return replace(plan, vertices=vertices, graph=replace(plan.graph, vertices=in_graph))


def all_changes(plan: JobPlan, restored: CheckpointRecord, migrations: Migrations) -> tuple[Change, ...]:
    """Return the changes of every operator's state, in the order of the cut's vertices, then those of the tables."""
    of_state = (change for migration in migrations.values() for change in migration.changes)
    return (*of_state, *table_changes(plan.graph, restored))


def _rewriting(planned: VertexPlan, outdated: frozenset[str] | None) -> VertexPlan:
    spec = planned.spec
    if not outdated or not isinstance(spec, KeyedSpec):
        return planned
    return replace(planned, spec=replace(spec, outdated=outdated))


def _outdated_ranges(
    plan: JobPlan, restored: CheckpointRecord, root: Path
) -> Iterator[tuple[VertexId, frozenset[str]]]:
    """Yield the files of each upsert table whose columns change and that were written in other ones (D6)."""
    before = columns_of(restored)
    for was in restored.vertices:
        spec = plan.vertices[was.vertex].spec if was.vertex in plan.vertices else None
        if not isinstance(spec, KeyedSpec) or spec.table is None:
            continue
        now, table = declared_columns(arrow_schema(spec.output)), spec.table.name
        if differ(before.get(table), now):
            ranges = (ranges for snapshot in was.subtasks for ranges in snapshot.ranges if ranges.table == table)
            files = {keyed.file.path: keyed.file for each in ranges for keyed in each.files}
            yield was.vertex, frozenset(path for path, file in files.items() if _is_other(file, now, root))


def _is_other(file: FileHandle, columns: tuple[TableColumn, ...], root: Path) -> bool:
    footer = schema_of(str(root), file)
    return footer is not None and differ(declared_columns(footer), columns)


def find_migrations(plan: JobPlan, restored: CheckpointRecord, root: Path) -> Migrations:
    """Return, for each operator whose restored state differs from what the plan declares, what changed.

    A file that is missing or damaged is left to the micro-batch that needs it, which names it.
    """
    return dict(_migrations(plan, restored, root))


def _migrations(plan: JobPlan, restored: CheckpointRecord, root: Path) -> Iterator[tuple[VertexId, StateMigration]]:
    for was in restored.vertices:
        spec = plan.vertices[was.vertex].spec if was.vertex in plan.vertices else None
        if isinstance(spec, KeyedSpec):
            migration = _migration(spec, was, root)
            if migration.changes or migration.meanings != spec.meanings:
                yield was.vertex, migration


def _migration(spec: KeyedSpec, was: VertexRecord, root: Path) -> StateMigration:
    thing = f"state of operator {spec.vertex!r}"
    now = StateSchema(_columns(arrow_schema(spec.state)), spec.keys)
    of_columns: dict[Change, None] = {}
    outdated: set[str] = set()
    held: set[str] = set()
    for file, before in _schemas(was, root):
        of_file = changes(thing, before, now)
        held.update(column.name for column in before.columns)
        if verdict(of_file) is not Compatibility.AS_IS:
            outdated.add(file.path)
            of_columns.update(dict.fromkeys(of_file))
    of_meanings = meaning_changes(thing, was.meanings, spec.meanings, held)
    recorded = still_held(was.meanings, spec.meanings, held)
    return StateMigration((*of_meanings, *of_columns), frozenset(outdated), recorded)


def _schemas(was: VertexRecord, root: Path) -> Iterator[tuple[FileHandle, StateSchema]]:
    """Yield the state files that can be read, each with its columns."""
    files: Iterable[FileHandle] = {
        keyed.file.path: keyed.file for snapshot in was.subtasks for keyed in snapshot.state
    }.values()
    for file in files:
        footer = schema_of(str(root), file)
        if footer is not None:
            yield file, StateSchema(_columns(footer), keys_of(footer))


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of a state row, types as Spark's JSON names them."""
    fields = nullable_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True)).jsonValue()["fields"]
    return tuple(Column(field["name"], field["type"]) for field in fields if field["name"] not in (KEY_GROUP, DELETED))
