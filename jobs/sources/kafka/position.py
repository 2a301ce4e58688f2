"""Names a partition as a split, and writes the positions in it.

A position is the offset to read next, and the id that the broker gave to the topic. Kafka's offsets begin at 0 in a
topic that was deleted and made again, so the offset alone could name other records.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from checkpointing.identifiers import InvalidNameError, SplitId, split_id
from jobs.sources.port import SourceError

_ODD_BEGINNING: Final = "t="
"""Stands before a topic that begins as no split may. No topic has `=` in its name, so no other split looks so."""

_SPLIT: Final = re.compile(r"(?:t=)?(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return `orders-3`, as Kafka's own tools write it."""
        return f"{self.topic}-{self.partition}"


def split_of(place: TopicPartition) -> SplitId:
    """Return the split of a partition: `orders-3`, or `t=_orders-3` for a topic that begins with `.`, `_` or `-`.

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
    """Return the partition of a split; raise SourceError if no partition has this split."""
    found = _SPLIT.fullmatch(split)
    if found is None:
        raise SourceError(f"{split!r} is no partition of a topic: give the new source an id of its own")
    return TopicPartition(found["topic"], int(found["partition"]))


class KafkaPosition(BaseModel):
    """The offset to read next in a partition of the topic that has this id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offset: int = Field(ge=0)
    topic_id: str

    def text(self) -> str:
        """Return the position as the checkpoint stores it."""
        return self.model_dump_json()

    @classmethod
    def parse(cls, text: str) -> "KafkaPosition":
        """Return the stored position; raise SourceError if it is one of another source."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text!r} is no position of Kafka: give the new source an id of its own") from error


class OffsetRange(BaseModel):
    """What a slice describes: the offsets from `first` to before `end` of one partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic_id: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class PlacedRange:
    """A range of offsets in its partition."""

    place: TopicPartition
    range: OffsetRange


def joined(ranges: list[PlacedRange]) -> list[PlacedRange]:
    """Return the ranges that are not empty, sorted, with adjoining ranges of a partition merged into one."""
    result: list[PlacedRange] = []
    for one in sorted(ranges, key=lambda each: (each.place, each.range.first)):
        before = result[-1] if result else None
        if one.range.first == one.range.end:
            continue
        if before and before.place == one.place and before.range.end == one.range.first:
            result[-1] = PlacedRange(one.place, before.range.model_copy(update={"end": one.range.end}))
        else:
            result.append(one)
    return result
