"""Defines the port of a source: the methods that a source must have, and the two columns that every source adds.

A source is replayable. Its splits are lists of rows in a fixed order, and a position in a split names the same rows for
ever. So a checkpoint of a source needs to store only positions (Flink: `SplitEnumerator` and `SourceReader`, with
`SourceSlice` instead of a fetched batch). Polling needs no Spark. Reading builds a lazy DataFrame, and uses only what
Spark Connect offers too.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, JobName, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.folder_look import FolderLook
from jobs.spark.session import SparkConfig, with_store
from jobs.storage.address import Root

SPLIT_COLUMN = "_split"
"""The column with the name of a row's split; string, never null."""

POSITION_COLUMN = "_position"
"""The column with the row's place in its split; bigint, never null.

It is unique in the split and rises with the split's order. It may have gaps: two rows that follow each other may have
the places 7 and 12. So the difference of two places is not a number of rows.
"""

UNDECODED_COLUMN: Final = "_undecoded"
"""The bytes of a record's value that did not decode. It is null in all other rows."""


class SourceError(Exception):
    """A source cannot be read. The message names file or split, the problem, and the way out."""


class SourceAwayError(SourceError):
    """The server behind a source does not answer, and can answer later. Nothing is wrong with the pipeline."""


class NoSuchPositionError(SourceError):
    """The words name no position in the split. The source's message says what to write instead."""


class Source(Protocol):
    """Rows that can be read again from any position.

    A position is text. Only its source knows what the text means: no other code compares two positions or computes with
    them.
    """

    def schema(self) -> StructType:
        """Return the source's own columns, without `_split` and `_position`."""
        ...

    def splits(self) -> tuple[SplitId, ...]:
        """Return the splits that exist now, sorted. A split that was listed once must be listed for ever.

        Raises SourceError if they cannot be listed or one has a name that no split may have.
        """
        ...

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of `request.split` after `request.position` (None: from the start).

        The slice starts exactly at that position, and its `end` is the position for the next poll. None instead of a
        slice means that there is nothing to read now, or that the split has ended (`Bounded`). The slice holds between
        1 and `max_rows` rows. The slice may hold more only where a split must not be divided, as inside a transaction.
        A source that cannot know the number of rows sets `rows_estimated`. Then `rows`, 1 or more, is the source's best
        guess, and the slice can turn out to be empty. A poll can block. It reads no rows.

        Raises SourceError if the split cannot be read.
        """
        ...

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return one lazy DataFrame of all rows of `slices`, in no particular order.

        Its columns are `read_schema(self)`. `slices` are slices of this source, at least one, and disjoint. Raises
        SourceError if the rows of a slice are no longer those that were polled.
        """
        ...


@runtime_checkable
class Bounded(Protocol):
    """Optional for a source: its splits can end (B4; Flink: `Boundedness`).

    When all splits of all sources of a job have ended, the job has finished.
    """

    @property
    def bounded(self) -> bool:
        """Whether each split of this source ends. The value stays the same as long as the source lives."""
        ...

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return whether no row will ever follow `position`. Called on a bounded source after a poll returned None.

        The checkpoint records the answer True, and the split is never polled again. So a source may fix its end when it
        first looks. The method opens no files or connections.
        """
        ...


@runtime_checkable
class CommitsPositions(Protocol):
    """Optional for a source: commits its positions to another system, which then sees how far the job has read (F2).

    In Flink, a `SourceReader` does this as a `CheckpointListener`. Other programs read these positions. A restore takes
    the positions of the checkpoint instead.
    """

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Commit these positions. The published tables or the checkpoint have all rows before them.

        In unaligned mode, some rows may be in flight when a checkpoint is taken, and nothing stores these rows. Then
        the position of their split lies before these rows. If a reset has moved the split since they were read, the
        split has no position until these rows have arrived. Called in the order of the checkpoints, from one thread, at
        least once. A tick begins with another call for the checkpoint that it restored, so a checkpoint that is not
        newer than the last committed one must change nothing. If the process dies before the call, a later call covers
        the checkpoint. A split that has not been read has no position. If the method raises, the tick logs and shows
        the error and goes on, and the checkpoint stays complete.
        """
        ...


@runtime_checkable
class HearsAborts(Protocol):
    """Optional for a source: is notified that a checkpoint failed or was declined, like a checkpoint listener (F1).

    In Flink, a `SourceReader` and a `SplitEnumerator` are notified as `CheckpointListener`s. Tidemark's own sources do
    not need the notice, because the next checkpoint has the same positions or later ones.
    """

    def notify_checkpoint_aborted(self, checkpoint: CheckpointId, reason: str) -> None:
        """Receive the notice. If the method raises, the tick logs and shows the error and goes on."""
        ...


