"""Turns a job graph into assets: each source is an external asset, and each table of a vertex is an asset.

A source that reads another pipeline's cuts depends on the asset of the table that it reads. Dagster knows assets by
their keys, so the other pipeline may be in another code location.

The asset graph shows the pipeline layer by layer: one group for the sources, one group for the operators' states, and
one group for each schema of tables.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

import dagster as dg
import pyarrow as pa

from checkpointing.graph import Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId, TableName, VertexId
from jobs.operators.spec import arrow_schema as from_spark
from jobs.pipeline.column_lineage import ReadColumn, column_lineage
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.vertices import Partitions
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.port import DescribesItself, LiesInFolder, layers
from orchestration.code_versions import code_version
from orchestration.naming import CUTS, SOURCES, Naming
from orchestration.tags import JOB_TAG

KINDS: Final = {"spark", "delta"}
COLUMN_LINEAGE: Final = "dagster/column_lineage"
"""Dagster's own name for this metadata."""
_TEAM: Final = re.compile(r"team:\S+")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


class InvalidOwnerError(ValueError):
    """An owner has a form that Dagster refuses. The message says how owners are written."""


def checked_owners(owners: Sequence[str]) -> list[str]:
    """Return the owners, each an e-mail address or `team:NAME`. Raise InvalidOwnerError for any other text."""
    for owner in owners:
        if not (_TEAM.fullmatch(owner) or _EMAIL.fullmatch(owner)):
            raise InvalidOwnerError(f"owner {owner!r}: write an e-mail address, or a team as 'team:NAME'")
    return list(dict.fromkeys(owners))


def source_specs(plan: JobPlan, naming: Naming, owners: Sequence[str] = ()) -> tuple[dg.AssetSpec, ...]:
    """Return the sources, which no run materializes."""
    return tuple(_source_spec(plan, naming, source.id, list(owners)) for source in plan.graph.sources())


def materialized_specs(plan: JobPlan, naming: Naming, owners: Sequence[str] = ()) -> tuple[dg.AssetSpec, ...]:
    """Return the assets that ticks materialize, in topological order: state before outputs, the cuts last."""
    tables = _table_specs(plan, naming, owners, partitioned=False)
    return (*tables, _cuts_spec(plan, naming, list(owners)))


def partitioned_specs(plan: JobPlan, naming: Naming, owners: Sequence[str] = ()) -> tuple[dg.AssetSpec, ...]:
    """Return the tables whose hours or days are partitions.

    A tick materializes the partitions that are complete. It has no partition itself, so such tables are not assets of
    its step.
    """
    return tuple(
        spec.replace_attributes(partitions_def=partitions_of(plan.partitions[table]))
        for table in plan.partitions
        for spec in _table_specs(plan, naming, owners, partitioned=True)
        if spec.key == naming.table_key(table)
    )


def partitions_of(declared: Partitions) -> dg.TimeWindowPartitionsDefinition:
    """Return Dagster's definition of the hours, days or weeks of a table. Weeks begin on Mondays."""
    if declared.size == "1w":
        return dg.WeeklyPartitionsDefinition(start_date=declared.start, timezone=declared.zone, day_offset=1)
    if declared.size == "1d":
        return dg.DailyPartitionsDefinition(start_date=declared.start, timezone=declared.zone)
    return dg.HourlyPartitionsDefinition(start_date=f"{declared.start}-00:00", timezone=declared.zone)


def column_lineage_of(plan: JobPlan, naming: Naming) -> dict[TableName, dg.TableColumnLineage]:
    """Return, for each column of the output tables, the columns of the nearest upstream assets that feed it."""

    def dep(read: ReadColumn) -> dg.TableColumnDep:
        key = naming.source_key(read.vertex) if read.table is None else naming.table_key(read.table)
        return dg.TableColumnDep(key, read.column)

    return {
        table: dg.TableColumnLineage(
            {
                column: sorted({dep(read) for read in reads}, key=lambda each: (each.asset_key.path, each.column_name))
                for column, reads in found.columns.items()
                if reads
            }
        )
        for table, found in column_lineage(plan.declared, to_sources=False).items()
    }


def _table_specs(plan: JobPlan, naming: Naming, owners: Sequence[str], *, partitioned: bool) -> Iterator[dg.AssetSpec]:
    lineage = column_lineage_of(plan, naming)
    for vertex in plan.graph.vertices:
        for table in _ordered_tables(vertex):
            if naming.shows(table) and (table.name in plan.partitions) is partitioned:
                spec = _table_spec(plan, naming, vertex, table, list(owners))
                told = {COLUMN_LINEAGE: lineage[table.name]} if table.name in lineage else {}
                yield spec.merge_attributes(metadata=told).with_io_manager_key(naming.tables_key)


def _cuts_spec(plan: JobPlan, naming: Naming, owners: list[str]) -> dg.AssetSpec:
    return dg.AssetSpec(
        naming.cuts_key(),
        deps=[naming.table_key(table.name) for table in _ends(plan) if naming.shows(table)],
        group_name=naming.group(CUTS),
        kinds={"delta"},
        description=(
            f"The Delta version of every table of {plan.job} at each checkpoint. Tables that are read at the versions "
            "of one cut show one moment. Each tick that changed a table says here what it did."
        ),
        owners=owners,
        tags={JOB_TAG: naming.name},
        code_version="-".join(dict.fromkeys(code_version(plan, vertex) for vertex in plan.graph.operators())),
        skippable=True,
    )


def _ends(plan: JobPlan) -> Iterator[Table]:
    """Yield each output table, and the state of each vertex that writes no other table."""
    for vertex in plan.graph.vertices:
        outputs = [table for table in vertex.tables if table.mode is not TableMode.STATE]
        yield from outputs or vertex.tables


