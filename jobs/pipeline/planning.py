"""Finds which changes are sent: those that a keyed vertex takes, directly or through unions.

A vertex emits changes only if another vertex takes them. So a union takes the changes of its streams only if another
vertex takes the union's changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import pyarrow as pa
from pyspark.sql.types import StructType

from checkpointing.config import CheckpointConfig, CheckpointingMode, StateBackendKind
from checkpointing.event_time import EventTime
from checkpointing.graph import Hook, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId, JobName, TableName, VertexId, vertex_id
from checkpointing.metadata.paths import table_of_broadcast, table_of_state
from checkpointing.renamed_columns import unclear_rename
from checkpointing.state_meaning import ColumnMeaning
from jobs.operators.in_time.joins import AsOfJoin, IntervalJoin, WindowJoin
from jobs.operators.in_time.rows import TopRowsInTime
from jobs.operators.in_time.timers import WithTimers
from jobs.operators.in_time.top import ClosedTopRows
from jobs.operators.in_time.windows import WindowedAggregates
from jobs.operators.keyed_vertices import (
    KeyedPlace,
    aggregate_spec,
    applied_changes_spec,
    broadcast_meaning,
    changing_aggregate_spec,
    closed_top_meanings,
    enrich_spec,
    join_spec,
    process_meanings,
    time_join_meanings,
    top_in_time_meanings,
    top_spec,
    window_meanings,
)
from jobs.operators.process import EndsInput, FiresInTime
from jobs.operators.spec import (
    BroadcastRowsKept,
    InputPlan,
    InputTime,
    KeyedInput,
    KeyedSpec,
    Spec,
    StagedTable,
    StatelessSpec,
    VertexPlan,
    arrow_schema,
    delta_columns,
    quarantine_schema,
)
from jobs.pipeline.columns import InvalidPipelineError, require_kept, require_plain_texts
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.pipeline import Pipeline
from jobs.pipeline.steps import in_turn
from jobs.pipeline.tables import require_partitions_in_time, time_partitions
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
    Step,
    TakesChanges,
    TopVertex,
    changes_of_tables,
    former_names_of_columns,
    inputs_of,
    named_outputs_of,
    puts_out_changes,
    tables_of,
)
from jobs.quality.expectation import Suite
from jobs.sinks.port import AppendedTable, OutsideSink, Sink, TableSink, TwoPhaseSink, UpsertedTable, UpsertSink
from jobs.sources.port import begins_of, is_bounded, keeps_state, upstream_of
from jobs.state.backend import FullBackend, IncrementalBackend, MemoryBackend, StateBackend, state_file_schema

Changelogs = Mapping[VertexId, tuple[VertexId, ...]]
"""The vertices whose changes each vertex takes."""


def changelogs(vertices: Sequence[Declared]) -> Changelogs:
    """Return for each vertex the vertices whose changes it takes. `vertices` are in topological order."""
    found: dict[VertexId, tuple[VertexId, ...]] = {}
    for vertex in reversed(vertices):
        wanted = isinstance(vertex, TakesChanges) or any(vertex.id in taken for taken in found.values())
        found[vertex.id] = vertex.changes_of if wanted and isinstance(vertex, TakesChanges | StagedVertex) else ()
    return found


def keyed_changelogs(name: VertexId, vertices: Mapping[VertexId, Declared], taken: Changelogs) -> tuple[VertexId, ...]:
    """Return the keyed vertices whose changes reach a keyed vertex, directly or through unions, each once."""
    if isinstance(vertices[name], StagedVertex):
        return ()
    return tuple(dict.fromkeys(_behind(name, vertices, taken)))


def _behind(name: VertexId, vertices: Mapping[VertexId, Declared], taken: Changelogs) -> Iterator[VertexId]:
    for upstream in taken[name]:
        if isinstance(vertices[upstream], StagedVertex):
            yield from _behind(upstream, vertices, taken)
        else:
            yield upstream


# ------------------------------------------------------------------
# Lets several readers of one source see the same rows, by writing the rows to files once.
#
# A source's slices are lazy, so each reader would run its own query. If a source has several readers, a new vertex
# runs the steps that all of them begin with, and writes the rows to files for them.


SUFFIX = "_staged"


def stage_shared_sources(vertices: Sequence[Declared]) -> tuple[Declared, ...]:
    """Return the vertices with a staging vertex `<source>_staged` after each source of several readers."""
    staged = {
        vertex.id: _staging_vertex(vertex, readers)
        for vertex in vertices
        if isinstance(vertex, SourceVertex) and len(readers := list(_readers(vertices, vertex.id))) > 1
    }
    return tuple(after for vertex in vertices for after in _rewired(vertex, staged))


def _readers(vertices: Sequence[Declared], source: VertexId) -> Iterator[Input]:
    return (reads for vertex in vertices for reads in inputs_of(vertex) if reads.origin == source)


def _staging_vertex(source: SourceVertex, readers: Sequence[Input]) -> StagedVertex:
    shared = _common(readers)
    if any(step.time is not None for reads in readers for step in reads.steps[len(shared) :]):
        raise InvalidPipelineError(
            f"source {source.id}: several vertices read it, and not all of them after event_time: call event_time "
            "once, on the stream that pipeline.source returns, and go on from what it returns everywhere"
        )
    rows = shared[-1].schema if shared else source.rows
    before = None if source.renamed_from is None else vertex_id(f"{source.renamed_from}{SUFFIX}")
    inputs = (Input(source.id, shared, rows),)
    return StagedVertex(vertex_id(f"{source.id}{SUFFIX}"), inputs, rows, renamed_from=before)


def _common(readers: Sequence[Input]) -> tuple[Step, ...]:
    """Return the steps that all readers begin with."""
    shared = []
    for steps in zip(*(reads.steps for reads in readers), strict=False):
        if any(step is not steps[0] for step in steps):
            break
        shared.append(steps[0])
    return tuple(shared)


def _rewired(vertex: Declared, staged: dict[VertexId, StagedVertex]) -> Iterator[Declared]:
    if isinstance(vertex, SourceVertex):
        yield vertex
        if vertex.id in staged:
            yield staged[vertex.id]
    else:
        yield replace(vertex, inputs=tuple(_reading(reads, staged.get(reads.origin)) for reads in vertex.inputs))


def _reading(reads: Input, staging: StagedVertex | None) -> Input:
    if staging is None:
        return reads
    return replace(reads, origin=staging.id, steps=reads.steps[len(staging.inputs[0].steps) :])


# ------------------------------------------------------------------
# Turns a declared vertex into the plan that the operators run: its specification and its inputs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The facts about a pipeline that a vertex's plan needs.

    `read` are the vertices whose own output is read. A vertex of which only named outputs are read is not among them.

    `changelogs` has the vertices whose changes each vertex takes.
    """

    vertices: Mapping[VertexId, Declared]
    read: frozenset[VertexId]
    changelogs: Changelogs
    parallelism: int
    max_parallelism: int
    backend: StateBackend


