"""A source of numbers, computed by a formula, with nothing on disk.

Tests and examples use it. A split may be endless, may answer polls slowly, and may give few rows for each poll. A
channel with few rows in each slice holds more slices, so barriers come through it later than through others.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId, split_id
from checkpointing.messages import PollSource
from jobs.sources.hybrid import ReadsFirst
from jobs.sources.port import (
    POSITION_COLUMN,
    SPLIT_COLUMN,
    Lag,
    NoSuchPositionError,
    SourceDescription,
    SourceError,
)
from jobs.sources.position_words import END

ROW_BYTES = 32
"""The estimated bytes of a row."""


@dataclass(frozen=True, slots=True)
class SequenceSplit:
    """One split: its number of rows (None: no end), the delay of each poll, and the most rows that a poll gives."""

    rows: int | None
    poll_delay_ms: int = 0
    poll_rows_max: int | None = None


class SequenceSource(ReadsFirst):
    """Rows (`split`, `n`, `key`, `value`) of each split, n = 0, 1, 2, ... (see `port.Source`).

    `key` is n modulo `keys` and `value` is `n * step + offset`, both bigint. A `bounded` source ends after its last
    row (`port.Bounded`).
    """

    def __init__(
        self,
        splits: Mapping[str, int | SequenceSplit | None],
        *,
        keys: int = 1,
        step: int = 1,
        offset: int = 0,
        bounded: bool = False,
    ) -> None:
        """Raise InvalidNameError for a name that no split may have, and ValueError if `keys` is not positive.

        Raises ValueError too if a split of a bounded source has no end.
        """
        if keys < 1:
            raise ValueError(f"keys is {keys}: a sequence needs at least one key")
        self._splits = {split_id(name): _as_split(split) for name, split in splits.items()}
        if bounded and any(split.rows is None for split in self._splits.values()):
            raise ValueError("a bounded source ends after its last row: say how many rows there are")
        self._keys, self._step, self._offset = keys, step, offset
        self.bounded = bounded

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return whether the position lies behind the last row; see `port.Bounded`."""
        rows = self._split(split).rows
        return rows is not None and row_at(position) >= rows

    def schema(self) -> StructType:
        """Return split, n, key and value."""
        columns = StructType().add("split", StringType(), nullable=False)
        for name in ("n", "key", "value"):
            columns = columns.add(name, LongType(), nullable=False)
        return columns

    def splits(self) -> tuple[SplitId, ...]:
        """Return the names of the splits; see `port.Source.splits`."""
        return tuple(sorted(self._splits))

    def described(self) -> SourceDescription:
        """Return the kind of source; see `port.DescribesItself`."""
        return SourceDescription("sequence", "computed by a formula, nothing is stored")

    def named(self, split: SplitId, position: str) -> str:
        """Return the next number; see `port.NamesPositions`."""
        del split
        return str(row_at(position))

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int:
        """Return the number of rows between two positions; see `port.CountsRows`."""
        del split
        return row_at(end) - row_at(start)

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position that `end` or a number names; see `port.SeeksPositions`."""
        rows = self._split(split).rows
        if words == END and rows is not None:
            return position if rows <= row_at(position) else str(rows)
        if words == END:
            raise NoSuchPositionError("it has no end: name a position")
        if not words.isdecimal() or (rows is not None and int(words) > rows):
            known = f"a number from 0 to {rows}" if rows is not None else "a number"
            raise NoSuchPositionError(f"write 'start', 'end' or {known}")
        return str(int(words))

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return the number of remaining rows, unknown for a split without an end; see `port.KnowsLag`."""
        return {
            name: Lag(None if split.rows is None else max(split.rows - row_at(positions.get(name)), 0))
            for name, split in self._splits.items()
        }

    def _split(self, name: SplitId) -> SequenceSplit:
        split = self._splits.get(name)
        if split is None:
            raise SourceError(f"there is no split {name!r}, only {', '.join(self.splits())}")
        return split

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next numbers of a split, after its delay; see `port.Source.poll`.

        The position is the next n, as JSON.
        """
        split = self._split(request.split)
        time.sleep(split.poll_delay_ms / 1000)
        start = row_at(request.position)
        end = min(start + rows for rows in (request.max_rows, split.poll_rows_max) if rows is not None)
        end = end if split.rows is None else min(end, split.rows)
        if end <= start:
            return None
        rows = end - start
        return SourceSlice(
            request.source, request.split, str(start), str(end), json.dumps([start, end]), rows, rows * ROW_BYTES
        )

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the numbers of the slices; see `port.Source.read`."""
        parts = [self._numbers(spark, split, *bounds) for split, bounds in _joined(slices)]
        return reduce(DataFrame.unionAll, parts)

    def _numbers(self, spark: SparkSession, split: SplitId, start: int, end: int) -> DataFrame:
        n = F.col("id")
        columns = {
            "split": F.lit(split),
            "n": n,
            **{name: column.cast("bigint") for name, column in self._columns(split).items()},
            SPLIT_COLUMN: F.lit(split),
            POSITION_COLUMN: n,
        }
        numbers = spark.range(start, end, 1, 1)
        return numbers.select(*[column.alias(name) for name, column in columns.items()])

    def _columns(self, split: SplitId) -> dict[str, Column]:
        """Return key and value of the row `id`."""
        del split
        n = F.col("id")
        return {"key": n % F.lit(self._keys), "value": n * F.lit(self._step) + F.lit(self._offset)}


def _as_split(split: int | SequenceSplit | None) -> SequenceSplit:
    return split if isinstance(split, SequenceSplit) else SequenceSplit(split)


def row_at(position: str | None) -> int:
    """Return the number of the row after a position. Raise SourceError for a position of another source."""
    if position is None:
        return 0
    if not position.isdecimal():
        raise SourceError(f"{position!r} is not a position of a sequence: give the new source an id of its own")
    return int(position)


def _joined(slices: Sequence[SourceSlice]) -> list[tuple[SplitId, tuple[int, int]]]:
    """Return the slices' ranges, with adjoining ranges of a split merged into one."""
    joined: list[tuple[SplitId, tuple[int, int]]] = []
    for piece in slices:
        start, end = json.loads(piece.detail)
        for place, (split, bounds) in enumerate(joined):
            if split == piece.split and bounds[1] == start:
                joined[place] = (split, (bounds[0], end))
                break
        else:
            joined.append((piece.split, (start, end)))
    return joined
