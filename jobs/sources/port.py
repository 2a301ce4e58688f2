"""The port of a source: the methods that a source must have, and the two columns that every source adds.

A source is replayable. Its splits are lists of rows in a fixed order, and a position in a split names the same rows
for ever. So a checkpoint only needs to store positions (Flink: `SplitEnumerator` and `SourceReader`, with
`SourceSlice` instead of a fetched batch). Polling needs no Spark. Reading builds a lazy DataFrame and only uses
what Spark Connect offers too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, SplitId
from checkpointing.messages import PollSource
from jobs.sources.folder_look import FolderLook

SPLIT_COLUMN = "_split"
"""Name of the split a row comes from; string, never null."""

POSITION_COLUMN = "_position"
"""The row's 0-based ordinal in its split; bigint, never null: unique, and the order of the split."""


class SourceError(Exception):
    """A source that cannot be read: the message names file or split, what is wrong, and the way out."""


class Source(Protocol):
    """Rows that can be read again from any position."""

    def schema(self) -> StructType:
        """Return the source's own columns, without `_split` and `_position`."""
        ...

    def splits(self) -> tuple[SplitId, ...]:
        """Return the splits that exist now, sorted. A split that was listed once must stay.

        Raises SourceError if they cannot be listed or one has a name that no split may have.
        """
        ...

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of `request.split` after `request.position` (None: from the start).

        The slice starts exactly at that position, holds between 1 and `max_rows` rows, and its `end`
        is the position to ask for next. None: nothing to read just now. May block; reads no rows.
        Raises SourceError if the split cannot be read.
        """
        ...

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return one lazy DataFrame of all rows of `slices`, in no particular order.

        Its columns are `read_schema(self)`. The slices are this source's own, at least one, and
        disjoint. Raises SourceError if what a slice describes is no longer what was polled.
        """
        ...


@runtime_checkable
class LiesInFolder(Protocol):
    """Optional for a source of files: names its folder, for doctor and Dagster."""

    @property
    def root(self) -> Path:
        """The folder of the files, absolute."""
        ...

    def look(self) -> FolderLook:
        """Return how many files the source reads, and which it passes over; raise SourceError."""
        ...


@runtime_checkable
class ReadsFrom(Protocol):
    """Optional for a source that wraps another one: names the wrapped source."""

    @property
    def source(self) -> Source:
        """The wrapped source."""
        ...


class WrappedSource:
    """A source that wraps another one, and does what that one does. A subclass changes what it does otherwise."""

    def __init__(self, source: Source) -> None:
        """Wrap `source`."""
        self.source = source

    def schema(self) -> StructType:
        """Return the wrapped source's columns."""
        return self.source.schema()

    def splits(self) -> tuple[SplitId, ...]:
        """Return the wrapped source's splits."""
        return self.source.splits()

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the wrapped source's next rows; see `Source.poll`."""
        return self.source.poll(request)

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the wrapped source's rows."""
        return self.source.read(spark, slices)


def reads_from(source: Source) -> Source:
    """Return the innermost source of sources that wrap each other."""
    while isinstance(source, ReadsFrom):
        source = source.source
    return source


@runtime_checkable
class CommitsPositions(Protocol):
    """Optional for a source: commits its positions to another system, which then sees how far the job has read (F2).

    In Flink, a `SourceReader` does this as a `CheckpointListener`. Other programs read these positions. A restore takes
    the positions of the checkpoint, never these.
    """

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Commit these positions: all rows before them are in the published tables, or the checkpoint stores them.

        In unaligned mode some rows may be on their way when a checkpoint is taken, and nothing stores them. The
        position of their split lies before them. If a reset has moved the split since, the split has no position until
        these rows have arrived.
        Called in the order of the checkpoints, from one thread, at least once. A tick begins by calling it again for
        the checkpoint that it restored, so a checkpoint that is not newer than the last must change nothing. If the
        process dies first, a newer call covers the checkpoint. A split that has not been read has no position. If the
        method raises, the tick logs and shows the error and goes on, and the checkpoint stays complete.
        """
        ...


def read_schema(source: Source) -> StructType:
    """Return the columns of `source.read`: its own, then `_split` and `_position`.

    The two are never null, but Spark can't know that: they are declared as it infers them.
    """
    return StructType(list(source.schema().fields)).add(SPLIT_COLUMN, StringType()).add(POSITION_COLUMN, LongType())
