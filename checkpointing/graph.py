"""The job graph: vertices, edges and tables. The planner hands it to the protocol. It contains nothing of Spark.

A vertex is a chain of operators between two exchanges. Its subtasks are source splits (SOURCE) or ranges of key groups
(KEYED). A STATELESS vertex has one subtask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from checkpointing.columns import TableColumn
from checkpointing.event_time import EventTime, Expiry, TimePartitions
from checkpointing.identifiers import ChannelId, EdgeId, HookName, SplitId, SubtaskId, TableName, VertexId
from checkpointing.state_meaning import ColumnMeaning


class VertexKind(Enum):
    """What the subtasks of a vertex are."""

    SOURCE = "source"
    STATELESS = "stateless"
    KEYED = "keyed"


class TableMode(Enum):
    """How an output table follows its stream."""

    APPEND = "append"
    """Rows are added. Other writers can commit to the table too."""
    UPSERT = "upsert"
    """One row for each key. Its active files are exactly the ranges of the cut."""
    STATE = "state"
    """Shows the files of an operator's state, and is published like an upsert table."""
    OVERWRITE = "overwrite"
    """Shows the rows of the greatest version, of the table or of each of its partitions. Its files are never written
    again. It is published like an upsert table: its active files are exactly those of the cut."""

    @property
    def keeps_files(self) -> bool:
        """True if a file stays as it was written, as long as the table shows it. So the file keeps its columns."""
        return self in (TableMode.APPEND, TableMode.OVERWRITE)


@dataclass(frozen=True, slots=True)
class Table:
    """An output table and how it is written. `keys` are the key columns of an upsert table.

    For an overwrite table, the version column takes their place.
    """

    name: TableName
    mode: TableMode
    keys: tuple[str, ...] = ()
    judged: bool = False
    """True if a suite judges this table's staged rows at each barrier (J3)."""
    judged_empty: bool = False
    """True if the suite also judges an epoch that had rows, but none for this table. It counts rows, for example."""
    columns: tuple[TableColumn, ...] = ()
    """The columns that the pipeline declares. If they are missing, no change of columns is noticed."""
    renamed_from: TableName | None = None
    """The table's name in older checkpoints. A state table is renamed with its vertex."""
    outside: bool = False
    """True if the table has an outside sink. It gets the rows that each checkpoint adds, or shows an upsert table."""
    partitioned_by: tuple[str, ...] = ()
    """The columns by which the table is laid out. Each of its files has rows of one partition only."""
    drops: tuple[str, ...] = ()
    """The columns that the pipeline drops from an append table."""
    in_order: bool = False
    """Whether an append table's columns stand in the pipeline's order. In other tables they always do."""
    votes: bool = False
    """True if the outside sink commits in two phases. Then it can decline a checkpoint before the commit point."""
    broadcast: bool = False
    """True if the table shows the broadcast state of its vertex. Every subtask holds all of its files (D1)."""
    time_partitions: TimePartitions | None = None
    """The hours, days or weeks that a scheduler sees, each as soon as the table is complete until its end (N8)."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A vertex with its explicit, stable id. `splits` name a source's subtasks in order.

    A source is `bounded` if each of its splits has an end (Flink: `Boundedness.BOUNDED`). A source may read several
    sources one after the other, its `parts` (Flink: `HybridSource`). The name of each split begins with the number of
    its part. Every part but the last is bounded. A source is `coordinated` if it has a coordinator, whose state each
    checkpoint holds (A7). `meanings` say how the columns of a keyed vertex's state are computed. Checkpoints record
    them. `renamed_from` is the vertex's id in older checkpoints. `columns_renamed_from` maps new column names of its
    state and table to the old names. `changes_of` are the keyed vertices whose changes this vertex reads.
    `outputs_read` has the named output that each input reads. None stands for the upstream vertex's own output.
    `outputs_read` is empty if no input reads a named output. `event_times` has what the pipeline declares about the
    times of each input that reads a source. It is empty if the pipeline declares nothing for any input (N1). The vertex
    `fires` if some of its state is due at an event time, or with `by_clock` at a time of the clock of barriers (N4).
    `expiry` says when rows of its state expire. None: never (N5). The vertex may emit the result for a row only when
    the watermark is `rows_wait_ms` after the row's time. None: the result may wait until a drain.
    """

    id: VertexId
    kind: VertexKind
    parallelism: int
    tables: tuple[Table, ...] = ()
    splits: tuple[SplitId, ...] = ()
    meanings: tuple[ColumnMeaning, ...] = ()
    renamed_from: VertexId | None = None
    columns_renamed_from: Mapping[str, str] = field(default_factory=dict)
    bounded: bool = False
    parts: tuple[str, ...] = ()
    coordinated: bool = False
    changes_of: tuple[VertexId, ...] = ()
    outputs_read: tuple[str | None, ...] = ()
    event_times: tuple[EventTime | None, ...] = ()
    fires: bool = False
    by_clock: bool = False
    expiry: Expiry | None = None
    rows_wait_ms: int | None = 0

    def part(self, split: str) -> int:
        """Return which part of its source a split belongs to, counted from 0. It is 0 for a source without parts."""
        return next(place for place, begin in enumerate(self.parts) if split.startswith(begin)) if self.parts else 0

    def ends(self, split: str) -> bool:
        """Return whether a split of this source has an end."""
        return self.bounded or self.part(split) < len(self.parts) - 1

    def subtasks(self) -> tuple[SubtaskId, ...]:
        """Return the vertex's subtasks in order of index."""
        return _subtasks(self.id, self.parallelism)


