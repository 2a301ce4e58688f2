"""The port of a source: what the driver asks of it, and the two columns that every source adds.

A source is replayable: its splits are lists of rows in a fixed order, and a position in a split, once
given out, names the same rows for ever. That is what makes a cut's positions worth storing (Flink:
`SplitEnumerator` and `SourceReader`, with `SourceSlice` in the place of a fetched batch). Polling
never needs Spark; reading builds a lazy DataFrame with nothing but what Spark Connect offers too.
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
        """Return the splits that exist now, sorted; one that was there stays there.

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
    """What a source of Parquet files may tell besides: where they lie, for people who look at it."""

    @property
    def root(self) -> Path:
        """The folder of the files, absolute."""
        ...

    def look(self) -> FolderLook:
        """Return how many files are there to be read, and which are passed over; raise SourceError."""
        ...


@runtime_checkable
class ReadsFrom(Protocol):
    """What a source may tell besides that reads another one and adds something to it."""

    @property
    def source(self) -> Source:
        """The source whose rows these are."""
        ...


def reads_from(source: Source) -> Source:
    """Return the source at the bottom of those that read each other."""
    while isinstance(source, ReadsFrom):
        source = source.source
    return source


@runtime_checkable
class CommitsPositions(Protocol):
    """What a source may do besides: commit its positions outside, where others look how far it has come (F2).

    Flink: `SourceReader` as a `CheckpointListener`. The positions outside are for others' eyes: a restore
    takes those of the checkpoint, never these.
    """

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Take note that all rows before these positions are in the published tables.

        Called in the order of the checkpoints, from one thread, at least once for each that nobody died
        over: a tick begins by telling the checkpoint that it restored once more, so one that is not newer
        than the last must change nothing. A split that has not been read has no position. Whatever is raised
        is logged and shown, and changes neither the checkpoint nor the tick.
        """
        ...


def read_schema(source: Source) -> StructType:
    """Return the columns of `source.read`: its own, then `_split` and `_position`.

    The two are never null, but Spark can't know that: they are declared as it infers them.
    """
    return StructType(list(source.schema().fields)).add(SPLIT_COLUMN, StringType()).add(POSITION_COLUMN, LongType())