@runtime_checkable
class NamesPositions(Protocol):
    """Optional for a source: says in words where a position lies. Commands, messages and Dagster show the words."""

    def named(self, split: SplitId, position: str) -> str:
        """Return the position in words, such as `partition 3, offset 1,204,551`. Opens no file or connection."""
        ...


@runtime_checkable
class CountsRows(Protocol):
    """Optional for a source: says how many rows lie between two positions, for the plans of rollbacks and resets."""

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int | None:
        """Return the number of rows after `start` (None: the split's start) up to `end`, or None if it is not known.

        The number is negative if `end` lies before `start`. The method opens no file and no connection.
        """
        ...


@runtime_checkable
class SeeksPositions(Protocol):
    """Optional for a source: turns the words that a user types at `tidemark reset --to` into a position."""

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position that the words name in this split, now read up to `position`. None is the start.

        The method is never called with `start`, because `start` has one meaning for every source. It is called with
        `end`. Raises NoSuchPositionError for words that name no position. Its message lists the valid words, and the
        caller adds split and source. Raises SourceError if the split cannot be read.
        """
        ...


_SECRETS: Final = (
    (re.compile(r"://\S*@"), "://"),
    (re.compile(r"(?i)((?:password|passwd|pwd|secret|token|credential)\w*\s*=)\s*[^\s&;,]*"), r"\1***"),
)
_KIND: Final = re.compile(r"[a-z][a-z0-9_-]{0,30}")


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """Describes a source for people: its kind in one small word (`kafka`), and the place that it reads.

    `place` never contains the user info of a URL or a password. Raises ValueError for a kind that Dagster cannot show.
    """

    kind: str
    place: str

    def __post_init__(self) -> None:
        """Remove secrets. Raise ValueError for a kind that Dagster cannot show."""
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"{self.kind!r} is no kind of a source: write one small word, like 'kafka'")
        place = self.place
        for secret, shown in _SECRETS:
            place = secret.sub(shown, place)
        object.__setattr__(self, "place", place)


@runtime_checkable
class DescribesItself(Protocol):
    """Optional for a source: describes itself. `doctor` and Dagster's asset of the source show it."""

    def described(self) -> SourceDescription:
        """Return kind and place, without opening a file or a connection."""
        ...


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a position is behind the end of its split.

    `rows` may be an estimate (`estimated`), and is None if it is not known. `seconds` is the age of the oldest unread
    row. It is 0 if there is no unread row, and None if it is not known.
    """

    rows: int | None
    seconds: float | None = None
    estimated: bool = False


@runtime_checkable
class KnowsLag(Protocol):
    """Optional for a source: says how far a job is behind, without Spark and without reading rows.

    Dagster plots it, `doctor` shows it, and the sensor for new data starts a tick because of it. For a source without
    this protocol, Dagster, `doctor` and the sensor poll each split once.
    """

    def lag(self, positions: Mapping[SplitId, str]) -> Mapping[SplitId, Lag]:
        """Return the lag of each split that exists now. A split without a position is read from its start.

        Raises SourceError if the splits cannot be looked at.
        """
        ...


@runtime_checkable
class ReportsHealth(Protocol):
    """Optional for a source: gives `doctor` one more fact to show, such as how much log a server keeps."""

    def health(self) -> str:
        """Return the fact in a few words, such as `slot bank keeps 12 MiB of the server's log`.

        Raises SourceError if the source cannot find out.
        """
        ...


@runtime_checkable
class ReadsCuts(Protocol):
    """Optional for a source: reads whole cuts of another job, or whole transactions of a database (A10).

    The source sets `cut` and `at_cut` in its slices, and reads no further than `PollSource.cut`. If the split is
    already at that cut, or the cut has no new rows, the source answers the poll with a slice without rows.
    """

    @property
    def upstream(self) -> str | None:
        """The upstream job and its warehouse, or another log that has cuts. None: the source reads no cuts.

        All sources with the same text are read at the same cut.
        """
        ...


@runtime_checkable
class Closes(Protocol):
    """Optional for a source: closes its connections and other open resources."""

    def close(self) -> None:
        """Close everything. A later call of another method opens it again. A second `close` changes nothing.

        Tidemark calls `close` at the end of each tick, also of a failed tick, and at the end of a command that used the
        source.
        """
        ...


@runtime_checkable
class LiesInFolder(Protocol):
    """Optional for a source of files: names its folder, for doctor and Dagster."""

    @property
    def root(self) -> Root:
        """The folder of the files: an absolute path, or a URL."""
        ...

    def look(self) -> FolderLook:
        """Return how many files the source reads, and which it ignores.

        Raises SourceError if a folder cannot be listed.
        """
        ...


@runtime_checkable
class ReadsFrom(Protocol):
    """Optional for a source that wraps another one: names the wrapped source."""

    @property
    def source(self) -> Source:
        """Return the wrapped source."""
        ...


@runtime_checkable
class ReadsParts(Protocol):
    """Optional for a source: reads several sources, its parts, one after the other (B4; see `hybrid`)."""

    @property
    def parts(self) -> Sequence[Source]:
        """The parts, under the names that their splits have in this source.

        Tidemark asks a part directly for its splits and its lag, and never asks a part that has ended.
        """
        ...

    @property
    def begins(self) -> tuple[str, ...]:
        """The prefix of each part's split names, in the order of the parts."""
        ...


