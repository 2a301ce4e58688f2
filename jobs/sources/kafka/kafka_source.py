"""Detects unread records that are gone, and reports which records are gone and what the user can do."""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, JobName, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.debezium.columns import Encodings
from jobs.sources.hybrid import ReadsFirst
from jobs.sources.kafka.client_settings import ClientSettings
from jobs.sources.kafka.cluster import FIRST_ANSWER_S, Cluster, ClusterLook, Extent
from jobs.sources.kafka.position import (
    FirstLook,
    KafkaPosition,
    OffsetRange,
    PlacedRange,
    TopicPartition,
    joined,
    place_of,
    split_of,
)
from jobs.sources.kafka.readers import KafkaScan, messages, records, split_column
from jobs.sources.kafka.records import AvroSchema, Format, RecordForm, record_form
from jobs.sources.kafka.registered import RegisteredForm
from jobs.sources.kafka.transactions import DebeziumTransactions, Member
from jobs.sources.port import Lag, NoSuchPositionError, SourceDescription, SourceError, read_schema
from jobs.sources.position_words import END, moment_named
from jobs.sources.registry.client import SchemaRegistry, registry_of
from jobs.sources.registry.registered_columns import OnOther, Strategy, Subjects
from jobs.sources.secrets import Secrets, WithheldSettings
from jobs.spark.jars import KAFKA


def held(look: ClusterLook, place: TopicPartition, position: KafkaPosition | None, source: VertexId) -> Extent:
    """Return the content of a Kafka partition. Raise SourceError if a record from the position on is missing."""
    extent = look.partitions.get(place)
    if extent is None:
        read = "" if position is None else f", and the job has read it up to offset {position.offset:,}"
        raise SourceError(
            f"partition {place} is gone{read}: its topic was deleted, or made again with fewer. Make the topic again, "
            f"then {reset_command(source, place)}; or give the source a new id, which reads the remaining topics from "
            "their start"
        )
    if position is None:
        return extent
    if position.topic_id != extent.topic_id:
        raise SourceError(
            f"topic {place.topic} was deleted and made again: it had the id {position.topic_id} when the job read "
            f"partition {place.partition} up to offset {position.offset:,}, and has the id {extent.topic_id} now. To "
            f"read the new topic from its first record: {reset_command(source, place)}. Its other partitions are new "
            "too: without --split, the command moves all of them"
        )
    if position.offset < extent.first:
        raise SourceError(
            f"partition {place} has lost records that were not read: offsets {position.offset:,} to "
            f"{extent.first - 1:,} were deleted, mostly because the topic's retention is too short. To go on without "
            f"them: {reset_command(source, place)}. So that it does not happen again, keep the topic's records longer "
            "(retention.ms, retention.bytes) or run the pipeline more often"
        )
    if position.offset > extent.end:
        raise SourceError(
            f"partition {place} ends at offset {extent.end:,}, and the job has read it up to offset "
            f"{position.offset:,}: the cluster has lost records at its end, as after an unclean election of a leader. "
            f"The tables hold them. To read what comes from now on: {reset_command(source, place, 'latest')}"
        )
    return extent


def reset_command(source: VertexId, place: TopicPartition, words: str = "earliest") -> str:
    """Return the command that moves the split of a Kafka partition."""
    return f"tidemark reset PIPELINE {source} --split {split_of(place)} --to {words}"


# ------------------------------------------------------------------
# Decides where a KafkaSource begins in a Kafka partition, and which words for a position a user can write.


EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_NONE_SO_NEW: Final = -1

_WORDS: Final = f"'{EARLIEST}', '{LATEST}'"
_MOMENT: Final = "a moment such as 2026-01-31T12:00:00Z"


def start_of(words: str | datetime) -> str | datetime:
    """Return a start in the form that the source uses. A moment without a time zone is in UTC.

    Raise SourceError for other words.
    """
    found = words if words in {EARLIEST, LATEST} else moment_named(words)
    if found is None:
        raise SourceError(f"a KafkaSource cannot start at {words!r}: write {_WORDS} or {_MOMENT}")
    return found


