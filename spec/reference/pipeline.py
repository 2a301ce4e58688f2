"""The small pipeline that the simulator runs and the reference model replays: its graph and its rows.

    orders (splits a, b) -> bronze_orders                                                joined -> totals
    payments (split c)   -> bronze_payments /
    orders -> newest, an overwrite table, in some runs

A source row is one whole number, unique in the world. The number determines the row's split and key. So two tables'
contents can be compared row by row, and the order of a split's rows can be checked anywhere downstream.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt
from random import Random
from types import MappingProxyType
from typing import Final

from checkpointing.channel_items import SourceSlice
from checkpointing.columns import TableColumn
from checkpointing.event_time import EventTime, TimePartitions
from checkpointing.graph import Hook, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId, Generation, HookName, JobName, SplitId, TableName, VertexId
from checkpointing.metadata.paths import table_of_broadcast, table_of_state
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.state_meaning import ColumnMeaning

JOB: Final = JobName("small")

KEYS: Final = 6
MAX_PARALLELISM: Final = 4
ROW_BYTES: Final = 10
NO_PAYMENT: Final = -1
"""The payment with which an order is joined if no payment of its key came before the end of the input."""

ORDERS: Final = VertexId("orders")
PAYMENTS: Final = VertexId("payments")
BRONZE_ORDERS: Final = VertexId("bronze_orders")
BRONZE_PAYMENTS: Final = VertexId("bronze_payments")
JOINED: Final = VertexId("joined")
TOTALS: Final = VertexId("totals")
AUDIT: Final = VertexId("audit")
"""A vertex that some releases have and others lack. It stores the orders once more."""
NEWEST: Final = VertexId("newest")
"""A vertex of some runs. It keeps the orders of the newest delivery to each site in an overwrite table."""
WINDOWS: Final = VertexId("windows")
"""A vertex of some runs. It counts rows in windows of event time (`spec.reference.times`)."""
TIMES: Final = EventTime(delay_ms=20, idle_after_ms=300, hold_back_ms=80)
"""The event time that the pipeline declares for both sources in these runs."""
CLOSE_AFTER_MS: Final = 200
DAYS: Final = TimePartitions(size_ms=600, start_ms=0, offsets=((0, 10),))
"""The partitions of the table with windows. Some partitions end at times when no window ends."""

ORDERS_TABLE: Final = TableName("bronze/orders")
PAYMENTS_TABLE: Final = TableName("bronze/payments")
JOINED_TABLE: Final = TableName("silver/joined")
TOTALS_TABLE: Final = TableName("gold/totals")
AUDIT_TABLE: Final = TableName("bronze/audit")
NEWEST_TABLE: Final = TableName("silver/newest")
WINDOWS_TABLE: Final = TableName("gold/windows")
LATE_TABLE: Final = TableName("late/rows")
JOINED_STATE: Final = table_of_state(JOB, JOINED)
TOTALS_STATE: Final = table_of_state(JOB, TOTALS)

SUMS: Final = VertexId("sums")
RENAMED_VERTICES: Final[Mapping[VertexId, VertexId]] = MappingProxyType(
    {
        PAYMENTS: VertexId("paid"),
        BRONZE_ORDERS: VertexId("kept_orders"),
        TOTALS: SUMS,
        NEWEST: VertexId("latest"),
    }
)
"""The names that a renaming release gives to vertices of the other releases.

