"""A pipeline as data: its vertices, in the order in which rows pass through them.

A stream can only be used after it was declared, so the order of declaration is topological.
"""

from collections.abc import Iterable
from typing import assert_never

from checkpointing.graph import TableMode
from checkpointing.identifiers import VertexId
from checkpointing.metadata.paths import broadcast_of
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.vertices import (
    AggregateVertex,
    AppliedVertex,
    Declared,
    EnrichVertex,
    JoinVertex,
    ProcessVertex,
    SourceVertex,
    StagedVertex,
    TakesChanges,
    TopVertex,
    deletes_rows,
    inputs_of,
    is_union_of_changes,
    keys_of_rows,
    puts_out_changes,
    tables_of,
)


class Declarations:
    """The vertices of one pipeline, by id."""

    def __init__(self, pipeline: str) -> None:
        """Begin with none."""
        self.pipeline = pipeline
        self._vertices: dict[VertexId, Declared] = {}

    def vertices(self) -> tuple[Declared, ...]:
        """Return all vertices in topological order."""
        return tuple(self._vertices.values())

    def vertex(self, name: VertexId) -> Declared:
        """Return a vertex that was declared."""
        return self._vertices[name]

    def add(self, vertex: Declared) -> None:
        """Declare a vertex; raise InvalidPipelineError if its id or a table of it is taken."""
        if vertex.id in self._vertices:
            raise InvalidPipelineError(f"pipeline {self.pipeline}: two vertices have the id {vertex.id!r}; rename one")
        self._put(vertex)

    def amend(self, vertex: Declared) -> None:
        """Replace a declared vertex by one that does more; raise InvalidPipelineError if a table of it is taken."""
        self._put(vertex)

    def is_changelog(self, name: VertexId) -> bool:
        """Return whether a vertex that was declared can put out changes."""
        return puts_out_changes(self._vertices[name])

    def kind_of(self, name: VertexId) -> str:
        """Return what messages call a vertex that puts out changes."""
        return _kind(self._vertices[name])

    def updates_of(self, name: VertexId) -> VertexId | None:
        """Return the aggregate whose updates the output of a vertex is, None if it is append-only.

        An aggregate emits a key's new row whenever the key changed. The rows stay updates if they are written to files,
        checked, enriched or in a union. A process function may emit anything, and only its author knows what.
        """
        vertex = self._vertices[name]
        match vertex:
            case AggregateVertex() | AppliedVertex() | TopVertex():
                return vertex.id
            case JoinVertex():
                return vertex.id if deletes_rows(vertex) else None
            case StagedVertex():
                found = (self.updates_of(reads.origin) for reads in vertex.inputs)
                return next((upstream for upstream in found if upstream is not None), None)
            case EnrichVertex():
                return self.updates_of(vertex.inputs[0].origin)
            case SourceVertex() | ProcessVertex():
                return None
            case _ as unreachable:
                assert_never(unreachable)

    def _put(self, vertex: Declared) -> None:
        rest = [other for other in self._vertices.values() if other.id != vertex.id]
        others = {table: other.id for other in rest for table, _ in tables_of(other)}
        own = [table for table, _ in tables_of(vertex)]
        for table in own:
            writer = others.get(table, vertex.id if own.count(table) > 1 else None)
            if writer is not None:
                raise InvalidPipelineError(
                    f"vertex {vertex.id}: table {table} is written by vertex {writer} already; "
                    "give each stream a table of its own"
                )
        self._require_names_of_broadcasts(vertex, rest)
        self._require_deletes_taken(vertex)
        self._vertices[vertex.id] = vertex

    def _require_names_of_broadcasts(self, vertex: Declared, rest: Iterable[Declared]) -> None:
        """Raise InvalidPipelineError if a vertex has the name under which another one's broadcast state is read."""
        for one, other in ((vertex, other) for other in rest):
            for seeing, named in ((one, other), (other, one)):
                if isinstance(seeing, ProcessVertex) and seeing.broadcast and named.id == broadcast_of(seeing.id):
                    raise InvalidPipelineError(
                        f"pipeline {self.pipeline}: {named.id!r} is the name of the broadcast state of {seeing.id!r}; "
                        "rename one of the two vertices"
                    )

    def _require_deletes_taken(self, vertex: Declared) -> None:
        """Raise InvalidPipelineError if rows can be deleted, and this vertex or its table cannot take them back."""
        if isinstance(vertex, StagedVertex) and vertex.takes_back and (vertex.table or vertex.check):
            raise InvalidPipelineError(_unkept(vertex))
        for reads in () if isinstance(vertex, TakesChanges) or is_union_of_changes(vertex) else inputs_of(vertex):
            if deletes_rows(self._vertices[reads.origin]):
                raise InvalidPipelineError(_untaken(vertex, self._vertices[reads.origin]))
        if not isinstance(vertex, TakesChanges | AppliedVertex) or vertex.table is None or not deletes_rows(vertex):
            return
        table, own, named = vertex.table, keys_of_rows(vertex), f"{_kind(vertex)} {vertex.id!r}"
        if not _can_be_upserted(vertex):
            raise InvalidPipelineError(f"table {table.name}: {named} takes rows back, and {_way_to_a_table(vertex)}")
        why = "takes rows back" if isinstance(vertex, TopVertex) else "takes changes and so deletes rows"
        if table.mode is TableMode.APPEND:
            raise InvalidPipelineError(
                f"table {table.name}: {named} {why}, which an append table cannot do; write it with upsert"
            )
        if set(table.keys) != set(own):
            raise InvalidPipelineError(
                f"table {table.name}: {named} {why}, and finds them by its "
                f"keys {list(own)} only; leave out keys={list(table.keys)}"
            )


