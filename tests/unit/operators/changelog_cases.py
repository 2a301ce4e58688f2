"""Runs Flink's cases of joins over changelogs on the function that the product's tasks call."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import polars as pl
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME, Expiry
from checkpointing.identifiers import table_name
from jobs.operators.aggregate import KeyedAggregates
from jobs.operators.applied_changes import DELETES, SEQUENCE, AppliedChanges, applied_state
from jobs.operators.changelog_aggregates import ChangingAggregates, changing_aggregates, changing_state_schema
from jobs.operators.changes import ADDING, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE, changes_of
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.windows import (
    END,
    LATE,
    START,
    LateRows,
    PeriodicWindows,
    WindowedAggregates,
    late_rows,
    windowed_output,
    windowed_state,
)
from jobs.operators.join import JoinFunction, JoinType, join_state_schema, own_columns
from jobs.operators.process import NamedOutputs, ProcessCalls
from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_state
from jobs.pipeline.aggregates import (
    AggregateColumn,
    aggregate_of,
    avg_of,
    count,
    count_distinct,
    first_of,
    last_of,
    min_of,
    named_aggregates,
    sum_of,
)
from jobs.state.files import empty_frame
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import KEY_GROUP

Case = Mapping[str, Any]
Row = tuple[Any, ...]

_KEY: Final = "k"


def skip_reason_of_vectors_joins(case: Case) -> str | None:
    """Return why the product cannot run this case, or None if it can."""
    given = case["given"]
    how = given["type"]
    if how not in {each.value for each in JoinType}:
        return f"no {how} join takes changes"
    if "ttl_left" in given or "ttl_right" in given:
        return "the rows of a key expire together, and Flink's each for itself"
    if given.get("null_keys_match"):
        return "a null in the key matches nothing"
    if "condition" in given and how != JoinType.INNER.value:
        return "an outer join has no condition beside the keys"
    if _replaces(case) and "quirk" in case:
        return "an update without the row that it replaces counts twice in Flink"
    return None


def problems(case: Case) -> Iterator[str]:
    """Yield what does not hold: the rows that are added and taken back after each event, equal ones settled.

    If an update comes without the row that it replaces, Flink takes nothing back. Then only the tables are compared.
    """
    if _replaces(case):
        yield from _problems_of_joined_tables(case)
        return
    run, out = _RunOfVectorsJoins(case), Counter[Row]()
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


def _problems_of_joined_tables(case: Case) -> Iterator[str]:
    """Yield where the joined table differs from Flink's. Its rows are identified by the unique keys of both sides.

    `apply_changes` makes a changelog of each side first, as a user would write it.
    """
    run, given = _RunOfVectorsJoins(case), case["given"]
    sides = {
        side: _Normalized(
            _places_of_unique(given, name), [event for event in case["events"] if event[:2] == ["element", side]]
        )
        for side, name in ((1, "left"), (2, "right"))
    }
    expected, wanted = {entry["after"]: entry["out"] for entry in case["expect"]}, dict[Row, Row]()
    bundled: list[tuple[int, str, Row]] = []
    for index, (word, *args) in enumerate(case["events"]):
        if word == "element":
            side, kind, row, _ = args
            bundled.append((side, kind, tuple(row)))
        if word in ("end", "watermark") or len(bundled) >= given.get("bundle", 1):
            run.take([(side, *change) for side, kind, row in bundled for change in sides[side].take(kind, row)])
            bundled = []
        if word == "snapshot_restore":
            run.restore()
        for kind, row in expected.get(index, ()):
            name = _name_of_joined(given, row)
            if kind in ADDING:
                wanted[name] = tuple(row)
            else:
                wanted.pop(name, None)
        if index in expected and Counter(wanted.values()) != run.table:
            yield f"after {index}: expected the table {[*wanted.values()]}, got {run.table}"


def _places_of_unique(given: Mapping[str, Any], side: str) -> tuple[int, ...] | None:
    """Return the places of the columns that identify a row of a side, or None if no columns do."""
    unique, key = given[f"{side}_unique"], given[f"{side}_key"]
    return None if unique is None else (key,) if unique == "join_key" else (key, unique)


def _name_of_joined(given: Mapping[str, Any], row: Sequence[Any]) -> Row:
    """Return the values that identify a joined row."""
    left, right = row[: given["left_width"]], row[given["left_width"] :]
    parts = ((left, _places_of_unique(given, "left")), (right, _places_of_unique(given, "right")))
    return tuple(tuple(side) if by is None else tuple(side[place] for place in by) for side, by in parts if side)


class _Normalized:
    """Makes a changelog of rows in the order of their arrival. Each row replaces the row with its unique key."""

    def __init__(self, unique: tuple[int, ...] | None, events: Sequence[Sequence[Any]]) -> None:
        self._unique, self._arrived = unique, 0
        rows = [event[3] for event in events]
        width = len(rows[0]) if rows else 0
        names = [f"c{place}" for place in range(width)]
        keys = tuple(names[place] for place in unique or ())
        self._order = [*keys, *(name for name in names if name not in keys)]
        self._names, self._keys = names, keys
        fields = [StructField(name, _kind([row[place] for row in rows])) for place, name in enumerate(names)]
        rows_type = StructType([*fields, StructField(SEQUENCE, LongType()), StructField(DELETES, BooleanType())])
        others = tuple(name for name in names if name not in keys)
        self._function = AppliedChanges(keys, others, "arrival", history=False)
        self._schema = empty_frame(arrow_schema(rows_type)).schema
        if unique is not None:
            self._state = empty_frame(arrow_schema(applied_state(rows_type, keys, others)))

    def take(self, kind: str, row: Row) -> list[tuple[str, Row]]:
        """Return the changes that a row makes."""
        if self._unique is None:
            return [(kind, row)]
        self._arrived += 1
        frame = pl.DataFrame([(*row, self._arrived, kind not in ADDING)], schema=self._schema, orient="row")
        before = self._state.join(frame, on=list(self._keys), how="semi", nulls_equal=True)
        others = self._state.join(frame, on=list(self._keys), how="anti", nulls_equal=True)
        done = self._function.process([frame], before)
        self._state = pl.concat([others, done.state.select(others.columns).cast(others.schema)])
        was = self._function.results(before.with_columns(pl.lit(0, pl.Int32).alias(KEY_GROUP))).drop(KEY_GROUP)
        changes = changes_of(was, done.output, self._keys)
        return [(change[-1], tuple(change[:-1])) for change in changes.select(*self._names, KIND).iter_rows()]

    def restore(self) -> None:
        """Continue with a copy of the state, like a task that reads its state from files."""
        self._state = pl.DataFrame(self._state.to_dicts(), schema=self._state.schema)


def problems_of_normalized(case: Case) -> Iterator[str]:
    """Yield where the changelog of an upserted stream differs from Flink's."""
    run, out = _Normalized((case["given"]["key"],), [e for e in case["events"] if e[0] == "element"]), Counter[Row]()
    expected = {entry["after"]: entry["out"] for entry in case["expect"]}
    for index, (word, *args) in enumerate(case["events"]):
        if word == "snapshot_restore":
            run.restore()
        if word == "element" and args[1] != UPDATE_BEFORE:  # Flink drops these in front of the operator
            for kind, row in run.take(args[1], tuple(args[2])):
                out[row] += 1 if kind in ADDING else -1
        if index in expected:
            want = _wanted(expected[index], adds_only=not case["given"].get("update_before", True))
            got = {row: times for row, times in out.items() if times}
            if want != got:
                yield f"after {index}: expected {want}, got {got}"
            out = Counter()