def vertex_plan(vertex: StagedVertex | KeyedVertex, around: Around) -> VertexPlan:
    """Return the vertex's plan. Raise InvalidSpecError, naming the vertex, if no job can run it."""
    taken = around.changelogs[vertex.id]
    inputs = tuple(
        _input_plan(reads, around, takes_changes=reads.output is None and reads.origin in taken)
        for reads in inputs_of(vertex)
    )
    return VertexPlan(_spec(vertex, around), inputs)


def _input_plan(reads: Input, around: Around, *, takes_changes: bool) -> InputPlan:
    """Return how to read the input.

    Files of a changelog may have kinds even if this pipeline takes no changes. An older version of the pipeline may
    have written them: an unaligned cut holds rows in flight.
    """
    origin = around.vertices[reads.origin]
    reader = origin.source if isinstance(origin, SourceVertex) else None
    chain = in_turn([step.chain for step in reads.steps])
    of_changes = reads.output is None and puts_out_changes(origin)
    outputs = named_outputs_of(origin)
    rows = origin.rows if reads.output is None else outputs[reads.output]
    time = _input_time(reads.steps)
    return InputPlan(rows, reader, chain, of_changes, takes_changes, reads.output, tuple(outputs), time)


def _input_time(steps: Sequence[Step]) -> InputTime | None:
    """Return where the event times of the rows are measured. None: no step of this input declares event times."""
    for place, step in enumerate(steps):
        if step.time is not None:
            before, after = (in_turn([each.chain for each in part]) for part in (steps[:place], steps[place + 1 :]))
            return InputTime(step.time.column, before, after)
    return None