Such a release renames their tables too.
"""

RENAMED_TABLES: Final[Mapping[TableName, TableName]] = MappingProxyType(
    {
        ORDERS_TABLE: TableName("bronze/all_orders"),
        TOTALS_TABLE: TableName("gold/sums"),
        TOTALS_STATE: table_of_state(JOB, SUMS),
        table_of_broadcast(JOB, TOTALS): table_of_broadcast(JOB, SUMS),
        NEWEST_TABLE: TableName("silver/latest"),
    }
)
_FIRST_VERTICES: Final = {now: was for was, now in RENAMED_VERTICES.items()}
_FIRST_TABLES: Final = {now: was for was, now in RENAMED_TABLES.items()}

SPLITS: Final[dict[VertexId, tuple[SplitId, ...]]] = {
    ORDERS: (SplitId("a"), SplitId("b")),
    PAYMENTS: (SplitId("c"),),
}
LATER: Final = SplitId("a2")
"""A split of the orders that the source does not have at the beginning."""
PARTS: Final = ("a", "b")
"""The beginnings of the splits' names in each part of the orders, if the orders are read in parts (B4)."""
ESTIMATED: Final = SplitId("b")
"""The split whose slices only have an estimated number of rows."""
_ORDINALS: Final = {SplitId("a"): 0, SplitId("b"): 1, SplitId("c"): 2, LATER: 3}
_IN_ORDER: Final = tuple(_ORDINALS)
_STRIDE: Final = 4


LEDGER: Final = HookName("ledger")
SEQUENCE: Final = HookName("sequence")
HOOKS: Final = (Hook(LEDGER, 150), Hook(SEQUENCE, 400))
"""The master hooks (A8) of runs that have some."""

RELEASES: Final = (("row",), ("row", "more"), ("row", "other"), ("row",))
"""The columns that each release declares for every table. Their values do not matter here."""

RENAMING: Final = len(RELEASES) - 1
"""The release with other names.

It declares renames from the names of the first release, and the other releases declare renames from its names.
"""

VALUE: Final = "row"
RENAMED_VALUE: Final = "line"
"""The name of the value column of TOTALS in release RENAMING_VALUE, in its state and its table."""

RENAMING_VALUE: Final = 2
"""The release that renames this column. It declares the rename, and the other releases declare the opposite one."""


@cache
def graph(  # noqa: PLR0913 - each is something that a run may have
    parallelism: int,
    release: int = 0,
    hooks: tuple[Hook, ...] = (),
    orders: tuple[SplitId, ...] = SPLITS[ORDERS],
    *,
    audited: bool = False,
    bounded: tuple[VertexId, ...] = (),
    parted: bool = False,
    overwrites: bool = False,
) -> JobGraph:
    """Return the graph of this release, with its keyed vertices at that parallelism.

    `orders` are the splits of the orders. With `audited`, it has the vertex that comes and goes. `bounded` are the
    sources that end, under their names in the first release. With `parted`, the orders are read in parts. With
    `overwrites`, it has an overwrite table. A graph with master hooks has source coordinators too.
    """
    columns = tuple(TableColumn(name, "long") for name in RELEASES[release])
    bare = _with_orders(_graph(parallelism), orders)
    bare = _overwriting(bare) if overwrites else bare
    bare = with_columns(_audited(bare) if audited else bare, columns)
    vertices = tuple(_value_named(vertex, renames=release == RENAMING_VALUE) for vertex in bare.vertices)
    vertices = tuple(replace(vertex, bounded=vertex.id in bounded) for vertex in vertices)
    if hooks:
        vertices = tuple(
            replace(each, coordinated=True) if each.kind is VertexKind.SOURCE else each for each in vertices
        )
    if parted:
        vertices = tuple(replace(vertex, parts=PARTS) if vertex.id == ORDERS else vertex for vertex in vertices)
    named = _named(replace(bare, vertices=vertices), renames=release == RENAMING)
    return replace(named, hooks=hooks)


def _value_named(vertex: Vertex, *, renames: bool) -> Vertex:
    """Return the vertex with its value column under the first or the other name, and the rename."""
    if vertex.id != TOTALS:
        return vertex
    if not renames:
        return replace(vertex, columns_renamed_from={VALUE: RENAMED_VALUE})
    tables = (
        replace(
            table,
            columns=tuple(
                replace(column, name=RENAMED_VALUE if column.name == VALUE else column.name) for column in table.columns
            ),
        )
        for table in vertex.tables
    )
    return replace(vertex, tables=tuple(tables), columns_renamed_from={RENAMED_VALUE: VALUE})


