"""Reads the partitions of a Python data source in Spark's tasks. It needs nothing that Spark Connect lacks."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError
from jobs.sources.python_data.position import PLACES
from jobs.sources.python_data.readers import Reader
from jobs.sources.withheld import WithheldSettings, without

_BATCH_ROWS = 10_000
_TASKS_A_CORE = 4


@dataclass(frozen=True, slots=True)
class Share:
    """What one call of the data source reads: a partition of a slice, number `place` of `count`.

    `rows` is how many rows it had when the slice was polled, or None if nobody has counted them.
    """

    slice: int
    place: int
    count: int
    rows: int | None
    partition: InputPartition


@dataclass(frozen=True, slots=True)
class Shares:
    """All partitions of a micro-batch, and the reader that reads them. Each task gets it, and reads some of them."""

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
        """Yield the rows of the shares with these numbers. An error has none of the secrets."""
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
        """Return the rows from number `first` on of a share, with split and place."""
        begin, end = (share.place + number * share.count for number in (first, first + batch.num_rows))
        if end > PLACES:
            raise SourceError(
                f"data source {self.data_source.name()} reads more rows at a time than a slice may have: lower its "
                "own limit"
            )
        places = pa.array(range(share.slice * PLACES + begin, share.slice * PLACES + end, share.count), pa.int64())
        own = {SPLIT_COLUMN: pa.array([self.split] * batch.num_rows), POSITION_COLUMN: places}
        return pa.RecordBatch.from_arrays([*batch.columns, *own.values()], names=[*self.schema.names, *own])
