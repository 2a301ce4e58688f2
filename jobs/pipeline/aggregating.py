"""Declares the vertex that keeps aggregates by key."""

from collections.abc import Mapping

from checkpointing.identifiers import VertexId, vertex_id
from jobs.operators.aggregate import output_schema
from jobs.pipeline.aggregates import AggregateColumn, named_aggregates
from jobs.pipeline.former_names import former_columns, former_id
from jobs.pipeline.vertices import AggregateVertex, Input


def aggregate_vertex(
    name: str,
    reads: Input,
    columns: Mapping[str, AggregateColumn],
    changes_of: tuple[VertexId, ...],
    renamed_from: str | None,
) -> AggregateVertex:
    """Return the vertex. Raises InvalidNameError, and InvalidPipelineError for a column that it cannot take."""
    where = f"vertex {name}"
    aggregates = named_aggregates(where, reads.keys, reads.schema, columns)
    was = {column: one.renamed_from for column, one in columns.items() if one.renamed_from is not None}
    return AggregateVertex(
        vertex_id(name),
        (reads,),
        output_schema(reads.keys, aggregates, reads.schema),
        aggregates,
        renamed_from=former_id(renamed_from),
        columns_renamed_from=former_columns(where, reads.keys, columns, was),
        changes_of=changes_of,
    )