def _named(bare: JobGraph, *, renames: bool) -> JobGraph:
    """Return the graph under its first or its other names, with the renames."""
    vertices = tuple(_vertex_named(vertex, renames=renames) for vertex in bare.vertices)
    names = {bare.id: named.id for bare, named in zip(bare.vertices, vertices, strict=True)}
    edges = (EdgeId(names[edge.upstream], names[edge.downstream], edge.input) for edge in bare.edges)
    return JobGraph(vertices, tuple(edges))


def _vertex_named(vertex: Vertex, *, renames: bool) -> Vertex:
    vertex = replace(vertex, tables=tuple(_table_named(table, renames=renames) for table in vertex.tables))
    other = RENAMED_VERTICES.get(vertex.id)
    if other is None:
        return vertex
    return replace(vertex, id=other, renamed_from=vertex.id) if renames else replace(vertex, renamed_from=other)


def _table_named(table: Table, *, renames: bool) -> Table:
    other = RENAMED_TABLES.get(table.name)
    if other is None:
        return table
    return replace(table, name=other, renamed_from=table.name) if renames else replace(table, renamed_from=other)


def first_id(vertex: VertexId) -> VertexId:
    """Return the name of a vertex in the first release."""
    return _FIRST_VERTICES.get(vertex, vertex)


def first_table(table: TableName) -> TableName:
    return _FIRST_TABLES.get(table, table)


def table_now(table: TableName, vertex: VertexId) -> TableName:
    """Return the present name of a table of the first release. `vertex` is the present name of its writer."""
    return RENAMED_TABLES.get(table, table) if vertex in _FIRST_VERTICES else table


def is_renamed(record: CheckpointRecord) -> bool:
    """Return whether an entry has the names of the renaming release."""
    return any(was.vertex == SUMS for was in record.vertices)


def graph_of(record: CheckpointRecord) -> JobGraph:
    """Return the graph under the names of an entry."""
    names = {first_id(was.vertex) for was in record.vertices}
    bare = graph(1, RENAMING if is_renamed(record) else 0, overwrites=NEWEST in names)
    return with_times(bare, 1) if WINDOWS in names else bare


def with_sinks(bare: JobGraph, *, voters: int = 0) -> JobGraph:
    """Return the graph with outside sinks for two append tables and an upsert table. `voters` is how many of them vote.

    No release renames these append tables. The upsert table has no sink in a release that gives it another name.
    """
    names = (PAYMENTS_TABLE, JOINED_TABLE, TOTALS_TABLE)
    vertices = (
        replace(
            vertex,
            tables=tuple(
                replace(each, outside=each.name in names, votes=each.name in names[:voters]) for each in vertex.tables
            ),
        )
        for vertex in bare.vertices
    )
    return replace(bare, vertices=tuple(vertices))


def with_broadcast(bare: JobGraph) -> JobGraph:
    """Return the graph with broadcast state at the vertex TOTALS, under its present name."""
    vertices = []
    for vertex in bare.vertices:
        if first_id(vertex.id) == TOTALS:
            shown = replace(
                vertex.tables[-1], name=table_of_broadcast(JOB, vertex.id), broadcast=True, renamed_from=None
            )
            vertex = replace(vertex, tables=(*vertex.tables, shown))  # noqa: PLW2901 - the same one with more
        vertices.append(vertex)
    return replace(bare, vertices=tuple(vertices))


