"""Reads a range of offsets as rows in a task, without Spark's connector."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from jobs.sources.kafka.position import PlacedRange, split_of
from jobs.sources.kafka.settings import ClientSettings
from jobs.sources.kafka.task_reader import messages
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError
from jobs.sources.slice_reading import LeftToSparkError

if TYPE_CHECKING:
    from confluent_kafka import Message

VALUE: Final = "value"
"""The column of a record's bytes, before they are decoded."""

Decoding = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Yields each batch with the columns of the records' values, in place of the column VALUE."""

_MS_MAX: Final = (2**63 - 1) // 1000
"""The most milliseconds that fit a timestamp, which counts microseconds."""

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _keys(records: Sequence["Message"]) -> pa.Array:
    return pa.array([record.key() for record in records], pa.binary())


def _timestamps(records: Sequence["Message"]) -> pa.Array:
    """Return the records' times. Raises SourceError for one that Spark's type does not hold."""
    written = [record.timestamp()[1] for record in records]
    far = next((record for record, ms in zip(records, written, strict=True) if abs(ms) > _MS_MAX), None)
    if far is not None:
        raise SourceError(
            f"topic {far.topic()}, partition {far.partition()}, offset {far.offset()}: the record's time "
            f"{far.timestamp()[1]} is no count of milliseconds; its producer may write nanoseconds. Leave 'timestamp' "
            "out of the source's metadata, or go on behind the record with tidemark reset"
        )
    return pa.array([ms * 1000 for ms in written], pa.int64()).cast(pa.timestamp("us", "UTC"))


def _headers(records: Sequence["Message"]) -> pa.Array:
    found = [record.headers() for record in records]
    return pa.array([each and [{"key": key, "value": value} for key, value in each] for each in found], _HEADERS)


def _topics(records: Sequence["Message"]) -> pa.Array:
    return pa.array([record.topic() for record in records], pa.string())


_METADATA: Final = {"key": _keys, "timestamp": _timestamps, "headers": _headers, "topic": _topics}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaScan:
    """The records of a range of offsets; see `slice_reading.RowScan`.

    `metadata` are the fields of records that the user asked for, each with its column.
    """

    settings: ClientSettings
    group: str
    placed: PlacedRange
    decoding: Decoding | None
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> int:
        """Return the number of offsets."""
        return self.placed.range.end - self.placed.range.first

    @property
    def may_repeat(self) -> bool:
        """Return False, because each reader makes the broker send all records again."""
        return False

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises LeftToSparkError if Spark must read them, and SourceError."""
        for batch in self._decoded(map(self._batch, self._records())):
            columns = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.record_batch(columns, schema=schema)

    def _decoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches if self.decoding is None else self.decoding(batches)

    def _records(self) -> Iterator[list["Message"]]:
        if find_spec("confluent_kafka") is None:
            raise LeftToSparkError("the worker has no client of Kafka")
        try:
            self.settings.for_librdkafka()
        except SourceError as error:
            raise LeftToSparkError("the worker's environment has no such secret") from error
        asked = self.placed.range
        yield from messages(self.settings, self.group, self.placed.place, asked.first, asked.end)

    def _batch(self, records: Sequence["Message"]) -> pa.RecordBatch:
        columns = {
            VALUE: pa.array([record.value() for record in records], pa.binary()),
            **{column: _METADATA[name](records) for name, column in self.metadata},
            SPLIT_COLUMN: pa.repeat(pa.scalar(str(split_of(self.placed.place))), len(records)),
            POSITION_COLUMN: pa.array(np.array([record.offset() for record in records], dtype=np.int64)),
        }
        return pa.RecordBatch.from_pydict(columns)
