"""Reads ranges of offsets in a task, with librdkafka. It reads only records of committed transactions.

A Python worker keeps its clients from one task to the next, because a new client must first ask for brokers and
partitions.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from jobs.sources.kafka.client_settings import BrokerAwayError, ClientSettings, failure, is_refused_login
from jobs.sources.kafka.position import PlacedRange, TopicPartition, split_of
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError
from jobs.sources.slice_reading import LeftToSparkError
from jobs.spark.jars import KAFKA, fetch_command, jar_set

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


_PATIENCE_S: Final = 60.0
"""How many seconds a task waits for the next record."""
_WAIT_S: Final = 1.0
_RECORDS: Final = 32 * 1024
_BYTES: Final = 16 * 1024 * 1024
"""The numbers of records (`_RECORDS`) and of bytes at which a list of records is yielded."""
_READING: Final = {
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "queued.max.messages.kbytes": "16384",
}

_IDLE: Final[dict[tuple[object, str], "_Client"]] = {}
"""The clients of this process that no task uses, by settings and group."""


def messages(
    settings: ClientSettings, group: str, place: TopicPartition, first: int, end: int
) -> Iterator[list["Message"]]:
    """Yield the records from offset `first` to before `end`, in lists. Offsets without a record are skipped.

    Raises SourceError if records cannot be read or are gone.
    """
    key = (settings.open_part, group)
    client = _IDLE.pop(key, None) or _Client(settings, group)
    try:
        yield from client.read(place, first, end)
    except BaseException:
        client.close()
        raise
    _IDLE[key] = client


class _Client:
    """A consumer of librdkafka that reads one range after the other."""

    def __init__(self, settings: ClientSettings, group: str) -> None:
        """Connect in the background. Raises SourceError for a setting that the client does not accept."""
        from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - an extra, which a worker may lack

        from jobs.sources.kafka.cluster import QUICK, SILENT  # noqa: PLC0415 - needs the extra too

        self._settings = settings
        self._last: KafkaError | None = None
        given = {**QUICK, **settings.for_librdkafka(), **_READING, "group.id": group, "error_cb": self._note}
        try:
            self._consumer = Consumer(given, logger=SILENT)
        except KafkaException as error:
            raise self._failure(error.args[0], f"group {group}") from None

    def read(self, place: TopicPartition, first: int, end: int) -> Iterator[list["Message"]]:
        """Yield the records of a range, and then unassign the Kafka partition. Raises SourceError."""
        from confluent_kafka import TopicPartition as Asked  # noqa: PLC0415 - an extra

        self._last = None
        self._consumer.assign([Asked(*place, first)])
        gathered: list[Message] = []
        size, at, limit = 0, first, time.monotonic() + _PATIENCE_S
        while at < end:
            records, now_at = self._next(place, at, end)
            if now_at > at:
                at, limit = now_at, time.monotonic() + _PATIENCE_S
            elif time.monotonic() > limit:
                raise self._stuck(place, at, end)
            gathered += records
            size += sum(map(len, records))
            if len(gathered) >= _RECORDS or size >= _BYTES:
                yield gathered
                gathered, size = [], 0
        if gathered:
            yield gathered
        self._consumer.unassign()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _next(self, place: TopicPartition, at: int, end: int) -> tuple[list["Message"], int]:
        """Return the records before `end` that have arrived, and the offset to read next."""
        first = self._consumer.poll(_WAIT_S)
        if first is None:
            if self._last is not None and is_refused_login(self._last):
                raise self._failure(self._last, f"topic {place.topic}")
            return [], at
        records = []
        # The timeout is 0, so this takes only records that have already arrived.
        for message in (first, *self._consumer.consume(min(end - at, _RECORDS), 0)):
            error = message.error()
            if error is None:
                records.append(message)
                at = message.offset() + 1
            elif error.name() == "_PARTITION_EOF":
                at = max(at, message.offset())
            else:
                self._heed(error, place)
        if at > end:
            records = [record for record in records if record.offset() < end]
        return records, at

    def _heed(self, error: "KafkaError", place: TopicPartition) -> None:
        """Store an error of a broker that may come back. Raise SourceError for any other error."""
        if error.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
            raise SourceError(
                f"partition {place} has lost records while they were read: run the pipeline again, which says which "
                "records, and how to go on without them"
            )
        said = self._failure(error, f"topic {place.topic}")
        if not isinstance(said, BrokerAwayError):
            raise said
        self._last = error

    def _stuck(self, place: TopicPartition, at: int, end: int) -> SourceError:
        if self._last is not None:
            return self._failure(self._last, f"topic {place.topic}")
        return SourceError(
            f"partition {place} gave no record from offset {at:,} on for {_PATIENCE_S:.0f} s, though it ended at "
            f"{end:,} before: look whether the broker works, and run again"
        )

    def _failure(self, error: "KafkaError", what: str) -> SourceError:
        said = self._settings.without_secrets(error.str())
        return failure(error, self._settings.servers, what, said, self._settings.asker)

    def _note(self, error: "KafkaError") -> None:
        self._last = error


# ------------------------------------------------------------------
# Reads a range of offsets as rows in a task, without Spark's connector.


VALUE: Final = "value"
"""The column of a record's bytes, before they are decoded."""