def _event_times(vertex: Declared) -> tuple[EventTime | None, ...]:
    """Return the event time that each input declares. Empty: no input declares any."""
    said = [[step.time.means for step in reads.steps if step.time is not None] for reads in inputs_of(vertex)]
    return tuple(means[0] if means else None for means in said) if any(said) else ()


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
        "expires": None if isinstance(vertex, AppliedVertex) else vertex.expires,
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
    if isinstance(vertex.function, WindowedAggregates):
        return window_meanings(vertex.function, vertex.inputs[0].schema)
    if isinstance(vertex.function, ClosedTopRows):
        return closed_top_meanings(vertex.function, vertex.inputs[0].schema)
    if isinstance(vertex.function, IntervalJoin | WindowJoin | AsOfJoin):
        return time_join_meanings(vertex.function, *(each.schema for each in vertex.inputs))
    if isinstance(vertex.function, TopRowsInTime):
        return top_in_time_meanings(vertex.function, vertex.inputs[0].schema)
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


# ------------------------------------------------------------------
# Plans a pipeline: makes its vertices, edges and tables, and refuses a source that no vertex reads.


def plan(pipeline: Pipeline, *, parallelism: int | None = None, config: CheckpointConfig | None = None) -> JobPlan:
    """Return the plan of a pipeline. None for an argument means the pipeline's own value.

    Raises InvalidPipelineError for a source that no vertex reads, for a pipeline without vertices, and for a
    configuration that names a source which the pipeline lacks. Raises InvalidSpecError for a vertex that no job can
    run.
    """
    used = config or pipeline.config
    vertices = stage_shared_sources(pipeline.vertices())
    _require_all_read(pipeline.name, vertices)
    _require_counted_sources(vertices, used)
    _require_whole_cuts(vertices, used)
    taken = changelogs(vertices)
    _require_changes_once(taken, used)
    around = Around(
        vertices={vertex.id: vertex for vertex in vertices},
        read=frozenset(reads.origin for vertex in vertices for reads in inputs_of(vertex) if reads.output is None),
        changelogs=taken,
        parallelism=pipeline.parallelism if parallelism is None else parallelism,
        max_parallelism=used.max_parallelism,
        backend=_backend(used),
    )
    plans = {vertex.id: vertex_plan(vertex, around) for vertex in vertices if not isinstance(vertex, SourceVertex)}
    _require_kept_columns(plans)
    sources = [vertex for vertex in vertices if isinstance(vertex, SourceVertex)]
    schemas = dict(_schemas(pipeline.name, plans))
    suites = _suites(vertices)
    graph = JobGraph(
        tuple(_graph_vertex(pipeline.name, vertex, plans, suites, around) for vertex in vertices),
        tuple(edge for vertex in vertices for edge in _edges_into(vertex)),
        tuple(Hook(declared.name, declared.timeout_ms) for declared in pipeline.hooks),
    )
    require_partitions_in_time(graph, _own_tables(vertices))
    unclear = unclear_rename(graph)
    if unclear is not None:
        raise InvalidPipelineError(f"pipeline {pipeline.name}: {unclear}")
    return JobPlan(
        job=pipeline.name,
        graph=graph,
        config=used,
        vertices=plans,
        sources={source.id: source.source for source in sources},
        table_schemas=schemas,
        suites=suites,
        descriptions={table.name: table.says for table in _own_tables(vertices)},
        partitions={table.name: table.partitions for table in _own_tables(vertices) if table.partitions is not None},
        sinks=_sinks(vertices, schemas),
        rows_per_epoch={source.id: source.rows_per_epoch for source in sources if source.rows_per_epoch is not None},
        listeners=pipeline.listeners,
        reports=pipeline.reports,
        hooks={declared.name: declared.hook for declared in pipeline.hooks},
        declared=vertices,
    )