def _can_be_upserted(vertex: Declared) -> bool:
    """Return whether columns are known that tell the rows of a vertex apart which takes rows back."""
    return not isinstance(vertex, JoinVertex | StagedVertex) and not (
        isinstance(vertex, TopVertex) and not vertex.function.table_keys
    )


def _way_to_a_table(vertex: Declared) -> str:
    """Say how rows get into a table although no columns are known that tell them apart."""
    if isinstance(vertex, TopVertex):
        return (
            f"no column of its {vertex.function.n} rows of a key is known to be unique. Number them, as in "
            'row_number="nth", and write them with upsert'
        )
    return (
        "no column of it is known to be unique. Aggregate or deduplicate the joined rows by the columns that are, and "
        "write the result with upsert"
    )


def _unkept(union: StagedVertex) -> str:
    """Say why a union cannot write a table or check rows."""
    return (
        f"vertex {union.id}: a stream of this union takes rows back, and neither an append table nor a quarantine can. "
        "Aggregate, join or deduplicate its rows, and write the result with upsert"
    )


def _untaken(vertex: Declared, upstream: Declared) -> str:
    """Say why a vertex cannot read rows of one that deletes some."""
    if not _can_be_upserted(upstream):
        return (
            f"vertex {vertex.id}: its rows are those of {_kind(upstream)} {upstream.id!r}, which takes rows back, and "
            f"this step cannot. Only aggregate, join, top and union can: aggregate the stream of {upstream.id!r} first"
        )
    why = "takes rows back" if isinstance(upstream, TopVertex) else "takes changes and so deletes rows"
    return (
        f"vertex {vertex.id}: its rows are those of {_kind(upstream)} {upstream.id!r}, which {why}, and this step "
        "cannot take a row back. Only upsert, aggregate, join, top and union can: write the "
        f"stream of {upstream.id!r} with upsert, or aggregate it"
    )


def _kind(vertex: Declared) -> str:
    match vertex:
        case AppliedVertex():
            return "apply_changes"
        case JoinVertex():
            return "join"
        case TopVertex():
            return "top"
        case StagedVertex():
            return "union"
        case _:
            return "aggregate"