Decoding = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Yields each batch with the columns of the records' values, in place of the column VALUE."""

_MS_MAX: Final = (2**63 - 1) // 1000
"""The most milliseconds that fit into a timestamp, which is in microseconds."""

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _keys(records: Sequence["Message"]) -> pa.Array:
    return pa.array([record.key() for record in records], pa.binary())


def _timestamps(records: Sequence["Message"]) -> pa.Array:
    """Return the records' times. Raises SourceError for a time that does not fit into Spark's type."""
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
        """Yield the rows in `schema`. Raises LeftToSparkError if Spark must read them, or SourceError."""
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


# ------------------------------------------------------------------
# Reads ranges of offsets with Spark's Kafka connector, as a batch: one task for each Kafka partition.
#
# The connector fails if a record of a range is gone (`failOnDataLoss`). It skips offsets without a committed record:
# markers of transactions, aborted records, and records that compaction removed.


FORMAT: Final = "kafka"


def records(spark: SparkSession, ranges: Sequence[PlacedRange], options: Mapping[str, str]) -> DataFrame:
    """Return the connector's records of these ranges, at least one. Ranges of one Kafka partition do not overlap."""
    by_place: dict[TopicPartition, list[PlacedRange]] = defaultdict(list)
    for one in ranges:
        by_place[one.place].append(one)
    # Each read has at most one range of a Kafka partition. A Kafka partition rarely has several ranges that do not
    # adjoin.
    reads = [[one for one in layer if one is not None] for layer in zip_longest(*by_place.values())]
    return reduce(DataFrame.unionAll, [_read(spark, layer, options) for layer in reads])


def _read(spark: SparkSession, ranges: Sequence[PlacedRange], options: Mapping[str, str]) -> DataFrame:
    partitions: dict[str, list[int]] = defaultdict(list)
    first: dict[str, dict[str, int]] = defaultdict(dict)
    end: dict[str, dict[str, int]] = defaultdict(dict)
    for one in ranges:
        topic, partition = one.place
        partitions[topic].append(partition)
        first[topic][str(partition)] = one.range.first
        end[topic][str(partition)] = one.range.end
    own = {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(first),
        "endingOffsets": json.dumps(end),
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
    try:
        read = spark.read.format(FORMAT).options(**{**options, **own}).load()
        _ = read.schema  # Spark Connect looks for the connector only now
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_NOT_FOUND" and FORMAT not in str(error):
            raise
        raise SourceError(
            f"this Spark session has no Kafka connector: fetch it with '{fetch_command(jar_set(KAFKA))}', and start "
            "the session with SparkConfig(jar_sets=('kafka',)), or the Connect server with its jars in spark.jars"
        ) from error
    return read


def split_column(topics: Sequence[str]) -> Column:
    """Return the expression that computes the split of a record from one of these topics."""
    begins = {topic: str(split_of(TopicPartition(topic, 0))).removesuffix("0") for topic in sorted(topics)}
    prefix: Column = F.lit(None).cast("string")
    for topic, text in begins.items():
        prefix = F.when(F.col("topic") == topic, F.lit(text)).otherwise(prefix)
    return F.concat(prefix, F.col("partition").cast("string"))
