"""A job graph as assets: a source is an external asset, each table of a vertex an asset, edges as in the graph.

The asset graph reads as the pipeline, layer by layer: a group for the sources, one for the operators'
states, and one for each schema of tables.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

import dagster as dg
import pyarrow as pa

from checkpointing.graph import Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import JobName, TableName, VertexId
from jobs.operators.schemas import arrow_schema as from_spark
from jobs.planner import JobPlan
from jobs.sources.port import LiesInFolder
from orchestration.tags import JOB_TAG

KINDS: Final = {"spark", "delta"}
SOURCES: Final = "sources"
STATE: Final = "state"
_TEAM: Final = re.compile(r"team:\S+")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


class InvalidOwnerError(ValueError):
    """An owner that Dagster cannot show: names it and says how owners are written."""


def checked_owners(owners: Sequence[str]) -> list[str]:
    """Return the owners, each an e-mail address or `team:NAME`; raise InvalidOwnerError for another one."""
    for owner in owners:
        if not (_TEAM.fullmatch(owner) or _EMAIL.fullmatch(owner)):
            raise InvalidOwnerError(f"owner {owner!r}: write an e-mail address, or a team as 'team:NAME'")
    return list(dict.fromkeys(owners))


def group_of(job: JobName, table: Table) -> str:
    """Return the group of a table: its pipeline and its layer, which is the schema that it lies in."""
    layer = STATE if table.mode is TableMode.STATE else table.name.split("/")[0]
    return f"{job}_{layer}"


def table_key(table: TableName) -> dg.AssetKey:
    """Return a table's asset key: the parts of its path under the warehouse."""
    return dg.AssetKey(table.split("/"))


def source_key(job: JobName, source: VertexId) -> dg.AssetKey:
    """Return a source's asset key; sources of different jobs may bear the same id."""
    return dg.AssetKey(["sources", job, source])


def source_specs(plan: JobPlan, owners: Sequence[str] = ()) -> tuple[dg.AssetSpec, ...]:
    """Return the sources, which no run materializes."""
    return tuple(_source_spec(plan, source.id, list(owners)) for source in plan.graph.sources())


def table_specs(plan: JobPlan, owners: Sequence[str] = ()) -> tuple[dg.AssetSpec, ...]:
    """Return the tables in topological order, a vertex's state before its outputs."""
    return tuple(
        _table_spec(plan, vertex, table, list(owners))
        for vertex in plan.graph.vertices
        for table in ordered_tables(vertex)
    )


def _source_spec(plan: JobPlan, name: VertexId, owners: list[str]) -> dg.AssetSpec:
    source = plan.sources[name]
    schema = from_spark(source.schema())
    told: dict[str, object] = {"dagster/column_schema": _column_schema(schema)}
    what = f"What source `{name}` reads"
    if isinstance(source, LiesInFolder):
        what = f"The Parquet files of source `{name}`, a folder for each split"
        told["folder"] = dg.MetadataValue.path(source.root)
    return dg.AssetSpec(
        source_key(plan.job, name),
        group_name=f"{plan.job}_{SOURCES}",
        kinds={"parquet"} if isinstance(source, LiesInFolder) else set(),
        description=f"{what}. Every checkpoint holds its position; nothing here is ever written.",
        owners=owners,
        tags={JOB_TAG: plan.job},
        metadata=told,
    )


def _table_spec(plan: JobPlan, vertex: Vertex, table: Table, owners: list[str]) -> dg.AssetSpec:
    return dg.AssetSpec(
        table_key(table.name),
        deps=list(dict.fromkeys(_deps(plan, vertex, table))),
        group_name=group_of(plan.job, table),
        kinds=set(KINDS),
        description=_description(plan, vertex, table),
        owners=owners,
        tags={JOB_TAG: plan.job},
        metadata={
            "vertex": vertex.id,
            "mode": table.mode.value,
            "dagster/table_name": str(table.name).replace("/", "."),
            "dagster/column_schema": _column_schema(plan.table_schemas[table.name]),
        },
    )


def ordered_tables(vertex: Vertex) -> list[Table]:
    """Return the tables of a vertex, its state before its outputs."""
    return sorted(vertex.tables, key=lambda table: table.mode is not TableMode.STATE)


def _deps(plan: JobPlan, vertex: Vertex, table: Table) -> Iterator[dg.AssetKey]:
    """Yield what a table is made of: what its vertex reads, and for an output the vertex's state."""
    for edge in sorted(plan.graph.upstream(vertex.id), key=lambda edge: edge.input):
        yield from _handed_on(plan, plan.graph.vertex(edge.upstream))
    for other in vertex.tables:
        if other.mode is TableMode.STATE and table.mode is not TableMode.STATE:
            yield table_key(other.name)


def _handed_on(plan: JobPlan, vertex: Vertex) -> Iterator[dg.AssetKey]:
    """Yield the asset of the rows that a vertex hands on; for one that keeps none, those that its rows come from."""
    match vertex.kind:
        case VertexKind.SOURCE:
            yield source_key(plan.job, vertex.id)
        case VertexKind.STATELESS | VertexKind.KEYED:
            kept = plan.vertices[vertex.id].spec.table
            if kept is not None:
                yield table_key(kept.name)
                return
            state = [table for table in vertex.tables if table.mode is TableMode.STATE]
            yield from (table_key(table.name) for table in state)
            for edge in () if state else plan.graph.upstream(vertex.id):
                yield from _handed_on(plan, plan.graph.vertex(edge.upstream))
        case _ as unreachable:
            assert_never(unreachable)


def _description(plan: JobPlan, vertex: Vertex, table: Table) -> str:
    match table.mode:
        case TableMode.STATE:
            return f"State of operator {vertex.id}, keyed by {_names(table.keys)}: exactly what the newest cut holds."
        case TableMode.UPSERT:
            return f"One row for each {_names(table.keys)}, written by vertex {vertex.id}."
        case TableMode.APPEND:
            kept = plan.vertices[vertex.id].spec.table
            if kept is None or kept.name != table.name:
                return f"Rows that failed a row rule of vertex {vertex.id}, each with the expectation that it failed."
            return f"Every row of vertex {vertex.id}, once."
        case _ as unreachable:
            assert_never(unreachable)


def _names(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _column_schema(schema: pa.Schema) -> dg.TableSchema:
    return dg.TableSchema(
        columns=[
            dg.TableColumn(field.name, str(field.type), constraints=dg.TableColumnConstraints(nullable=field.nullable))
            for field in schema
        ]
    )
