"""Joins of two append-only streams by key and event time: within a time range, by window, and as of a time (N6).

- `IntervalJoin`: rows of a key join if the right time minus the left time lies in a range, both ends included.
- `WindowJoin`: rows of a key join if they are in the same window. The join emits them when the window closes.
- `AsOfJoin`: a left row joins the version of its key that is valid at the row's time, once the watermark has passed
  that time.

Each join has the same rows as the batch query, and emits each row once. A row is late if its time is not after the
watermark of the last barrier. In a window join, a row is late if all its windows have closed by that watermark. A late
row goes to the output `LATE`, with its side and how late it is. As in SQL, a row with a null in its key matches
nothing. So an outer join emits such a row at once, and no state keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from jobs.operators.changes import TIMES, as_lists, counted, kept
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.operators.in_time.windows import (
    DUE,
    END,
    FAR_MS,
    LATE,
    LATE_BY,
    START,
    LateRowError,
    NoTimeError,
    PeriodicWindows,
)
from jobs.operators.join import LEFT, RIGHT, JoinType
from jobs.operators.process import Find, Processed
from jobs.state.key_joins import join_by_key
from jobs.state.merge import KEY_GROUP

LATE_SIDE: Final = "late_side"
"""The column of a late row that names the row's side: `left` or `right`."""
SIDE: Final = "_side"
"""The state column with the number of a row's side: 0 is left, 1 is right."""
AT: Final = "_at_us"
"""The state column with the time of a row, in microseconds."""
NTH: Final = "_nth"
"""The state column that numbers rows of one side which have the same key and the same time or window."""
MATCHED: Final = "_matched"
"""The state column that says whether a row has found a partner."""
DELETES: Final = "_deletes"
"""The column of a right row that is true if the row deletes: its key then has no version from that time on."""
OWN_COLUMNS: Final = (LEFT, RIGHT, SIDE, AT, NTH, MATCHED, DUE, TIMES, DELETES, LATE_SIDE, LATE_BY)
"""Names that no column of a joined stream may have."""
_SIDES: Final = ((LEFT, "left"), (RIGHT, "right"))
_PLACE: Final = "\0place"
_ID: Final = "\0id"
_MICROSECONDS: Final = 1_000
_PLACES_MAX: Final = 2**62
"""Up to so many pairs of key and time, each pair has its own number. Beyond, only times with rows have numbers."""


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One side of a join: its keys (with this side's names), its other columns, and its column with the event time.

    The columns `beside` are not emitted.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    time: TimeColumn
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedSides:
    """Both sides of a join, and the join's type. Joined rows have the left names of the keys."""

    left: JoinSide
    right: JoinSide
    how: JoinType
    late_fails: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the keys."""
        return self.left.keys

    @property
    def outer(self) -> tuple[bool, bool]:
        """For each side, whether the join emits rows without a partner."""
        left = self.how in (JoinType.LEFT, JoinType.FULL, JoinType.ANTI)
        return left, self.how in (JoinType.RIGHT, JoinType.FULL)

    def arrived(self, rows: pl.DataFrame, number: int) -> pl.DataFrame:
        """Return the rows of a side with the left names of the keys, and with their times. Raises NoTimeError."""
        side = (self.left, self.right)[number]
        keys = [pl.col(own).alias(key) for own, key in zip(side.keys, self.keys, strict=True)]
        time = pl.col(side.time.name).dt.epoch("us") - side.time.before_ms * _MICROSECONDS
        beside = [name for name in (KEY_GROUP,) if name in rows.columns]
        found = rows.select(*beside, *keys, *side.columns, *side.beside, time.alias(AT))
        without = found[AT].null_count()
        if without:
            raise NoTimeError(side.time.name, without)
        return found

    def said(self, late: Sequence[pl.DataFrame], watermark_ms: int) -> dict[str, pl.DataFrame]:
        """Return the late rows of both sides in the form of their output.

        Raise LateRowError if late rows are an error.
        """
        behind = pl.lit(min(watermark_ms, FAR_MS)) - pl.col(AT).floordiv(_MICROSECONDS)
        columns = [*self.keys, *self.left.columns, *self.right.columns, LATE_SIDE, LATE_BY]
        marked = [
            rows.with_columns(pl.lit(name).alias(LATE_SIDE), behind.alias(LATE_BY))
            for rows, (_, name) in zip(late, _SIDES, strict=True)
        ]
        every = pl.concat(marked, how="diagonal").select(columns)
        if every.is_empty():
            return {}
        if self.late_fails:
            first = next(number for number, rows in enumerate(late) if not rows.is_empty())
            raise LateRowError((self.left, self.right)[first].time.name, every)
        return {LATE: every}

    @property
    def marked(self) -> tuple[bool, bool]:
        """For each side, whether the state must record if a row has found a partner."""
        left, right = self.outer
        return left or self.how is JoinType.SEMI, right

    def held(self, number: int) -> tuple[str, ...]:
        """Return the columns of a side that the state needs. A semi or an anti join emits no right columns."""
        if number == 1 and self.how.has_left_alone:
            return (self.right.time.name,)
        return (self.left, self.right)[number].columns

    def alone(self) -> pl.Expr:
        """Return whether a row can never match: it has a null in its key."""
        return pl.any_horizontal(pl.col(name).is_null() for name in self.keys)

    def beside(
        self, left: pl.DataFrame, right: pl.DataFrame, pairs: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> pl.DataFrame:
        """Return joined rows: the left rows at the first places, each beside the right row at the second place."""
        return pl.concat(
            [left.select(*self.keys, *self.left.columns)[pairs[0]], right.select(self.right.columns)[pairs[1]]],
            how="horizontal",
        )

    def unmatched(self, rows: pl.DataFrame, number: int) -> pl.DataFrame:
        """Return the rows that the join emits for these rows of a side, which have no partner."""
        return rows if self.outer[number] else rows.clear()

    def shown(self, parts: Sequence[pl.DataFrame], windows: Sequence[str] = ()) -> pl.DataFrame:
        """Return the rows in the form of the output. Parts may lack the columns of a side."""
        right = () if self.how.has_left_alone else self.right.columns
        columns = [*self.keys, *windows, *self.left.columns, *right]
        parts = [part.select(name for name in columns if name in part.columns) for part in parts]
        return pl.concat(parts, how="diagonal").select(columns)

    def kept(self, state: pl.DataFrame, number: int) -> pl.DataFrame:
        """Return the rows of a side that the state keeps, with the state's own columns beside them."""
        column, _ = _SIDES[number]
        beside = [name for name in state.columns if name not in (LEFT, RIGHT)]
        rows = state.filter(pl.col(SIDE) == number)
        return rows.select(*beside, *(pl.col(column).struct.field(name) for name in self.held(number)))

    def as_state(self, rows: pl.DataFrame, number: int, types: pl.Schema) -> pl.DataFrame:
        """Return rows of a side as the state keeps them."""
        column, _ = _SIDES[number]
        held = rows.with_columns(pl.struct(self.held(number)).alias(column), pl.lit(number).alias(SIDE))
        absent = [name for name in (LEFT, RIGHT) if name != column]
        held = held.with_columns(pl.lit(None, dtype=types[name]).alias(name) for name in absent)
        return held.select(pl.col(name).cast(kind) for name, kind in types.items())


@dataclass(frozen=True, slots=True)
class IntervalJoin:
    """The keyed function of two inputs that joins rows within a time range.

    State has one row for each row that may still find a partner. So a micro-batch writes only its own rows and, for an
    outer side, the rows that have found their first partner.
    """

    sides: JoinedSides
    lower_ms: int
    upper_ms: int
    watermark_ms: int = BEFORE_TIME
    due: str = DUE
    rows_by: tuple[str, ...] = (SIDE, AT, NTH)

    @property
    def meaning(self) -> str:
        """The range, as a text that stays the same in later versions of Tidemark."""
        return f"within {self.lower_ms} {self.upper_ms}"

    def at(self, watermark_ms: int, fires_ms: int) -> "IntervalJoin":
        """Return the function for the rows after a barrier with this watermark."""
        del fires_ms
        return replace(self, watermark_ms=watermark_ms)

    def process_rows(self, inputs: Sequence[pl.DataFrame], types: pl.Schema, find: Find) -> Processed:
        """Emit the new pairs. Return the rows of the state that are new or have found their first partner."""
        sides, is_late = self.sides, pl.col(AT).floordiv(_MICROSECONDS) <= self.watermark_ms
        arrived = [sides.arrived(rows, number) for number, rows in enumerate(inputs)]
        ready = [rows.filter(~is_late) for rows in arrived]
        parts = [sides.unmatched(rows.filter(sides.alone()), number) for number, rows in enumerate(ready)]
        came = [rows.filter(~sides.alone()) for rows in ready]
        state = find(pl.concat([rows.select(sides.keys) for rows in came]), sides.keys)
        held = [sides.kept(state, number) for number in range(2)]
        beside = [*sides.keys, AT, *sides.held(1)]
        every_right = pl.concat([held[1].select(beside), came[1].select(beside)])
        of_new, of_old = self._pairs(came[0], every_right), self._pairs(held[0], came[1])
        on_right = _hit(every_right, of_new[1])
        hits = (
            (_hit(came[0], of_new[0]), _hit(held[0], of_old[0])),
            (on_right.slice(held[1].height) | _hit(came[1], of_old[1]), on_right.head(held[1].height)),
        )
        if sides.how is JoinType.SEMI:
            parts += [came[0].filter(hits[0][0]), held[0].filter(hits[0][1] & ~held[0][MATCHED])]
        elif sides.how is not JoinType.ANTI:
            parts += [sides.beside(came[0], every_right, of_new), sides.beside(held[0], came[1], of_old)]
        changed = []
        for number, (new, old) in enumerate(hits):
            rows = came[number].with_columns(self._due(number), new.alias(MATCHED))
            over = pl.col(DUE) <= self.watermark_ms
            parts.append(sides.unmatched(rows.filter(over & ~pl.col(MATCHED)), number))
            done = over | pl.col(MATCHED) if number == 0 and sides.how.has_left_alone else over
            stays = _numbered(rows.filter(~done), held[number], [*sides.keys, AT])
            changed.append(sides.as_state(stays, number, types))
            if sides.marked[number]:
                first = held[number].filter(old & ~held[number][MATCHED])
                changed.append(sides.as_state(first.with_columns(pl.lit(value=True).alias(MATCHED)), number, types))
        late = sides.said([rows.filter(is_late) for rows in arrived], self.watermark_ms)
        return Processed(pl.concat(changed), sides.shown(parts), late, others_stay=True)

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Drop the rows for which no partner can come. On an outer side, emit those that have found none."""
        sides, left = self.sides, state.filter(~pl.col(MATCHED))
        parts = [sides.unmatched(sides.kept(left, number), number) for number in range(2)]
        return Processed(state.clear(), sides.shown(parts))

    def _due(self, number: int) -> pl.Expr:
        """Return the watermark at which no further partner of a row can arrive."""
        reach_ms = self.upper_ms if number == 0 else -self.lower_ms
        return (pl.col(AT).floordiv(_MICROSECONDS) + reach_ms).alias(DUE)

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return two arrays: for each pair, the place of its left row and the place of its right row."""
        places, start, end, order = _ranges(left, right, self.sides.keys, self.lower_ms, self.upper_ms)
        counts = end - start
        before = np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(places, counts), order[np.arange(int(counts.sum())) - before + np.repeat(start, counts)]


@dataclass(frozen=True, slots=True)
class WindowJoin:
    """The keyed function of two inputs that joins rows of the same window. State has a row for each row and window."""

    sides: JoinedSides
    windows: PeriodicWindows
    watermark_ms: int = BEFORE_TIME
    due: str = DUE
    rows_by: tuple[str, ...] = (START, END, SIDE, NTH)

    @property
    def meaning(self) -> str:
        """The windows, as a text that stays the same in later versions of Tidemark."""
        return self.windows.meaning

    def at(self, watermark_ms: int, fires_ms: int) -> "WindowJoin":
        """Return the function for the rows after a barrier with this watermark."""
        del fires_ms
        return replace(self, watermark_ms=watermark_ms)

    def process_rows(self, inputs: Sequence[pl.DataFrame], types: pl.Schema, find: Find) -> Processed:
        """Keep the rows in their windows. Emit nothing yet except late rows and rows with a null in their key."""
        sides, bounds = self.sides, (START, END)
        open_ms = self.watermark_ms + 1 if BEFORE_TIME < self.watermark_ms < END_OF_TIME else self.watermark_ms
        parts, new, late = [], [], []
        for number, rows in enumerate(inputs):
            time = pl.col(AT).cast(types[START])
            ready, too_late = self.windows.spread(sides.arrived(rows, number), time, open_ms)
            late.append(too_late)
            parts.append(sides.unmatched(ready.filter(sides.alone()), number))
            closes_ms = pl.col(END).dt.epoch("us").floordiv(_MICROSECONDS) - 1
            new.append(ready.filter(~sides.alone()).with_columns(closes_ms.alias(DUE)))
        on = [*sides.keys, *bounds]
        state = find(pl.concat([rows.select(on) for rows in new]), on)
        changed = [
            sides.as_state(_numbered(rows, sides.kept(state, number), on), number, types)
            for number, rows in enumerate(new)
        ]
        shown, said = sides.shown(parts, bounds), sides.said(late, self.watermark_ms)
        return Processed(pl.concat(changed), shown, said, others_stay=True)

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Join the rows of the windows that have closed, and drop these rows from the state."""
        sides, on = self.sides, [*self.sides.keys, START, END]
        left, right = (sides.kept(state, number) for number in range(2))
        right = right.select(*on, *sides.held(1))
        parts = [sides.unmatched(join_by_key(left, right, on, "anti"), 0)]
        parts.append(sides.unmatched(join_by_key(right, left, on, "anti"), 1))
        if sides.how is not JoinType.ANTI:
            parts.append(join_by_key(left, right, on, "semi" if sides.how is JoinType.SEMI else "inner"))
        return Processed(state.clear(), sides.shown(parts, (START, END)))


@dataclass(frozen=True, slots=True)
class AsOfJoin:
    """The keyed function that gives each left row the version of its key that is valid at its time.

    The valid version is the right row with the greatest time that is not after the left time. Among several right rows
    of the same time, the row that sorts last by its other columns is used. A version can delete: then its key has no
    version. Left rows wait for the watermark. Of the versions that the watermark has passed, the state keeps only the
    newest. A late version goes to the output `LATE`, because left rows have already been emitted without it. Left rows
    that arrive later still join it.
    """

    sides: JoinedSides
    watermark_ms: int = BEFORE_TIME
    fires_ms: int = END_OF_TIME
    due: str = DUE

    @property
    def meaning(self) -> str:
        """The kind of join, as a text that stays the same in later versions of Tidemark."""
        return "as of"

    def at(self, watermark_ms: int, fires_ms: int) -> "AsOfJoin":
        """Return the function for the rows after a barrier with this watermark.

        `on_time` gets what is due by `fires_ms`.
        """
        return replace(self, watermark_ms=watermark_ms, fires_ms=fires_ms)

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Keep the rows. Emit nothing yet except late rows and left rows with a null in their key."""
        sides, is_late = self.sides, pl.col(AT).floordiv(_MICROSECONDS) <= self.watermark_ms
        arrived = [sides.arrived(rows, number) for number, rows in enumerate(inputs)]
        ready = arrived[0].filter(~is_late)
        left = self._kept(state, 0, ready.filter(~sides.alone()))
        versions = self._kept(state, 1, arrived[1].filter(~sides.alone()))
        shown = sides.shown([sides.unmatched(ready.filter(sides.alone()), 0), versions.clear()])
        late = sides.said([rows.filter(is_late) for rows in arrived], self.watermark_ms)
        return Processed(self._held(left, versions, state, self.watermark_ms), shown, late)

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Emit the left rows that the watermark has passed, and drop the versions that no later left row needs."""
        sides, waits = self.sides, pl.col(AT).floordiv(_MICROSECONDS) > self.fires_ms
        left, versions = (self._kept(state, number, None) for number in range(2))
        times = left[TIMES].to_numpy()
        every = left[np.repeat(np.arange(left.height), times)].filter(~waits)
        places, start, end, order = _ranges(every, versions, sides.keys, None, 0)
        has = end > start
        if sides.right.beside:
            has[has] = ~versions[DELETES].fill_null(value=False).to_numpy()[order[end[has] - 1]]
        pairs = (places[has], order[end[has] - 1])
        none = every.filter(~_hit(every, pairs[0]))
        shown = sides.shown([sides.beside(every, versions, pairs), sides.unmatched(none, 0)])
        return Processed(self._held(left.filter(waits), versions, state, self.fires_ms), shown)

    def _kept(self, state: pl.DataFrame, number: int, came: pl.DataFrame | None) -> pl.DataFrame:
        """Return the rows of a side, both kept and new ones, with their times. Equal rows are counted.

        Of several versions of the same time, only the last one is used.
        """
        (column, _), side = _SIDES[number], (self.sides.left, self.sides.right)[number]
        columns = [*self.sides.keys, *side.columns, *side.beside]
        rows = kept(state, column, columns)
        if came is not None:
            new = came.select(*columns, pl.lit(1, dtype=pl.Int64).alias(TIMES))
            rows = counted([rows.cast(new.schema), new], columns)
        time = pl.col(side.time.name).dt.epoch("us") - side.time.before_ms * _MICROSECONDS
        rows = rows.with_columns(time.alias(AT))
        if number == 0:
            return rows
        ties = [name for name in (*side.beside, *side.columns) if not rows.schema[name].is_nested()]
        return rows.sort([AT, *ties]).unique([*self.sides.keys, AT], keep="last", maintain_order=True)

    def _held(self, left: pl.DataFrame, versions: pl.DataFrame, state: pl.DataFrame, watermark_ms: int) -> pl.DataFrame:
        """Return the state rows of the keys that have rows. Versions that no left row needs are left out."""
        on = list(self.sides.keys)
        over = pl.col(AT).floordiv(_MICROSECONDS) <= watermark_ms
        newest = pl.col(AT).filter(over).max().over(on)
        live = versions.filter(~over | (pl.col(AT) == newest))
        last = live.group_by(on).agg(pl.col(AT).unique().sort().get(1, null_on_oob=True))
        first = left.group_by(on).agg(pl.col(AT).min())
        due = pl.concat([first, last]).group_by(on).agg(pl.col(AT).min().floordiv(_MICROSECONDS).alias(DUE))
        found = pl.concat([left.select(on), live.select(on)]).unique()
        for name, rows in ((LEFT, left.drop(AT)), (RIGHT, live.drop(AT))):
            found = join_by_key(found, as_lists(rows, on, name, state.schema[name]), on, "left")
        return join_by_key(found, due, on, "left").select(state.columns)


# ------------------------------------------------------------------
# Columns


def _struct(rows: StructType, columns: Sequence[str]) -> StructType:
    return StructType([rows[name] for name in columns])


def _beside(side: JoinSide) -> list[StructField]:
    return [StructField(name, BooleanType()) for name in side.beside]


def kept_rows_state(function: IntervalJoin | WindowJoin, left: StructType, right: StructType) -> StructType:
    """Return the columns of the state of a join within a range or by window, without the keys."""
    sides, time = function.sides, function.sides.left.time.kind
    kinds: dict[str, DataType] = {SIDE: IntegerType(), AT: LongType(), NTH: LongType(), START: time, END: time}
    marks = [StructField(MATCHED, BooleanType())] if isinstance(function, IntervalJoin) else []
    held = [
        StructField(name, _struct(rows, sides.held(number)))
        for number, (name, rows) in enumerate(((LEFT, left), (RIGHT, right)))
    ]
    return StructType(
        [*(StructField(name, kinds[name]) for name in function.rows_by), *marks, StructField(DUE, LongType()), *held]
    )


def as_of_state(sides: JoinedSides, left: StructType, right: StructType) -> StructType:
    """Return the columns of the state of `AsOfJoin`, without the keys."""
    count = StructField(TIMES, LongType())
    lists = [
        StructField(name, ArrayType(StructType([*_struct(rows, side.columns), *_beside(side), count])))
        for name, rows, side in ((LEFT, left, sides.left), (RIGHT, right, sides.right))
    ]
    return StructType([*lists, StructField(DUE, LongType())])


def joined_rows(function: IntervalJoin | WindowJoin | AsOfJoin, left: StructType, right: StructType) -> StructType:
    """Return the columns of the rows that a join emits."""
    sides, time = function.sides, function.sides.left.time.kind
    windows = [StructField(name, time) for name in (START, END)] if isinstance(function, WindowJoin) else []
    own = [*_struct(left, sides.keys), *windows, *_struct(left, sides.left.columns)]
    return StructType([*own, *([] if sides.how.has_left_alone else _struct(right, sides.right.columns))])


def late_join_rows(sides: JoinedSides, left: StructType, right: StructType) -> StructType:
    """Return the columns of late rows: the columns of both sides. Those of the other side are null."""
    own = _struct(left, (*sides.keys, *sides.left.columns))
    said = [StructField(LATE_SIDE, StringType()), StructField(LATE_BY, LongType())]
    return StructType([*own, *_struct(right, sides.right.columns), *said])


# ------------------------------------------------------------------
# Finds partners without comparing all rows of a key.


def _ranges(
    left: pl.DataFrame, right: pl.DataFrame, keys: Sequence[str], lower_ms: int | None, upper_ms: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where the partners of each left row lie among the right rows in the order of keys and times.

    The result has four arrays: the places of left rows, where their partners begin in this order, where they end, and
    the order itself, which has places of right rows. Without a lower bound, a partner may have any earlier time. A left
    row is left out if no right row has its key.
    """
    on = list(keys)
    ids = right.select(on).unique().with_row_index(_ID)
    of_left, of_right = (
        join_by_key(rows.select(*on, AT).with_row_index(_PLACE), ids, on, "inner", nulls_equal=False)
        for rows in (left, right)
    )
    keys_of_left, keys_of_right, places = _whole(of_left[_ID]), _whole(of_right[_ID]), _whole(of_right[_PLACE])
    times, at = of_right[AT].to_numpy(), of_left[AT].to_numpy()
    lowest = None if lower_ms is None else at + lower_ms * _MICROSECONDS
    highest = at + upper_ms * _MICROSECONDS
    if len(times) and (int(times.max()) - int(times.min()) + 2) * (ids.height + 1) > _PLACES_MAX:
        in_turn = np.sort(times)
        times = np.searchsorted(in_turn, times)
        lowest = None if lowest is None else np.searchsorted(in_turn, lowest, "left")
        highest = np.searchsorted(in_turn, highest, "right") - 1
    first, width = (int(times.min()), int(times.max()) - int(times.min()) + 1) if len(times) else (0, 0)
    ranked = keys_of_right * (width + 1) + (times - first)
    in_order = np.argsort(ranked)
    ranked, begins = ranked[in_order], keys_of_left * (width + 1)
    low = 0 if lowest is None else np.clip(lowest - first, 0, width)
    start = np.searchsorted(ranked, begins + low, "left")
    end = np.searchsorted(ranked, begins + np.clip(highest - first, -1, width), "right")
    return _whole(of_left[_PLACE]), start, np.maximum(start, end), places[in_order]


def _whole(numbers: pl.Series) -> NDArray[np.int64]:
    return numbers.to_numpy().astype(np.int64)


def _hit(rows: pl.DataFrame, places: NDArray[np.int64]) -> pl.Series:
    """Return for each row whether it is at one of these places."""
    found = np.zeros(rows.height, dtype=bool)
    found[places] = True
    return pl.Series(found)


def _numbered(new: pl.DataFrame, held: pl.DataFrame, alike: Sequence[str]) -> pl.DataFrame:
    """Number the new rows, so that they differ from rows in state that have the same values in these columns."""
    on = list(alike)
    again = new.select(on).is_duplicated()
    first = pl.lit(0, dtype=pl.Int64).alias(NTH)
    parts = [new.filter(~again).with_columns(first)] if again.any() else [new.with_columns(first)]
    if again.any():
        parts.append(new.filter(again).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).over(on).alias(NTH)))
    numbered, known = pl.concat(parts), join_by_key(held.select(*on, NTH), new.select(on), on, "semi")
    if known.is_empty():
        return numbered
    beside = join_by_key(numbered, known.group_by(on).agg((pl.col(NTH).max() + 1).alias(_ID)), on, "left")
    return beside.with_columns(pl.col(NTH) + pl.col(_ID).fill_null(0)).drop(_ID)