@lru_cache(maxsize=1_024)
def _subtasks(vertex: VertexId, parallelism: int) -> tuple[SubtaskId, ...]:
    return tuple(SubtaskId(vertex, index) for index in range(parallelism))


@dataclass(frozen=True, slots=True)
class Hook:
    """A master hook of the job (A8): its name, and how long each of its calls may take, in ms."""

    name: HookName
    timeout_ms: int


class InvalidGraphError(ValueError):
    """The graph is not a valid pipeline. The message names the vertex and the rule."""


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A job's vertices in topological order, as a row passes through them, the edges between them, and master hooks."""

    vertices: tuple[Vertex, ...]
    edges: tuple[EdgeId, ...]
    hooks: tuple[Hook, ...] = ()

    def __post_init__(self) -> None:
        """Raise InvalidGraphError unless names are unique and every edge points forward."""
        order = {vertex.id: place for place, vertex in enumerate(self.vertices)}
        if len(order) != len(self.vertices):
            raise InvalidGraphError(f"duplicate vertex id among {[v.id for v in self.vertices]}")
        for edge in self.edges:
            if edge.upstream not in order or edge.downstream not in order:
                raise InvalidGraphError(f"edge {edge} names a vertex that is not in the graph")
            if order[edge.upstream] >= order[edge.downstream]:
                raise InvalidGraphError(f"edge {edge} does not point forward")
        writers = [table.name for vertex in self.vertices for table in vertex.tables]
        twice = sorted({name for name in writers if writers.count(name) > 1})
        if twice:
            raise InvalidGraphError(f"table {twice[0]} has two writers; give each vertex a table of its own")
        hooks = [hook.name for hook in self.hooks]
        if len(set(hooks)) < len(hooks):
            raise InvalidGraphError(f"there is hook {max(hooks, key=hooks.count)} twice; give each one its own name")

    def vertex(self, name: VertexId) -> Vertex:
        """Return the vertex with this id. Raise KeyError if there is none."""
        for vertex in self.vertices:
            if vertex.id == name:
                return vertex
        raise KeyError(name)

    def sources(self) -> tuple[Vertex, ...]:
        """Return the source vertices."""
        return tuple(v for v in self.vertices if v.kind is VertexKind.SOURCE)

    def operators(self) -> tuple[Vertex, ...]:
        """Return all vertices that run micro-batches."""
        return tuple(v for v in self.vertices if v.kind is not VertexKind.SOURCE)

    def subtasks(self) -> Iterator[SubtaskId]:
        """Yield every subtask of the job, in topological order."""
        for vertex in self.vertices:
            yield from vertex.subtasks()

    def upstream(self, name: VertexId) -> tuple[EdgeId, ...]:
        """Return the edges that lead into a vertex."""
        return tuple(edge for edge in self.edges if edge.downstream == name)

    def channels_into(self, name: VertexId) -> tuple[ChannelId, ...]:
        """Return a vertex's input channels: one for each pair of edge and upstream subtask."""
        return tuple(
            ChannelId(edge, index)
            for edge in self.edges
            if edge.downstream == name
            for index in range(self.vertex(edge.upstream).parallelism)
        )

    def time_channels(self, name: VertexId) -> dict[ChannelId, EventTime | None]:
        """Return a vertex's input channels whose rows have times, and what the pipeline declares about these times.

        For a channel from a vertex, the declaration is None. A vertex without such channels tracks no event time (N1).
        """
        times, timed = self.vertex(name).event_times, self._timed()
        declared = {edge: times[edge.input] if times else None for edge in self.upstream(name)}
        return {
            channel: declared[channel.edge]
            for channel in self.channels_into(name)
            if declared[channel.edge] is not None or channel.edge.upstream in timed
        }

    def _timed(self) -> set[VertexId]:
        """Return the vertices that keep event time: those that read a split with times, and all downstream of them."""
        found: set[VertexId] = set()
        for vertex in self.vertices if any(vertex.event_times for vertex in self.vertices) else ():
            if any(vertex.event_times) or any(edge.upstream in found for edge in self.upstream(vertex.id)):
                found.add(vertex.id)
        return found

    def sources_above(self, name: VertexId) -> frozenset[VertexId]:
        """Return the sources whose rows reach a vertex. For a source, return the source itself."""
        above = [self.sources_above(edge.upstream) for edge in self.upstream(name)]
        return frozenset().union(*above) if above else frozenset({name})

    def rows_wait_ms(self, name: VertexId) -> int | None:
        """Return by how much the watermark must pass a row's time before the row's effect is in this vertex's tables.

        A wait in a vertex upstream does not count here: that vertex's barriers carry a watermark that is smaller by
        this wait. None: the effect may wait until a drain.
        """
        until_a_drain: set[VertexId] = set()
        for vertex in self.vertices:
            above = (edge.upstream for edge in self.upstream(vertex.id))
            if vertex.rows_wait_ms is None or any(each in until_a_drain for each in above):
                until_a_drain.add(vertex.id)
        return None if name in until_a_drain else self.vertex(name).rows_wait_ms

    def tables(self) -> tuple[Table, ...]:
        """Return every output table of the job, in order of their vertices."""
        return tuple(table for vertex in self.vertices for table in vertex.tables)