class _Written:
    """When the rows of each key were last written. Rows that have expired are left out (N5).

    Each event is one epoch. A row counts as written at the clock of the next barrier.
    """

    def __init__(self, given: Mapping[str, Any], keys: Sequence[str]) -> None:
        self._expiry = Expiry(given["ttl"], by_clock=True) if "ttl" in given else None
        self._keys, self._now_ms, self._at = list(keys), 0, dict[Row, int]()

    def clock(self, ms: int) -> None:
        """Pass a barrier with this clock."""
        self._now_ms = ms

    def living(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the state that have not expired."""
        if self._expiry is None:
            return state
        over = [self._expiry.is_over(self._at.get(key), self._now_ms) for key in state.select(self._keys).iter_rows()]
        return state.filter(~pl.Series(over, dtype=pl.Boolean))

    def write(self, before: pl.DataFrame, after: pl.DataFrame) -> None:
        """Record which rows of the state were written."""
        known = {
            row[: len(self._keys)]: str(row)
            for row in before.select(*self._keys, pl.all().exclude(self._keys)).iter_rows()
        }
        for row in after.select(*self._keys, pl.all().exclude(self._keys)).iter_rows():
            if known.get(row[: len(self._keys)]) != str(row):
                self._at[row[: len(self._keys)]] = self._now_ms


def _differences(
    index: int, entry: Mapping[str, Any], out: Mapping[Row, int], run: "_RunOfVectorsJoins"
) -> Iterator[str]:
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
    """Return whether a row replaces another row that no change takes back."""
    elements = [event for event in case["events"] if event[0] == "element"]
    befores = Counter(event[1] for event in elements if event[2] == UPDATE_BEFORE)
    afters = Counter(event[1] for event in elements if event[2] == UPDATE_AFTER)
    unique_of = {1: case["given"]["left_unique"], 2: case["given"]["right_unique"]}
    if any(afters[side] > befores[side] for side in afters if unique_of[side] is not None):
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


class _RunOfVectorsJoins:
    """One join, its state and its table. A row has its key first, and then all columns: `l0`, ... or `r0`, ..."""

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
        """Take changes as one micro-batch. Return how often each joined row is added (negative: taken back)."""
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
        """Continue with a copy of the state, like a task that reads its state from files."""
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


# ------------------------------------------------------------------
# Runs Flink's cases of top rows, deduplication and upsert sinks on the function that the product's tasks call. Flink
# puts equal rows in the order of their arrival. The product knows this order only from a column. So each row here gets
# the number of its arrival as its last column. The order ends with this column, and the output leaves it out. A
# pipeline would use the position that a source gives each row. Flink's upsert sink keeps the last row of each key of a
# changelog whose keys are not unique. In a pipeline, `deduplicate` with `keep="last"` and `upsert` do this. So the
# cases of upsert sinks compare only the tables.


DEDUP: Final = "dedup"
TOP: Final = "topn"
SINK: Final = "upsert_sink"
KINDS: Final = (DEDUP, TOP, SINK)

_ARRIVAL: Final = "arrival"
_PLACE: Final = "place"


def skip_reason_of_vectors_top(case: Case) -> str | None:
    """Return why the product cannot run this case, or None if it can."""
    given = case["given"]
    if case["kind"] == SINK and _replaces_of_vectors_top(case):
        return "an update comes without the row that it replaces, as in no changelog here"
    if case["kind"] == TOP and given["rank"] != "row_number":
        return f"top knows row numbers only, no {given['rank']}"
    if "end_column" in given or (case["kind"] == TOP and given["end"] is None):
        return "top takes its number of rows from the pipeline, which must name it, and from no column"
    return None


def problems_of_vectors_top(case: Case) -> Iterator[str]:
    """Yield what does not hold: the rows that are added and taken back after each event, equal ones settled.

    Flink runs some cases on several algorithms. Here they run both on an append-only input and on a changelog.
    """
    if case["kind"] == SINK:
        yield from _problems_of_table(case)
        return
    inserts = all(event[2] == INSERT for event in case["events"] if event[0] == "element")
    for changelog in (False, True) if inserts else (True,):
        yield from _problems_of_vectors_top(case, changelog=changelog)


def _problems_of_vectors_top(case: Case, *, changelog: bool) -> Iterator[str]:
    run, out = _RunOfVectorsTop(case, changelog=changelog), Counter[Row]()
    bundled: list[tuple[str, Row]] = []
    alone = _adds_only(case)
    size = case["given"].get("bundle", 1)
    expected = {entry["after"]: entry["out"] for entry in case["expect"]}
    for index, (word, *args) in enumerate(case["events"]):
        if word == "element":
            _, kind, row, _ = args
            bundled.append((kind, tuple(row)))
        if bundled and (word in ("end", "watermark") or len(bundled) >= size):
            out.update(run.take(bundled, adds_only=alone))
            bundled = []
        if word == "ttl_time":
            run.written.clock(args[0])
        if word == "snapshot_restore":
            run.restore()
        if index in expected:
            want = _wanted(expected[index], adds_only=alone)
            got = {row: times for row, times in out.items() if times}
            if want != got:
                name = "changelog" if changelog else "append-only input"
                yield f"after {index}, {name}: expected {want}, got {got}"
            out = Counter()


def _problems_of_table(case: Case) -> Iterator[str]:
    """Yield where the sink's table differs from Flink's after an event."""
    run, key = _RunOfVectorsTop(case, changelog=True), case["given"]["key"]
    table: Counter[Row] = Counter()
    wanted: dict[Any, Row] = {}
    expected = {entry["after"]: entry["out"] for entry in case["expect"]}
    for index, (word, *args) in enumerate(case["events"]):
        if word == "element":
            table.update(run.take([(args[1], tuple(args[2]))], adds_only=False))
        if word == "ttl_time":
            run.written.clock(args[0])
        if word == "snapshot_restore":
            run.restore()
        for kind, row in expected.get(index, ()):
            if kind in ADDING:
                wanted[row[key]] = tuple(row)
            else:
                del wanted[row[key]]
        got = {row: times for row, times in table.items() if times}
        if index in expected and Counter(wanted.values()) != Counter(got):
            yield f"after {index}: expected the table {[*wanted.values()]}, got {got}"


def _replaces_of_vectors_top(case: Case) -> bool:
    """Return whether a row must be found by its upsert key, since there is no equal row."""
    place, live = case["given"]["upsert_key"], list[Row]()
    for _, _, kind, row, _ in (event for event in case["events"] if event[0] == "element"):
        if kind in ADDING:
            if place is not None and any(row[place] == each[place] for each in live):
                return True
            live.append(tuple(row))
        elif tuple(row) in live:
            live.remove(tuple(row))
        else:
            return True
    return False


def _adds_only(case: Case) -> bool:
    """Return whether the case's output lists only added rows.

    In such cases, Flink leaves out the row before an update.
    """
    given = case["given"]
    return not given.get("update_before", True) and (case["kind"] == DEDUP or bool(given["rank_number"]))


def _wanted(expected: Sequence[Sequence[Any]], *, adds_only: bool) -> dict[Row, int]:
    want: Counter[Row] = Counter()
    for kind, row in expected:
        if kind != "watermark" and (kind in ADDING or not adds_only):
            want[tuple(row)] += 1 if kind in ADDING else -1
    return {row: times for row, times in want.items() if times}


class _RunOfVectorsTop:
    """One function, and its state. The columns of a row are called `c0`, `c1`, ..., and the last one is its arrival."""

    def __init__(self, case: Case, *, changelog: bool) -> None:
        given = case["given"]
        first = next(event[3] for event in case["events"] if event[0] == "element")
        self._names = [f"c{place}" for place in range(len(first))]
        fields = [
            StructField(name, _kind_of_vectors_top(value)) for name, value in zip(self._names, first, strict=True)
        ]
        rows = StructType([*fields, StructField(_ARRIVAL, LongType())])
        keys = (f"c{given['partition'] if case['kind'] == TOP else given['key']}",)
        others = tuple(name for name in rows.names if name not in keys)
        order, count, self._start = _declared(case)
        numbered = bool(given.get("rank_number")) or self._start > 1
        self._function = TopRows(keys, others, order, count, _PLACE if numbered else None, changelog)
        self._shown = [*self._names, *([_PLACE] if given.get("rank_number") else [])]
        self._schema = {**empty_frame(arrow_schema(rows)).schema, KIND: pl.String()}
        self._state = empty_frame(arrow_schema(top_state(rows, keys)))
        self._arrived: list[Row] = []
        self._live: list[Row] = []
        self.written = _Written(given, keys)

    def take(self, changes: Sequence[tuple[str, Row]], *, adds_only: bool) -> Counter[Row]:
        """Take changes as one micro-batch. Return how often each row is added (negative: taken back)."""
        frame = pl.DataFrame(
            [(*self._with_arrival(kind, row), kind) for kind, row in changes], schema=self._schema, orient="row"
        )
        if not self._function.changelog:
            frame = frame.drop(KIND)
        keys = list(self._function.keys)
        touched = frame.select(keys).unique()
        self._state = self.written.living(self._state)
        before = self._state.join(touched, on=keys, how="semi", nulls_equal=True)
        others = self._state.join(touched, on=keys, how="anti", nulls_equal=True)
        done = self._function.process([frame], before)
        self.written.write(before, done.state)
        self._state = pl.concat([others, done.state.cast(self._state.schema)])
        return self._counted(done.output, adds_only=adds_only)

    def restore(self) -> None:
        """Continue with a copy of the state, like a task that reads its state from files."""
        self._state = pl.DataFrame(self._state.to_dicts(), schema=self._state.schema)

    def _counted(self, output: pl.DataFrame, *, adds_only: bool) -> Counter[Row]:
        """Count the changes without the rows' arrival."""
        shown = output if self._start == 1 else output.filter(pl.col(_PLACE) >= self._start)
        if adds_only:
            shown = shown.filter(pl.col(KIND).is_in(ADDING))
        net: Counter[Row] = Counter()
        for *row, kind in shown.select(*self._shown, KIND).iter_rows():
            net[tuple(row)] += 1 if kind in ADDING else -1
        return net

    def _with_arrival(self, kind: str, row: Row) -> Row:
        """Return the row with its arrival. Of equal rows, the oldest is taken back."""
        if kind in ADDING:
            self._arrived.append(row)
            self._live.append((*row, len(self._arrived)))
            return self._live[-1]
        known = next((each for each in self._live if each[:-1] == row), None)
        if known is None:
            return (*row, 0)
        self._live.remove(known)
        return known


def _declared(case: Case) -> tuple[tuple[Order, ...], int, int]:
    """Return the order, how many first rows are kept, and the number of the first row that is emitted."""
    given = case["given"]
    if case["kind"] == TOP:
        return (Order(f"c{given['order']}"), Order(_ARRIVAL)), given["end"], given["start"]
    arrival = Order(_ARRIVAL, descending=given.get("keep", "last") == "last")
    if given.get("time", "processing") == "processing":
        return (arrival,), 1, 1
    return (Order(f"c{given['row_time']}", arrival.descending), arrival), 1, 1


def _kind_of_vectors_top(value: object) -> DataType:
    return LongType() if isinstance(value, int) else StringType()


# ------------------------------------------------------------------
# Runs the changelog cases on the functions that the product's tasks call: aggregates, joins and top rows. The functions
# are in `jobs`: what an operator computes is no decision of the protocol, so the core has no such function.


_GROUPED = "group_agg"
_NORMALIZED = "normalize"
_WINDOWED = "window_dedup"
_JOIN = "join"
_LONG = pl.Int64()


class _Distinct:
    """Flink's test function: the number of distinct values, and 1 if there was a null."""

    name = "nonnull_null_distinct"
    accumulator: ClassVar[DataType] = StringType()
    returns: ClassVar[DataType] = StringType()
    ignores_duplicates = True

    def __init__(self, column: str) -> None:
        self.columns = (column,)

    def init(self) -> pl.Expr | None:
        return None

    def add(self) -> pl.Expr:
        of = pl.col(self.columns[0])
        return pl.concat_str([of.drop_nulls().n_unique(), pl.lit("|"), of.is_null().any().cast(pl.Int64)])

    def merge(self, one: pl.Expr, other: pl.Expr) -> pl.Expr:
        return one + other

    def result(self, accumulator: pl.Expr) -> pl.Expr:
        return accumulator


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
    "nonnull_null_distinct": lambda column: aggregate_of(_Distinct(column)),
}


