"""The port through which a micro-batch reads slices of a source: with Spark's readers, or directly in Spark's tasks.

If a task reads directly, Spark does not plan the read, and does not convert what is read into its own rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from checkpointing.channel_items import SourceSlice


class SliceReader(Protocol):
    """The part of a source that a micro-batch needs: it reads slices."""

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of these slices, in the input's schema."""
        ...


class LeftToSparkError(Exception):
    """A task cannot read exactly the rows that Spark's reader would read, so Spark must read them.

    The message says why.
    """


class RowScan(Protocol):
    """A part of a source's rows. It is pickled for tasks, so it holds no secret and no open file or connection."""

    @property
    def rows(self) -> int:
        """Return how many rows the part has, or a guess."""
        ...

    @property
    def may_repeat(self) -> bool:
        """Return whether it is cheap if several tasks each read the whole part."""
        ...

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises LeftToSparkError, or an error that names what cannot be read."""
        ...


@runtime_checkable
class KnowsStored(Protocol):
    """Optional for a `RowScan`: it knows the schema of its file."""

    def stored(self, columns: Sequence[str]) -> pa.Schema | None:
        """Return the file's schema if a vertex wrote the file, with these columns as they are read; else None.

        Raises the errors of `batches`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOfScan:
    """The base of a `RowScan` that changes the rows of another scan, and has at most as many rows."""

    scan: RowScan

    @property
    def rows(self) -> int:
        """Return how many rows the other scan has, or a guess."""
        return self.scan.rows

    @property
    def may_repeat(self) -> bool:
        """Return whether several tasks may read the whole scan."""
        return self.scan.may_repeat

    def stored(self, columns: Sequence[str]) -> pa.Schema | None:
        """Return the schema of the other scan's file (see `KnowsStored`), or None if that scan has none."""
        return self.scan.stored(columns) if isinstance(self.scan, KnowsStored) else None


@runtime_checkable
class OffersScans(SliceReader, Protocol):
    """Optional for a source: tasks can read its slices themselves."""

    def scans(self, slices: Sequence[SourceSlice]) -> Sequence[RowScan] | None:
        """Return scans with the rows of these slices, or None if Spark must read them.

        Raises SourceError if the rows of a slice are no longer those that were polled.
        """
        ...


@runtime_checkable
class MayLeaveToSpark(OffersScans, Protocol):
    """Optional for a source whose scans can raise LeftToSparkError."""

    def leave_to_spark(self) -> None:
        """Offer no scans any more, because a task has left one to Spark."""
        ...
