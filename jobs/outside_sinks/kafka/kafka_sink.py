"""Makes a topic show an upsert table: the last record of a key has the key's row, or no value if the key is deleted."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from checkpointing.commit.outside_transaction import TargetLost, published_once
from checkpointing.identifiers import CheckpointId
from jobs.outside_sinks.kafka.kafka_records import Record, RecordFormat, Records, deleted, tombstones
from jobs.outside_sinks.kafka.transaction import TIMEOUT, KafkaTarget, KafkaTransaction, Sent, Sorting, encoded
from jobs.sinks.port import Sink, SinkAwayError, SinkError, TableChanges, UpsertSink
from jobs.sources.avro.schemas import as_json, written_out
from jobs.sources.kafka.client_settings import SINK, BrokerAwayError, ClientSettings
from jobs.sources.kafka.cluster import Cluster
from jobs.sources.kafka.records import AvroSchema
from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.registry.client import SchemaRegistry, registry_of
from jobs.sources.registry.registered_columns import Strategy, Subjects
from jobs.sources.secrets import Secrets


@dataclass(frozen=True, slots=True)
class UpsertedRecords:
    """The records of an upsert table at a checkpoint. `shown` reads the keys that the topic has."""

    records: Records
    changes: TableChanges
    shown: Callable[[], set[bytes]]
    sorting: Sorting

    def since(self, checkpoint: CheckpointId) -> Iterator[Sent]:
        """Yield the records that bring a topic up to date from this checkpoint. No key is in more than one record."""
        topic, keys, found = self.sorting.topic, self.changes.keys, self.changes.since(checkpoint)
        if found is None:
            yield from self._whole()
            return
        if found.deleted.num_rows:
            yield from ((topic, records) for records in deleted(found.deleted, keys))
        if found.rows.num_rows:
            for batch in found.rows.to_batches():
                yield from self.sorting.of(batch, self._made, lambda row: deleted(pa.table(row), keys))

    def _made(self, batch: pa.RecordBatch) -> Iterator[list[Record]]:
        return self.records.upserted(batch, self.changes.keys)

    def _whole(self) -> Iterator[Sent]:
        """Yield all rows, and then the keys of the topic that the table does not have."""
        gone = self.shown()  # before the first record, since readers stop at an open transaction
        for batch in self.changes.whole():
            for topic, records in self.sorting.of(batch, self._made):
                if topic == self.sorting.topic:
                    gone.difference_update(encoded(record["key"]) for record in records)
                yield topic, records
        yield from ((self.sorting.topic, records) for records in tombstones(sorted(gone)))


# ------------------------------------------------------------------
# The sink that writes the rows of each checkpoint to a Kafka topic, in one transaction.
#
# The same transaction commits the checkpoint's number (`target`). The core decides when a process may write. So each
# row is written once, even after a take-over, a lost reply or a crash (`checkpointing.commit.outside_transaction`).


_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaSink(Sink, UpsertSink):
    """Writes a table to a Kafka topic, each checkpoint once: an append table's rows, or an upsert table's changes.

    | parameter       | is                                                                                        |
    |-----------------|-------------------------------------------------------------------------------------------|
    | `servers`       | the brokers, as in "kafka1:9092,kafka2:9092"                                              |
    | `topic`         | the topic, which must exist                                                               |
    | `key`           | the column that becomes the record's key: text, bytes or an integer. None: no key     |
    | `format`        | "json", "avro", "json-schema", or "raw": the column `value`, text or bytes, is the value  |
    | `schema`        | for Avro and JSON Schema, its text or a dict. Avro's fields are the table's columns       |
    | `schema_number` | for Avro of Confluent's wire format: the number of the schema, in front of each record    |
    | `registry`      | instead of `schema_number`: a SchemaRegistry, or its URL, that gives the schema a number  |
    | `subject`       | under what the schema is registered: "topic", "record" or "topic-record"                  |
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
        registry: SchemaRegistry | str | None = None,
        subject: Strategy = "topic",
        options: Mapping[str, str] | None = None,
        secrets: Secrets | None = None,
        refused: str | None = None,
    ) -> None:
        """Open no connection yet. Raises SinkError for an invalid topic name, format or option."""
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
            self._registered = _registered(registry, subject, topic, format, schema)
        except SourceError as error:
            raise SinkError(str(error)) from None
        if registry is not None and schema_number is not None:
            raise SinkError("a KafkaSink has a registry, or a schema_number: leave one of them out")
        self._made = partial(Records, format, key, schema)
        self._records = self._made(schema_number)
        self._has_number = registry is None
        self._topic, self._refused = topic, refused
        self._cluster = Cluster(self._settings)
        self._warehouse: str | None = None

    def __repr__(self) -> str:
        """Return the target without user and password."""
        return f"KafkaSink({self._topic} at {self._settings.servers})"

    def prepare(self, job: str, table: str, schema: pa.Schema) -> int:
        """Check columns, topic and rights, and return the newest checkpoint that the topic has."""
        self._records.must_hold(schema)
        self._register()
        return self._newest(job, table)

    def prepare_upsert(self, job: str, table: str, schema: pa.Schema, keys: tuple[str, ...]) -> int:
        """Check columns, topic and rights, and return the newest checkpoint that the topic shows.

        A topic that shows no checkpoint yet must be empty.
        """
        self._records.must_hold_keys(schema, keys)
        self._register()
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

    def take(self, job: str, table: str, warehouse: str, *, over: bool = False) -> bool:
        """Name the warehouse in the note of each checkpoint from now on. Another warehouse's topic is refused.

        The topic stays refused even if its records are deleted, since the note remains. Only a new topic has no note.
        """
        target = self._target(job, table)
        try:
            newest, noted = target.noted(settled=False)
        except SourceError as error:
            raise SinkError(str(error)) from None
        if noted not in (None, warehouse) and not over:
            raise SinkError(
                f"{self!r} has records of another warehouse, up to checkpoint {newest}: name that warehouse with "
                "--warehouse, or give the sink a new topic"
            )
        self._warehouse = warehouse
        return False

    def check(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch] | TableChanges) -> None:
        """Make the records, and check that client and topic would accept them. Send nothing."""
        if self._refused is not None:  # no row can be in the way
            return
        target = self._target(job, table)
        try:
            newest = target.newest(settled=False)
            for _ in self._records_of(target, rows, checkpoint, set, newest) if newest < checkpoint else ():
                pass
        except BrokerAwayError as error:
            raise SinkAwayError(f"{self!r}: {error}") from None
        except (SourceError, SinkError) as error:
            raise SinkError(f"{self!r}: {error}") from None

    def _register(self) -> None:
        """Give the schema its number. The registry is asked once, before the tick writes anything."""
        if self._has_number or self._registered is None:
            return
        try:
            self._records = self._made(self._registered())
        except SourceAwayError as error:
            raise SinkAwayError(f"{self!r}: {error}") from None
        except SourceError as error:
            raise SinkError(f"{self!r}: {error}") from None
        self._has_number = True

    def _records_of(
        self,
        target: KafkaTarget,
        rows: Iterable[pa.RecordBatch] | TableChanges,
        checkpoint: int,
        shown: Callable[[], set[bytes]],
        newest: CheckpointId,
    ) -> Iterator[Sent]:
        """Yield the records for a topic that has the checkpoint `newest`.

        `shown` returns the keys that the topic has.
        """
        self._register()
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
                if isinstance(end.value, TargetLost):
                    raise SinkAwayError(f"{self!r}: {end.value.why}") from None
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
        return KafkaTarget(self._settings, self._cluster, self._topic, job, table, self._warehouse)


def _registered(
    registry: SchemaRegistry | str | None,
    strategy: Strategy,
    topic: str,
    form: RecordFormat,
    schema: Any,  # noqa: ANN401
) -> Callable[[], int] | None:
    """Return the function that registers a schema and returns its number, or None if there is no registry.

    Raises SourceError for a format that no registry has, and for a strategy without the name that it needs.
    """
    if registry is None:
        if form == "json-schema" or strategy != "topic":
            raise SourceError("a KafkaSink with format='json-schema' or subject= needs registry=")
        return None
    if form not in _KINDS:
        raise SourceError(f"a KafkaSink with format={form!r} has no registry: write format='avro' or 'json-schema'")
    found = as_json(schema, "the schema of a KafkaSink")
    name = None
    if strategy != "topic" and isinstance(found, Mapping):
        name = found.get("title") if form == "json-schema" else written_out(schema, "the schema of a KafkaSink")["name"]
    subject = Subjects(strategy, name).of(topic)
    return partial(registry_of(registry).registered, subject, _KINDS[form], json.dumps(found))


_KINDS: Final[Mapping[str, str]] = {"avro": "AVRO", "json-schema": "JSON"}
"""The registry's names of the record formats that have a schema there."""
