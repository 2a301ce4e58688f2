"""Names a Kafka partition as a split, and writes the positions in it.

A position is the next offset to read, and the id that the broker gave to the topic. In a topic that was deleted and
made again, offsets begin at 0. So the offset alone could name other records.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from checkpointing.identifiers import InvalidNameError, SplitId, split_id
from jobs.sources.port import SourceError
from jobs.sources.registry.known_schema import KnownSchema

_ODD_BEGINNING: Final = "t="
"""The prefix of a split whose topic has a first character that no split may begin with.

No topic has `=` in its name, so the split is unique.
"""

_SPLIT: Final = re.compile(r"(?:t=)?(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)")


class TopicPartition(NamedTuple):
    """A Kafka partition: a topic and a number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return `orders-3`, as Kafka's own tools write it."""
        return f"{self.topic}-{self.partition}"


def split_of(place: TopicPartition) -> SplitId:
    """Return the split of a Kafka partition: `orders-3`, or `t=_orders-3` for a topic that begins with `.`, `_` or `-`.

    Raises SourceError if the topic's name is too long for a split.
    """
    name = str(place) if place.topic[0].isalnum() else f"{_ODD_BEGINNING}{place}"
    try:
        return split_id(name)
    except InvalidNameError as error:
        raise SourceError(
            f"topic {place.topic} cannot be read: its name has {len(place.topic)} characters, and the name of a split "
            "has room for about 120. Mirror it to a topic of a shorter name"
        ) from error


def place_of(split: SplitId) -> TopicPartition:
    """Return the Kafka partition of a split. Raise SourceError if no Kafka partition has this split."""
    found = _SPLIT.fullmatch(split)
    if found is None:
        raise SourceError(f"{split!r} is no partition of a topic: give the new source an id of its own")
    return TopicPartition(found["topic"], int(found["partition"]))


class TransactionsRead(BaseModel):
    """The first needed offset in each partition of a topic of Debezium's transactions, and the topic's id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic_id: str
    offsets: dict[int, int]


class KafkaPosition(BaseModel):
    """The next offset to read in a Kafka partition, and the id of its topic.

    A bounded source records in `end` the offset at which the partition ends, so that every tick ends there. A position
    between two transactions of the database records in `transactions` from where on the topic of transactions is read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    offset: int = Field(ge=0)
    topic_id: str
    end: int | None = None
    transactions: TransactionsRead | None = None

    def text(self) -> str:
        """Return the text of the position in a checkpoint."""
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def parse(cls, text: str) -> "KafkaPosition":
        """Return the position of that text. Raise SourceError if another source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text!r} is no position of Kafka: give the new source an id of its own") from error


class FirstLook(BaseModel):
    """The state of a source: the splits that the source found when its job first listed the topics.

    `found` is None if an older release of Tidemark did not store these splits. `schemas` are schemas of its registry,
    so that a restart need not ask the registry again. As in Flink (`KafkaSourceEnumState`), `start` applies to the
    splits in `found`. Later splits are read from their beginning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    found: list[SplitId] | None
    schemas: tuple[KnownSchema, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "FirstLook":
        """Return the state of that text. Raise SourceError if another source has written it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text!r} is no state of a KafkaSource: give the source an id of its own") from error


class OffsetRange(BaseModel):
    """The content of a slice: the offsets from `first` to before `end` of one Kafka partition.

    If a registry has the schemas, `schemas` are the schemas of the records that are read. Records with a schema in
    `passed` are skipped, and records with any other schema do not decode. So a slice can be read again without the
    registry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic_id: str
    first: int
    end: int
    schemas: tuple[KnownSchema, ...] = ()
    passed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacedRange:
    """A range of offsets, with its Kafka partition."""

    place: TopicPartition
    range: OffsetRange


def joined(ranges: list[PlacedRange]) -> list[PlacedRange]:
    """Return the non-empty ranges, sorted, with adjoining ranges of a Kafka partition merged into one."""
    result: list[PlacedRange] = []
    for one in sorted(ranges, key=lambda each: (each.place, each.range.first)):
        before = result[-1] if result else None
        if one.range.first == one.range.end:
            continue
        if before and before.place == one.place and before.range.end == one.range.first:
            result[-1] = PlacedRange(one.place, _with(before.range, one.range))
        else:
            result.append(one)
    return result


def _with(one: OffsetRange, other: OffsetRange) -> OffsetRange:
    """Return a range and the range after it as one range."""
    schemas = {each.number: each for each in (*one.schemas, *other.schemas)}
    passed = sorted({*one.passed, *other.passed})
    return one.model_copy(update={"end": other.end, "schemas": tuple(schemas.values()), "passed": tuple(passed)})