def with_times(bare: JobGraph, parallelism: int, *, closes: bool = False) -> JobGraph:
    """Return the graph with times on the rows of both sources, and with the vertex that has windows.

    With `closes`, the event time of a source goes on by the clock while the source is at rest.
    """
    times = replace(TIMES, close_after_ms=CLOSE_AFTER_MS) if closes else TIMES
    timed = tuple(
        replace(each, event_times=(times,)) if first_id(each.id) in (BRONZE_ORDERS, BRONZE_PAYMENTS) else each
        for each in bare.vertices
    )
    columns = next(table.columns for vertex in bare.vertices for table in vertex.tables)
    tables = (
        Table(WINDOWS_TABLE, TableMode.APPEND, columns=columns, time_partitions=DAYS),
        Table(LATE_TABLE, TableMode.APPEND, columns=columns),
        Table(table_of_state(JOB, WINDOWS), TableMode.STATE, columns=columns),
    )
    meanings = (ColumnMeaning(column="rows", function="count"),)
    windows = Vertex(WINDOWS, VertexKind.KEYED, parallelism, tables, meanings=meanings, fires=True)
    names = {first_id(each.id): each.id for each in bare.vertices}
    edges = (EdgeId(names[BRONZE_ORDERS], WINDOWS, 0), EdgeId(names[BRONZE_PAYMENTS], WINDOWS, 1))
    return replace(bare, vertices=(*timed, windows), edges=(*bare.edges, *edges))


def with_counts(bare: JobGraph) -> JobGraph:
    """Return the graph with suites that also judge an epoch that has no rows for their tables."""
    vertices = (
        replace(vertex, tables=tuple(replace(table, judged_empty=table.judged) for table in vertex.tables))
        for vertex in bare.vertices
    )
    return replace(bare, vertices=tuple(vertices))


def with_columns(bare: JobGraph, columns: tuple[TableColumn, ...]) -> JobGraph:
    """Return the graph with these columns in every table."""
    vertices = (
        replace(vertex, tables=tuple(replace(table, columns=columns) for table in vertex.tables))
        for vertex in bare.vertices
    )
    return replace(bare, vertices=tuple(vertices))


def _with_orders(bare: JobGraph, splits: tuple[SplitId, ...]) -> JobGraph:
    source = replace(bare.vertex(ORDERS), parallelism=len(splits), splits=splits)
    return replace(bare, vertices=(source, *bare.vertices[1:]))


def _audited(bare: JobGraph) -> JobGraph:
    audit = Vertex(AUDIT, VertexKind.STATELESS, 1, (Table(AUDIT_TABLE, TableMode.APPEND),))
    return replace(bare, vertices=(*bare.vertices, audit), edges=(*bare.edges, EdgeId(ORDERS, AUDIT)))


def _overwriting(bare: JobGraph) -> JobGraph:
    table = Table(NEWEST_TABLE, TableMode.OVERWRITE, ("delivery",), judged=True, partitioned_by=("site",))
    newest = Vertex(NEWEST, VertexKind.STATELESS, 1, (table,))
    return replace(bare, vertices=(*bare.vertices, newest), edges=(*bare.edges, EdgeId(ORDERS, NEWEST)))


def must_audit(record: CheckpointRecord | None) -> bool:
    """Return whether a cut holds rows in flight for the vertex that comes and goes.

    Then no release may drop the vertex.
    """
    vertices = record.vertices if record is not None else ()
    held = (each for vertex in vertices for subtask in vertex.subtasks for each in subtask.in_flight)
    return any(each.channel.edge.downstream == AUDIT for each in held)


