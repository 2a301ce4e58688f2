"""Provides a source whose positions have gaps, like offsets of a compacted log: only few places hold a row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId
from checkpointing.messages import PollSource
from jobs.sources.port import Lag, NoSuchPositionError, SourceDescription, SourceError, read_schema


@dataclass
class Gaps:
    """Rows `n` at the given places of each split. A position is the next place, as hexadecimal text."""

    places: Mapping[str, Sequence[int]]
    closed: int = 0
    told: list[tuple[int, dict[str, str]]] = field(default_factory=list)

    def schema(self) -> StructType:
        return StructType().add("n", LongType())

    def splits(self) -> tuple[SplitId, ...]:
        return tuple(SplitId(split) for split in sorted(self.places))

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Offer the next places with rows."""
        left = self._left(request.split, request.position)[: request.max_rows]
        if not left:
            return None
        start = "p0" if request.position is None else request.position
        end = f"p{left[-1] + 1:x}"
        what = json.dumps([request.split, list(left)])
        return SourceSlice(request.source, request.split, start, end, what, len(left), 8 * len(left))

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows. The number of a row is its place."""
        found = [json.loads(piece.detail) for piece in slices]
        rows = [(place, split, place) for split, places in found for place in places]
        return spark.createDataFrame(rows, read_schema(self))

    def described(self) -> SourceDescription:
        """Describe the source. The description must not show the password."""
        return SourceDescription("gaps", "pg://me:hush@host/base?password=hush")

    def named(self, split: SplitId, position: str) -> str:
        return f"split {split}, place {int(position[1:], 16):,}"

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int:
        return len(self._left(split, start)) - len(self._left(split, end))

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        if words == "end":
            return f"p{max(self.places[split]) + 1:x}"
        if not words.isdecimal():
            raise NoSuchPositionError("write the number of a place")
        return f"p{int(words):x}"

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return the unread rows of each split. The age in seconds equals their number."""
        left = {split: len(self._left(split, positions.get(split))) for split in self.splits()}
        return {split: Lag(rows, float(rows)) for split, rows in left.items()}

    def close(self) -> None:
        self.closed += 1

    def notify_checkpoint_complete(self, checkpoint: int, positions: Mapping[SplitId, str]) -> None:
        self.told.append((checkpoint, dict(positions)))

    def _left(self, split: str, position: str | None) -> list[int]:
        if split not in self.places:
            raise SourceError(f"there is no split {split}")
        start = 0 if position is None else int(position[1:], 16)
        return [place for place in self.places[split] if place >= start]
