"""Reads the partitions of a Python data source in Spark's tasks. This also works with Spark Connect."""

import json
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, InputPartition
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, SplitId
from checkpointing.messages import PollSource
from jobs.sources.hybrid import ReadsFirst
from jobs.sources.port import (
    POSITION_COLUMN,
    SPLIT_COLUMN,
    NoSuchPositionError,
    SourceDescription,
    SourceError,
    read_schema,
)
from jobs.sources.position_words import END
from jobs.sources.python.ddl import schema_of_text
from jobs.sources.python.readers import (
    PLACES,
    Offset,
    OffsetPosition,
    Reader,
    checked,
    distance,
    reader_of,
    says,
    went_back,
)
from jobs.sources.secrets import (
    Secrets,
    WithheldSettings,
    looked_up,
    refuse_open_secrets,
    without,
)
from jobs.user_code import message_of

_BATCH_ROWS = 10_000
_TASKS_A_CORE = 4


@dataclass(frozen=True, slots=True)
class Share:
    """What one call of the data source's reader reads: partition `place` of the `count` partitions of a slice.

    `rows` is the number of rows when the slice was polled, or None if the rows were not counted.
    """

    slice: int
    place: int
    count: int
    rows: int | None
    partition: InputPartition


@dataclass(frozen=True, slots=True)
class Shares:
    """All partitions of a micro-batch, and their reader. Each task gets all of this, and reads some partitions."""

    data_source: DataSource
    reader: Reader
    schema: StructType
    split: str
    shares: Sequence[Share]
    secrets: WithheldSettings

    def rows(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """Return the lazy rows, in the columns of `schema`."""
        if not self.shares:
            return spark.createDataFrame([], schema)
        most = _TASKS_A_CORE * int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        numbers = spark.range(0, len(self.shares), 1, min(len(self.shares), most))
        return numbers.mapInArrow(self.run, schema)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the shares with these numbers. No error contains a secret."""
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._read(self.shares[number])
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            if without(text, self.secrets.values()) == text:
                raise
            raise SourceError(without(f"{type(error).__name__}: {error}", self.secrets.values())) from None

    def _read(self, share: Share) -> Iterator[pa.RecordBatch]:
        found = iter(self.reader.read(share.partition))
        read = 0
        for batch in records_to_arrow_batches(found, _BATCH_ROWS, self.schema, self.data_source):
            first, read = read, read + batch.num_rows
            yield self._placed(batch, share, first)
        if share.rows not in (None, read):
            raise SourceError(
                f"data source {self.data_source.name()} gave {share.rows} rows when it was polled, and now {read} rows "
                "between the same two offsets: it cannot be read exactly once"
            )

    def _placed(self, batch: pa.RecordBatch, share: Share, first: int) -> pa.RecordBatch:
        """Return a batch of a share with split and position. Its first row has the number `first` in the share."""
        begin, end = (share.place + number * share.count for number in (first, first + batch.num_rows))
        if end > PLACES:
            raise SourceError(
                f"data source {self.data_source.name()} reads more rows at a time than a slice may have: lower its "
                "own limit"
            )
        places = pa.array(range(share.slice * PLACES + begin, share.slice * PLACES + end, share.count), pa.int64())
        own = {SPLIT_COLUMN: pa.array([self.split] * batch.num_rows), POSITION_COLUMN: places}
        return pa.RecordBatch.from_arrays([*batch.columns, *own.values()], names=[*self.schema.names, *own])


# ------------------------------------------------------------------
# A source that wraps one of Spark's Python data sources, so that connectors written for Spark work here.
#
# The data source decides how long a slice is: its reader returns the offset up to which to read. So a slice may have
# more rows than a poll asked for. Offsets are asked for in this process, without Spark. The rows are read in Spark's
# tasks.
#
# A data source must return the same rows between the same two offsets, as Spark also requires. A data source that
# generates its rows anew each time can be read, but not exactly once.


SPLIT: Final = SplitId("all")
"""The only split. A data source has one offset for all its rows."""

ROW_BYTES: Final = 128
"""The estimated bytes of a row."""

_READS_MAX: Final = 10_000
"""A data source that still returns new offsets after this many reads is regarded as endless."""

_Answer = TypeVar("_Answer")


class SparkSource(ReadsFirst):
    """The rows of a Python data source that has a stream reader, simple or partitioned (see `port.Source`).

    | parameter     | is                                                                                              |
    |---------------|-------------------------------------------------------------------------------------------------|
    | `data_source` | the class, a subclass of `pyspark.sql.datasource.DataSource`, or its import path `package.Name` |
    | `options`     | the data source's options, texts by name                                                        |
    | `schema`      | the columns, if the data source has no `schema()`, or can return other columns                  |
    | `secrets`     | for each secret option its environment variable; or a function that returns the values          |

    A `bounded` source ends at the offset that was the newest when the source was first polled. The source's positions
    contain that offset. A simple reader does not report its newest offset, so its rows end at the first poll that finds
    none.

    The data source's `commit` is called with an offset once a checkpoint with all rows before the offset is complete.
    """

    def __init__(
        self,
        data_source: type[DataSource] | str,
        options: Mapping[str, str] | None = None,
        *,
        schema: StructType | None = None,
        secrets: Secrets | None = None,
        bounded: bool = False,
    ) -> None:
        """Ask the data source nothing yet. Raises SourceError for arguments that cannot be used."""
        self._class = _class_of(data_source)
        self._options = _texts(options or {})
        refuse_open_secrets(self._options, "SparkSource")
        self._secrets = secrets
        self._schema = schema
        self.bounded = bounded
        self._lock = threading.RLock()
        self._reader: Reader | None = None
        self._initial: Offset | None = None
        self._committed = NO_CHECKPOINT

    def schema(self) -> StructType:
        """Return the given columns, or those of the data source's `schema()`. Raises SourceError if there are none."""
        if self._schema is None:
            self._schema = self._own_schema()
        return self._schema

    def splits(self) -> tuple[SplitId, ...]:
        """Return the only split; see `port.Source.splits`."""
        return (SPLIT,)

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows; see `port.Source.poll`. The number of rows is exact only for a simple reader."""
        with self._lock:
            begin = self._begin(request.position)
            until = self._until(begin) if self.bounded else None
            end, rows = self._latest(begin.offset) if until is None else (self._towards(begin.offset, until), None)
        if end == begin.offset and request.position is not None:
            return None
        guess = min(distance(begin.offset, end), request.max_rows)
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=begin.text() if request.position is None else request.position,
            end=OffsetPosition(offset=end, slices=begin.slices + 1, until=until).text(),
            detail=begin.text(),
            rows=rows or guess,
            bytes=(rows or guess) * ROW_BYTES,
            rows_estimated=not rows,
        )

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return True for a bounded source, since a poll has found no row; see `port.Bounded`."""
        del split, position
        return self.bounded

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of the slices; see `port.Source.read`."""
        data_source = self._asked("its class", self._new)
        reader = self._asked("its stream reader", lambda: reader_of(data_source, self.schema()))
        shares = [share for piece in slices for share in self._shares(reader, piece)]
        secrets = WithheldSettings(looked_up(self._secrets))
        return Shares(data_source, reader, self.schema(), SPLIT, shares, secrets).rows(spark, read_schema(self))

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Commit the position, so that the data source may forget all rows before it; see `port.CommitsPositions`."""
        position = positions.get(SPLIT)
        if position is None or checkpoint <= self._committed:
            return
        end = OffsetPosition.parse(position).offset
        with self._lock:
            self._asked("commit()", lambda: self._opened().commit(end))
        self._committed = checkpoint

    def named(self, split: SplitId, position: str) -> str:
        """Return the offset as the data source writes it; see `port.NamesPositions`."""
        del split
        return f"offset {json.dumps(OffsetPosition.parse(position).offset, sort_keys=True)}"

    def seek(self, split: SplitId, position: str | None, words: str) -> str:
        """Return the position of `end`, or of an offset as JSON; see `port.SeeksPositions`."""
        del split
        with self._lock:
            begin = self._begin(position)
            offset = self._end_after(begin.offset) if words == END else _offset_of(words)
        return OffsetPosition(offset=offset, slices=begin.slices + 1).text()

    def described(self) -> SourceDescription:
        """Return the data source's name and class; see `port.DescribesItself`."""
        return SourceDescription("spark", f"{self._class.name()}, {self._class.__module__}.{self._class.__qualname__}")

    def close(self) -> None:
        """Stop the reader; see `port.Closes`."""
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                self._asked("stop()", reader.stop)

    def _begin(self, position: str | None) -> OffsetPosition:
        """Return the position to read from. The first offset of a new job stays the same in this process."""
        if position is not None:
            return OffsetPosition.parse(position)
        if self._initial is None:
            self._initial = checked(self._asked("initialOffset()", lambda: self._opened().initial()), "initialOffset()")
        return OffsetPosition(offset=self._initial, slices=0)

    def _until(self, begin: OffsetPosition) -> Offset | None:
        """Return the offset at which a bounded source ends, or None if its reader does not know the offset."""
        if begin.until is not None:
            return begin.until
        found, _ = self._asked("the newest offset", lambda: self._opened().latest(begin.offset, all_rows=True))
        return None if found is None else self._not_back(begin.offset, checked(found, "the stream reader"))

    def _towards(self, start: Offset, until: Offset) -> Offset:
        """Return the offset up to which to read, at most `until`."""
        if start == until:
            return until
        end, _ = self._latest(start)
        return end if end != start and went_back(until, end) else until

    def _end_after(self, offset: Offset) -> Offset:
        for _ in range(_READS_MAX):
            before, (offset, _) = offset, self._latest(offset)
            if offset == before:
                return offset
        raise NoSuchPositionError(f"after {_READS_MAX:,} reads there is no end: name an offset")

    def _latest(self, start: Offset) -> tuple[Offset, int | None]:
        """Return the offset up to which to read. Raise SourceError if it lies before the offset to read from."""
        found, rows = self._asked("the latest offset", lambda: self._opened().latest(start))
        return self._not_back(start, checked(found, "the stream reader")), rows

    def _not_back(self, start: Offset, end: Offset) -> Offset:
        if went_back(start, end):
            raise SourceError(
                f"data source {self._class.name()} gives rows up to the offset {json.dumps(end)} only, and the job has "
                f"read up to {json.dumps(start)} already: bring its rows back, or type 'tidemark reset' to read others"
            )
        return end

    def _shares(self, reader: Reader, piece: SourceSlice) -> Iterator[Share]:
        begin, end = OffsetPosition.parse(piece.detail), OffsetPosition.parse(piece.end)
        found = self._asked("partitions()", lambda: reader.partitions(begin.offset, end.offset))
        for place, partition in enumerate(found):
            yield Share(begin.slices, place, len(found), None if piece.rows_estimated else piece.rows, partition)

    def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = reader_of(self._new(), self.schema())
        return self._reader

    def _new(self) -> DataSource:
        return self._class(CaseInsensitiveDict({**self._options, **looked_up(self._secrets)}))

    def _own_schema(self) -> StructType:
        data_source = self._asked("its class", self._new)
        if not says(data_source, "schema"):
            raise SourceError(f"data source {self._class.name()} does not say its columns: give schema=")
        found = self._asked("schema()", data_source.schema)
        return schema_of_text(found) if isinstance(found, str) else found

    def _asked(self, what: str, question: Callable[[], _Answer]) -> _Answer:
        """Return the result of a call of the data source. Raise its errors as SourceErrors without secrets."""
        try:
            return question()
        except SourceError:
            raise
        except Exception as error:  # noqa: BLE001 - the data source is a user's code
            said = without(message_of(error), looked_up(self._secrets).values())
        raise SourceError(f"data source {self._class.name()}, {what}: {said}")


def _texts(options: Mapping[Any, Any]) -> dict[str, str]:
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SourceError(f"options of a SparkSource are texts: write {str(name)!r}: {str(value)!r}")
    return dict(options)


def _offset_of(words: str) -> Offset:
    try:
        offset = json.loads(words)
    except ValueError:
        offset = None
    if not isinstance(offset, dict):
        raise NoSuchPositionError(
            "write 'start', 'end', or an offset of the data source as JSON, like '{\"offset\": 3}'"
        )
    return offset


def _class_of(given: type[DataSource] | str) -> type[DataSource]:
    found: object = given
    if isinstance(given, str):
        module, _, name = given.rpartition(".")
        try:
            found = getattr(import_module(module), name) if module else None
        except (ImportError, AttributeError) as error:
            raise SourceError(f"there is no class {given!r} to import ({error}): correct the import path") from error
    if not (isinstance(found, type) and issubclass(found, DataSource)):
        raise SourceError(
            f"{given!r} is no Python data source: give the subclass of pyspark.sql.datasource.DataSource, or its "
            "import path, as in 'package.module.Name'"
        )
    return found
