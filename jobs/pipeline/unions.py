"""Declares the vertex that brings streams of the same columns together."""

from collections.abc import Sequence

from pyspark.sql.types import DataType

from checkpointing.identifiers import VertexId, vertex_id
from jobs.pipeline.declarations import Declarations
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_id
from jobs.pipeline.updates import changes_taken
from jobs.pipeline.vertices import Input, StagedVertex, deletes_rows


def union_vertex(
    name: str, inputs: Sequence[Input], declarations: Declarations, renamed_from: str | None
) -> StagedVertex:
    """Return the vertex; raise InvalidPipelineError for an input without others, or with other columns than the first.

    It passes on the changes of those inputs that are changelogs. Raises InvalidNameError for the id, and
    InvalidPipelineError if one input is a changelog, and another one has updates that lost their kind.
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
    origins = _changelogs(name, inputs, declarations)
    return StagedVertex(
        vertex_id(name),
        tuple(inputs),
        first.schema,
        renamed_from=former_id(renamed_from),
        changes_of=origins,
        takes_back=any(deletes_rows(declarations.vertex(origin)) for origin in origins),
    )


def _changelogs(name: str, inputs: Sequence[Input], declarations: Declarations) -> tuple[VertexId, ...]:
    if not any(declarations.is_changelog(each.origin) for each in inputs):
        return ()
    taken = (changes_taken(f"vertex {name}", declarations, each, ()) for each in inputs)
    return tuple(dict.fromkeys(origin for origins in taken for origin in origins))


def _columns(reads: Input) -> dict[str, DataType]:
    return {field.name: field.dataType for field in reads.schema.fields}


def _shown(kind: DataType | None) -> str:
    return "missing" if kind is None else kind.simpleString()
