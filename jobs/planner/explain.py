"""Describes a plan as plain data, for display: vertices in order, what they read, what they write."""

from dataclasses import dataclass

from checkpointing.graph import Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId, JobName, SplitId, TableName, VertexId
from jobs.operators.spec import KeyedSpec
from jobs.planner.job_plan import JobPlan


@dataclass(frozen=True, slots=True)
class InputExplanation:
    """One input of a vertex: `channels` is how many there are, one per upstream subtask.

    `lazy` means slices of a source, which this vertex's own Spark job reads. Otherwise the input is files that the
    upstream vertex wrote. Rows are exchanged by `keys`; without an exchange it is empty.
    """

    upstream: VertexId
    channels: int
    lazy: bool
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableExplanation:
    """A table that a vertex writes; `columns` are (name, Arrow type), `suite` what judges it, or None."""

    name: TableName
    mode: TableMode
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    suite: str | None


@dataclass(frozen=True, slots=True)
class VertexExplanation:
    """A vertex; `splits` name a source's subtasks, `rows_per_epoch` is its cap, None without one."""

    id: VertexId
    kind: VertexKind
    parallelism: int
    splits: tuple[SplitId, ...]
    rows_per_epoch: int | None
    inputs: tuple[InputExplanation, ...]
    tables: tuple[TableExplanation, ...]


@dataclass(frozen=True, slots=True)
class PlanExplanation:
    """A job: its vertices, in the order in which rows pass through them."""

    job: JobName
    vertices: tuple[VertexExplanation, ...]


def explain(planned: JobPlan) -> PlanExplanation:
    """Return the plan as data. Sources show subtasks once their splits are known."""
    return PlanExplanation(planned.job, tuple(_vertex(planned, vertex) for vertex in planned.graph.vertices))


def _vertex(planned: JobPlan, vertex: Vertex) -> VertexExplanation:
    edges = sorted((edge for edge in planned.graph.edges if edge.downstream == vertex.id), key=lambda edge: edge.input)
    return VertexExplanation(
        id=vertex.id,
        kind=vertex.kind,
        parallelism=vertex.parallelism,
        splits=vertex.splits,
        rows_per_epoch=planned.rows_per_epoch.get(vertex.id),
        inputs=tuple(_input(planned, edge) for edge in edges),
        tables=tuple(_table(planned, table) for table in vertex.tables),
    )


def _input(planned: JobPlan, edge: EdgeId) -> InputExplanation:
    upstream = planned.graph.vertex(edge.upstream)
    spec = planned.vertices[edge.downstream].spec
    return InputExplanation(
        upstream=edge.upstream,
        channels=upstream.parallelism,
        lazy=upstream.kind is VertexKind.SOURCE,
        keys=spec.inputs[edge.input].keys if isinstance(spec, KeyedSpec) else (),
    )


def _table(planned: JobPlan, table: Table) -> TableExplanation:
    schema = planned.table_schemas[table.name]
    suite = planned.suites.get(table.name)
    return TableExplanation(
        name=table.name,
        mode=table.mode,
        keys=table.keys,
        columns=tuple((field.name, str(field.type)) for field in schema),
        suite=None if suite is None else suite.name,
    )