def _graph(parallelism: int) -> JobGraph:
    return JobGraph(
        (
            Vertex(ORDERS, VertexKind.SOURCE, 2, splits=SPLITS[ORDERS]),
            Vertex(PAYMENTS, VertexKind.SOURCE, 1, splits=SPLITS[PAYMENTS]),
            Vertex(BRONZE_ORDERS, VertexKind.STATELESS, 1, (Table(ORDERS_TABLE, TableMode.APPEND),)),
            Vertex(BRONZE_PAYMENTS, VertexKind.STATELESS, 1, (Table(PAYMENTS_TABLE, TableMode.APPEND),)),
            Vertex(
                JOINED,
                VertexKind.KEYED,
                parallelism,
                (Table(JOINED_TABLE, TableMode.APPEND, judged=True), Table(JOINED_STATE, TableMode.STATE)),
                meanings=(ColumnMeaning(column="payment", function="first_right_row"),),
            ),
            Vertex(
                TOTALS,
                VertexKind.KEYED,
                parallelism,
                (Table(TOTALS_TABLE, TableMode.UPSERT, ("key",)), Table(TOTALS_STATE, TableMode.STATE)),
                meanings=(ColumnMeaning(column="rows", function="count"),),
            ),
        ),
        (
            EdgeId(ORDERS, BRONZE_ORDERS),
            EdgeId(PAYMENTS, BRONZE_PAYMENTS),
            EdgeId(BRONZE_ORDERS, JOINED, 0),
            EdgeId(BRONZE_PAYMENTS, JOINED, 1),
            EdgeId(JOINED, TOTALS),
        ),
    )


def ending_splits(bounded: Iterable[VertexId], *, parted: bool) -> frozenset[SplitId]:
    """Return the splits that end: those of bounded sources, and with `parted` those of the orders' first part."""
    known = {**SPLITS, ORDERS: (*SPLITS[ORDERS], LATER)}
    first = {split for split in known[ORDERS] if parted and split.startswith(PARTS[0])}
    return frozenset(first.union(*(known[source] for source in bounded)))


def position_before(row: int) -> str:
    """Return the position before that row of a split, counted from 0.

    The gaps between rows become wider and wider, as in a compacted log. So no code can mistake a position for a number
    of rows.
    """
    return f"place {row * (row + 3)}"


def rows_before(position: str | None) -> int:
    """Return how many rows of a split lie before a position. None is the split's start."""
    place = 0 if position is None else int(position.removeprefix("place "))
    return (isqrt(9 + 4 * place) - 3) // 2


def rows_of(piece: SourceSlice) -> Iterator[int]:
    return source_rows(piece.split, rows_before(piece.start), rows_before(piece.end))


def source_rows(split: SplitId, start: int, end: int) -> Iterator[int]:
    ordinal = _ORDINALS[split]
    return (place * _STRIDE + ordinal for place in range(start, end))


def split_of(row: int) -> SplitId:
    """Return the split from which a source row came. Later rows of a split are larger."""
    return _IN_ORDER[row % _STRIDE]


