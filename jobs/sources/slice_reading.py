"""The port by which a micro-batch reads slices of a source: through Spark, or in Spark's tasks themselves.

If a task reads, Spark neither plans the read nor makes rows of what is read.
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
    """A task cannot read the rows so that they are those that Spark's reader reads. Spark must read them.

    The message says why.
    """


class RowScan(Protocol):
    """A part of a source's rows. Tasks get it pickled, so it holds no secret and nothing that is open."""

    @property
    def rows(self) -> int:
        """Return how many rows the part has, or a guess."""
        ...

    @property
    def may_repeat(self) -> bool:
        """Return whether it costs little if several tasks read the whole part, each for itself."""
        ...

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises LeftToSparkError, or an error that names what cannot be read."""
        ...


@runtime_checkable
class KnowsStored(Protocol):
    """Optional for a `RowScan`: it knows the schema of its file."""

    def stored(self, columns: Sequence[str]) -> pa.Schema | None:
        """Return the schema of a file that a vertex wrote, and in which these columns are as they are read; else None.

        Raises what `batches` raises.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOfScan:
    """The beginning of a `RowScan` that changes the rows of another one, and has as many of them at most."""

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
        """Return the schema of the other scan's file, if it knows it, and hands out these columns as they are."""
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
    """Optional for a source: its scans may raise LeftToSparkError."""

    def leave_to_spark(self) -> None:
        """Offer no scans any more, because a task has left one to Spark."""
        ...