class WrappedSource:
    """A source that wraps another one and behaves like it. A subclass changes some of the behaviour.

    Tidemark asks the wrapped source directly for its other abilities, such as naming positions (see `layers`).
    """

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


def layers(source: Source) -> Iterator[Source]:
    """Yield the source, and then the sources inside it, from the outside in."""
    yield source
    while isinstance(source, ReadsFrom):
        source = source.source
        yield source


def every_layer(source: Source) -> Iterator[Source]:
    """Yield the layers of a source, and the layers of its parts."""
    for layer in layers(source):
        yield layer
        for part in layer.parts if isinstance(layer, ReadsParts) else ():
            yield from layers(part)


def begins_of(source: Source) -> tuple[str, ...]:
    """Return the prefix of each part's split names, or an empty tuple for a source without parts."""
    return next((each.begins for each in layers(source) if isinstance(each, ReadsParts)), ())


def in_parts(source: Source, splits: Iterable[SplitId]) -> Iterator[tuple[Source, tuple[SplitId, ...]]]:
    """Yield each part of a source, with those of `splits` that belong to it. A source without parts is one part."""
    known = tuple(splits)
    whole = next((each for each in layers(source) if isinstance(each, ReadsParts)), None)
    if whole is None:
        yield source, known
        return
    for begin, part in zip(whole.begins, whole.parts, strict=True):
        yield part, tuple(split for split in known if split.startswith(begin))


def upstream_of(source: Source) -> str | None:
    """Return the upstream whose cuts the source, or the source inside it, reads. None: it reads no cuts."""
    return next((each.upstream for each in layers(source) if isinstance(each, ReadsCuts)), None)


def is_bounded(source: Source) -> bool:
    """Return whether each split of the source ends."""
    return any(isinstance(each, Bounded) and each.bounded for each in layers(source))


def has_ended(source: Source, split: SplitId, position: str | None) -> bool:
    """Return whether a split in which a poll found nothing has ended."""
    return any(
        isinstance(each, Bounded)
        and (each.bounded or isinstance(each, ReadsParts))  # an unbounded source may have parts that end
        and each.has_ended(split, position)
        for each in layers(source)
    )


def read_schema(source: Source) -> StructType:
    """Return the columns of `source.read`: its own, then `_split` and `_position`.

    `_split` and `_position` are never null. Spark cannot infer that, so they are declared nullable, as in Spark's
    frames.
    """
    return StructType(list(source.schema().fields)).add(SPLIT_COLUMN, StringType()).add(POSITION_COLUMN, LongType())


# ------------------------------------------------------------------
# Puts the source's name into commands of an error's message, because a source does not know its own name.


UNNAMED: Final = VertexId("SOURCE")
"""The placeholder for a source's name in messages of a source that does not know its name."""


@contextmanager
def asked_as(name: VertexId) -> Iterator[None]:
    """Call a source inside this block. If it raises SourceError, the commands in the message name the source."""
    try:
        yield
    except SourceError as error:
        named = str(error).replace(f"PIPELINE {UNNAMED} ", f"PIPELINE {name} ")
        if named == str(error):
            raise
        raise type(error)(named) from error


# ------------------------------------------------------------------
# Passes to a source the job that reads it, and the id of the source in that job.


@runtime_checkable
class KnowsItsJob(Protocol):
    """Optional for a source that passes the name of its job to another system."""

    def belongs_to(self, job: JobName, source: VertexId) -> None:
        """Store the names. A pipeline calls this when the source is declared."""
        ...


def introduce(source: Source, job: JobName, name: VertexId) -> None:
    """Pass the job and the id to a source and to the sources inside it, if they implement `KnowsItsJob`."""
    for layer in every_layer(source):
        if isinstance(layer, KnowsItsJob):
            layer.belongs_to(job, name)


