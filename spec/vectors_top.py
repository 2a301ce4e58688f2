"""Runs Flink's cases of top rows, deduplication and upsert sinks on the function that the product's tasks call.

Flink puts equal rows in the order of their arrival. The product knows no arrival that the rows do not tell. So here
each row gets its arrival as a last column, the order ends with it, and the output leaves it out. A pipeline would use
the position that a source gives each row.

A sink keeps the last row of each key of a changelog whose keys are not unique. In a pipeline, that is `deduplicate`
with `keep="last"`, and `upsert`. So only the tables are compared in these cases.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from jobs.operators.changes import ADDING, INSERT, KIND
from jobs.operators.spec import arrow_schema
from jobs.operators.top_rows import Order, TopRows, top_state
from jobs.state.files import empty_frame

Case = Mapping[str, Any]
Row = tuple[Any, ...]

DEDUP: Final = "dedup"
TOP: Final = "topn"
SINK: Final = "upsert_sink"
KINDS: Final = (DEDUP, TOP, SINK)

_ARRIVAL: Final = "arrival"
_PLACE: Final = "place"


def skip_reason(case: Case) -> str | None:
    """Return why the product has nothing that this case could run on."""
    given = case["given"]
    if any(event[0] == "ttl_time" and event[1] >= given["ttl"] for event in case["events"]):
        return "state has no time-to-live"
    if case["kind"] == SINK and _replaces(case):
        return "an update comes without the row that it replaces, as in no changelog here"
    if case["kind"] == TOP and given["rank"] != "row_number":
        return f"top knows row numbers only, no {given['rank']}"
    if "end_column" in given or (case["kind"] == TOP and given["end"] is None):
        return "top takes its number of rows from the pipeline, which must name it, and from no column"
    return None


def problems(case: Case) -> Iterator[str]:
    """Yield what does not hold: the rows that are added and taken back after each event, equal ones settled.

    A case of Flink that runs on several algorithms runs here on both: on an append-only input and on a changelog.
    """
    if case["kind"] == SINK:
        yield from _problems_of_table(case)
        return
    inserts = all(event[2] == INSERT for event in case["events"] if event[0] == "element")
    for changelog in (False, True) if inserts else (True,):
        yield from _problems(case, changelog=changelog)


def _problems(case: Case, *, changelog: bool) -> Iterator[str]:
    run, out = _Run(case, changelog=changelog), Counter[Row]()
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
    """Yield where the sink's table differs from Flink's: the rows by key, after each event."""
    run, key = _Run(case, changelog=True), case["given"]["key"]
    table: Counter[Row] = Counter()
    wanted: dict[Any, Row] = {}
    expected = {entry["after"]: entry["out"] for entry in case["expect"]}
    for index, (word, *args) in enumerate(case["events"]):
        if word == "element":
            table.update(run.take([(args[1], tuple(args[2]))], adds_only=False))
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


def _replaces(case: Case) -> bool:
    """Return whether a row is to be found by its upsert key, since no equal one is there."""
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
    """Return whether the case's output says only what is added: Flink then leaves each row before an update out."""
    given = case["given"]
    return not given.get("update_before", True) and (case["kind"] == DEDUP or bool(given["rank_number"]))


def _wanted(expected: Sequence[Sequence[Any]], *, adds_only: bool) -> dict[Row, int]:
    want: Counter[Row] = Counter()
    for kind, row in expected:
        if kind != "watermark" and (kind in ADDING or not adds_only):
            want[tuple(row)] += 1 if kind in ADDING else -1
    return {row: times for row, times in want.items() if times}


class _Run:
    """One function, and its state. The columns of a row are called `c0`, `c1`, ..., and the last one is its arrival."""

    def __init__(self, case: Case, *, changelog: bool) -> None:
        given = case["given"]
        first = next(event[3] for event in case["events"] if event[0] == "element")
        self._names = [f"c{place}" for place in range(len(first))]
        fields = [StructField(name, _kind(value)) for name, value in zip(self._names, first, strict=True)]
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

    def take(self, changes: Sequence[tuple[str, Row]], *, adds_only: bool) -> Counter[Row]:
        """Take changes as one micro-batch. Return how often each row is added, negative if it is taken back."""
        frame = pl.DataFrame(
            [(*self._with_arrival(kind, row), kind) for kind, row in changes], schema=self._schema, orient="row"
        )
        if not self._function.changelog:
            frame = frame.drop(KIND)
        keys = list(self._function.keys)
        touched = frame.select(keys).unique()
        before = self._state.join(touched, on=keys, how="semi", nulls_equal=True)
        others = self._state.join(touched, on=keys, how="anti", nulls_equal=True)
        done = self._function.process([frame], before)
        self._state = pl.concat([others, done.state.cast(self._state.schema)])
        return self._counted(done.output, adds_only=adds_only)

    def restore(self) -> None:
        """Go on with a copy of the state, as a task does that reads it from files."""
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
        """Return the row with its arrival. The oldest of equal rows is the one that is taken back."""
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
    """Return the order, the number of first rows, and the number of the first one that is put out."""
    given = case["given"]
    if case["kind"] == TOP:
        return (Order(f"c{given['order']}"), Order(_ARRIVAL)), given["end"], given["start"]
    arrival = Order(_ARRIVAL, descending=given.get("keep", "last") == "last")
    if given.get("time", "processing") == "processing":
        return (arrival,), 1, 1
    return (Order(f"c{given['row_time']}", arrival.descending), arrival), 1, 1


def _kind(value: object) -> DataType:
    return LongType() if isinstance(value, int) else StringType()