def offset_of(cluster: Cluster, place: TopicPartition, extent: Extent, start: str | datetime) -> int:
    """Return the offset of a start in a Kafka partition. For a moment after the last record, return the end."""
    if isinstance(start, datetime):
        found = cluster.offsets_at([place], round(start.timestamp() * 1000))[place]
        return extent.end if found == _NONE_SO_NEW else min(found, extent.end)
    return extent.end if start == LATEST else extent.first


def offset_named(cluster: Cluster, place: TopicPartition, extent: Extent, words: str) -> int:
    """Return the offset that a user's words name. Raise NoSuchPositionError, which lists the allowed words."""
    if words.isdecimal() and extent.first <= int(words) <= extent.end:
        return int(words)
    start = {EARLIEST: EARLIEST, LATEST: LATEST, END: LATEST}.get(words) or moment_named(words)
    if words.isdecimal() or start is None:
        raise NoSuchPositionError(
            f"write 'start', 'end', {_WORDS}, an offset from {extent.first} to {extent.end}, or {_MOMENT}"
        )
    return offset_of(cluster, place, extent, start)


# ------------------------------------------------------------------
# A source of Kafka topics: each Kafka partition is a split, and a position in it is an offset.
#
# Spark's connector reads the records. Asking for offsets needs no Spark (`cluster`). Between two looks at a topic,
# these things can happen:
#
# - The topic gets further Kafka partitions. They are new splits of the next tick, and are read from their first offset.
#   To distinguish them from the Kafka partitions that it found first, the source has state besides its positions (A7).
# - Transactions are aborted, or records compacted. The offsets of such records are skipped. So the number of rows of a
#   slice is an estimate: a slice may have fewer rows than offsets, or none.
# - Unread records are deleted, the topic is deleted or made again, or its end moves back. Polling then stops with an
#   error that names the Kafka partition, the lost records and the ways out. No record is skipped silently.
#
# The topic's id is compared at every poll, and again before a micro-batch is built. Kafka's consumers cannot compare
# the id. Suppose that a topic is deleted, made again and filled up to the same offsets within the seconds of one
# micro-batch. Then this micro-batch reads the wrong records, and the next poll reports the new topic.


ROW_BYTES: Final = 128
"""The estimated bytes of a record."""

FRESH_S: Final = 1.0
"""The highest age in seconds of a look at the cluster from which a poll returns records."""

ROUND_S: Final = 0.05
"""The highest age in seconds of a look from which a poll finds nothing to read. Splits are polled in turn."""


