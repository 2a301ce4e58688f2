"""Refuses the updates of an aggregate where a vertex would take each of them for a row of its own."""

from collections.abc import Iterable

from checkpointing.identifiers import VertexId
from jobs.operators.changes import KIND
from jobs.operators.changing import ROWS
from jobs.pipeline.columns import require_unique
from jobs.pipeline.declarations import Declarations
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.vertices import Input


def changes_taken(where: str, declarations: Declarations, reads: Input, columns: Iterable[str]) -> tuple[VertexId, ...]:
    """Return the vertex whose changes an aggregate, a join or top rows take. There is none if its rows are append-only.

    `columns` are those of its results. Raise InvalidPipelineError for updates that came through another vertex: that
    one passes on new rows only, so each would be added to the one that it replaces. Raise it too for a column that
    has the name of one of ours.
    """
    if declarations.is_changelog(reads.origin):
        require_unique(where, [*reads.keys, *columns, ROWS])
        for names in (declarations.vertex(reads.origin).rows.names, reads.schema.names):
            require_unique(where, [*names, KIND])
        return (reads.origin,)
    upstream = declarations.updates_of(reads.origin)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of the {declarations.kind_of(upstream)} {upstream!r}, and vertex "
            f"{reads.origin!r} between the two passes on new rows only, not those that they replace. Aggregate the "
            f"stream of {upstream!r} itself: call key_by on it, or after transform, select, drop and with_column, "
            "which pass changes on"
        )
    return ()


def require_append_only_right(where: str, declarations: Declarations, right: Input) -> None:
    """Raise InvalidPipelineError if the first right row of a key is an update that later ones replace."""
    upstream = declarations.updates_of(right.origin)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its right rows are updates of the aggregate {upstream!r}, and the first one of a key would "
            "count for ever: a partial result. Name the column that is greatest in the newest update, as in "
            'enrich(..., latest_by="rows")'
        )


def require_append_only(where: str, declarations: Declarations, reads: Input) -> None:
    """Raise InvalidPipelineError if some rows are updates of others: the table would show the replaced rows too."""
    upstream = declarations.updates_of(reads.origin)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of the {declarations.kind_of(upstream)} {upstream!r}, and an overwrite "
            "table would show each update beside the one that it replaces. Write the stream with upsert, or overwrite "
            f"the table from the rows before {upstream!r}"
        )
