"""The model of changes: an aggregate puts out changes, a filter is in between, and another aggregate takes them back.

Rule `changes-add-up`: after each cut, the rows of all changes up to it, added and taken back, are the table at the cut,
and the table is the batch computation over the source rows before it. Rule `changes-begin-together`: a cut is restored
only if a vertex that takes changes has got all changes before it.

The functions are those that the product's tasks call. The batch is plain Python.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import polars as pl
from pyspark.sql.types import LongType, StructType

from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, EdgeId, Generation, JobName, VertexId
from checkpointing.job import restoring
from checkpointing.metadata.record import CheckpointRecord, Statistics, VertexRecord
from checkpointing.state_meaning import ColumnMeaning
from jobs.operators.changelog_aggregates import ChangingAggregates, changing_aggregates, changing_state_schema
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_BEFORE, changes_of
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import AggregateColumn, count, count_distinct, min_of, named_aggregates, sum_of
from jobs.state.files import empty_frame
from jobs.state.merge import KEY_GROUP

ADD_UP: Final = "changes-add-up"
TOGETHER: Final = "changes-begin-together"

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
        """Return the table that the state makes, as an upsert table shows it."""
        state = self._state.with_columns(pl.lit(0).alias(KEY_GROUP))
        return Counter(self._function.results(state).drop(KEY_GROUP).rows())


def changes_add_up(seed: int) -> bool:
    """Return whether both tables are right after each of some random micro-batches."""
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
    """Yield changes: new rows, and rows that are taken back, which `live` then no longer has."""
    for _ in range(chance.randint(0, 6)):
        if live and chance.random() < 0.4:  # noqa: PLR2004 - rows come more often than they go
            yield (*live.pop(chance.randrange(len(live))), chance.choice([DELETE, UPDATE_BEFORE]))
        else:
            live.append((chance.randint(1, 5), chance.randint(1, 3)))
            yield (*live[-1], INSERT)


def _is(aggregate: _Aggregate, expected: Table) -> bool:
    """Return whether the changes up to now, and the state, make this table. No row is taken back too often."""
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
    entry = CheckpointRecord(
        job=JobName("model"),
        checkpoint=CheckpointId(3),
        parent=NO_CHECKPOINT,
        generation=Generation(1),
        nonce="3",
        max_parallelism=4,
        vertices=vertices,
        tables=(),
        statistics=statistics,
    )
    try:
        restoring.check_fits(_GRAPH, entry, entry.max_parallelism)
    except restoring.CutDoesNotFitError:
        return False
    return True
