"""Restored state in new columns: what changed is found before the job is claimed, and refused or planned (D6).

The files of the cut are the authority, by their own footers: a fork's tables are made anew, and after a
rollback the state table may be ahead of its files. What may change is `checkpointing.state_evolution`.
A subtask rewrites its whole range the first time that its vertex runs; so the state table is published
in its new columns once all of its files have them, and until then in its old ones: any engine can read
it throughout, without Delta's type widening, under which nobody but Spark could commit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from checkpointing.handles import FileHandle
from checkpointing.identifiers import VertexId
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.state_evolution import Change, Column, Compatibility, StateSchema, changes, verdict
from jobs.operators.schemas import arrow_schema, nullable_schema
from jobs.operators.spec import KeyedSpec, VertexPlan
from jobs.planner import JobPlan
from jobs.state.backend import keys_of
from jobs.state.files import schema_of
from jobs.state.merge import DELETED, KEY_GROUP


@dataclass(frozen=True, slots=True)
class StateMigration:
    """What the state of one operator must change, and the restored files that are concerned."""

    changes: tuple[Change, ...] = ()
    outdated: frozenset[str] = frozenset()


def plan_with_migrations(plan: JobPlan, restored: CheckpointRecord, root: Path) -> JobPlan:
    """Return the plan, its keyed vertices knowing which restored files they must rewrite; `root` is the warehouse.

    Raise CutDoesNotFitError, naming operator and column, if a vertex's state can't follow its new schema.
    """
    migrations = find_migrations(plan, restored, root)
    for vertex, migration in migrations.items():
        refused = next((change for change in migration.changes if change.refused), None)
        if refused is not None:
            raise CutDoesNotFitError(f"checkpoint {restored.checkpoint}: state of operator {vertex!r}: {refused}")
    vertices = dict(plan.vertices)
    for vertex, migration in migrations.items():
        vertices[vertex] = _migrating(vertices[vertex], migration)
    return replace(plan, vertices=vertices)


def _migrating(planned: VertexPlan, migration: StateMigration) -> VertexPlan:
    spec = planned.spec
    return replace(planned, spec=replace(spec, outdated=migration.outdated)) if isinstance(spec, KeyedSpec) else planned


def find_migrations(plan: JobPlan, restored: CheckpointRecord, root: Path) -> Mapping[VertexId, StateMigration]:
    """Return, for each operator whose restored state has other columns than the plan declares, what changed.

    A file that is missing or damaged is left to the micro-batch that needs it, which names it.
    """
    found = {}
    for was in restored.vertices:
        spec = plan.vertices[was.vertex].spec if was.vertex in plan.vertices else None
        if isinstance(spec, KeyedSpec):
            files = {keyed.file.path: keyed.file for snapshot in was.subtasks for keyed in snapshot.state}
            migration = _migration(spec, files.values(), root)
            if migration.changes:
                found[was.vertex] = migration
    return found


def _migration(spec: KeyedSpec, files: Iterable[FileHandle], root: Path) -> StateMigration:
    now = StateSchema(_columns(arrow_schema(spec.state)), spec.keys)
    every: dict[Change, None] = {}
    outdated = set()
    for file in files:
        footer = schema_of(str(root), file)
        of_file = () if footer is None else changes(StateSchema(_columns(footer), keys_of(footer)), now)
        if verdict(of_file) is not Compatibility.AS_IS:
            outdated.add(file.path)
            every.update(dict.fromkeys(of_file))
    return StateMigration(tuple(every), frozenset(outdated))


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of a state row, types as Spark's JSON names them."""
    fields = nullable_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True)).jsonValue()["fields"]
    return tuple(Column(field["name"], field["type"]) for field in fields if field["name"] not in (KEY_GROUP, DELETED))
