"""A source that reads several sources one after the other: history first, then live rows (Flink: `HybridSource`).

Each of these sources is a *part*. The name of a split begins with the number of its part, as in `2.orders-0`, so a
position's split names its part. The rest of the name, and the position itself, are those of the part's own source. The
core decides which part is read (`checkpointing/job/polling.py`): a split is polled only when all splits of the parts
before its own have ended.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, SplitId, split_id
from checkpointing.messages import PollSource
from jobs.sources.port import (
    POSITION_COLUMN,
    SPLIT_COLUMN,
    UNNAMED,
    CommitsPositions,
    DescribesItself,
    KnowsLag,
    Lag,
    NamesPositions,
    NoSuchPositionError,
    ReadsParts,
    Source,
    SourceDescription,
    SourceError,
    has_ended,
    is_bounded,
    layers,
    upstream_of,
)
from jobs.sources.position_words import END, Place, PositionWords, sought
from jobs.sources.slice_reading import MayLeaveToSpark, OffersScans, RowScan, ScanOfScan
from jobs.spark.columns import named

# ------------------------------------------------------------------
# A scan in a task of the rows of one part, with the columns and the split names of the whole hybrid source.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartScan(ScanOfScan):
    """A scan of a part's source; see `slice_reading.RowScan`.

    `part` is the part as messages name it, and the names of its splits begin with `begin`. The columns `missing` exist
    only in other parts. They are null in the rows of this part.
    """

    part: str
    begin: str
    missing: frozenset[str]

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises the errors of the part's scan. A SourceError names the part."""
        own = pa.schema([field for field in schema if field.name not in self.missing])
        try:
            for batch in self.scan.batches(own):
                yield pa.record_batch([self._column(batch, field) for field in schema], schema=schema)
        except SourceError as error:
            raise SourceError(f"{self.part}: {error}") from error

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self.missing:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(field.name)
        if field.name != SPLIT_COLUMN:
            return column
        return pc.binary_join_element_wise(pa.scalar(self.begin, column.type), column, pa.scalar("", column.type))


class ReadsFirst:
    """A source that another source may follow."""

    def then(self: Source, other: Source) -> "HybridSource":
        """Return a source that reads this source to its end, and then `other`. See `HybridSource`."""
        return HybridSource(self, other)