def claims(legend: Mapping[str, Any]) -> bool:
    """Return whether the legend belongs to the changelog cases."""
    return _GROUPED in legend.get("kinds", ())


def skip_reason(_legend: Mapping[str, Any], case: Case) -> str | None:
    """Return why the product cannot run this case, or None if it can."""
    if case["kind"] == _JOIN:
        return skip_reason_of_vectors_joins(case)
    if case["kind"] in KINDS:
        return skip_reason_of_vectors_top(case)
    return None


def run_case(_legend: Mapping[str, Any], case: Case) -> list[str]:
    """Run one case. Return the expectations that do not hold."""
    if case["kind"] in KINDS:
        return list(problems_of_vectors_top(case))
    if case["kind"] == _NORMALIZED:
        return list(problems_of_normalized(case))
    if case["kind"] == _WINDOWED:
        return list(problems_of_windows(case))
    return list(problems(case) if case["kind"] == _JOIN else _problems(case))


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
        if word == "ttl_time":
            run.written.clock(args[0])
        if word == "snapshot_restore":
            run.restore()
        if index in expected:
            want = Counter((kind in ADDING, tuple(row)) for kind, row in expected[index])
            if (
                "ttl" in case["given"] and case["given"]["update_before"]
            ):  # then Flink emits the old row and the new row even if they are equal
                want, out = _settled_changes(want), _settled_changes(out)
            if not case["given"]["update_before"]:
                out = Counter({change: times for change, times in out.items() if change[0]})
            if out != want:
                yield f"after {index}: expected {want - out} too, got {out - want} too much"
            out = Counter()


