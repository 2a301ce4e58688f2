"""Refuses the updates of an aggregate where a vertex would take each of them for a row of its own."""

from jobs.pipeline.declarations import Declarations, Input
from jobs.pipeline.failures import InvalidPipelineError


def require_append_only(where: str, declarations: Declarations, reads: Input) -> None:
    """Raise InvalidPipelineError if the rows are updates: each would be added to the one that it replaces."""
    upstream = declarations.updates_of(reads.origin)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of the aggregate {upstream!r}, which emits a key's new row whenever "
            "the key changes, and every update would be counted. Aggregate the rows that go into "
            f"{upstream!r} by ({', '.join(reads.keys)}) instead, or let a process function between the two emit "
            "differences"
        )


def require_append_only_right(where: str, declarations: Declarations, right: Input) -> None:
    """Raise InvalidPipelineError if the first right row of a key is an update that later ones replace."""
    upstream = declarations.updates_of(right.origin)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its right rows are updates of the aggregate {upstream!r}, and the first one of a key would "
            "count for ever: a partial result. Name the column that is greatest in the newest update, as in "
            'enrich(..., latest_by="rows")'
        )
