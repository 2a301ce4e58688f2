"""The model of changes: an aggregate emits changes, a filter follows, and another aggregate takes the changes.

The functions are those that the product's tasks call. The batch computation is plain Python.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, EdgeId, JobName, VertexId
from checkpointing.job import restoring
from checkpointing.metadata.record import Statistics, VertexRecord
from checkpointing.state_meaning import ColumnMeaning
from jobs.operators.changelog_aggregates import ChangingAggregates, changing_aggregates, changing_state_schema
from jobs.operators.changes import ADDING, DELETE, INSERT, KIND, UPDATE_BEFORE, added, changes_of, deleted_keys
from jobs.operators.join import JoinFunction, JoinType, join_state_schema
from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_state
from jobs.pipeline.aggregates import AggregateColumn, count, count_distinct, min_of, named_aggregates, sum_of
from jobs.state.files import empty_frame
from jobs.state.merge import KEY_GROUP
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

ADD_UP: Final = "changes-add-up"
"""The changes up to a cut, added and taken back, make the table at the cut.

A batch computation over the source rows before the cut makes the same table."""
TOGETHER: Final = "changes-begin-together"
"""A cut is restored only if each vertex that takes changes has got all changes before the cut."""

_BATCHES: Final = 12
_ROWS: Final = StructType().add("k", LongType()).add("v", LongType())

Table = Counter[tuple[Any, ...]]


class _Aggregate:
    """One aggregate with its state, and the table that its changes make."""

    def __init__(self, key: str, rows: StructType, columns: dict[str, AggregateColumn]) -> None:
        changing = changing_aggregates(named_aggregates("model", (key,), rows, columns), rows)
        self._key = key
        self._types = {**empty_frame(arrow_schema(rows)).schema, KIND: pl.String()}
        self._function = ChangingAggregates((key,), changing)
        self._state = empty_frame(arrow_schema(changing_state_schema((key,), changing, rows)))
        self.folded: Table = Counter()

    def take(self, changes: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Take a micro-batch of changes, and return the changes of the result."""
        rows = pl.DataFrame(changes, schema=self._types, orient="row")
        touched = rows.select(self._key).unique()
        before = self._state.join(touched, on=self._key, how="semi", nulls_equal=True)
        done = self._function.process([rows], before)
        kept = self._state.join(touched, on=self._key, how="anti", nulls_equal=True)
        self._state = pl.concat([kept, done.state.cast(self._state.schema)])
        was = self._function.results(before.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        found = changes_of(was, done.output.cast(was.schema), [self._key]).rows()
        for *row, kind in found:
            self.folded[tuple(row)] += -1 if kind in (UPDATE_BEFORE, DELETE) else 1
        return found

    def shown(self) -> Table:
        """Return the table that follows from the state, as an upsert table shows it."""
        state = self._state.with_columns(pl.lit(0).alias(KEY_GROUP))
        return Counter(self._function.results(state).drop(KEY_GROUP).rows())


def changes_add_up(seed: int) -> bool:
    """Return whether both tables are right after each random micro-batch."""
    chance = Random(seed)  # noqa: S311 - a test's draw
    first = _Aggregate("k", _ROWS, {"rows": count(), "total": sum_of("v")})
    over = {"keys": count(), "sum": sum_of("total"), "least": min_of("total"), "different": count_distinct("total")}
    second = _Aggregate("rows", StructType().add("rows", LongType()).add("total", LongType()), over)
    live: list[tuple[int, int]] = []
    for _ in range(_BATCHES):
        changes = first.take(list(_drawn(chance, live)))
        second.take([(rows, total, kind) for _, rows, total, kind in changes if total % 3])
        if not (_is(first, _by_key(live)) and _is(second, _by_rows(_by_key(live)))):
            return False
    return True


def _drawn(chance: Random, live: list[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield changes: new rows, and rows that are taken back and so leave `live`."""
    for _ in range(chance.randint(0, 6)):
        if live and chance.random() < 0.4:
            yield (*live.pop(chance.randrange(len(live))), chance.choice([DELETE, UPDATE_BEFORE]))
        else:
            live.append((chance.randint(1, 5), chance.randint(1, 3)))
            yield (*live[-1], INSERT)


def _is(aggregate: _Aggregate, expected: Table) -> bool:
    """Return whether both the changes so far and the state make this table. No row is taken back too often."""
    return expected == aggregate.shown() and expected == Counter(
        {row: times for row, times in aggregate.folded.items() if times}
    )


def _by_key(live: list[tuple[int, int]]) -> Table:
    keys = {key for key, _ in live}
    values = {key: [value for own, value in live if own == key] for key in keys}
    return Counter((key, len(own), sum(own)) for key, own in values.items())


def _by_rows(first: Table) -> Table:
    passed = [(rows, total) for _, rows, total in first if total % 3]
    groups = {rows: [total for own, total in passed if own == rows] for rows, _ in passed}
    return Counter((rows, len(own), sum(own), min(own), len(set(own))) for rows, own in groups.items())


# ------------------------------------------------------------------ restores

_FIRST: Final = VertexId("first")
_SECOND: Final = VertexId("second")
_MEANINGS: Final = (ColumnMeaning(column="n", function="count"), ColumnMeaning(column="_rows", function="rows"))
_GRAPH: Final = JobGraph(
    (
        Vertex(_FIRST, VertexKind.KEYED, 1),
        Vertex(_SECOND, VertexKind.KEYED, 1, meanings=_MEANINGS, changes_of=(_FIRST,)),
    ),
    (EdgeId(_FIRST, _SECOND),),
)


def cuts_hold_all_changes() -> bool:
    """Return whether exactly those cuts are restored in which the second vertex has got all changes of the first."""
    first = VertexRecord(vertex=_FIRST, micro_batch=1, subtasks=(), meanings=())
    whole = VertexRecord(vertex=_SECOND, micro_batch=1, subtasks=(), meanings=_MEANINGS)
    younger = whole.model_copy(update={"meanings": _MEANINGS[1:]})
    cuts = {(): True, (first, whole): True, (first,): False, (whole,): False, (first, younger): False}
    return all(_restores(vertices) is fits for vertices, fits in cuts.items())


def _restores(vertices: tuple[VertexRecord, ...]) -> bool:
    statistics = Statistics(triggered_ms=0, committed_ms=0, rows=0)
    entry = plain_entry(
        job=JobName("model"),
        checkpoint=CheckpointId(3),
        parent=NO_CHECKPOINT,
        nonce="3",
        max_parallelism=4,
        vertices=vertices,
        statistics=statistics,
    )
    try:
        restoring.check_fits(_GRAPH, entry, entry.max_parallelism)
    except restoring.CutDoesNotFitError:
        return False
    return True


# ------------------------------------------------------------------
# The model of joins over changes: random rows of both sides are added and taken back, and the join emits changes.
#
# The function is the one that the product's tasks call. The batch computation is plain Python.


JOINS: Final = "joins-add-up"
"""After each micro-batch, the changes so far, added and taken back, equal the batch join of both sides' rows."""

_BATCHES_OF_JOINING: Final = 10
_LEFT: Final = StructType().add("k", LongType()).add("v", LongType())
_RIGHT: Final = StructType().add("k", LongType()).add("w", LongType())

Row = tuple[int | None, int]


def joins_add_up(seed: int) -> bool:
    """Return whether each type of join is right after each random micro-batch."""
    return all(
        _adds_up(Random(seed), how, changelogs=changelogs)  # noqa: S311 - a test's draw
        for how in JoinType
        for changelogs in (False, True)
    )


def _adds_up(chance: Random, how: JoinType, *, changelogs: bool) -> bool:
    function = JoinFunction(("k",), ("k",), ("v",), ("w",), how)
    state = empty_frame(arrow_schema(join_state_schema(_LEFT, _RIGHT, ("k",), ("k",))))
    live: tuple[list[Row], list[Row]] = ([], [])
    folded: Table = Counter()
    for _ in range(_BATCHES_OF_JOINING):
        frames = [
            _frame(list(_drawn_of_joining(chance, rows, changelogs=changelogs)), name)
            for rows, name in zip(live, ("v", "w"), strict=True)
        ]
        frames = frames if changelogs else [frame.drop(KIND) for frame in frames]
        touched = pl.concat([frame.select("k") for frame in frames]).unique()
        before = state.join(touched, on="k", how="semi", nulls_equal=True)
        rest = state.join(touched, on="k", how="anti", nulls_equal=True)
        done = function.process(frames, before)
        state = pl.concat([rest, done.state.cast(state.schema)])
        for *row, kind in done.output.iter_rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        if {row: times for row, times in folded.items() if times} != dict(_batch(*live, how)):
            return False
    return True


def _frame(rows: list[tuple[int | None, int, str]], name: str) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"k": pl.Int64(), name: pl.Int64(), KIND: pl.String()}, orient="row")


def _drawn_of_joining(chance: Random, live: list[Row], *, changelogs: bool) -> Iterator[tuple[int | None, int, str]]:
    """Yield changes of one side: new rows, some equal to others, and in changelogs also rows that are taken back."""
    for _ in range(chance.randint(0, 4)):
        if changelogs and live and chance.random() < 0.5:
            yield (*live.pop(chance.randrange(len(live))), DELETE)
        else:
            live.append((chance.choice([None, 1, 2, 3]), chance.randint(1, 2)))
            yield (*live[-1], INSERT)


def _batch(left: list[Row], right: list[Row], how: JoinType) -> Table:
    """Return the batch join, in which a null matches nothing."""
    pairs = [(one[0], one[1], other[1]) for one in left for other in right if one[0] == other[0] is not None]
    matched = {pair[0] for pair in pairs}
    alone: list[tuple[Any, ...]] = []
    if how.has_left_alone:
        return Counter(row for row in left if (row[0] in matched) == (how is JoinType.SEMI))
    if how in (JoinType.LEFT, JoinType.FULL):
        alone += [(key, value, None) for key, value in left if key not in matched]
    if how in (JoinType.RIGHT, JoinType.FULL):
        alone += [(key, None, value) for key, value in right if key not in matched]
    return Counter([*pairs, *alone])


# ------------------------------------------------------------------
# The model of top rows: random rows are added and taken back, and the first rows of each key are emitted as changes.
# The functions are those that the product's tasks call. Plain Python computes the expected first rows.


TOP_ROWS: Final = "top-rows-add-up"
"""After each micro-batch, the changes so far, added and taken back, equal the first rows of all rows so far.

So does the table that keeps them by upsert."""

_BATCHES_OF_TOP_ROWS: Final = 10
_ROWS_OF_TOP_ROWS: Final = StructType().add("k", LongType()).add("v", LongType()).add("w", LongType())

RowOfTopRows = tuple[int | None, int | None, int]
Shown = tuple[Any, ...]


def top_rows_add_up(seed: int) -> bool:
    """Return whether first rows of append-only streams and of changelogs are right after each random micro-batch."""
    return all(
        _adds_up_of_top_rows(Random(seed), function)  # noqa: S311 - a test's draw
        for changelog in (False, True)
        for function in _functions(seed, changelog=changelog)
    )


def _functions(seed: int, *, changelog: bool) -> Iterator[TopRows]:
    order = (Order("v", descending=seed % 2 == 1),)
    yield TopRows(("k",), ("v", "w"), order, 1, None, changelog)
    yield TopRows(("k",), ("v", "w"), order, 2 + seed % 2, None, changelog)
    yield TopRows(("k",), ("v", "w"), (*order, Order("w", descending=True)), 1 + seed % 3, "place", changelog)
    yield TopRows(("k",), ("v", "w"), order, 1 + seed % 3, None, changelog, ties=True, place="rank")
    yield TopRows(("k",), ("v", "w"), order, 1 + seed % 3, "nth", changelog, ties=seed % 2 == 0, place="rank")


def _adds_up_of_top_rows(chance: Random, function: TopRows) -> bool:
    state = empty_frame(arrow_schema(top_state(_ROWS_OF_TOP_ROWS, ("k",))))
    live: list[RowOfTopRows] = []
    folded: Counter[Shown] = Counter()
    table: dict[Shown, Shown] = {}
    for _ in range(_BATCHES_OF_TOP_ROWS):
        frame = _frame_of_top_rows(
            list(_drawn_of_top_rows(chance, live, goes=function.changelog)), changelog=function.changelog
        )
        touched = frame.select("k").unique()
        before = state.join(touched, on="k", how="semi", nulls_equal=True)
        rest = state.join(touched, on="k", how="anti", nulls_equal=True)
        done = function.process([frame], before)
        state = pl.concat([rest, done.state.cast(state.schema)])
        for *row, kind in done.output.iter_rows():
            folded[tuple(row)] += 1 if kind in ADDING else -1
        wanted = Counter(_first(live, function))
        if {row: times for row, times in folded.items() if times} != dict(wanted):
            return False
        if function.table_keys and not _is_kept(table, done.output, function.table_keys, wanted):
            return False
    return True


def _is_kept(table: dict[Shown, Shown], changes: pl.DataFrame, keys: Sequence[str], wanted: Counter[Shown]) -> bool:
    """Apply these changes to an upsert table. Return whether the table is right."""
    for key in deleted_keys(changes, keys).iter_rows():
        table.pop(key, None)
    rows = added(changes)
    table.update(zip(rows.select(keys).iter_rows(), rows.iter_rows(), strict=True))
    return Counter(table.values()) == wanted


def _frame_of_top_rows(rows: list[tuple[int | None, int | None, int, str]], *, changelog: bool) -> pl.DataFrame:
    schema = {"k": pl.Int64(), "v": pl.Int64(), "w": pl.Int64(), KIND: pl.String()}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame if changelog else frame.drop(KIND)


def _drawn_of_top_rows(
    chance: Random, live: list[RowOfTopRows], *, goes: bool
) -> Iterator[tuple[int | None, int | None, int, str]]:
    """Yield changes: new rows, some equal to others, and rows that are taken back."""
    for _ in range(chance.randint(0, 5)):
        if goes and live and chance.random() < 0.5:
            yield (*live.pop(chance.randrange(len(live))), DELETE)
        else:
            live.append((chance.choice([None, 1, 2]), chance.choice([None, 1, 2, 3]), chance.randint(1, 2)))
            yield (*live[-1], INSERT)


def _first(rows: list[RowOfTopRows], function: TopRows) -> Iterator[Shown]:
    """Yield the first rows of each key as they are emitted."""
    for key in {row[0] for row in rows}:
        of_key = sorted((row for row in rows if row[0] == key), key=lambda row: _rank(row, function.order))
        places = [_rank(row, function.order)[: len(function.order)] for row in of_key]
        for ahead, row in enumerate(of_key):
            above = places.index(places[ahead])
            if (above if function.ties else ahead) < function.n:
                numbers = ((function.place, above + 1), (function.number, ahead + 1))
                said = (number for name, number in numbers if name is not None)
                yield (*row, *said)


def _rank(row: RowOfTopRows, order: Sequence[Order]) -> tuple[tuple[bool, int], ...]:
    """Return the sort key of a row: the columns of the order, then all columns. Null is the least."""
    values = {"v": row[1], "w": row[2]}
    ordered = [(values[by.column], by.descending) for by in order] + [(value, False) for value in values.values()]
    return tuple(
        ((value is None) == falls, 0 if value is None else -value if falls else value) for value, falls in ordered
    )


_seed = st.integers(0, 9_999)
_few = settings(max_examples=settings.default.max_examples // 10)


@_few
@given(seed=_seed)
def test_changes_add_up_to_the_batch_at_each_cut(seed):
    """Two aggregates with a filter between them, over random micro-batches."""
    expect(changes_add_up(seed), ADD_UP)


@_few
@given(seed=_seed)
def test_joins_add_up_to_the_batch(seed):
    """Joins of all types over rows that come and go, some with a null as key."""
    expect(joins_add_up(seed), JOINS)


@_few
@given(seed=_seed)
def test_top_rows_add_up_to_the_first_rows(seed):
    """First rows of rows that only come, and of rows that come and go."""
    expect(top_rows_add_up(seed), TOP_ROWS)


def test_a_vertex_that_takes_changes_begins_with_its_upstream():
    """A cut is refused if it has the state of only one of both vertices, or lacks a column."""
    expect(cuts_hold_all_changes(), TOGETHER)