def _source_spec(plan: JobPlan, naming: Naming, name: VertexId, owners: list[str]) -> dg.AssetSpec:
    source = plan.sources[name]
    schema = from_spark(source.schema())
    told: dict[str, object] = {"dagster/column_schema": _column_schema(schema)}
    about = next((each.described() for each in layers(source) if isinstance(each, DescribesItself)), None)
    folder = next((each.root for each in layers(source) if isinstance(each, LiesInFolder)), None)
    what = f"What source `{name}` reads"
    if about is not None:
        what = f"Source `{name}`, {about.kind}: {about.place}"
        told |= {"kind": about.kind, "place": about.place}
    if folder is not None:
        told["folder"] = dg.MetadataValue.path(str(folder))
    read = next((each for each in layers(source) if isinstance(each, CutSource)), None)
    if read is not None:
        above = naming.upstream_key(read.job, read.table)
        told[COLUMN_LINEAGE] = dg.TableColumnLineage(
            {each.name: [dg.TableColumnDep(above, each.name)] for each in schema}
        )
    return dg.AssetSpec(
        naming.source_key(name),
        deps=[] if read is None else [naming.upstream_key(read.job, read.table)],
        group_name=naming.group(SOURCES),
        kinds=set() if about is None else {about.kind},
        description=f"{what}. Each checkpoint holds the position in it. Tidemark never writes here.",
        owners=owners,
        tags={JOB_TAG: naming.name},
        metadata=told,
    )


def _table_spec(plan: JobPlan, naming: Naming, vertex: Vertex, table: Table, owners: list[str]) -> dg.AssetSpec:
    told = (_said(plan, table), _description(plan, vertex, table), _reads(plan, vertex))
    return dg.AssetSpec(
        naming.table_key(table.name),
        deps=list(dict.fromkeys(_deps(plan, naming, vertex, table))),
        group_name=naming.group_of(table),
        kinds=set(KINDS),
        description=" ".join(filter(None, told)),
        owners=owners,
        tags={JOB_TAG: naming.name},
        code_version=code_version(plan, vertex),
        skippable=True,
        metadata={
            "vertex": vertex.id,
            "mode": table.mode.value,
            "dagster/table_name": str(table.name).replace("/", "."),
            "dagster/column_schema": _column_schema(plan.table_schemas[table.name]),
        },
    )


def _ordered_tables(vertex: Vertex) -> list[Table]:
    """Return the tables of a vertex, its state before its outputs."""
    return sorted(vertex.tables, key=lambda table: table.mode is not TableMode.STATE)


def _deps(plan: JobPlan, naming: Naming, vertex: Vertex, table: Table) -> Iterator[dg.AssetKey]:
    """Yield a table's upstream assets: the inputs of its vertex, and for an output also the vertex's state."""
    for edge in sorted(plan.graph.upstream(vertex.id), key=lambda edge: edge.input):
        yield from _handed_on(plan, naming, edge)
    for other in vertex.tables:
        if other.mode is TableMode.STATE and table.mode is not TableMode.STATE and naming.shows(other):
            yield naming.table_key(other.name)


def _handed_on(plan: JobPlan, naming: Naming, edge: EdgeId) -> Iterator[dg.AssetKey]:
    """Yield the asset of the rows that the edge carries.

    If there is no such asset, yield the assets of the upstream vertex's inputs. The upstream vertex's table has the
    rows of its own output. Rows of a named output come from the asset of its state.
    """
    vertex = plan.graph.vertex(edge.upstream)
    match vertex.kind:
        case VertexKind.SOURCE:
            yield naming.source_key(vertex.id)
        case VertexKind.STATELESS | VertexKind.KEYED:
            kept = plan.vertices[vertex.id].spec.table
            if kept is not None and _output_read(plan, edge) is None:
                yield naming.table_key(kept.name)
                return
            state = [table for table in vertex.tables if table.mode is TableMode.STATE and naming.shows(table)]
            yield from (naming.table_key(table.name) for table in state)
            for above in () if state else plan.graph.upstream(vertex.id):
                yield from _handed_on(plan, naming, above)
        case _ as unreachable:
            assert_never(unreachable)


def _output_read(plan: JobPlan, edge: EdgeId) -> str | None:
    return plan.vertices[edge.downstream].inputs[edge.input].output


def _reads(plan: JobPlan, vertex: Vertex) -> str:
    """Return which named outputs the vertex reads, as a sentence. Empty if it reads no named output."""
    named = {edge: _output_read(plan, edge) for edge in plan.graph.upstream(vertex.id)}
    outputs = [f"output `{name}` of vertex {edge.upstream}" for edge, name in named.items() if name is not None]
    return f"Vertex {vertex.id} reads {' and '.join(outputs)}." if outputs else ""


def _said(plan: JobPlan, table: Table) -> str:
    """Return the comment that the pipeline gives the table, as a sentence of its own."""
    comment = plan.descriptions[table.name].comment.strip() if table.name in plan.descriptions else ""
    return comment if not comment or comment.endswith((".", "!", "?")) else f"{comment}."


def _description(plan: JobPlan, vertex: Vertex, table: Table) -> str:
    match table.mode:
        case TableMode.STATE:
            return f"State of operator {vertex.id}, keyed by {_names(table.keys)}: exactly what the newest cut holds."
        case TableMode.UPSERT:
            return f"One row for each {_names(table.keys)}, written by vertex {vertex.id}."
        case TableMode.OVERWRITE:
            of = f" of its {_names(table.partitioned_by)}" if table.partitioned_by else ""
            return f"The rows with the greatest {_names(table.keys)}{of}, written by vertex {vertex.id}."
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
