"""Turns one declared vertex into what the operators run: its specification and its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from pyspark.sql.types import StructType

from checkpointing.graph import TableMode
from checkpointing.identifiers import VertexId
from checkpointing.state_meaning import ColumnMeaning
from jobs.operators.keyed_vertices import (
    KeyedPlace,
    aggregate_spec,
    applied_changes_spec,
    changing_aggregate_spec,
    enrich_spec,
    join_spec,
    top_spec,
)
from jobs.operators.meanings import broadcast_meaning, process_meanings
from jobs.operators.spec import (
    BroadcastRowsKept,
    InputPlan,
    KeyedInput,
    KeyedSpec,
    Spec,
    StagedTable,
    StatelessSpec,
    VertexPlan,
    quarantine_schema,
)
from jobs.pipeline.steps import in_turn
from jobs.pipeline.vertices import (
    AggregateVertex,
    AppliedVertex,
    Declared,
    EnrichVertex,
    Input,
    JoinVertex,
    KeyedVertex,
    OutputTable,
    ProcessVertex,
    SourceVertex,
    StagedVertex,
    TopVertex,
    former_names_of_columns,
    inputs_of,
    named_outputs_of,
    puts_out_changes,
)
from jobs.planner.changelogs import Changelogs
from jobs.state.backends import StateBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The rest of a pipeline, as a vertex's plan needs it: all vertices, those that are read, how keyed ones run.

    A vertex of which only named outputs are read is not among those that are `read`.

    `changelogs` has the vertices whose changes each vertex takes.
    """

    vertices: Mapping[VertexId, Declared]
    read: frozenset[VertexId]
    changelogs: Changelogs
    parallelism: int
    max_parallelism: int
    backend: StateBackend


def vertex_plan(vertex: StagedVertex | KeyedVertex, around: Around) -> VertexPlan:
    """Return the vertex's plan; raise InvalidSpecError, naming the vertex, if no job can run it."""
    taken = around.changelogs[vertex.id]
    inputs = tuple(_input_plan(reads, around, takes_changes=reads.origin in taken) for reads in inputs_of(vertex))
    return VertexPlan(_spec(vertex, around), inputs)


def _input_plan(reads: Input, around: Around, *, takes_changes: bool) -> InputPlan:
    """Return how the input is read. Files of a changelog may have kinds: an older pipeline may need them.

    Rows in flight, which an unaligned cut holds, come from the pipeline of that time.
    """
    origin = around.vertices[reads.origin]
    reader = origin.source if isinstance(origin, SourceVertex) else None
    chain = in_turn([step.chain for step in reads.steps])
    of_changes = puts_out_changes(origin)
    outputs = named_outputs_of(origin)
    rows = origin.rows if reads.output is None else outputs[reads.output]
    return InputPlan(rows, reader, chain, of_changes, takes_changes, reads.output, tuple(outputs))


def _spec(vertex: StagedVertex | KeyedVertex, around: Around) -> Spec:
    if isinstance(vertex, StagedVertex):
        return _stateless_spec(vertex, around)
    place: KeyedPlace = {
        "vertex": vertex.id,
        "parallelism": around.parallelism,
        "max_parallelism": around.max_parallelism,
        "table": _staged_table(vertex.table, vertex.rows),
        "emits": vertex.id in around.read,
        "emits_changes": _is_taken(vertex.id, around),
        "backend": around.backend,
        "columns_renamed_from": former_names_of_columns(vertex),
    }
    match vertex:
        case AggregateVertex():
            (reads,) = vertex.inputs
            spec = aggregate_spec if not vertex.changes_of else changing_aggregate_spec
            return spec(rows=reads.schema, keys=reads.keys, aggregates=vertex.aggregates, **place)
        case EnrichVertex():
            left, right = vertex.inputs
            return enrich_spec(
                left=left.schema,
                right=right.schema,
                keys=left.keys,
                right_keys=right.keys,
                columns=vertex.columns,
                latest_by=vertex.latest_by,
                **place,
            )
        case JoinVertex():
            left, right = vertex.inputs
            return join_spec(
                left=left.schema,
                right=right.schema,
                keys=left.keys,
                right_keys=right.keys,
                how=vertex.how,
                changelogs=(left.origin in vertex.changes_of, right.origin in vertex.changes_of),
                **place,
            )
        case AppliedVertex():
            return applied_changes_spec(rows=vertex.inputs[0].schema, function=vertex.function, **place)
        case TopVertex():
            return top_spec(rows=vertex.inputs[0].schema, function=vertex.function, **place)
        case ProcessVertex():
            return KeyedSpec(
                inputs=tuple(KeyedInput(keys=reads.keys, schema=reads.schema) for reads in vertex.inputs),
                broadcast=_broadcast(vertex),
                function=vertex.function,
                state=vertex.state,
                output=vertex.rows,
                outputs=vertex.outputs,
                meanings=_meanings(vertex),
                **place,
            )
        case _ as unreachable:
            assert_never(unreachable)


def _meanings(vertex: ProcessVertex) -> tuple[ColumnMeaning, ...]:
    own = process_meanings(vertex.function, vertex.state, vertex.inputs[0].keys)
    kept = vertex.broadcast
    return own if kept is None else (*own, broadcast_meaning(kept, vertex.inputs[-1].schema))


def _broadcast(vertex: ProcessVertex) -> BroadcastRowsKept | None:
    return None if vertex.broadcast is None else BroadcastRowsKept(vertex.inputs[-1].schema, vertex.broadcast)


def _stateless_spec(vertex: StagedVertex, around: Around) -> StatelessSpec:
    table, check = _staged_table(vertex.table, vertex.rows), vertex.check
    emits, changes = vertex.id in around.read, _is_taken(vertex.id, around)
    if check is None:
        return StatelessSpec(vertex=vertex.id, schema=vertex.rows, table=table, emits=emits, emits_changes=changes)
    quarantine = StagedTable(check.quarantine, TableMode.APPEND, quarantine_schema(vertex.rows))
    return StatelessSpec(
        vertex=vertex.id,
        schema=vertex.rows,
        table=table,
        rules=check.rules,
        quarantine=quarantine,
        emits=emits,
        emits_changes=changes,
    )


def _is_taken(name: VertexId, around: Around) -> bool:
    return any(name in taken for taken in around.changelogs.values())


def _staged_table(table: OutputTable | None, rows: StructType) -> StagedTable | None:
    return None if table is None else StagedTable(table.name, table.mode, rows, table.keys, table.partitioned_by)
