"""Measures how far in event time the rows of each split are, where a vertex reads them (N1).

A task that reads files measures them itself, and its report says so. Where Spark reads, Spark observes them.
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

SplitTimes = tuple[tuple[int, str, int], ...]
"""The greatest time in ms, by the number of the input and the split."""
_MICROSECONDS: Final = 1_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """The column with the event time of a row, of Spark's type `timestamp` or `timestamp_ntz`, which counts as UTC."""

    name: str
    kind: TimestampType | TimestampNTZType
    before_ms: int = 0
    """The event time is this much before the value: a window's is its last millisecond."""

    def greatest(self) -> Column:
        """Return Spark's aggregate of the greatest time in ms. A time inside a millisecond counts as its beginning."""
        time = named(self.name)
        if isinstance(self.kind, TimestampType):
            return F.max(F.unix_millis(time))
        day = F.unix_date(F.to_date(time)).cast("bigint") * F.lit(_DAY_MS)
        seconds = F.hour(time) * F.lit(3_600) + F.minute(time) * F.lit(60) + F.extract(F.lit("SECOND"), time)
        return F.max(day + F.floor(seconds * F.lit(1_000)).cast("bigint"))

    @property
    def field(self) -> pa.Field:
        """The column in the rows that a task reads."""
        zone = None if isinstance(self.kind, TimestampNTZType) else "UTC"
        return pa.field(self.name, pa.timestamp("us", tz=zone))


# ------------------------------------------------------------------
# Where Spark reads


@dataclass(slots=True)
class ObservedTimes:
    """What Spark observes in one micro-batch: the greatest time of each split."""

    _observed: list[tuple[int, str, Observation]] = field(default_factory=list)

    def of(self, rows: DataFrame, time: TimeColumn, number: int, split: str) -> DataFrame:
        """Return the same rows of one split of an input. Their times are measured when they are read."""
        observation = Observation()
        self._observed.append((number, split, observation))
        return rows.observe(observation, time.greatest().alias("greatest"))

    def taken(self) -> SplitTimes:
        """Return what was measured, after the job. A split without any time is left out."""
        found = ((number, split, observation.get["greatest"]) for number, split, observation in self._observed)
        return tuple((number, split, ms) for number, split, ms in found if ms is not None)


# ------------------------------------------------------------------
# Where a task reads


@dataclass(frozen=True, slots=True)
class MicroBatchId:
    """Which micro-batch a task works for. What a task measured for another one is not reported."""

    vertex: str
    generation: int
    micro_batch: int


_MEASURED: Final[dict[MicroBatchId, dict[tuple[int, str], int]]] = {}
"""What this worker has measured. A worker runs one task at a time."""


def take_measured(of: MicroBatchId) -> SplitTimes:
    """Return what the tasks of this worker have measured for a micro-batch, and forget everything."""
    found = _MEASURED.get(of, {})
    _MEASURED.clear()
    return tuple((number, split, ms) for (number, split), ms in found.items())


def sent_measured() -> bytes | None:
    """Return all that this worker has measured, for the task that reports it, and forget it. None: nothing."""
    found = [[asdict(of), [[*place, ms] for place, ms in known.items()]] for of, known in _MEASURED.items()]
    _MEASURED.clear()
    return json.dumps(found).encode() if found else None


def received_measured(sent: bytes) -> None:
    """Take what another task has measured."""
    for of, known in json.loads(sent):
        for number, split, ms in known:
            _remember(MicroBatchId(**of), number, split, ms)


def _remember(of: MicroBatchId, number: int, split: str, ms: int) -> None:
    known = _MEASURED.setdefault(of, {})
    known[number, split] = max(ms, known.get((number, split), ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedScan(ScanOfScan):
    """A part of the rows of one split. Their greatest time is measured while they are read."""

    of: MicroBatchId
    input: int
    split: str
    time: TimeColumn

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises ScanError."""
        time = self.time.field
        beside = [] if time.name in schema.names else [time]
        for batch in self.scan.batches(pa.schema([*schema, *beside])):
            self._measure(batch.column(time.name))
            yield batch.select(schema.names)

    def _measure(self, times: pa.Array) -> None:
        greatest = pc.max(times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())).as_py()
        if greatest is not None:
            _remember(self.of, self.input, self.split, greatest // _MICROSECONDS)


def timed_scans(
    scans: Sequence[RowScan], of: MicroBatchId, number: int, split: str, time: TimeColumn
) -> tuple[RowScan, ...]:
    """Return scans of the same rows, which belong to one split."""
    return tuple(TimedScan(scan=scan, of=of, input=number, split=split, time=time) for scan in scans)


@dataclass(frozen=True, slots=True)
class TimesOfInput:
    """Where the times of one input of a micro-batch are measured: by its tasks, or by Spark."""

    of: MicroBatchId
    input: int
    observed: ObservedTimes
