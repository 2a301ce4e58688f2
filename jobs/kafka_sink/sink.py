"""The sink that writes the rows of each checkpoint to a Kafka topic, in one transaction.

The same transaction commits the checkpoint's number (`target`). The core decides when a process may write, so that a
tick that was taken over, a lost reply and a crash leave each row once (`checkpointing.commit.outside_transaction`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import pyarrow as pa

from checkpointing.commit.outside_transaction import published_once
from checkpointing.identifiers import CheckpointId
from jobs.kafka_sink.records import RecordFormat, Records
from jobs.kafka_sink.refusing import Sent, Sorting
from jobs.kafka_sink.target import TIMEOUT, KafkaTarget
from jobs.kafka_sink.transaction import KafkaTransaction
from jobs.kafka_sink.upserting import UpsertedRecords
from jobs.sinks.port import Sink, SinkError, TableChanges, UpsertSink
from jobs.sources.kafka.cluster import Cluster
from jobs.sources.kafka.failures import SINK
from jobs.sources.kafka.records import AvroSchema
from jobs.sources.kafka.settings import ClientSettings
from jobs.sources.port import SourceError
from jobs.sources.withheld import Secrets

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaSink(Sink, UpsertSink):
    """Writes a table to a Kafka topic, each checkpoint once: an append table's rows, or an upsert table's changes.

    | parameter       | is                                                                                        |
    |-----------------|-------------------------------------------------------------------------------------------|
    | `servers`       | the brokers, as in "kafka1:9092,kafka2:9092"                                              |
    | `topic`         | the topic, which must exist                                                               |
    | `key`           | the column that becomes the record's key: text, bytes or an integer. None: no key     |
    | `format`        | "json", "avro", or "raw": the column `value`, text or bytes, is the record's value        |
    | `schema`        | for Avro, the text of its schema or a dict. Its fields are the table's columns            |
    | `schema_number` | for Avro of Confluent's wire format: the number of the schema, in front of each record    |
    | `options`       | settings of Kafka's clients, by librdkafka's names                                        |
    | `secrets`       | for each secret setting the environment variable that has it; or a function of the values |
    | `refused`       | a topic for rows that Kafka does not take. The other rows go on. It must exist            |

    A consumer that reads `read_committed` sees each row once. Others also see rows of aborted transactions.
    """

    def __init__(  # noqa: PLR0913 - one for each thing that a user may say
        self,
        servers: str,
        topic: str,
        key: str | None = None,
        format: RecordFormat = "json",  # noqa: A002 - as a KafkaSource calls it
        *,
        schema: AvroSchema | None = None,
        schema_number: int | None = None,
        options: Mapping[str, str] | None = None,
        secrets: Secrets | None = None,
        refused: str | None = None,
    ) -> None:
        """Connect to nothing yet. Raises SinkError for a topic, format or option that does not exist."""
        for name in (topic, *([] if refused is None else [refused])):
            if not _TOPIC.fullmatch(name) or name in {".", ".."}:
                raise SinkError(f"{name!r} is no name of a Kafka topic: write letters, digits, '.', '_' and '-'")
        if refused == topic:
            raise SinkError(f"{topic!r} is the topic and the topic of its refused rows: name another one")
        timeout = (options or {}).get(TIMEOUT, "1")
        if not timeout.isdecimal() or not int(timeout):
            raise SinkError(f"options of a KafkaSink have {TIMEOUT!r}={timeout!r}: write milliseconds")
        try:
            self._settings = ClientSettings(servers, options or {}, secrets, SINK)
        except SourceError as error:
            raise SinkError(str(error)) from None
        self._records = Records(format, key, schema, schema_number)
        self._topic, self._refused = topic, refused
        self._cluster = Cluster(self._settings)

    def __repr__(self) -> str:
        """Return the target without user and password."""
        return f"KafkaSink({self._topic} at {self._settings.servers})"

    def prepare(self, job: str, table: str, schema: pa.Schema) -> int:
        """Check columns, topic and rights, and return the newest checkpoint that the topic has."""
        self._records.must_hold(schema)
        return self._newest(job, table)

    def prepare_upsert(self, job: str, table: str, schema: pa.Schema, keys: tuple[str, ...]) -> int:
        """Check columns, topic and rights, and return the newest checkpoint that the topic shows.

        A topic that shows none must be empty.
        """
        self._records.must_hold_keys(schema, keys)
        return self._newest(job, table, empty_at_first=True)

    def publish(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch]) -> None:
        """Write the rows and the checkpoint's number, in one transaction."""
        target = self._target(job, table)
        self._once(target, checkpoint, partial(self._records_of, target, rows, checkpoint, target.keys_shown))

    def apply(self, job: str, table: str, checkpoint: int, changes: TableChanges) -> None:
        """Write a record for each key that has changed, and the checkpoint's number, in one transaction."""
        target = self._target(job, table)
        self._once(target, checkpoint, partial(self._records_of, target, changes, checkpoint, target.keys_shown))

    def newest(self, job: str, table: str) -> int:
        """Return the newest checkpoint that the topic has."""
        try:
            return self._target(job, table).newest(settled=False)
        except SourceError as error:
            raise SinkError(str(error)) from None

    def check(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch] | TableChanges) -> None:
        """Make the records, and compare them with what the client and the topic take. Send nothing."""
        if self._refused is not None:  # no row can be in the way
            return
        target = self._target(job, table)
        try:
            newest = target.newest(settled=False)
            for _ in self._records_of(target, rows, checkpoint, set, newest) if newest < checkpoint else ():
                pass
        except (SourceError, SinkError) as error:
            raise SinkError(f"{self!r}: {error}") from None

    def _records_of(
        self,
        target: KafkaTarget,
        rows: Iterable[pa.RecordBatch] | TableChanges,
        checkpoint: int,
        shown: Callable[[], set[bytes]],
        newest: CheckpointId,
    ) -> Iterator[Sent]:
        """Yield the records that a topic needs which has the checkpoint `newest`. `shown` returns the keys it has."""
        said = {"job": target.job, "table": target.table, "checkpoint": checkpoint}
        sorting = Sorting(self._topic, target.limits, self._refused, said)
        if isinstance(rows, TableChanges):
            yield from UpsertedRecords(self._records, rows, shown, sorting).since(newest)
        else:
            for batch in rows:
                yield from sorting.of(batch, self._records.of)

    def _once(
        self, target: KafkaTarget, checkpoint: int, records_since: Callable[[CheckpointId], Iterable[Sent]]
    ) -> None:
        transaction = KafkaTransaction(target, CheckpointId(checkpoint), records_since)
        steps = published_once(CheckpointId(checkpoint))
        step = next(steps)
        while True:
            answer = transaction.done(step)
            try:
                step = steps.send(answer)
            except StopIteration as end:
                if end.value is not None:
                    raise SinkError(f"{self!r}: {end.value.why}") from None
                return

    def _newest(self, job: str, table: str, *, empty_at_first: bool = False) -> int:
        """Return the newest checkpoint that the topic has. Raise SinkError if a topic cannot be written to."""
        target = self._target(job, table)
        try:
            target.must_be_writable()
            if self._refused is not None:
                KafkaTarget(self._settings, self._cluster, self._refused, job, table).must_be_writable()
            newest = target.newest(settled=False)
            if empty_at_first and not newest:
                target.must_be_empty()
        except SourceError as error:
            raise SinkError(str(error)) from None
        return newest

    def _target(self, job: str, table: str) -> KafkaTarget:
        return KafkaTarget(self._settings, self._cluster, self._topic, job, table)
