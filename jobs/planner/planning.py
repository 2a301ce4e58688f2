"""Plans a pipeline: makes its vertices, edges and tables, and refuses a source that nothing reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import pyarrow as pa

from checkpointing.config import CheckpointConfig, CheckpointingMode, StateBackendKind
from checkpointing.graph import Hook, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId, JobName, TableName, VertexId
from checkpointing.metadata.paths import table_of_broadcast, table_of_state
from checkpointing.renames import unclear_rename
from jobs.operators.schemas import arrow_schema, delta_columns
from jobs.operators.spec import KeyedSpec, StagedTable, VertexPlan
from jobs.pipeline.columns import require_kept, require_plain_texts
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.pipeline import Pipeline
from jobs.pipeline.vertices import (
    Declared,
    OutputTable,
    SourceVertex,
    changes_of_tables,
    former_names_of_columns,
    inputs_of,
    named_outputs_of,
    tables_of,
)
from jobs.planner.changelogs import Changelogs, changelogs, keyed_changelogs
from jobs.planner.job_plan import JobPlan
from jobs.planner.staging import stage_shared_sources
from jobs.planner.vertices import Around, vertex_plan
from jobs.quality.expectation import Suite
from jobs.sinks.port import AppendedTable, OutsideSink, Sink, TableSink, TwoPhaseSink, UpsertedTable, UpsertSink
from jobs.sources.own_state import keeps_state
from jobs.sources.port import begins_of, is_bounded, source_of_cuts
from jobs.state.backend import state_file_schema
from jobs.state.backends import FullBackend, IncrementalBackend, MemoryBackend, StateBackend


def plan(pipeline: Pipeline, *, parallelism: int | None = None, config: CheckpointConfig | None = None) -> JobPlan:
    """Return the plan of a pipeline. None for an argument means the pipeline's own value.

    Raises InvalidPipelineError for a source that nothing reads, a pipeline without vertices and a
    configuration that names no source of it; InvalidSpecError for a vertex that no job can run.
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
        sinks=_sinks(vertices, schemas),
        rows_per_epoch={source.id: source.rows_per_epoch for source in sources if source.rows_per_epoch is not None},
        listeners=pipeline.listeners,
        reports=pipeline.reports,
        hooks={declared.name: declared.hook for declared in pipeline.hooks},
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
    of_cuts = [vertex.id for vertex in sources if source_of_cuts(vertex.source) is not None]
    if of_cuts and (config.unaligned or config.mode is not CheckpointingMode.EXACTLY_ONCE):
        mode = "unaligned" if config.unaligned else f"mode {config.mode.value}"
        raise InvalidPipelineError(
            f"source {of_cuts[0]}: it reads whole cuts of another job, and with {mode} your tables would show parts of "
            "a cut: leave that setting out"
        )


def _require_changes_once(taken: Changelogs, config: CheckpointConfig) -> None:
    """Raise InvalidPipelineError if a crash could let a vertex take the same row back twice."""
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
    written, called = _output_tables(plans[vertex.id]), dict(tables_of(vertex))
    drops = tuple(dict.fromkeys(name for each in changes_of_tables(vertex) for name in each.drops))
    in_order = any(each.in_order for each in changes_of_tables(vertex))
    sinks = {vertex.table.name: vertex.table.sink} if vertex.table is not None and vertex.table.sink else {}
    outputs = tuple(
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
        )
        for table in written
    )
    if isinstance(spec, KeyedSpec):
        held = delta_columns(state_file_schema(arrow_schema(spec.state), spec.keys))
        state = Table(table_of_state(job, vertex.id), TableMode.STATE, spec.keys, columns=held)
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
        )
    read = _outputs_read(vertex)
    renamed = former_names_of_columns(vertex)
    bare = Vertex(vertex.id, VertexKind.STATELESS, 1, outputs, renamed_from=before, outputs_read=read)
    return replace(bare, columns_renamed_from=renamed)


def _broadcast_table(job: JobName, spec: KeyedSpec) -> Iterator[Table]:
    """Yield the table that shows the broadcast state of a vertex, if it has any."""
    for name, keys, schema in _broadcast_state(job, spec):
        yield Table(name, TableMode.STATE, keys, columns=delta_columns(schema), broadcast=True)


def _broadcast_state(job: JobName, spec: KeyedSpec) -> Iterator[tuple[TableName, tuple[str, ...], pa.Schema]]:
    """Yield name, keys and columns of the table that shows the broadcast state of a vertex, if it has any."""
    taken = spec.broadcast
    if taken is not None:
        keys = taken.kept.keys
        yield table_of_broadcast(job, spec.vertex), keys, state_file_schema(arrow_schema(taken.schema), keys)


def _outputs_read(vertex: Declared) -> tuple[str | None, ...]:
    read = tuple(reads.output for reads in inputs_of(vertex))
    return read if any(read) else ()


def _votes(sink: object) -> bool:
    """Return whether a sink is asked before the commit point. A sink in two phases answers by its transaction."""
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
            yield table_of_state(job, name), state_file_schema(arrow_schema(planned.spec.state), planned.spec.keys)
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
    """Return a table's sink with what it must know. `OutputTable` has checked that it suits the table's mode."""
    match table.mode, table.sink:
        case TableMode.APPEND, Sink() as sink:
            return table.name, AppendedTable(sink, schema, vertex)
        case TableMode.UPSERT, UpsertSink() as sink:
            return table.name, UpsertedTable(sink, schema, table.keys, vertex)
        case _:
            raise TypeError(f"table {table.name} cannot have the sink {table.sink!r}")


def _suites(vertices: Sequence[Declared]) -> dict[TableName, Suite]:
    return {table.name: table.suite for table in _own_tables(vertices) if table.suite is not None}