# ------------------------------------------------------------------
# Closes the sources of a pipeline at the end of a tick, or of a command that used them.


_log = structlog.get_logger(__name__)


@contextmanager
def closing(sources: Mapping[VertexId, Source]) -> Iterator[None]:
    """Close the sources at the end of the block, also if the block raises."""
    try:
        yield
    finally:
        close_all(sources)


def close_all(sources: Mapping[VertexId, Source]) -> None:
    """Close every source that can be closed. An error is logged, and the other sources are closed too."""
    for name, source in sources.items():
        for layer in every_layer(source):
            if isinstance(layer, Closes):
                try:
                    layer.close()
                except Exception as error:  # noqa: BLE001 - a user's code, at a time when nothing depends on it
                    _log.warning("source not closed", source=name, exc_info=error)


# ------------------------------------------------------------------
# The state that a source has besides its positions, with the state of its parts (A7).


_AGAIN: Final = "give the source an id of its own, which begins anew"


@runtime_checkable
class KeepsState(Protocol):
    """Optional for a source: has state of its own, besides the positions in its splits (A7; Flink: `SplitEnumerator`).

    Each checkpoint holds this state. The state is restored after the source's splits are listed, and before the source
    is polled.
    """

    def snapshot_state(self) -> str:
        """Return the state as text of less than a million characters. Called before the checkpoint's barrier is sent.

        The checkpoint may contain rows that were polled after this call. The method must return at once, because every
        checkpoint waits for it.
        """
        ...

    def restore_state(self, checkpoint: CheckpointId | None, state: str | None) -> None:
        """Restore the state of a checkpoint. `checkpoint` is None if the job has never read this source.

        `state` is None if the checkpoint has none, because an older version of the source wrote it. Raises SourceError
        for the state of another source.
        """
        ...


def keeps_state(source: Source) -> bool:
    """Return whether the source, or one inside it, has state besides its positions."""
    return any(isinstance(each, KeepsState) for each in every_layer(source))


class OwnState:
    """Collects and restores the states of a source and of all sources inside it, in their order."""

    def __init__(self, source: Source) -> None:
        """Find the sources that have state, without asking them for it."""
        self._keepers = tuple(each for each in every_layer(source) if isinstance(each, KeepsState))

    def snapshot(self) -> str:
        """Return the states as one JSON text."""
        return json.dumps([keeper.snapshot_state() for keeper in self._keepers])

    def restore(self, checkpoint: CheckpointId | None, text: str | None) -> None:
        """Restore the states of a checkpoint. Raise SourceError if other sources wrote these states."""
        states = [None] * len(self._keepers) if text is None else _parsed(text)
        if len(states) != len(self._keepers):
            raise SourceError(f"checkpoint {checkpoint} has the state of {len(states)} sources here: {_AGAIN}")
        for keeper, state in zip(self._keepers, states, strict=True):
            keeper.restore_state(checkpoint, state)


def _parsed(text: str) -> list[str]:
    states = json.loads(text)
    if not isinstance(states, list) or not all(isinstance(state, str) for state in states):
        raise SourceError(f"its state in the checkpoint was written by another source: {_AGAIN}")
    return states


# ------------------------------------------------------------------
# The jars and settings that reading a source needs. The tick's Spark session has them from its start.


@runtime_checkable
class NeedsJars(Protocol):
    """Optional for a source that needs jars beyond those of Spark, in Spark or in a process of its own."""

    @property
    def jar_sets(self) -> tuple[str, ...]:
        """Return the names of the sets in `jobs.spark.jars`."""
        ...


@runtime_checkable
class ReadsStores(Protocol):
    """Optional for a source whose files may lie in an object store."""

    @property
    def stores(self) -> tuple[Root, ...]:
        """The folders and URLs that Spark reads."""
        ...


def read_stores(source: Source) -> Iterator[Root]:
    """Yield the folders and URLs in which the files of a source and of its parts lie."""
    for layer in every_layer(source):
        yield from layer.stores if isinstance(layer, ReadsStores) else ()


def with_needed_jars(config: SparkConfig, sources: Iterable[Source]) -> SparkConfig:
    """Return the configuration of a Spark session that can read all these sources and the stores of their files."""
    every = tuple(sources)
    each = [layer for source in every for layer in every_layer(source)]
    needed = (name for layer in each if isinstance(layer, NeedsJars) for name in layer.jar_sets)
    config = replace(config, jar_sets=tuple(dict.fromkeys([*config.jar_sets, *needed])))
    for root in (root for source in every for root in read_stores(source)):
        config = with_store(config, root)
    return config