def _backend(config: CheckpointConfig) -> StateBackend:
    match config.state_backend:
        case StateBackendKind.INCREMENTAL:
            return IncrementalBackend()
        case StateBackendKind.FULL:
            return FullBackend()
        case StateBackendKind.MEMORY:
            return MemoryBackend(config.memory_state_limit_bytes)
        case _ as unreachable:
            assert_never(unreachable)


def _require_all_read(job: JobName, vertices: Sequence[Declared]) -> None:
    read = {reads.origin for vertex in vertices for reads in inputs_of(vertex)}
    idle = [vertex.id for vertex in vertices if isinstance(vertex, SourceVertex) and vertex.id not in read]
    if idle:
        raise InvalidPipelineError(
            f"pipeline {job}: nothing reads source {idle[0]}; keep it in a table, key it, or leave it out"
        )
    taken = {(reads.origin, reads.output) for vertex in vertices for reads in inputs_of(vertex)}
    for vertex in vertices:
        left = [name for name in named_outputs_of(vertex) if (vertex.id, name) not in taken]
        if left:
            raise InvalidPipelineError(
                f"pipeline {job}: nothing reads the output {left[0]!r} of vertex {vertex.id}; keep it in a table, "
                f"as in output({left[0]!r}).table(..., id=...), or leave it out"
            )
    if not vertices:
        raise InvalidPipelineError(f"pipeline {job}: it has no source")


def _require_counted_sources(vertices: Sequence[Declared], config: CheckpointConfig) -> None:
    sources = [vertex.id for vertex in vertices if isinstance(vertex, SourceVertex)]
    unknown = [name for name in config.rows_of if name not in sources]
    if unknown:
        raise InvalidPipelineError(f"rows_of: there is no source {unknown[0]!r}, only {', '.join(sources)}")


def _require_whole_cuts(vertices: Sequence[Declared], config: CheckpointConfig) -> None:
    """Raise InvalidPipelineError if a table could show a part of another job's cut (A10)."""
    sources = [vertex for vertex in vertices if isinstance(vertex, SourceVertex)]
    of_cuts = [vertex.id for vertex in sources if upstream_of(vertex.source) is not None]
    if of_cuts and (config.unaligned or config.mode is not CheckpointingMode.EXACTLY_ONCE):
        mode = "unaligned" if config.unaligned else f"mode {config.mode.value}"
        raise InvalidPipelineError(
            f"source {of_cuts[0]}: it reads whole cuts, and with {mode} your tables would show parts of "
            "a cut: leave that setting out"
        )


def _require_changes_once(taken: Changelogs, config: CheckpointConfig) -> None:
    """Raise InvalidPipelineError if a vertex could take the same row back twice after a crash."""
    taking = sorted(name for name, of in taken.items() if of)
    if taking and config.mode is not CheckpointingMode.EXACTLY_ONCE:
        raise InvalidPipelineError(
            f"vertex {taking[0]}: it takes changes, and with mode {config.mode.value} it could take a row back "
            "twice after a crash: leave that setting out"
        )


