"""Runs Flink's cases of joins over changelogs on the function that the product's tasks call."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from jobs.operators.changes import ADDING, KIND, UPDATE_AFTER, UPDATE_BEFORE
from jobs.operators.join import JoinFunction, JoinType, join_state_schema, own_columns
from jobs.operators.spec import arrow_schema
from jobs.state.files import empty_frame

Case = Mapping[str, Any]
Row = tuple[Any, ...]

_KEY: Final = "k"


def skip_reason(case: Case) -> str | None:
    """Return why the product has nothing that this case could run on."""
    given = case["given"]
    how = given["type"]
    if how not in {each.value for each in JoinType}:
        return f"no {how} join takes changes"
    if "ttl_left" in given or "ttl_right" in given:
        return "state has no time-to-live"
    if given.get("null_keys_match"):
        return "a null in the key matches nothing"
    if "condition" in given and how != JoinType.INNER.value:
        return "an outer join has no condition beside the keys"
    if _replaces(case):
        return "an update comes without the row that it replaces, as in no changelog here"
    return None


def problems(case: Case) -> Iterator[str]:
    """Yield what does not hold: the rows that are added and taken back after each event, equal ones settled."""
    run, out = _Run(case), Counter[Row]()
    bundled: list[tuple[int, str, Row]] = []
    expected = {entry["after"]: entry for entry in case["expect"]}
    for index, (word, *args) in enumerate(case["events"]):
        if word == "element":
            side, kind, row, _ = args
            bundled.append((side, kind, tuple(row)))
        if word in ("end", "watermark") or len(bundled) >= case["given"].get("bundle", 1):
            out.update(run.take(bundled))
            bundled = []
        if word == "snapshot_restore":
            run.restore()
        if index in expected:
            yield from _differences(index, expected[index], _settled(out), run)
            out = Counter()


def _differences(index: int, entry: Mapping[str, Any], out: Mapping[Row, int], run: "_Run") -> Iterator[str]:
    if "out" in entry:
        want: Counter[Row] = Counter()
        for kind, row in entry["out"]:
            want[tuple(row)] += 1 if kind in ADDING else -1
        if _settled(want) != out:
            yield f"after {index}: expected {_settled(want)}, got {out}"
    if "table" in entry:
        table = Counter(tuple(row) for row in entry["table"])
        if table != run.table:
            yield f"after {index}: expected the table {table}, got {run.table}"


def _settled(rows: Mapping[Row, int]) -> dict[Row, int]:
    return {row: times for row, times in rows.items() if times}


def _replaces(case: Case) -> bool:
    """Return whether a row takes the place of another one that nobody takes back."""
    elements = [event for event in case["events"] if event[0] == "element"]
    befores = Counter(event[1] for event in elements if event[2] == UPDATE_BEFORE)
    afters = Counter(event[1] for event in elements if event[2] == UPDATE_AFTER)
    if any(afters[side] > befores[side] for side in afters):
        return True
    given, live = case["given"], Counter[tuple[Any, ...]]()
    for _, side, kind, row, _ in elements:
        place = given["left_key"] if side == 1 else given["right_key"]
        unique = given["left_unique"] if side == 1 else given["right_unique"]
        if unique is None:
            continue
        name = (side, row[place], None if unique == "join_key" else row[unique])
        live[name] = max(0, live[name] + (1 if kind in ADDING else -1))
        if live[name] > 1:
            return True
    return False


class _Run:
    """One join, its state and its table. Rows have their key first, then all their columns, `l0`, ... and `r0`, ..."""

    def __init__(self, case: Case) -> None:
        given = case["given"]
        self._places = {1: given["left_key"], 2: given["right_key"]}
        self._condition, self._select = given.get("condition"), given.get("select")
        widths = {1: given["left_width"], 2: given["right_width"]}
        rows = {side: [event[3] for event in case["events"] if event[:2] == ["element", side]] for side in (1, 2)}
        key = _kind([row[place] for side, place in self._places.items() for row in rows[side]])
        left, right = (
            StructType(
                [
                    StructField(_KEY, key),
                    *(StructField(f"{name}{n}", _kind([row[n] for row in rows[side]])) for n in range(widths[side])),
                ]
            )
            for side, name in ((1, "l"), (2, "r"))
        )
        keys = (_KEY,)
        how = JoinType(given["type"])
        self._function = JoinFunction(keys, keys, own_columns(left, keys), own_columns(right, keys), how)
        self._schemas = [{**empty_frame(arrow_schema(side)).schema, KIND: pl.String()} for side in (left, right)]
        self._state = empty_frame(arrow_schema(join_state_schema(left, right, keys, keys)))
        self.table: Counter[Row] = Counter()

    def take(self, changes: Sequence[tuple[int, str, Row]]) -> Counter[Row]:
        """Take changes as one micro-batch. Return how often each joined row is added, negative if it is taken back."""
        frames = [
            pl.DataFrame(
                [(row[self._places[side]], *row, kind) for of, kind, row in changes if of == side],
                schema=schema,
                orient="row",
            )
            for side, schema in enumerate(self._schemas, start=1)
        ]
        touched = pl.concat([frame.select(_KEY) for frame in frames]).unique()
        before = self._state.join(touched, on=_KEY, how="semi", nulls_equal=True)
        others = self._state.join(touched, on=_KEY, how="anti", nulls_equal=True)
        done = self._function.process(frames, before)
        self._state = pl.concat([others, done.state.cast(self._state.schema)])
        found: Counter[Row] = Counter()
        for _, *row, kind in done.output.iter_rows():
            if self._passes(row):
                shown = row if self._select is None else [row[place] for place in self._select]
                found[tuple(shown)] += 1 if kind in ADDING else -1
        self.table = Counter(_settled(Counter({row: self.table[row] + found[row] for row in {*self.table, *found}})))
        return found

    def restore(self) -> None:
        """Go on with a copy of the state, as a task does that reads it from files."""
        self._state = pl.DataFrame(self._state.to_dicts(), schema=self._state.schema)

    def _passes(self, row: Sequence[Any]) -> bool:
        if self._condition is None:
            return True
        word, one, other = self._condition
        if row[one] is None or row[other] is None:
            return False
        return bool(row[one] > row[other] if word == "gt" else row[one] == row[other])


def _kind(values: Sequence[Any]) -> DataType:
    """Return the type of a column with these values."""
    return LongType() if any(isinstance(value, int) for value in values) else StringType()