class Part:
    """One of the sources of a hybrid source (see `port.Source`). Its methods use the hybrid source's split names."""

    def __init__(self, number: int, source: Source, parts: int) -> None:
        """Read `source` as the part with this number, counted from 1. The hybrid source has `parts` parts."""
        self.number = number
        self._taken = tuple(f"{each}." for each in range(1, parts + 1)) if number == 1 else ()
        """Prefixes that the splits of the first part's source must not have.

        A job may have read that source alone before. Then nobody could distinguish such a split from a split of a part
        (`checkpointing.job.polling`).
        """
        self.source = source
        self.begin: Final = f"{number}."

    def __str__(self) -> str:
        """Return the part as messages name it."""
        return f"part {self.number} ({type(self.source).__name__})"

    def schema(self) -> StructType:
        """Return the columns of the part's source."""
        return self.source.schema()

    def splits(self) -> tuple[SplitId, ...]:
        """Return the splits that exist now; see `port.Source.splits`."""
        with self._named():
            own = self.source.splits()
            if taken := [split for split in own if split.startswith(self._taken)]:
                raise SourceError(
                    f"its split {taken[0]!r} begins like the split of a part: give its folder or topic another "
                    "name, or read this source without another one behind it"
                )
            return tuple(map(self._outer, own))

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of a split; see `port.Source.poll`."""
        with self._named():
            found = self.source.poll(replace(request, split=self._inner(request.split)))
        return None if found is None else replace(found, split=request.split)

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of this part's slices; see `port.Source.read`."""
        with self._named():
            rows = self.source.read(spark, [replace(each, split=self._inner(each.split)) for each in slices])
        return rows.withColumn(SPLIT_COLUMN, F.concat(F.lit(self.begin), F.col(SPLIT_COLUMN)))

    def scans(self, slices: Sequence[SourceSlice], missing: frozenset[str]) -> list[RowScan] | None:
        """Return scans of this part's slices, with nulls in the columns `missing`. None if Spark must read them."""
        if not isinstance(self.source, OffersScans):
            return None
        with self._named():
            found = self.source.scans([replace(each, split=self._inner(each.split)) for each in slices])
        if found is None:
            return None
        return [PartScan(scan=each, part=str(self), begin=self.begin, missing=missing) for each in found]

    def leave_to_spark(self) -> None:
        """Notify the part's source that a task has left a scan to Spark; see `slice_reading.MayLeaveToSpark`."""
        if isinstance(self.source, MayLeaveToSpark):
            self.source.leave_to_spark()

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return whether no row will follow the position; see `port.Bounded`."""
        return has_ended(self.source, self._inner(split), position)

    def named(self, split: SplitId, position: str) -> str:
        """Return the part, and the position in the words of its source; see `port.NamesPositions`."""
        return f"part {self.number}, {self._words.named(UNNAMED, self._inner(split), position)}"

    def knows(self, split: SplitId, position: str) -> bool:
        """Return whether the part's source can read the position. True if the source does not name positions."""
        names = next((each for each in layers(self.source) if isinstance(each, NamesPositions)), None)
        try:
            return names is None or bool(names.named(self._inner(split), position))
        except Exception:  # noqa: BLE001 - a user's code; each source refuses the positions of others in its own way
            return False

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int | None:
        """Return the number of rows between two positions; see `port.CountsRows`."""
        return self._words.rows_between(UNNAMED, self._inner(split), start, end)

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position that the words name; see `port.SeeksPositions`."""
        with self._named():
            return sought(self.source, Place(UNNAMED, self._inner(split), position), words)

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return how far a job is behind the part's splits, unknown without `port.KnowsLag`."""
        knows = next((each for each in layers(self.source) if isinstance(each, KnowsLag)), None)
        if knows is None:
            return {split: Lag(None) for split in self.splits()}
        with self._named():
            return {self._outer(split): lag for split, lag in knows.lag(self._own(positions)).items()}

    def commit(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Commit the positions of a complete checkpoint to the part's source; see `port.CommitsPositions`."""
        own = self._own(positions)
        for layer in layers(self.source) if own else ():
            if isinstance(layer, CommitsPositions):
                layer.notify_checkpoint_complete(checkpoint, own)

    @property
    def _words(self) -> PositionWords:
        return PositionWords({UNNAMED: self.source})

    def _own(self, positions: Mapping[SplitId, str]) -> dict[SplitId, str]:
        return {self._inner(split): at for split, at in positions.items() if split.startswith(self.begin)}

    def _outer(self, split: SplitId) -> SplitId:
        return split_id(f"{self.begin}{split}")

    def _inner(self, split: SplitId) -> SplitId:
        return SplitId(split.removeprefix(self.begin))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the part in errors of its source. Commands in the message name the split as the job knows it."""
        try:
            yield
        except SourceError as error:
            text = str(error).replace("--split ", f"--split {self.begin}")
            kind = NoSuchPositionError if isinstance(error, NoSuchPositionError) else SourceError
            raise kind(f"{self}: {text}") from error


class HybridSource(ReadsFirst):
    """Several sources, read one after the other: `files.then(kafka)` (see `port.Source`).

    Every part but the last must be bounded. All parts have the same columns, of the same types. Only a column whose
    name begins with an underscore, such as Kafka's `_undecoded`, may be missing in a part. The column is null in the
    rows of that part.

    When all splits of a part have ended, the next part is read from its own start. The parts and their order must not
    change as long as the job lives. You may add a part at the end if the last part is bounded. Tidemark does not poll a
    part that has ended, so its input may be removed.
    """

    def __init__(self, *sources: Source) -> None:
        """Read these sources in this order. A hybrid source among them is replaced by its parts.

        Raises SourceError if a part before the last is not bounded, if the parts differ in their columns, or for a part
        that reads cuts of another job. Also raises SourceError for a part that wraps a hybrid source.
        """
        each = [one for source in sources for one in (source.parted if isinstance(source, HybridSource) else (source,))]
        self.parts = tuple(Part(number, source, len(each)) for number, source in enumerate(each, 1))
        for part in self.parts:
            _must_fit(part, last=part is self.parts[-1])
        self._schema = _columns(self.parts)

    @property
    def parted(self) -> tuple[Source, ...]:
        """The sources, in their order."""
        return tuple(part.source for part in self.parts)

    @property
    def begins(self) -> tuple[str, ...]:
        """The prefix of each part's split names; see `port.ReadsParts`."""
        return tuple(part.begin for part in self.parts)

    @property
    def bounded(self) -> bool:
        """Whether the last part, and so this source, is bounded; see `port.Bounded`."""
        return is_bounded(self.parts[-1].source)

    def schema(self) -> StructType:
        """Return the columns of all parts."""
        return self._schema

    def splits(self) -> tuple[SplitId, ...]:
        """Return the splits of all parts; see `port.Source.splits`."""
        return tuple(sorted(split for part in self.parts for split in part.splits()))

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of a split; see `port.Source.poll`."""
        return self._part(request.split).poll(request)

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of the slices, which can belong to several parts; see `port.Source.read`."""
        frames = [
            part.read(spark, own).select(*self._selected(part), SPLIT_COLUMN, POSITION_COLUMN)
            for part, own in self._by_part(slices).items()
        ]
        return reduce(DataFrame.unionAll, frames)

    def scans(self, slices: Sequence[SourceSlice]) -> tuple[RowScan, ...] | None:
        """Return scans of the slices, or None if Spark must read one of them; see `slice_reading.OffersScans`.

        A subclass that overrides `read` has no scans, so that its `read` is used.
        """
        if type(self).read is not HybridSource.read:
            return None
        columns, found = frozenset(self._schema.names), list[RowScan]()
        for part, own in self._by_part(slices).items():
            scans = part.scans(own, columns.difference(part.schema().names))
            if scans is None:
                return None
            found += scans
        return tuple(found)

    def leave_to_spark(self) -> None:
        """Offer no more scans of the parts whose scans may be left to Spark; see `slice_reading.MayLeaveToSpark`."""
        for part in self.parts:
            part.leave_to_spark()

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return whether no row will follow the position; see `port.Bounded`."""
        return self._part(split).has_ended(split, position)

    def named(self, split: SplitId, position: str) -> str:
        """Return the part, and the position in the words of its source; see `port.NamesPositions`."""
        return self._part(split).named(split, position)

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int | None:
        """Return the number of rows between two positions; see `port.CountsRows`."""
        return self._part(split).rows_between(split, start, end)

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position that the words name, as the part's source understands them; see `port.SeeksPositions`."""
        return self._part(split).seek(split, position, words)

    def described(self) -> SourceDescription:
        """Return the kinds and places of the parts, in their order; see `port.DescribesItself`."""
        return SourceDescription("hybrid", ", then ".join(_described(part) for part in self.parts))

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return how far a job is behind each split, also in a part that is not read yet; see `port.KnowsLag`."""
        return {split: lag for part in self.parts for split, lag in part.lag(positions).items()}

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Commit to each part the positions of its splits; see `port.CommitsPositions`.

        If parts raise, the first error is raised again after the last part.
        """
        errors: list[Exception] = []
        for part in self.parts:
            try:
                part.commit(checkpoint, positions)
            except Exception as error:  # noqa: BLE001 - a user's code; the other parts are to be told too
                errors.append(error)
        if errors:
            raise errors[0]

    def _by_part(self, slices: Sequence[SourceSlice]) -> dict[Part, list[SourceSlice]]:
        found: dict[Part, list[SourceSlice]] = {}
        for each in slices:
            found.setdefault(self._part(each.split), []).append(each)
        return found

    def _part(self, split: SplitId) -> Part:
        found = next((part for part in self.parts if split.startswith(part.begin)), None)
        if found is None:
            raise SourceError(
                f"split {split!r} is of none of the parts: their splits begin with {_listed(self.begins)}"
            )
        return found

    def _selected(self, part: Part) -> Iterator[Column]:
        known = part.schema().names
        for field in self._schema.fields:
            yield named(field.name) if field.name in known else F.lit(None).cast(field.dataType).alias(field.name)


def _must_fit(part: Part, *, last: bool) -> None:
    if upstream_of(part.source) is not None:
        raise SourceError(
            f"{part} reads cuts of another job, which no other source can precede or follow: leave it out"
        )
    if any(isinstance(layer, ReadsParts) for layer in layers(part.source)):
        raise SourceError(f"{part} wraps a source that has parts itself: wrap the whole, `Wrapper(first.then(second))`")
    if not last and not is_bounded(part.source):
        raise SourceError(
            f"{part} has no end, so part {part.number + 1} would never be read: give it bounded=True, or put it last"
        )


def _columns(parts: Sequence[Part]) -> StructType:
    """Return the columns of all parts, those of the first part first. Raise SourceError if they differ."""
    fields = {part: {field.name: field for field in part.schema().fields} for part in parts}
    names = list(dict.fromkeys(name for own in fields.values() for name in own))
    wrong = [name for name in names if not _is_common(name, [own.get(name) for own in fields.values()])]
    if wrong:
        told = "; ".join(f"{name!r} is {_types(name, fields)}" for name in wrong)
        raise SourceError(f"the parts of a source must have the same columns, of the same types: {told}")
    found = StructType()
    for name in names:
        each = [own[name] for own in fields.values() if name in own]
        nullable = len(each) < len(parts) or any(field.nullable for field in each)
        found = found.add(StructField(name, each[0].dataType, nullable))
    return found


def _is_common(name: str, fields: Sequence[StructField | None]) -> bool:
    """Return whether all parts have the column. A column whose name begins with an underscore may be missing."""
    types = {field.dataType for field in fields if field is not None}
    return len(types) == 1 and (None not in fields or name.startswith("_"))


def _types(name: str, fields: Mapping[Part, Mapping[str, StructField]]) -> str:
    return ", ".join(
        f"{own[name].dataType.simpleString() if name in own else 'missing'} in {part}" for part, own in fields.items()
    )


def _described(part: Part) -> str:
    about = next((each.described() for each in layers(part.source) if isinstance(each, DescribesItself)), None)
    return type(part.source).__name__ if about is None else f"{about.kind}: {about.place}"


def _listed(begins: Sequence[str]) -> str:
    return " or ".join(repr(begin) for begin in begins)


# ------------------------------------------------------------------
# A source of numbers that are computed by a formula. Nothing is stored on disk.
#
# Tests and examples use it. A split may be endless, may answer polls slowly, and may give few rows for each poll. If
# slices have few rows, a channel holds more of them, so barriers pass it later than other channels.


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
        """Return a position in words: the next number; see `port.NamesPositions`."""
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
        """Return the number of remaining rows. It is unknown for a split without an end; see `port.KnowsLag`."""
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