def _graph_vertex(
    job: JobName,
    vertex: Declared,
    plans: Mapping[VertexId, VertexPlan],
    suites: Mapping[TableName, Suite],
    around: Around,
) -> Vertex:
    before = vertex.renamed_from
    if isinstance(vertex, SourceVertex):
        source = vertex.source
        bounded, parts = is_bounded(source), begins_of(source)
        bare = Vertex(vertex.id, VertexKind.SOURCE, 0, renamed_from=before, bounded=bounded, parts=parts)
        return replace(bare, coordinated=keeps_state(source))
    spec = plans[vertex.id].spec
    outputs = _graph_tables(vertex, plans[vertex.id], suites)
    if isinstance(spec, KeyedSpec):
        held = delta_columns(state_file_schema(spec.stored, spec.state_keys))
        state = Table(table_of_state(job, vertex.id), TableMode.STATE, spec.state_keys, columns=held)
        tables = (*outputs, state, *_broadcast_table(job, spec))
        return Vertex(
            vertex.id,
            VertexKind.KEYED,
            spec.parallelism,
            tables,
            meanings=spec.meanings,
            renamed_from=before,
            columns_renamed_from=spec.columns_renamed_from,
            changes_of=keyed_changelogs(vertex.id, around.vertices, around.changelogs),
            outputs_read=_outputs_read(vertex),
            event_times=_event_times(vertex),
            fires=isinstance(spec.function, FiresInTime),
            by_clock=bool(getattr(spec.function, "by_clock", False)),
            expiry=None if spec.expires is None else spec.expires.expiry,
            rows_wait_ms=_rows_wait_ms(spec.function),
        )
    read = _outputs_read(vertex)
    renamed = former_names_of_columns(vertex)
    bare = Vertex(vertex.id, VertexKind.STATELESS, 1, outputs, renamed_from=before, outputs_read=read)
    return replace(bare, columns_renamed_from=renamed, event_times=_event_times(vertex))


def _graph_tables(
    vertex: StagedVertex | KeyedVertex, planned: VertexPlan, suites: Mapping[TableName, Suite]
) -> tuple[Table, ...]:
    written, called = _output_tables(planned), dict(tables_of(vertex))
    drops = tuple(dict.fromkeys(name for each in changes_of_tables(vertex) for name in each.drops))
    in_order = any(each.in_order for each in changes_of_tables(vertex))
    own = {vertex.table.name: vertex.table} if vertex.table is not None else {}
    sinks = {name: table.sink for name, table in own.items() if table.sink}
    days = {name: time_partitions(table.partitions) for name, table in own.items() if table.partitions}
    return tuple(
        Table(
            table.name,
            table.mode,
            table.keys,
            judged=table.name in suites,
            judged_empty=table.name in suites and suites[table.name].judges_no_rows,
            columns=delta_columns(arrow_schema(table.schema)),
            renamed_from=called.get(table.name),
            outside=table.name in sinks,
            partitioned_by=table.partitioned_by,
            drops=drops,
            in_order=in_order,
            votes=_votes(sinks.get(table.name)),
            time_partitions=days.get(table.name),
        )
        for table in written
    )


def _rows_wait_ms(function: object) -> int | None:
    """Return by how much the watermark can pass a row's time before the row's results are emitted.

    None: it is unknown.
    """
    if isinstance(function, IntervalJoin):
        return max(0, function.upper_ms, -function.lower_ms)
    by_clock = bool(getattr(function, "by_clock", False))
    return None if by_clock or isinstance(function, EndsInput | WithTimers) else 0


def _broadcast_table(job: JobName, spec: KeyedSpec) -> Iterator[Table]:
    """Yield the table that shows the broadcast state of a vertex, if it has any."""
    for name, keys, schema in _broadcast_state(job, spec):
        yield Table(name, TableMode.STATE, keys, columns=delta_columns(schema), broadcast=True)


