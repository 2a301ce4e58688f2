"""Declares the vertices that join two streams by key."""

from typing import Literal

from checkpointing.identifiers import vertex_id
from jobs.operators.changes import TIMES
from jobs.operators.join import LEFT, RIGHT, JoinType, join_schema
from jobs.pipeline.columns import InvalidPipelineError, former_id, require_unique
from jobs.pipeline.processing import time_to_live
from jobs.pipeline.streams import KeyedStream, Stream, changes_taken
from jobs.pipeline.vertices import JoinVertex
from jobs.state.backend import Expires

# ruff: noqa: A002 - a vertex has an id, and it is called so


def join(
    left: KeyedStream,
    right: KeyedStream,
    id: str,
    *,
    how: Literal["inner", "left", "right", "full", "semi", "anti"] = "inner",
    ttl: str | Expires | None = None,
    renamed_from: str | None = None,
) -> Stream:
    """Return the joined rows of two streams, as Spark SQL's `JOIN ... USING` does over all rows so far.

    A row has the keys by their left names, then the other columns of the left rows and those of the right ones. A semi
    join has the left rows with a match, an anti join those without, both without right columns. State keeps the rows of
    both sides. An inner or semi join of append-only streams is append-only. All others are changelogs: only
    `aggregate`, `join`, `top` and `union` can take their rows. `renamed_from` is the id that the vertex had before.
    With `ttl` the rows of a key are forgotten so long after the last one came or went (see `expires`).
    Raises InvalidNameError, and InvalidPipelineError for a column that both sides have, keys of different types, or
    updates that lost their kind.
    """
    name, where = vertex_id(id), f"vertex {id}"
    types = [each.value for each in JoinType]
    if how not in types:
        raise InvalidPipelineError(f"{where}: no join is called {how!r}; choose one of {', '.join(types)}")
    connected = left.connect(right)
    declarations, inputs = left.stream.declarations, (connected.left.as_input(), connected.right.as_input())
    try:
        schema = join_schema(left.stream.schema, right.stream.schema, left.keys, right.keys, JoinType(how))
    except ValueError as error:
        raise InvalidPipelineError(f"{where}: {error}") from error
    for each in inputs:
        require_unique(where, [*each.schema.names, LEFT, RIGHT, TIMES])
    taken = (changes_taken(where, declarations, each, ()) for each in inputs)
    changes_of = tuple(dict.fromkeys(name for names in taken for name in names))
    vertex = JoinVertex(
        name,
        inputs,
        schema,
        JoinType(how),
        renamed_from=former_id(renamed_from),
        changes_of=changes_of,
        expires=time_to_live(id, ttl, declarations, inputs),
    )
    declarations.add(vertex)
    return Stream(declarations, vertex.id, (), vertex.rows)