class KafkaSource(ReadsFirst):
    """The records of Kafka topics (see `port.Source`).

    | parameter        | is                                                                                        |
    |------------------|-------------------------------------------------------------------------------------------|
    | `servers`        | the brokers, as in "kafka1:9092,kafka2:9092"                                              |
    | `topics`         | the names of the topics                                                                   |
    | `pattern`        | instead of `topics`: a regular expression of whole names, which each tick evaluates anew  |
    | `schema`         | for JSON, a StructType of the value's columns; for Avro, the text of its schema or a dict |
    | `format`         | "json", "avro", "json-schema", "protobuf", "debezium-json", "debezium-avro", or "raw":    |
    |                  | the column `value`, bytes                                                                 |
    | `writer_schemas` | for Avro of Confluent's wire format: a dict from numbers to the records' schemas          |
    | `registry`       | instead of `writer_schemas`: the SchemaRegistry with the schemas, or its URL              |
    | `subject`        | what names a topic's schemas in the registry: "topic", "record" or "topic-record"         |
    | `record`         | the full name of the record to read. The topic's other records are skipped                |
    | `columns`        | what happens to fields that `schema` lacks: "fail" or "ignore". Without a `schema`, the   |
    |                  | columns are the registry's, and a later tick gets new columns ("evolve")                  |
    | `encodings`      | for Debezium's events without types: how values are encoded                               |
    | `transactions`   | for "debezium-json": DebeziumTransactions, so that no cut shows a part of a transaction   |
    | `start`          | where a new job begins: "earliest", "latest", or a moment. Later partitions: "earliest"   |
    | `metadata`       | any of "key", "timestamp", "headers", "topic", read as columns `_key`, `_timestamp`, ...  |
    | `group`          | the consumer group to commit to; by default "tidemark-JOB-SOURCE"                         |
    | `commit`         | False commits nothing                                                                     |
    | `options`        | settings of Kafka's clients, by librdkafka's names; "kafka.NAME" is for Spark alone       |
    | `secrets`        | for each secret setting its environment variable; or a function that returns the values   |
    | `bounded`        | True ends each partition at the offset where it ended when the job first looked             |
    | `spark_options`  | options of Spark's connector, such as {"minPartitions": "8"}                              |

    Only records of committed transactions are read. A record that does not decode has nulls in its columns, and its
    bytes in `_undecoded` (`kafka.records`).
    """

    jar_sets = (KAFKA,)

    def __init__(  # noqa: PLR0913 - one for each thing that a user may say
        self,
        servers: str,
        topics: str | Sequence[str] = (),
        schema: StructType | AvroSchema | None = None,
        format: Format = "json",  # noqa: A002 - Spark's own word
        start: str | datetime = EARLIEST,
        *,
        pattern: str | None = None,
        writer_schemas: Mapping[int, AvroSchema] | None = None,
        registry: SchemaRegistry | str | None = None,
        subject: Strategy = "topic",
        record: str | None = None,
        columns: OnOther | None = None,
        encodings: Encodings | None = None,
        transactions: DebeziumTransactions | None = None,
        metadata: Sequence[str] = (),
        group: str | None = None,
        commit: bool = True,
        options: Mapping[str, str] | None = None,
        secrets: Secrets | None = None,
        spark_options: Mapping[str, str] | None = None,
        bounded: bool = False,
    ) -> None:
        """Connect to nothing yet. Raises SourceError for arguments that contradict each other."""
        self._topics = tuple(dict.fromkeys([topics] if isinstance(topics, str) else topics))
        if bool(self._topics) == (pattern is not None):
            raise SourceError("a KafkaSource reads either topics or the topics of a pattern: write one of the two")
        self._pattern = pattern
        self._registered: RegisteredForm | None = None
        self._own_form: RecordForm | None = None
        _must_agree(registry, writer_schemas, subject, record)
        if registry is None:
            self._own_form = record_form(format, schema, tuple(metadata), writer_schemas, encodings, columns)
        else:
            found, subjects = registry_of(registry), Subjects(subject, record)
            self._registered = RegisteredForm(
                format, schema, tuple(metadata), found, subjects=subjects, on_other=columns, encodings=encodings
            )
        self._start, self._group, self._commits = start_of(start), group, commit
        self._settings = ClientSettings(servers, options or {}, secrets)
        self._spark_options = dict(spark_options or {})
        self._cluster, self._lock = Cluster(self._settings), threading.Lock()
        self._look: ClusterLook | None = None
        self._starts: dict[TopicPartition, KafkaPosition] = {}
        """The first position of each Kafka partition that had no position when this process first polled it."""
        self._listed: frozenset[SplitId] = frozenset()
        self._first_found: frozenset[SplitId] | None = None
        """The splits that the job found when it first looked. Later splits are read from their first record."""
        self._goes_on = False
        """True if the job has read this source before. Used if no checkpoint has the splits found first."""
        self._committed = NO_CHECKPOINT
        self._partitions: Mapping[str, int] = {}
        self._is_sparks = False
        """True once a task has left a scan to Spark."""
        self.bounded = bounded
        self._ends: dict[TopicPartition, int] = {}
        """Where a bounded source ends in Kafka partitions whose position has no end yet."""
        self._transactions, self._told_at = transactions, tuple[KafkaPosition, ...]()
        self._member = None if transactions is None else self._joined(transactions, format)

    @property
    def upstream(self) -> str | None:
        """The topic of Debezium's transactions, if the source reads whole transactions; see `port.ReadsCuts`."""
        named = self._transactions
        return None if named is None else f"{named.topic} of Kafka at {self._settings.servers}"

    def belongs_to(self, job: JobName, source: VertexId) -> None:
        """Name the consumer group after the job, unless the user has named a group; see `port.KnowsItsJob`."""
        self._group = self._group or f"tidemark-{job}-{source}"

    def schema(self) -> StructType:
        """Return the value's columns, and the requested metadata."""
        return self._form.schema()

    def splits(self) -> tuple[SplitId, ...]:
        """Return the present Kafka partitions of the topics; see `port.Source.splits`."""
        with self._lock:
            self._look = None
            places = self._cluster.partitions(self._names())
            self._listed = frozenset(map(split_of, places))
            if self._member is not None:
                self._member.begins(places)
            return tuple(sorted(self._listed))

    def snapshot_state(self) -> str:
        """Return the splits that the job found first; see `port.KeepsState`."""
        with self._lock:
            found = None if self._first_found is None else sorted(self._first_found)
            schemas = () if self._registered is None else self._registered.for_checkpoint()
            return FirstLook(found=found, schemas=schemas).model_dump_json(exclude_defaults=not schemas)

    def restore_state(self, checkpoint: CheckpointId | None, state: str | None) -> None:
        """Restore the splits that the job found first. For a new job they were just listed; see `port.KeepsState`."""
        with self._lock:
            self._goes_on = checkpoint is not None
            if self._member is not None:
                self._member.begins()
            if state is not None:
                look = FirstLook.parse(state)
                found = look.found
                if self._registered is not None:
                    self._registered.restore(look.schemas)
                self._first_found = None if found is None else frozenset(found)
            else:
                self._first_found = None if self._goes_on else self._listed

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next offsets of a Kafka partition; see `port.Source.poll`. The number of rows is an estimate."""
        place = place_of(request.split)
        with self._lock:
            position = None if request.position is None else KafkaPosition.parse(request.position)
            look = self._looked(place, position)
            extent = held(look, place, position, request.source)
            begin = self._begin(place, position, look, request.source)
            if self._member is not None:
                return self._polled_between_transactions(self._member, request, place, begin)
            bound = self._bound(place, position, extent)
            end = min(begin.offset + request.max_rows, extent.end if bound is None else min(bound, extent.end))
            pins = position is None and self._start == LATEST
            if end <= begin.offset and not pins:
                look.told_idle.add(place)
                return None
            detail = OffsetRange(topic_id=begin.topic_id, first=begin.offset, end=max(end, begin.offset))
            if self._registered is not None and detail.end > detail.first:
                detail = self._looked_at(self._registered, request.source, place, detail)
                if detail.end == detail.first and not pins:
                    return None
        rows = max(detail.end - detail.first, 1)  # a slice without records keeps the end of a new Kafka partition
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=begin.text() if request.position is None else request.position,
            end=KafkaPosition(offset=detail.end, topic_id=begin.topic_id, end=bound).text(),
            detail=detail.model_dump_json(exclude_defaults=True),
            rows=rows,
            bytes=rows * ROW_BYTES,
            rows_estimated=True,
        )

    def _joined(self, transactions: DebeziumTransactions, form: Format) -> Member:
        """Join the sources that are read up to the same transaction. Raise SourceError if this is impossible."""
        _must_have_transactions(form, bounded=self.bounded)
        return transactions.joined(self._settings, self._cluster, self._first_of_all)

    def _polled_between_transactions(
        self, member: Member, request: PollSource, place: TopicPartition, begin: KafkaPosition
    ) -> SourceSlice | None:
        """Return the next offsets on the way to a cut between two transactions, or None if there is no newer cut."""
        member.readers = self._readers
        cut = member.cut(place, begin, request.cut, request.max_rows)
        if cut is None:
            return None
        end = min(begin.offset + request.max_rows, cut.ends[place])
        at_cut = end == cut.ends[place]
        after = begin
        if end > begin.offset or begin.transactions is None:
            read = cut.transactions if at_cut else begin.transactions
            after = KafkaPosition(offset=end, topic_id=begin.topic_id, transactions=read)
        member.moved(place, after)
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=begin.text() if request.position is None else request.position,
            end=after.text(),
            detail=OffsetRange(topic_id=begin.topic_id, first=begin.offset, end=end).model_dump_json(
                exclude_defaults=True
            ),
            rows=end - begin.offset,
            bytes=(end - begin.offset) * ROW_BYTES,
            rows_estimated=True,
            cut=cut.name,
            at_cut=at_cut,
        )

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return whether the partition is read up to where it ended when the job first looked; see `port.Bounded`."""
        place = place_of(split)
        begin = self._starts.get(place) if position is None else KafkaPosition.parse(position)
        end = self._ends.get(place) if begin is None or begin.end is None else begin.end
        return begin is not None and end is not None and begin.offset >= end

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the records of the slices; see `port.Source.read`."""
        ranges = self._present(slices)
        if not ranges:
            return spark.createDataFrame([], read_schema(self))
        # With a fixed group id, the connector's consumers stay open from one micro-batch to the next.
        own = {"kafka.group.id": self._readers, "includeHeaders": str(self._form.reads_headers)}
        found = records(spark, ranges, WithheldSettings(self._settings.for_spark(), own, self._spark_options))
        split = split_column(sorted({one.place.topic for one in ranges}))
        return self._form.rows(found, split, [one.range for one in ranges], self._unordered(ranges))

    def scans(self, slices: Sequence[SourceSlice]) -> tuple[KafkaScan, ...] | None:
        """Return the ranges of offsets, for tasks that read them themselves; see `slice_reading.OffersScans`.

        Returns None if only Spark can read. That is so if the source has options of Spark's connector, or if a function
        returns its secrets, because this function exists only in this process. It is also so if a subclass replaces
        `read`, if no task can decode the values, and after `leave_to_spark`.
        """
        by_tasks = self._form.decodes_in_tasks and self._settings.reach_tasks and not self._spark_options
        if self._is_sparks or not by_tasks or type(self).read is not KafkaSource.read:
            return None
        return tuple(
            KafkaScan(
                settings=self._settings,
                group=self._readers,
                placed=one,
                decoding=self._form.decoding([one.range], self._unordered([one])),
                metadata=self._form.fields,
            )
            for one in self._present(slices)
        )

    def leave_to_spark(self) -> None:
        """Offer no scans any more; see `slice_reading.MayLeaveToSpark`."""
        self._is_sparks = True

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Commit the offsets to the consumer group; see `port.CommitsPositions`.

        If a topic was made again since, its offset is not committed, because the offset would name other records.
        """
        if not self._commits or self._group is None or checkpoint <= self._committed:
            return
        known = {place_of(split): KafkaPosition.parse(text) for split, text in positions.items()}
        # If this notice fails, the next one covers it. So the call does not wait long for a missing broker and delay
        # the tick's end.
        topics = {place.topic for place in known}
        present = self._cluster.partitions(topics, missing_ok=True, patience_s=FIRST_ANSWER_S)
        offsets = {place: each.offset for place, each in known.items() if present.get(place) == each.topic_id}
        if offsets:
            self._cluster.commit(self._group, offsets, f"checkpoint {checkpoint}")
        self._committed = checkpoint

    def named(self, split: SplitId, position: str) -> str:
        """Return the position as `orders-3, offset 1,204,551`; see `port.NamesPositions`."""
        return f"{place_of(split)}, offset {KafkaPosition.parse(position).offset:,}"

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position of `earliest`, `latest`, an offset or a moment; see `port.SeeksPositions`."""
        del position
        place = place_of(split)
        extent = self._cluster.look([place.topic]).partitions.get(place)
        if extent is None:
            raise NoSuchPositionError(
                f"topic {place.topic} has no partition {place.partition} now: only 'start' is there"
            )
        offset = offset_named(self._cluster, place, extent, words)
        return KafkaPosition(offset=offset, topic_id=extent.topic_id).text()

    def described(self) -> SourceDescription:
        """Return the kind of source, the brokers and the topics; see `port.DescribesItself`."""
        what = ", ".join(self._topics) if self._pattern is None else f"topics like {self._pattern}"
        return SourceDescription("kafka", f"{self._settings.servers}, {what}")

    def lag(self, positions: Mapping[SplitId, str]) -> Mapping[SplitId, Lag]:
        """Return the number of unread offsets, and the age of the oldest unread record; see `port.KnowsLag`."""
        self._told_at = tuple(map(KafkaPosition.parse, positions.values()))
        look = self._cluster.look(self._names())
        extents = {split_of(place): (place, extent) for place, extent in look.partitions.items()}
        return {split: self._lag(place, extent, positions.get(split)) for split, (place, extent) in extents.items()}

    def health(self) -> str:
        """Return which database transaction is open, if the source has `transactions`; see `port.ReportsHealth`."""
        if self._transactions is None or self._member is None:
            return ""
        self._member.readers = self._readers
        return self._transactions.waiting(self._member, self._told_at)

    def close(self) -> None:
        """Close the connection to the cluster; see `port.Closes`."""
        with self._lock:
            self._look = None
            self._cluster.close()
            if self._registered is not None:
                self._registered.columns.registry.close()

    @property
    def _form(self) -> RecordForm:
        """How records become rows. The registry is asked for the columns when the columns are first needed."""
        if self._own_form is None and self._registered is not None:
            self._own_form = self._registered.made(self._names)
        assert self._own_form is not None  # noqa: S101 - one of the two is there
        return self._own_form

    def _looked_at(
        self, registered: RegisteredForm, source: VertexId, place: TopicPartition, asked: OffsetRange
    ) -> OffsetRange:
        """Return the range with the schemas of its records; see `RegisteredForm.looked_at`."""
        _ = self._form  # the columns come first
        return registered.looked_at(
            source, place, asked, messages(self._settings, self._readers, place, asked.first, asked.end)
        )

    @property
    def _readers(self) -> str:
        return f"{self._group or 'tidemark'}-reader"

    def _present(self, slices: Sequence[SourceSlice]) -> list[PlacedRange]:
        """Return the ranges of the slices. Raise SourceError if their records are gone."""
        ranges = joined([PlacedRange(place_of(each.split), _range(each)) for each in slices])
        if ranges:
            look = self._cluster.look(sorted({one.place.topic for one in ranges}), missing_ok=True)
            self._partitions = Counter(place.topic for place in look.partitions)
        for one in ranges:
            held(look, one.place, KafkaPosition(offset=one.range.first, topic_id=one.range.topic_id), slices[0].source)
        return ranges

    def _unordered(self, ranges: Sequence[PlacedRange]) -> str | None:
        """Return why a truncate in these ranges cannot be ordered among other changes, or None if it can."""
        topics = {one.place.topic for one in ranges}
        several = sorted(topic for topic in topics if self._partitions[topic] > 1)
        if not several:
            return None
        return (
            f"topic {several[0]} has {self._partitions[several[0]]} partitions, so nobody knows which changes in the "
            "others came before. Send the table's changes to a topic of one partition and read that, or let the "
            "connector leave truncates out (skipped.operations=t)"
        )

    def _first_of_all(self, place: TopicPartition, extent: Extent) -> int:
        """Return where a new job begins in a Kafka partition."""
        return offset_of(self._cluster, place, extent, self._start)

    def _lag(self, place: TopicPartition, extent: Extent, given: str | None) -> Lag:
        """Return the lag of a Kafka partition, unknown if a poll must first report a loss or find the start."""
        if given is None and self._start == LATEST:
            return Lag(None)
        if given is None:
            first = self._first(place, extent)
        else:
            position = KafkaPosition.parse(given)
            first = position.offset
            if position.topic_id != extent.topic_id or not extent.first <= first <= extent.end:
                return Lag(None)
        bound = None if given is None or not self.bounded else KafkaPosition.parse(given).end
        end = extent.end if bound is None else min(bound, extent.end)
        if first >= end:
            return Lag(0, 0.0)
        written_ms = self._cluster.timestamp_at(place, first)
        return Lag(
            end - first, None if written_ms is None else max(time.time() - written_ms / 1000, 0.0), estimated=True
        )

    def _names(self) -> tuple[str, ...]:
        if self._pattern is None:
            return self._topics
        found = tuple(self._cluster.topics(self._pattern))
        if not found:
            raise SourceError(
                f"Kafka at {self._settings.servers} has no topic whose name matches {self._pattern!r}: create one, or "
                "correct the pattern"
            )
        return found

    def _looked(self, place: TopicPartition, position: KafkaPosition | None) -> ClusterLook:
        """Return a look at all Kafka partitions that is fresh enough for a poll of this one.

        A new look is taken if a poll of this Kafka partition has already found nothing to read in the last look.
        """
        look = self._look
        if look is None or place in look.told_idle or time.monotonic() - look.at > _fresh_s(look, place, position):
            known = {place.topic, *(look.topics if look is not None else self._topics)}
            self._look = look = self._cluster.look(known, missing_ok=True)
        return look

    def _begin(
        self, place: TopicPartition, position: KafkaPosition | None, look: ClusterLook, source: VertexId
    ) -> KafkaPosition:
        """Return the position to read from: the job's position, or the start of a Kafka partition without one."""
        if position is not None:
            return position
        if place not in self._starts:
            extent = look.partitions[place]
            self._starts[place] = KafkaPosition(offset=self._first(place, extent), topic_id=extent.topic_id)
        begin = self._starts[place]
        held(look, place, begin, source)
        return begin

    def _bound(self, place: TopicPartition, position: KafkaPosition | None, extent: Extent) -> int | None:
        """Return the offset at which a bounded source ends: from the position, or the end when the job first looked."""
        if not self.bounded:
            return None
        if position is not None and position.end is not None:
            return position.end
        return self._ends.setdefault(place, extent.end)

    def _first(self, place: TopicPartition, extent: Extent) -> int:
        """Return the first offset to read in a Kafka partition without a position."""
        if self._first_found is None:
            is_later = self._goes_on and self._start == LATEST
        else:
            is_later = split_of(place) not in self._first_found
        return offset_of(self._cluster, place, extent, EARLIEST if is_later else self._start)


