"""Measures the greatest event time of each split while a vertex reads its rows (N1).

A task that reads files measures the times itself, and its report has them. If Spark reads the rows, Spark observes the
times.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import TimestampNTZType, TimestampType

from jobs.sources.slice_reading import RowScan, ScanOfScan
from jobs.spark.columns import named
from jobs.storage.parquet import ScanError

SplitTimes = tuple[tuple[int, str, int], ...]
"""Number of the input, split, and the split's greatest time in ms, for each split."""
_MICROSECONDS: Final = 1_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """The column with the event time of a row, of Spark's type `timestamp` or `timestamp_ntz`, which counts as UTC."""

    name: str
    kind: TimestampType | TimestampNTZType
    before_ms: int = 0
    """The event time is this much before the column's value: a window's event time is its last millisecond."""
    ahead_ms: int | None = None
    """A time that is further ahead of the clock is impossible, and moves no watermark."""
    kept_in: str | None = None
    """The column with the possible times, and null for impossible ones. Without it, an impossible time is an error."""

    def ms(self) -> Column:
        """Return a row's time in ms. A time inside a millisecond is rounded down."""
        time = named(self.name)
        if isinstance(self.kind, TimestampType):
            return F.unix_millis(time)
        day = F.unix_date(F.to_date(time)).cast("bigint") * F.lit(_DAY_MS)
        seconds = F.hour(time) * F.lit(3_600) + F.minute(time) * F.lit(60) + F.extract(F.lit("SECOND"), time)
        return day + F.floor(seconds * F.lit(1_000)).cast("bigint")

    def limit_ms(self, offered_ms: int) -> int | None:
        """Return the latest time that rows of a slice can have. None: there is no limit."""
        return None if self.ahead_ms is None else offered_ms + self.ahead_ms

    def too_far(self, split: str, time: object, limit_ms: int) -> str:
        """Return the message for a row with an impossible time. It names ways out."""
        return (
            f"split {split} has a row with {self.name}={time}, which is more than {self.ahead_ms} ms ahead of the "
            f"clock (limit {limit_ms} ms since 1970): correct it, or give such rows a table, as in "
            "event_time(..., misfits='quarantine/rows')"
        )

    @property
    def field(self) -> pa.Field:
        """The column in the rows that a task reads."""
        zone = None if isinstance(self.kind, TimestampNTZType) else "UTC"
        return pa.field(self.name, pa.timestamp("us", tz=zone))


# ------------------------------------------------------------------
# Where Spark reads


@dataclass(slots=True)
class ObservedTimes:
    """The greatest time of each split, as Spark observes it in one micro-batch."""

    _observed: list[tuple[int, str, Observation]] = field(default_factory=list)

    def of(self, rows: DataFrame, time: TimeColumn, number: int, split: str, limit_ms: int | None) -> DataFrame:
        """Return the same rows of one split of an input. Spark measures their times when it reads them."""
        observation = Observation()
        self._observed.append((number, split, observation))
        counted = time.ms()
        if limit_ms is not None:
            beyond = F.lit(None)
            if time.kept_in is None:
                shown = named(time.name).cast("string")
                said = time.too_far(split, "\0", limit_ms).split("\0")
                beyond = F.raise_error(F.concat(F.lit(said[0]), shown, F.lit(said[1])))
            counted = F.when(time.ms() <= F.lit(limit_ms), time.ms()).when(time.ms() > F.lit(limit_ms), beyond)
        measured = rows.observe(observation, F.max(counted).alias("greatest"))
        if time.kept_in is None:
            return measured
        fits = F.expr("true") if limit_ms is None else time.ms() <= F.lit(limit_ms)
        return measured.withColumn(time.kept_in, F.when(fits, named(time.name)))

    def taken(self) -> SplitTimes:
        """Return the measured times, after the job has run. A split without any time is left out."""
        found = ((number, split, observation.get["greatest"]) for number, split, observation in self._observed)
        return tuple((number, split, ms) for number, split, ms in found if ms is not None)