def _settled_changes(changes: Mapping[tuple[bool, Row], int]) -> Counter[tuple[bool, Row]]:
    """Return the changes without those that cancel each other."""
    net: Counter[Row] = Counter()
    for (adds, row), times in changes.items():
        net[row] += times if adds else -times
    return Counter({(times > 0, row): abs(times) for row, times in net.items() if times})


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
        self.written = _Written(given, self._keys)

    def take(self, rows: Sequence[tuple[Any, ...]]) -> Counter[tuple[bool, tuple[Any, ...]]]:
        """Take changes as one micro-batch. Return the changes of the result: whether each adds, and its row."""
        frame = pl.DataFrame(rows, schema=self._schema(), orient="row").with_columns(
            pl.when(pl.col(f"c{column}") > least).then(pl.col(f"c{self._sources[place]}")).alias(f"f{place}")
            for place, (_, column, least) in self._filters
        )
        keys = list(self._keys)
        touched = frame.select(keys).unique()
        self._state = self.written.living(self._state)
        before = self._state.join(touched, on=keys, how="semi", nulls_equal=True)
        done = self._function.process([frame], before)
        self.written.write(before.clear(), done.state)
        others = self._state.join(touched, on=keys, how="anti", nulls_equal=True)
        self._state = pl.concat([others, done.state.cast(self._state.schema)])
        was = self._function.results(before.with_columns(pl.lit(0).alias(KEY_GROUP))).drop(KEY_GROUP)
        found = changes_of(self._as_flink(was), self._as_flink(done.output), keys)
        return Counter((kind in ADDING, tuple(row)) for *row, kind in found.iter_rows())

    def restore(self) -> None:
        """Continue with a copy of the state, like a task that reads its state from files."""
        self._state = pl.DataFrame(self._state.to_dicts(), schema=self._state.schema)

    def _schema(self) -> dict[str, pl.DataType]:
        kinds = empty_frame(arrow_schema(self._rows)).schema
        return {name: kind for name, kind in kinds.items() if name.startswith("c")} | {KIND: pl.String()}

    def _as_flink(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the mean of whole numbers truncated to a whole number, as Flink does."""
        return rows.with_columns(pl.col(name).cast(_LONG) for name in self._truncated)


_FILTERED = 3
"""A case writes an aggregate with a filter as this many words."""


def _column(place: int, words: Sequence[Any]) -> AggregateColumn:
    name, *rest = words
    if not rest:
        return count()
    return _AGGREGATES[name](f"f{place}" if len(words) == _FILTERED else f"c{rest[0]}")


# ------------------------------------------------------------------
# Runs Flink's cases of the first or last row of a window on the function that aggregates windows. The rows have the end
# of their window as a column, as after a window operator. Here each row gets a window of one millisecond at that end,
# which closes at the same watermark as Flink's: the end less one.


def problems_of_windows(case: Case) -> Iterator[str]:
    """Yield the expectations that do not hold: which rows each watermark emits, and how many rows were late."""
    run, out, late = _RunOfWindows(case), Counter[Row](), 0
    expected = {entry["after"]: entry for entry in case["expect"]}
    for index, (word, *args) in enumerate(case["events"]):
        if word == "element":
            late += run.take(tuple(args[2]))
        if word == "watermark":
            out.update(run.barrier(args[1]))
        if index in expected:
            entry = expected[index]
            want = Counter(tuple(row) for kind, row, *_ in (each for each in entry["out"] if each[0] != "watermark"))
            if want != out or late != entry.get("late_dropped", late):
                yield f"after {index}: expected {entry}, got {out} and {late} late"
            out = Counter()


class _RunOfWindows:
    """One operator, and its state."""

    def __init__(self, case: Case) -> None:
        given = case["given"]
        self._zone_ms, self._end, self._keep = given.get("zone_offset_ms", 0), given["window_end"], given["keep"]
        rows = [event[3] for event in case["events"] if event[0] == "element"]
        names = [f"c{place}" for place in range(len(rows[0]))]
        fields = [StructField(name, _kind([row[place] for row in rows])) for place, name in enumerate(names)]
        self._rows = StructType([*fields, StructField(_ARRIVAL, LongType()), StructField(_AT, TimestampType())])
        self._names, self._arrived, key = names, 0, f"c{given['key']}"
        order = [f"c{given['row_time']}", _ARRIVAL]
        chosen = first_of if self._keep == "first" else last_of
        columns = {f"r{place}": chosen(name, order_by=order) for place, name in enumerate(names)}
        keys = (key, START, END)
        self._function = WindowedAggregates(
            windows=PeriodicWindows(1, 1, 0, "UTC"),
            aggregates=KeyedAggregates(keys, named_aggregates("case", keys, self._rows, columns)),
            late=LateRows((*names, _ARRIVAL, _AT), TimeColumn(_AT, TimestampType(), before_ms=1), fails=False),
        )
        state = arrow_schema(StructType([self._rows[key], *windowed_state(self._function, self._rows).fields]))
        self._keys, self._schema = (key,), state
        self._state = KeyedRows.of(empty_frame(pa.schema([pa.field(KEY_GROUP, pa.int32()), *state])))
        self._watermark = BEFORE_TIME

    def take(self, row: Row) -> int:
        """Take a row. Return 1 if the row is late."""
        self._arrived += 1
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row[self._end] - self._zone_ms + 1)
        return len(self._call([(0, *row, self._arrived, at)], None)[1])

    def barrier(self, watermark: int) -> Iterator[Row]:
        """Yield the rows that are emitted before a barrier with this watermark."""
        yield from self._call([], watermark)[0]
        self._watermark = watermark

    def _call(self, rows: Sequence[Row], fires_ms: int | None) -> tuple[list[Row], list[Row]]:
        schema = {KEY_GROUP: pl.Int32, **empty_frame(arrow_schema(self._rows)).schema}
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        late = late_rows(self._function.late.columns, self._rows)
        calls = ProcessCalls(
            operator="case",
            function=self._function.at(self._watermark, END_OF_TIME if fires_ms is None else fires_ms),
            keys=self._keys,
            state_keys=(*self._keys, START, END),
            state_schema=self._schema,
            output_schema=arrow_schema(windowed_output(self._function, self._rows)),
            outputs=NamedOutputs(table_name("case/late"), {LATE: arrow_schema(late)}),
            checked=None,
            ends=False,
            fires_ms=fires_ms,
        )
        called = calls.run(self._state, [frame], frame.clear(), None)
        self._state = called.state()
        found = [row for each in called.results for row in each.output.select(pl.col("^r[0-9]+$")).rows()]
        return found, [row for each in called.results for row in each.outputs[LATE].rows()]


_AT: Final = "at"
