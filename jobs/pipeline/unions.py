"""Declares the vertex that brings streams of the same columns together."""

from collections.abc import Sequence

from pyspark.sql.types import DataType

from checkpointing.identifiers import vertex_id
from jobs.pipeline.declarations import Input, StagedVertex
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_id


def union_vertex(name: str, inputs: Sequence[Input], renamed_from: str | None) -> StagedVertex:
    """Return the vertex; raise InvalidPipelineError for an input without others, or with other columns than the first.

    Raises InvalidNameError for the id.
    """
    first, *others = inputs
    if not others:
        raise InvalidPipelineError(f"vertex {name}: a union needs another stream, as in orders.union(returns, id=...)")
    columns = _columns(first)
    for other in others:
        for column in [*columns, *_columns(other)]:
            have, its = columns.get(column), _columns(other).get(column)
            if have != its:
                raise InvalidPipelineError(
                    f"vertex {name}: column {column!r} is {_shown(have)} in {first.origin} and {_shown(its)} in "
                    f"{other.origin}; give both streams the same columns, with with_column, drop or select"
                )
    return StagedVertex(vertex_id(name), tuple(inputs), first.schema, renamed_from=former_id(renamed_from))


def _columns(reads: Input) -> dict[str, DataType]:
    return {field.name: field.dataType for field in reads.schema.fields}


def _shown(kind: DataType | None) -> str:
    return "missing" if kind is None else kind.simpleString()