# ------------------------------------------------------------------
# Where a task reads


@dataclass(frozen=True, slots=True)
class MicroBatchId:
    """The micro-batch for which a task works. Times that were measured for another micro-batch are not reported."""

    vertex: str
    generation: int
    micro_batch: int


_MEASURED: Final[dict[MicroBatchId, dict[tuple[int, str], int]]] = {}
"""The times that this worker has measured. A worker runs one task at a time."""


def take_measured(of: MicroBatchId) -> SplitTimes:
    """Return the times that this worker's tasks have measured for a micro-batch, and clear all measured times."""
    found = _MEASURED.get(of, {})
    _MEASURED.clear()
    return tuple((number, split, ms) for (number, split), ms in found.items())


def sent_measured() -> bytes | None:
    """Return all times that this worker has measured, and clear them. Another task reports them.

    None: there are none.
    """
    found = [[asdict(of), [[*place, ms] for place, ms in known.items()]] for of, known in _MEASURED.items()]
    _MEASURED.clear()
    return json.dumps(found).encode() if found else None


def received_measured(sent: bytes) -> None:
    """Add the times that another task has measured."""
    for of, known in json.loads(sent):
        for number, split, ms in known:
            _remember(MicroBatchId(**of), number, split, ms)


def _remember(of: MicroBatchId, number: int, split: str, ms: int) -> None:
    known = _MEASURED.setdefault(of, {})
    known[number, split] = max(ms, known.get((number, split), ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedScan(ScanOfScan):
    """A part of the rows of one split. While the task reads the rows, it measures their greatest time."""

    of: MicroBatchId
    input: int
    split: str
    time: TimeColumn
    limit_ms: int | None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises ScanError."""
        time, kept = self.time.field, self.time.kept_in
        read = [field for field in schema if field.name != kept]
        beside = [] if time.name in schema.names else [time]
        for batch in self.scan.batches(pa.schema([*read, *beside])):
            times = self._measured(batch.column(time.name))
            columns = {name: batch.column(name) for name in batch.schema.names}
            if kept is not None and kept in schema.names:
                columns[kept] = times.cast(schema.field(kept).type)
            yield pa.record_batch([columns[name] for name in schema.names], schema=schema)

    def _measured(self, times: pa.Array) -> pa.Array:
        """Measure the times, and return them with null for impossible times. Raises ScanError."""
        micros = times.cast(pa.timestamp("us", tz=times.type.tz))
        numbers = micros.cast(pa.int64())
        if self.limit_ms is not None:
            beyond = pc.greater_equal(numbers, (self.limit_ms + 1) * _MICROSECONDS)
            if self.time.kept_in is None and pc.any(beyond).as_py():
                first = micros.filter(beyond)[:1].cast(pa.string())[0].as_py()  # Python knows no year above 9999
                raise ScanError(self.time.too_far(self.split, first, self.limit_ms))
            micros, numbers = (pc.if_else(beyond, pa.scalar(None, each.type), each) for each in (micros, numbers))
        greatest = pc.max(numbers).as_py()
        if greatest is not None:
            _remember(self.of, self.input, self.split, greatest // _MICROSECONDS)
        return micros


@dataclass(frozen=True, slots=True)
class TimesOfInput:
    """Where the times of one input of a micro-batch are collected, whether tasks or Spark measure them."""

    of: MicroBatchId
    input: int
    observed: ObservedTimes

    def scans(
        self, scans: Sequence[RowScan], split: str, time: TimeColumn, limit_ms: int | None
    ) -> tuple[RowScan, ...]:
        """Return scans of the same rows, which belong to one split. Tasks measure their times."""
        return tuple(
            TimedScan(scan=scan, of=self.of, input=self.input, split=split, time=time, limit_ms=limit_ms)
            for scan in scans
        )
