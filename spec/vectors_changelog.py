"""Runs the changelog cases on the functions that the product's tasks call: aggregates, joins and top rows.

The functions are of `jobs`: what an operator computes is no decision of the protocol, so the core has none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import polars as pl
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructField, StructType

from jobs.operators.changelog_aggregates import ChangingAggregates, changing_aggregates, changing_state_schema
from jobs.operators.changes import ADDING, KIND, changes_of
from jobs.operators.spec import arrow_schema
from jobs.pipeline.aggregates import (
    AggregateColumn,
    aggregate_of,
    avg_of,
    count,
    count_distinct,
    min_of,
    named_aggregates,
    sum_of,
)
from jobs.state.files import empty_frame
from jobs.state.merge import KEY_GROUP
from spec import vectors_joins, vectors_top

Case = Mapping[str, Any]

_GROUPED = "group_agg"
_JOIN = "join"
_LONG = pl.Int64()


class _SumDistinct:
    """SUM(DISTINCT), as a user would write it: without `retract`, so that the rows are kept."""

    name = "sum_distinct"
    accumulator: ClassVar[DataType] = LongType()
    returns: ClassVar[DataType] = LongType()
    ignores_duplicates = True

    def __init__(self, column: str) -> None:
        self.columns = (column,)

    def init(self) -> pl.Expr | None:
        return None

    def add(self) -> pl.Expr:
        return pl.col(self.columns[0]).unique().sum()

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        return one + other

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        return accumulator


_AGGREGATES = {
    "sum": sum_of,
    "avg": avg_of,
    "min": min_of,
    "count_distinct": count_distinct,
    "sum_distinct": lambda column: aggregate_of(_SumDistinct(column)),
}


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend is that of the changelog cases."""
    return _GROUPED in legend.get("kinds", ())


def skip_reason(_legend: Mapping[str, Any], case: Case) -> str | None:
    """Return why the product has nothing that this case could run on."""
    if case["kind"] == _JOIN:
        return vectors_joins.skip_reason(case)
    if case["kind"] in vectors_top.KINDS:
        return vectors_top.skip_reason(case)
    if case["kind"] != _GROUPED:
        return f"no operator of the kind {case['kind']} takes changes"
    if "ttl" in case["given"]:
        return "state has no time-to-live"
    return None


def run_case(_legend: Mapping[str, Any], case: Case) -> list[str]:
    """Run one case. Return what does not hold."""
    if case["kind"] in vectors_top.KINDS:
        return list(vectors_top.problems(case))
    return list(vectors_joins.problems(case) if case["kind"] == _JOIN else _problems(case))


def _problems(case: Case) -> Iterator[str]:
    run, out = _Run(case), Counter[tuple[bool, tuple[Any, ...]]]()
    expected = {entry["after"]: entry["out"] for entry in case["expect"]}
    bundled: list[tuple[Any, ...]] = []
    for index, (word, *args) in enumerate(case["events"]):
        if word == "element":
            _, kind, row, _ = args
            bundled.append((*row, kind))
        if word == "end" or (bundled and "bundle" not in case["given"]):
            out += run.take(bundled)
            bundled = []
        if word == "snapshot_restore":
            run.restore()
        if index in expected:
            want = Counter((kind in ADDING, tuple(row)) for kind, row in expected[index])
            if not case["given"]["update_before"]:
                out = Counter({change: times for change, times in out.items() if change[0]})
            if out != want:
                yield f"after {index}: expected {want - out} too, got {out - want} too much"
            out = Counter()


class _Run:
    """One operator, its state, and the rows that it gets. The columns of a row are called `c0`, `c1`, ..."""

    def __init__(self, case: Case) -> None:
        given = case["given"]
        width = max(len(event[3]) for event in case["events"] if event[0] == "element")
        first = next(event[3] for event in case["events"] if event[0] == "element")
        kinds = [LongType() if isinstance(value, int) else StringType() for value in first]
        self._filters = [(place, each[2]) for place, each in enumerate(given["aggs"]) if len(each) == _FILTERED]
        filtered = [StructField(f"f{place}", kinds[given["aggs"][place][1]]) for place, _ in self._filters]
        self._rows = StructType([*(StructField(f"c{place}", kinds[place]) for place in range(width)), *filtered])
        self._keys = tuple(f"c{place}" for place in given["group"])
        columns = {f"a{place}": _column(place, each) for place, each in enumerate(given["aggs"])}
        self._sources = {place: given["aggs"][place][1] for place, _ in self._filters}
        changing = changing_aggregates(named_aggregates("case", self._keys, self._rows, columns), self._rows)
        self._truncated = [one.name for one in changing if isinstance(one.function.returns, DoubleType)]
        self._function = ChangingAggregates(self._keys, changing)
        self._state = empty_frame(arrow_schema(changing_state_schema(self._keys, changing, self._rows)))

    def take(self, rows: Sequence[tuple[Any, ...]]) -> Counter[tuple[bool, tuple[Any, ...]]]:
        """Take changes as one micro-batch. Return the changes of the result: whether each adds, and its row."""
        frame = pl.DataFrame(rows, schema=self._schema(), orient="row").with_columns(
            pl.when(pl.col(f"c{column}") > least).then(pl.col(f"c{self._sources[place]}")).alias(f"f{place}")
            for place, (_, column, least) in self._filters
        )
        keys = list(self._keys)
        touched = frame.select(keys).unique()
        before = self._state.join(touched, on=keys, how="semi", nulls_equal=True)
        done = self._function.process([frame], before)
        others = self._state.join(touched, on=keys, how="anti", nulls_equal=True)
        self._state = pl.concat([others, done.state.cast(self._state.schema)])
        was = self._function.results(before.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        found = changes_of(self._as_flink(was), self._as_flink(done.output), keys)
        return Counter((kind in ADDING, tuple(row)) for *row, kind in found.iter_rows())

    def restore(self) -> None:
        """Go on with a copy of the state, as a task does that reads it from files."""
        self._state = pl.DataFrame(self._state.to_dicts(), schema=self._state.schema)

    def _schema(self) -> dict[str, pl.DataType]:
        kinds = empty_frame(arrow_schema(self._rows)).schema
        return {name: kind for name, kind in kinds.items() if name.startswith("c")} | {KIND: pl.String()}

    def _as_flink(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the mean of whole numbers as Flink does: truncated to a whole number."""
        return rows.with_columns(pl.col(name).cast(_LONG) for name in self._truncated)


_FILTERED = 3
"""The parts of an aggregate that counts some rows only."""


def _column(place: int, words: Sequence[Any]) -> AggregateColumn:
    name, *rest = words
    if not rest:
        return count()
    return _AGGREGATES[name](f"f{place}" if len(words) == _FILTERED else f"c{rest[0]}")
