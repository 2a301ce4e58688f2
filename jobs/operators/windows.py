"""Windows of event time: to which a row belongs, and aggregates that are put out when a window has closed (N2).

A window is [start, end). It closes when the watermark reaches its last millisecond. A row is late if its window has
closed: it goes to the output `LATE`, with how late it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType

from checkpointing.event_time import BEFORE_TIME
from checkpointing.state_meaning import Argument, ColumnMeaning
from jobs.operators.aggregate import KeyedAggregates, output_schema, state_schema
from jobs.operators.process import Processed
from jobs.state.merge import KEY_GROUP

START: Final = "window_start"
END: Final = "window_end"
LATE: Final = "late"
"""The named output with the late rows."""
LATE_BY: Final = "late_by_ms"
"""The column of a late row that says how far the watermark was behind the row's time."""
DUE: Final = "_due_ms"
_MICROSECONDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class WindowBound:
    """The column with the start of a row's window, or with what comes `after_ms` in local time: its end.

    Windows begin every `size_ms`, at `offset_ms` after midnight, in the local time of the zone. A local time that
    summer time skips is the moment of the change, and one that comes twice is the first of the two.
    """

    name: str
    of: str
    size_ms: int
    offset_ms: int
    zone: str
    after_ms: int

    def values(self, rows: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        """Return the column's values for these rows. A row without a time has no window."""
        times = rows.column(self.of)
        local = times.cast(pa.timestamp("us"))
        if self.zone != "UTC":
            local = pc.local_timestamp(times.cast(pa.timestamp("us", tz=self.zone)))
        micros = pc.fill_null(local.cast(pa.int64()), 0).to_numpy()
        size = self.size_ms * _MICROSECONDS
        begins = micros - np.mod(micros - self.offset_ms * _MICROSECONDS, size) + self.after_ms * _MICROSECONDS
        bound = pa.array(begins, pa.timestamp("us"), mask=np.asarray(pc.is_null(local)))
        if self.zone != "UTC":
            bound = pc.assume_timezone(bound, self.zone, ambiguous="earliest", nonexistent="latest")
        return bound.cast(pa.timestamp("us", tz="UTC")).cast(kind) if kind.tz else bound


@dataclass(frozen=True, slots=True)
class WindowedAggregates:
    """The keyed function of aggregates by key and window. The window's start and end are the last two keys.

    `watermark_ms` is that of the last barrier. The columns of late rows are `columns`; `time` is their event time.
    """

    aggregates: KeyedAggregates
    columns: tuple[str, ...]
    time: str
    watermark_ms: int = BEFORE_TIME
    due: str = DUE

    def at(self, watermark_ms: int) -> "WindowedAggregates":
        """Return the function as it is after a barrier with this watermark."""
        return replace(self, watermark_ms=watermark_ms)

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Add the rows to their open windows. Nothing is put out yet, but late rows."""
        rows = inputs[0]
        is_late = _ms(END) - 1 <= self.watermark_ms
        late = rows.filter(is_late)
        added = self.aggregates.process([rows.filter(~is_late)], state.drop(DUE))
        held = added.state.with_columns((_ms(END) - 1).alias(DUE))
        if late.is_empty():
            return Processed(held, self._none(state))
        said = late.select(*self.columns, (pl.lit(self.watermark_ms) - _ms(self.time)).alias(LATE_BY))
        return Processed(held, self._none(state), {LATE: said})

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Put out the windows that have closed, and forget them."""
        found = state.with_columns(pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP))
        return Processed(state.clear(), self.aggregates.results(found).drop(KEY_GROUP))

    def _none(self, state: pl.DataFrame) -> pl.DataFrame:
        return self.on_time(state.clear()).output

    def meaning(self, window: str) -> ColumnMeaning:
        """Return what the windows of the state are. Others cannot go on from them."""
        return ColumnMeaning(column=DUE, function="windows", arguments=(Argument(window, "window"),))


def windowed_state(keys: Sequence[str], function: WindowedAggregates, rows: StructType) -> StructType:
    """Return the columns of the state, without the keys."""
    held = state_schema(keys, function.aggregates.aggregates, rows).fields[len(keys) :]
    return StructType([*held, StructField(DUE, LongType())])


def windowed_output(keys: Sequence[str], function: WindowedAggregates, rows: StructType) -> StructType:
    """Return the columns of a closed window."""
    return output_schema(keys, function.aggregates.aggregates, rows)


def late_rows(function: WindowedAggregates, rows: StructType) -> StructType:
    """Return the columns of late rows."""
    return StructType([*[rows[name] for name in function.columns], StructField(LATE_BY, LongType())])


def _ms(column: str) -> pl.Expr:
    """Return a time in ms. A time between two milliseconds counts as the earlier one."""
    return pl.col(column).dt.epoch("us").floordiv(_MICROSECONDS)