def _must_have_transactions(form: Format, *, bounded: bool) -> None:
    """Raise SourceError if the source cannot be read between transactions."""
    if form != "debezium-json":
        raise SourceError(
            f"a KafkaSource with format={form!r} has no transactions=: it reads the events of format='debezium-json'"
        )
    if bounded:
        raise SourceError(
            "a KafkaSource has transactions=, or it is bounded: where its partitions end now, a transaction may not be "
            "complete, so leave one of them out"
        )


def _must_agree(
    registry: SchemaRegistry | str | None,
    writers: Mapping[int, AvroSchema] | None,
    subject: Strategy,
    record: str | None,
) -> None:
    """Raise SourceError if arguments need a registry that is not given, or if schemas come from two places."""
    if registry is None and (subject, record) != ("topic", None):
        raise SourceError("a KafkaSource without registry= has no subject and no record: leave them out")
    if registry is not None and writers is not None:
        raise SourceError("a KafkaSource has a registry, or writer_schemas: leave one of them out")


def _fresh_s(look: ClusterLook, place: TopicPartition, position: KafkaPosition | None) -> float:
    """Return the highest age of a look that may answer a poll at this position."""
    extent = look.partitions.get(place)
    has_more = extent is not None and (position is None or position.offset < extent.end)
    return FRESH_S if has_more else ROUND_S


def _range(piece: SourceSlice) -> OffsetRange:
    return OffsetRange.model_validate_json(piece.detail)
