"""Timers of a user's keyed function: times at which to call it again, kept with the function's state (N4).

A key has at most one timer for each time. A timer is due when the watermark reaches its time. One call gives the
function all due timers of a subtask, in the order of time. (Flink: `InternalTimerServiceImpl`, which makes one call for
each timer.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import polars as pl
from pyspark.sql.types import ArrayType, BooleanType, LongType, StructField, StructType

from checkpointing.event_time import END_OF_TIME
from jobs.operators.process import EndsInput, Processed
from jobs.state.key_joins import join_by_key

TIME: Final = "time"
"""The column of a timer with its time."""
CLOCK: Final = "_clock"
"""The column of rows with the clock of their epoch, if timers are by the clock."""
TIMERS: Final = "_timers"
DUE: Final = "_due_ms"
HOLDS: Final = "_holds"
"""Whether a key has the function's own state, or only timers."""
TIMER_STATE: Final = StructType(
    [StructField(TIMERS, ArrayType(LongType())), StructField(DUE, LongType()), StructField(HOLDS, BooleanType())]
)
"""The columns of the state beside the function's own."""
CALLS_MAX: Final = 1_000
_MICROSECONDS: Final = 1_000


@runtime_checkable
class HasTimers(Protocol):
    """Required of a keyed function that sets timers (Flink: `KeyedProcessFunction`).

    `process` and `on_time` may return `timers`: rows of the keys and `time`, a timestamp. Null times are left out. If a
    function has an attribute `by_clock` that is true, its timers are by the clock of barriers. Its rows then have a
    column `_clock` with the time at which their epoch began.
    """

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the new state, the output and new timers, as `KeyedFunction.process` does."""
        ...

    def on_time(self, due: pl.DataFrame, state: pl.DataFrame) -> Processed:
        """Return the new state, the output and new timers, now that the timers in `due` have been reached.

        `due` has the keys and `time`, in the order of time. A key comes once for each of its timers that is due.
        `state` has one row for each of these keys that has state. A key that is missing in the new state loses its
        state. If a new timer is already due, another call with it follows at once.
        """
        ...


class TimersError(Exception):
    """A function returned timers that cannot be set. The message says what is wrong and how to correct it."""


@dataclass(frozen=True, slots=True)
class WithTimers:
    """The keyed function of a user, with its timers. `keys` are the key columns of the state."""

    function: HasTimers
    keys: tuple[str, ...]
    by_clock: bool = False
    clock_ms: int = 0
    fires_ms: int = END_OF_TIME
    due: str = DUE

    def at(self, watermark_ms: int, fires_ms: int) -> "WithTimers":
        """Return the function for the rows after a barrier with this watermark.

        `on_time` gets the timers up to `fires_ms`.
        """
        return replace(self, clock_ms=watermark_ms + 1, fires_ms=fires_ms)

    @property
    def state_version(self) -> object:
        """The version of the function's own state."""
        return getattr(self.function, "state_version", None)

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Call the function for new rows, and keep its timers."""
        if self.by_clock:
            clock = pl.from_epoch(pl.lit(self.clock_ms), "ms").dt.replace_time_zone("UTC").alias(CLOCK)
            inputs = [rows.with_columns(clock) for rows in inputs]
        done = self.function.process(inputs, self._own(state))
        return self._kept(done, state.select(*self.keys, TIMERS).explode(TIMERS), state.schema)

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Call the function for the timers that are due, until no timer is due any more."""
        columns, rows = state.schema, state
        done: list[Processed] = []
        for _ in range(CALLS_MAX):
            timers = rows.select(*self.keys, TIMERS).explode(TIMERS)
            is_due = pl.col(TIMERS) <= self.fires_ms
            due = timers.filter(is_due).sort(TIMERS)
            if due.is_empty():
                return Processed(rows, pl.concat([each.output for each in done]), _together(done))
            touched = due.select(self.keys).unique()
            before = join_by_key(rows, touched, self.keys, "semi")
            given = due.select(*self.keys, pl.from_epoch(TIMERS, "ms").dt.replace_time_zone("UTC").alias(TIME))
            called = self.function.on_time(given, self._own(before))
            left = join_by_key(timers.filter(~is_due), touched, self.keys, "semi")
            done.append(self._kept(called, left, columns))
            rows = pl.concat([rows.join(touched, on=list(self.keys), how="anti", nulls_equal=True), done[-1].state])
        raise TimersError(
            f"on_time was called {CALLS_MAX} times, and has set a timer that was due each time: set the next one "
            "later than the watermark"
        )

    def _own(self, state: pl.DataFrame) -> pl.DataFrame:
        return state.filter(HOLDS).drop(TIMERS, DUE, HOLDS)

    def _kept(self, done: Processed, timers: pl.DataFrame, columns: pl.Schema) -> Processed:
        """Return a call's result, with these timers and the new timers in its state."""
        every = pl.concat([timers.filter(pl.col(TIMERS).is_not_null()), self._new(done, timers.schema)]).unique()
        listed = every.group_by(self.keys).agg(pl.col(TIMERS).sort(), pl.col(TIMERS).min().alias(DUE))
        held = done.state.with_columns(pl.lit(value=True).alias(HOLDS))
        without = listed.join(held, on=list(self.keys), how="anti", nulls_equal=True)
        both = pl.concat([join_by_key(held, listed, self.keys, "left"), without], how="diagonal_relaxed")
        state = both.with_columns(pl.col(HOLDS).fill_null(value=False), pl.col(TIMERS).cast(columns[TIMERS]))
        return replace(done, state=state.select(list(columns)), timers=None)

    def _new(self, done: Processed, kinds: pl.Schema) -> pl.DataFrame:
        if done.timers is None:
            return pl.DataFrame(schema=kinds)
        kind = done.timers.schema.get(TIME)
        if set(done.timers.columns) != {*self.keys, TIME} or not isinstance(kind, pl.Datetime):
            raise TimersError(
                f"the function returned timers with the columns {done.timers.schema}: return the keys "
                f"{list(self.keys)} and {TIME!r}, a timestamp"
            )
        # A timer inside a millisecond is due when the whole millisecond has passed.
        ms = -(-pl.col(TIME).dt.epoch("us")).floordiv(_MICROSECONDS)
        new = done.timers.filter(pl.col(TIME).is_not_null()).select(*self.keys, ms.alias(TIMERS))
        return new.cast(kinds)


@dataclass(frozen=True, slots=True)
class EndsWithTimers(WithTimers):
    """The keyed function of a user with timers, if it also holds rows back."""

    def end_of_input(self, state: pl.DataFrame) -> Processed:
        """Call the function's `end_of_input`, because no row will follow. Keep the timers."""
        function = self.function
        if not isinstance(function, EndsInput):
            raise TypeError(f"{function!r} has no end_of_input")
        done = function.end_of_input(self._own(state))
        return self._kept(done, state.select(*self.keys, TIMERS).explode(TIMERS), state.schema)


def with_timers(function: HasTimers, keys: tuple[str, ...], *, by_clock: bool = False) -> WithTimers:
    """Return the function with its timers."""
    kind = EndsWithTimers if isinstance(function, EndsInput) else WithTimers
    return kind(function, keys, by_clock)


def _together(done: Sequence[Processed]) -> dict[str, pl.DataFrame]:
    """Return the rows of each named output of several calls."""
    names = dict.fromkeys(name for each in done for name in each.outputs)
    return {name: pl.concat([each.outputs[name] for each in done if name in each.outputs]) for name in names}