def _broadcast_state(job: JobName, spec: KeyedSpec) -> Iterator[tuple[TableName, tuple[str, ...], pa.Schema]]:
    """Yield the name, keys and columns of the table that shows a vertex's broadcast state, if it has any."""
    taken = spec.broadcast
    if taken is not None:
        keys = taken.kept.keys
        yield table_of_broadcast(job, spec.vertex), keys, state_file_schema(arrow_schema(taken.schema), keys)


def _outputs_read(vertex: Declared) -> tuple[str | None, ...]:
    read = tuple(reads.output for reads in inputs_of(vertex))
    return read if any(read) else ()


def _votes(sink: object) -> bool:
    """Return whether a sink votes before the commit point. A two-phase sink votes with its transaction."""
    return (isinstance(sink, TwoPhaseSink) and sink.two_phase) or (isinstance(sink, OutsideSink) and sink.is_asked())


def _edges_into(vertex: Declared) -> Iterator[EdgeId]:
    for ordinal, reads in enumerate(inputs_of(vertex)):
        yield EdgeId(reads.origin, vertex.id, ordinal)


def _output_tables(planned: VertexPlan) -> Iterator[StagedTable]:
    spec = planned.spec
    if spec.table is not None:
        yield spec.table
    if not isinstance(spec, KeyedSpec) and spec.quarantine is not None:
        yield spec.quarantine


def _require_kept_columns(plans: Mapping[VertexId, VertexPlan]) -> None:
    """Raise InvalidPipelineError for a column that a vertex cannot take or pass on."""
    for name, planned in plans.items():
        spec, where = planned.spec, f"vertex {name}"
        for table in _output_tables(planned):
            require_kept(f"table {table.name}", table.schema)
        if not isinstance(spec, KeyedSpec):
            require_kept(where, spec.schema)
            continue
        for rows in (*(taken.schema for taken in spec.inputs), spec.state, spec.output, *spec.outputs.values()):
            require_kept(where, rows)
            require_plain_texts(where, rows)


def _schemas(job: JobName, plans: Mapping[VertexId, VertexPlan]) -> Iterator[tuple[TableName, pa.Schema]]:
    for name, planned in plans.items():
        for table in _output_tables(planned):
            yield table.name, arrow_schema(table.schema)
        if isinstance(planned.spec, KeyedSpec):
            yield (
                table_of_state(job, name),
                state_file_schema(planned.spec.stored, planned.spec.state_keys),
            )
            yield from ((table, schema) for table, _, schema in _broadcast_state(job, planned.spec))


def _sinks(vertices: Sequence[Declared], schemas: Mapping[TableName, pa.Schema]) -> dict[TableName, TableSink]:
    tables = ((vertex.id, vertex.table) for vertex in vertices if not isinstance(vertex, SourceVertex))
    return dict(
        _bound(name, table, schemas[table.name])
        for name, table in tables
        if table is not None and table.sink is not None
    )


def _own_tables(vertices: Sequence[Declared]) -> Iterator[OutputTable]:
    """Yield the output tables, without quarantines and states."""
    tables = (vertex.table for vertex in vertices if not isinstance(vertex, SourceVertex))
    yield from (table for table in tables if table is not None)


def _bound(vertex: VertexId, table: OutputTable, schema: pa.Schema) -> tuple[TableName, TableSink]:
    """Return a table's sink with the facts that it needs.

    `OutputTable` has checked that the sink suits the table's mode.
    """
    match table.mode, table.sink:
        case TableMode.APPEND, Sink() as sink:
            return table.name, AppendedTable(sink, schema, vertex)
        case TableMode.UPSERT, UpsertSink() as sink:
            return table.name, UpsertedTable(sink, schema, table.keys, vertex)
        case _:
            raise TypeError(f"table {table.name} cannot have the sink {table.sink!r}")


def _suites(vertices: Sequence[Declared]) -> dict[TableName, Suite]:
    return {table.name: table.suite for table in _own_tables(vertices) if table.suite is not None}