def key_of(row: int) -> int:
    """Return a source row's key."""
    return (row // _STRIDE * 5 + row % _STRIDE) % KEYS


def site_of(row: int) -> int:
    """Return the partition of the overwrite table in which a source row lies."""
    return row // _STRIDE % 2


def delivery_of(row: int) -> int:
    """Return a source row's version in the overwrite table.

    It rises from 8, and now and then an older one comes late.
    """
    place = row // _STRIDE
    return 8 + place // 4 + place * 5 % 3


def key_group(key: int) -> int:
    return key % MAX_PARALLELISM


def by_key(rows: Iterable[int]) -> dict[int, list[int]]:
    """Return a dict from each key to its source rows, in order."""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(key_of(row), []).append(row)
    return found


# ------------------------------------------------------------------
# The reference: what the tables and the state hold at a cut, computed by replaying the sources from their start.
#
# It contains nothing of the protocol: no barriers, no micro-batches, no files. For it, a cut is the stretches of each
# split that were read: one stretch, unless the split was reset. A row in two stretches counts twice, and a row in no
# stretch never counts. Rows that an unaligned cut holds in flight were read, but have not reached the next vertex. A
# drain ends every key of the join: a waiting order is emitted without a payment, and later payments do not meet it.


Pair = tuple[int, int]
"""A joined row: an order and a payment of one key."""


Read = Mapping[SplitId, Sequence[tuple[int, int]]]
"""The stretches of each split, in reading order. A stretch is its first row, and the row before which it ends."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What tables and state hold at one cut. Counters are multisets."""

    orders: Counter[int]
    payments: Counter[int]
    joined: Counter[Pair]
    totals: dict[int, tuple[int, int]]
    """Key -> (number of pairs, sum of their numbers). The upsert table and its operator's state both hold this."""
    join_state: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
    """Key -> (orders, payments), each sorted."""


def replay(
    read: Read,
    in_flight_rows: Mapping[VertexId, Counter[int]],
    in_flight_pairs: Counter[Pair],
    drains: Sequence[Read] = (),
) -> Contents:
    """Return the contents after these stretches were read, without the rows in flight before each vertex.

    `drains` are the stretches that had been read at each earlier drain, oldest first. At the last drain, all of `read`
    may have been read.
    """
    joined: Counter[Pair] = Counter()
    begun: Read = {}
    for ended in drains:
        joined += _ended(by_key(_between(ORDERS, begun, ended)), by_key(_between(PAYMENTS, begun, ended)))
        begun = ended
    orders = _sent(ORDERS, read) - in_flight_rows.get(ORDERS, Counter())
    payments = _sent(PAYMENTS, read) - in_flight_rows.get(PAYMENTS, Counter())
    left = by_key((orders - in_flight_rows.get(BRONZE_ORDERS, Counter()) - _sent(ORDERS, begun)).elements())
    right = by_key((payments - in_flight_rows.get(BRONZE_PAYMENTS, Counter()) - _sent(PAYMENTS, begun)).elements())
    joined += Counter((order, payment) for key in left for order in left[key] for payment in right.get(key, ()))
    return Contents(
        orders,
        payments,
        joined,
        sums(joined - in_flight_pairs),
        {key: (tuple(sorted(left.get(key, ()))), tuple(sorted(right.get(key, ())))) for key in left.keys() | right},
    )


def _without_unmet(contents: Contents) -> Contents:
    """Return the contents without unpaid orders.

    In at-least-once mode, a repeated order may have met a later payment.
    """
    met = Counter({pair: times for pair, times in contents.joined.items() if pair[1] != NO_PAYMENT})
    return replace(contents, joined=met, totals=sums(met))


def _ended(left: Mapping[int, list[int]], right: Mapping[int, list[int]]) -> Counter[Pair]:
    """Return the pairs after all keys have ended. They include each order without a payment."""
    return Counter((order, payment) for key in left for order in left[key] for payment in right.get(key, (NO_PAYMENT,)))


def sums(pairs: Counter[Pair]) -> dict[int, tuple[int, int]]:
    """Return the count and the sum of the pairs of each key."""
    found: dict[int, tuple[int, int]] = {}
    for (order, payment), times in pairs.items():
        (key,) = by_key([order])
        count, total = found.get(key, (0, 0))
        found[key] = (count + times, total + times * (order + payment))
    return found


def _sent(source: VertexId, read: Read) -> Counter[int]:
    splits = (*SPLITS[source], LATER) if source == ORDERS else SPLITS[source]
    stretches = ((split, *stretch) for split in splits for stretch in read.get(split, ()))
    return Counter(row for split, begin, end in stretches for row in source_rows(split, begin, end))


def _between(source: VertexId, begun: Read, ended: Read) -> Iterable[int]:
    return (_sent(source, ended) - _sent(source, begun)).elements()


def differences(expected: Contents, shown: Contents) -> Iterable[str]:
    """Yield the rows that a cut lacks, and those that it has in excess (exactly once)."""
    for name in ("orders", "payments", "joined"):
        want, have = getattr(expected, name), getattr(shown, name)
        if want != have:
            yield f"{name}: lacks {_brief(want - have)}, has too much {_brief(have - want)}"
    for name in ("totals", "join_state"):
        want, have = getattr(expected, name), getattr(shown, name)
        if want != have:
            yield f"{name}: should be {want}, is {have}"


def shortfalls(expected: Contents, shown: Contents) -> Iterable[str]:
    """Yield the rows that a cut lacks. In at-least-once mode, it may have more."""
    expected = _without_unmet(expected)
    for name in ("orders", "payments", "joined"):
        missing = getattr(expected, name) - getattr(shown, name)
        if missing:
            yield f"{name}: lacks {_brief(missing)}"
    for key, (count, _) in expected.totals.items():
        if shown.totals.get(key, (0, 0))[0] < count:
            yield f"totals: key {key} counts {shown.totals.get(key)}, at least {count} are due"


def _brief(rows: Counter[int] | Counter[Pair]) -> str:
    shown = sorted(rows.items())
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""  # noqa: PLR2004
    return f"{shown[:5]}{more}" if shown else "nothing"


# ------------------------------------------------------------------
# Simulates upstream jobs whose cuts the simulated job reads (A10).


SHOP, BANK = "shop", "bank"
"""Names of two upstream jobs."""

ROWS_PER_CUT: Final = 7
"""Each cut adds this many rows to each split, until the split has no more."""
PUBLISHES: Final = 0.2
"""The probability that an upstream job publishes another cut when it is asked for its newest one."""


@dataclass(frozen=True, slots=True)
class CutReached:
    """A split has read all rows up to a cut of its upstream job."""

    generation: Generation
    source: VertexId
    split: SplitId
    position: str
    cut: str


class Upstreams:
    """The upstream jobs. Some sources may read something other than cuts."""

    def __init__(self, rows: Mapping[SplitId, int], readable: dict[SplitId, int], jobs: Mapping[SplitId, str]) -> None:
        self._rows = rows
        self._readable = readable
        self._jobs = jobs

    def groups(self, graph: JobGraph) -> dict[VertexId, str]:
        """Return the upstream job of each source that reads cuts."""
        jobs = {source.id: self._jobs.get(source.splits[0]) for source in graph.sources()}
        return {source: job for source, job in jobs.items() if job is not None}

    def has(self, split: SplitId) -> bool:
        """Return True if the split reads cuts."""
        return split in self._jobs

    def publish(self, split: SplitId) -> None:
        """Let the job of this split publish another cut, if it has rows left."""
        for each in self._of(split):
            self._readable[each] = min(self._rows[each], self._readable[each] + ROWS_PER_CUT)

    def newest(self, split: SplitId) -> int:
        """Return the newest cut of this split's job. Its rows are readable in every split of the job."""
        splits = self._of(split)
        last = -(-max(self._rows[each] for each in splits) // ROWS_PER_CUT)
        return max(n for n in range(last + 1) if all(self.place(n, each) <= self._readable[each] for each in splits))

    def place(self, cut: int, split: SplitId) -> int:
        """Return how many rows a split has at a cut."""
        return min(cut * ROWS_PER_CUT, self._rows[split])

    def _of(self, split: SplitId) -> list[SplitId]:
        return [each for each, job in self._jobs.items() if job == self._jobs[split]]


def drawn_upstreams(seed: int, rows: Mapping[SplitId, int], readable: dict[SplitId, int]) -> Upstreams:
    """Choose the upstream jobs at random: one job for both sources, one for each source, or one for only one source.

    A source with an upstream job reads the cuts of this job. The seed determines the choice.
    """
    random = Random(f"upstream of {seed}")  # noqa: S311 - a run must be repeatable
    orders = [split for split in rows if split not in SPLITS[PAYMENTS]]
    of_orders, of_payments = random.choice([(SHOP, SHOP), (SHOP, BANK), (SHOP, None), (None, BANK)])
    jobs = dict.fromkeys(orders, of_orders) | dict.fromkeys(SPLITS[PAYMENTS], of_payments)
    return Upstreams(rows, readable, {split: job for split, job in jobs.items() if job is not None})
