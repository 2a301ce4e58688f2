"""Writes positions of a Python data source as text, and refuses offsets that JSON cannot hold.

Only the data source can interpret an offset, and decide which of two offsets comes first. So a position also has the
number of slices before it, from which the rows get their places.
"""

import json
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any, Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from jobs.sources.port import SourceError
from jobs.spark.versions import read_limit

Offset = dict[str, Any]
"""An offset of a data source: a dict of texts, numbers, booleans and dicts."""

PLACES: Final = 2**32
"""The number of places that each slice has for its rows."""


class OffsetPosition(BaseModel):
    """A position after the rows up to `offset`, and after `slices` slices. `until` is where a bounded source ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offset: Offset
    slices: int = Field(ge=0, lt=2**31)
    until: Offset | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position that a text contains. Raise SourceError for a text that is not a position."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SourceError(f"{text} is no position of a Python data source") from error

    def text(self) -> str:
        """Return the position as text. The same position always has the same text."""
        end = {} if self.until is None else {"until": self.until}
        return json.dumps({"offset": self.offset, "slices": self.slices, **end}, sort_keys=True)


def checked(offset: object, method: str) -> Offset:
    """Return the offset. Raise SourceError, which names the method, if the offset changes when written as JSON."""
    try:
        again = json.loads(json.dumps(offset, allow_nan=False))
    except (TypeError, ValueError):
        again = None
    if not isinstance(offset, dict) or again != offset:
        raise SourceError(
            f"{method} returned the offset {offset!r}, which JSON does not keep as it is: return a dict of texts, "
            "numbers, booleans and such dicts"
        )
    return offset


def went_back(start: Offset, end: Offset) -> bool:
    """Return whether `end` certainly lies before `start`: all values that differ are smaller numbers in `end`."""
    steps = list(_steps(start, end))
    return bool(steps) and all(step is not None and step < 0 for step in steps)


def distance(start: Offset, end: Offset) -> int:
    """Return an estimate of the rows between two offsets: the sum of the differences of their numbers, at least 1."""
    return max(sum(int(step) for step in _steps(start, end) if step is not None), 1)


def _steps(start: Offset, end: Offset) -> Iterator[float | None]:
    """Yield by how much each number that differs has grown, and None for each value that differs otherwise."""
    for name in start | end:
        then, now = start.get(name), end.get(name)
        if isinstance(then, dict) and isinstance(now, dict):
            yield from _steps(then, now)
        elif then != now:
            before, after = _number(then), _number(now)
            yield None if before is None or after is None else after - before


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# ------------------------------------------------------------------
# A common interface for the two kinds of stream readers of a Python data source.
#
# PySpark has such an interface too, for its own streaming engine. There, a simple reader holds its rows until Spark
# fetches them. Here, the rows are read again between the two offsets, so that the same slice has the same rows in every
# process.


class Reader(Protocol):
    """A stream reader of either kind. Its methods raise the errors of the data source."""

    def initial(self) -> object:
        """Return the offset at which a new job begins."""
        ...

    def latest(self, start: Offset, *, all_rows: bool = False) -> tuple[object, int | None]:
        """Return the offset up to which to read from `start`, and the number of rows between them, if it is known.

        The data source decides how many rows to read at a time, as in Spark. With `all_rows`, return instead the offset
        behind all rows that exist now, or None if this offset can be found only by reading the rows.
        """
        ...

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions of these rows. Each is read by one call of `read`."""
        ...

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the rows of one of the partitions. This runs in a worker."""
        ...

    def commit(self, end: Offset) -> None:
        """Notify the data source that all rows up to this offset are in completed checkpoints."""
        ...

    def stop(self) -> None:
        """Stop the data source's reader, which closes what it has opened."""
        ...


def reader_of(data_source: DataSource, schema: StructType) -> Reader:
    """Return a new reader of a data source. Raise SourceError if the data source has no stream reader."""
    if says(data_source, "streamReader"):
        return Partitioned(data_source.streamReader(schema))
    name = type(data_source).name()
    if not says(data_source, "simpleStreamReader"):
        raise SourceError(
            f"data source {name} has no stream reader: a SparkSource needs streamReader() or simpleStreamReader()"
        )
    simple = data_source.simpleStreamReader(schema)
    if not says(simple, "readBetweenOffsets", SimpleDataSourceStreamReader):
        raise SourceError(
            f"the stream reader of data source {name} has no readBetweenOffsets(), so nobody could read its rows again "
            "after a crash: add the method, or use another data source"
        )
    return Simple(simple)


def says(thing: object, method: str, base: type = DataSource) -> bool:
    """Return whether an object overrides a method of PySpark's base class, whose own method only raises."""
    return getattr(type(thing), method, None) is not getattr(base, method)


class Partitioned:
    """A reader that plans tasks."""

    def __init__(self, reader: DataSourceStreamReader) -> None:
        """Wrap a reader."""
        self._reader = reader

    def initial(self) -> object:
        """See `Reader.initial`."""
        return self._reader.initialOffset()

    def latest(self, start: Offset, *, all_rows: bool = False) -> tuple[object, int | None]:
        """See `Reader.latest`. Before Spark 4.2, `latestOffset` had no parameters."""
        latest: Any = self._reader.latestOffset
        if not signature(latest).parameters:
            return latest(), None
        return latest(start, read_limit(self._reader, all_rows=all_rows)), None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """See `Reader.partitions`."""
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See `Reader.read`."""
        return self._reader.read(partition)

    def commit(self, end: Offset) -> None:
        """See `Reader.commit`."""
        self._reader.commit(end)

    def stop(self) -> None:
        """See `Reader.stop`."""
        self._reader.stop()


class Between(InputPartition):
    """All rows between two offsets of a simple reader."""

    def __init__(self, start: Offset, end: Offset) -> None:
        """Store the offsets."""
        super().__init__((start, end))


class Simple:
    """A reader that reads all rows by itself."""

    def __init__(self, reader: SimpleDataSourceStreamReader) -> None:
        """Wrap a reader."""
        self._reader = reader

    def initial(self) -> object:
        """See `Reader.initial`."""
        return self._reader.initialOffset()

    def latest(self, start: Offset, *, all_rows: bool = False) -> tuple[object, int | None]:
        """See `Reader.latest`. The rows are counted, and read again in a task."""
        if all_rows:
            return None, None
        rows, end = self._reader.read(start)
        return end, sum(1 for _ in rows)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """See `Reader.partitions`."""
        return [] if start == end else [Between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See `Reader.read`."""
        start, end = partition.value
        return self._reader.readBetweenOffsets(start, end)

    def commit(self, end: Offset) -> None:
        """See `Reader.commit`."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Do nothing: a simple reader has nothing to stop."""
