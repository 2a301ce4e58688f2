"""Declares the vertex that gives each left row columns of the right row of its key."""

from checkpointing.identifiers import vertex_id
from jobs.operators.enrich import RIGHT, WAITING, enrich_schema
from jobs.pipeline.columns import require_free, require_keys, require_ordered, require_unique
from jobs.pipeline.declarations import Declarations
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_id
from jobs.pipeline.updates import require_append_only_right
from jobs.pipeline.vertices import EnrichVertex, Input


def enrich_vertex(
    id: str,  # noqa: A002 - its name
    inputs: tuple[Input, Input],
    columns: tuple[str, ...],
    latest_by: str | None,
    declarations: Declarations,
    renamed_from: str | None,
) -> EnrichVertex:
    """Return the vertex that enriches the first input's rows. Raises as `ConnectedStreams.enrich` says."""
    name, where, (left, right) = vertex_id(id), f"vertex {id}", inputs
    require_keys(where, right.schema, columns)
    require_unique(where, [*left.keys, RIGHT, WAITING])
    require_free(where, left.keys)
    if latest_by is None:
        require_append_only_right(where, declarations, right)
    else:
        require_ordered(where, right.schema, latest_by)
    try:
        schema = enrich_schema(left.schema, right.schema, columns)
    except ValueError as error:
        raise InvalidPipelineError(f"{where}: {error}") from error
    return EnrichVertex(name, inputs, schema, columns, latest_by, renamed_from=former_id(renamed_from))
