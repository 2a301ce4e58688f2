"""Measures how many files thousands of checkpoints leave in a table, and how long a read of the whole table takes.

`python -m bench.ours.many_files --checkpoints N` runs a small pipeline of an append table and an upsert table, a
thousand rows for each checkpoint. From time to time it counts the files of both. At the end, three readers read the
append table, and the table of a second job, which has written the same rows with a single checkpoint. The readers
alternate between the two tables.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import polars as pl
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bench.measures import Laps, caught_up, middle, print_result
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.spark.jars import delta_jars
from jobs.spark.session import SparkConfig, open_session
from jobs.tick.tick import run_tick
from tidemark import CheckpointConfig, Pipeline, SequenceSource, count, sum_of

ROWS: Final = "bronze/rows"
TOTALS: Final = "gold/totals"
_EPOCH: Final = 1_000
_LOOKS: Final = 80
"""How many times the files are counted."""
_READS: Final = 7


class WrongRowsError(RuntimeError):
    """A table lacks rows of the input, so no figure counts."""


class FileCounts(Laps):
    """Also counts the files of the tables, from time to time."""

    def __init__(self, warehouse: Path, every: int) -> None:
        """Count the files after every `every` checkpoints."""
        super().__init__()
        self._warehouse = warehouse
        self._every = every
        self.files: dict[str, list[int]] = {ROWS: [], TOTALS: []}

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record the time, and the number of files if a count is due."""
        super().completed(record, notes, versions)
        if record.checkpoint % self._every == 0:
            for table, counts in self.files.items():
                counts.append(len(DeltaTable(str(self._warehouse / table)).file_uris()))


def build(data: Path) -> Pipeline:
    """Return the pipeline. The name of the data folder gives the number of checkpoints, and of rows in each."""
    checkpoints, epoch = map(int, data.name.split("-"))
    config = CheckpointConfig(every_rows=epoch, slice_rows_max=min(epoch, 1_000_000))
    pipeline = Pipeline("many_files", config=config, parallelism=1)
    numbers = pipeline.source("numbers", SequenceSource({"all": checkpoints * epoch}, keys=100)).table(ROWS, id="rows")
    numbers.key_by("key").aggregate("totals", rows=count(), total=sum_of("n")).upsert(TOTALS)
    return pipeline


def main() -> None:
    """Measure one tick, and the reads after it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=2_000)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    rows = asked.checkpoints * _EPOCH
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        warehouse, other = Path(scratch, "warehouse"), Path(scratch, "once")
        spark = open_session(SparkConfig(cores=2, memory="2g", jars=tuple(delta_jars())))
        try:
            laps = FileCounts(warehouse, max(1, asked.checkpoints // _LOOKS))
            _tick(Path(scratch, f"{asked.checkpoints}-{_EPOCH}"), warehouse, spark, laps)
            _tick(Path(scratch, f"1-{rows}"), other, spark, Laps())
            for each in (warehouse, other):
                _require_rows(each, rows)
            once = other / ROWS
            reads = {
                how: _compared(lambda at, how=read: how(spark, at), warehouse / ROWS, once)
                for how, read in _READERS.items()
            }
        finally:
            spark.stop()
    print_result(
        {
            "program": "tidemark-many-files",
            "seconds": laps.seconds,
            "files_max": {table: max(counts) for table, counts in laps.files.items()},
            "files": {table: counts[-1] for table, counts in laps.files.items()},
            "reads": reads,
        }
    )


def _tick(data: Path, warehouse: Path, spark: SparkSession, laps: Laps) -> None:
    launched = launch("bench.ours.many_files:build", flags_layer({"data": data, "warehouse": warehouse}))
    caught_up(run_tick(launched.plan, launched.runtime(), laps, spark=spark))


def _require_rows(warehouse: Path, rows: int) -> None:
    found = pl.read_delta(str(warehouse / ROWS)).select(pl.len(), pl.col("n").sum()).row(0)
    totals = pl.read_delta(str(warehouse / TOTALS)).select(pl.col("rows").sum(), pl.col("total").sum()).row(0)
    if not (rows, rows * (rows - 1) // 2) == found == totals:
        raise WrongRowsError(f"the tables have {found} and {totals} rows and sums of {rows} rows")


def _compared(read: Callable[[Path], object], ours: Path, once: Path) -> dict[str, float]:
    """Return the median read time of each of the two tables.

    They are read in turn. The first read of each does not count.
    """
    took: dict[Path, list[float]] = {ours: [], once: []}
    for turn in range(_READS + 1):
        for table, seconds in took.items():
            began = time.perf_counter()
            read(table)
            if turn:
                seconds.append(time.perf_counter() - began)
    return {"ours_s": middle(took[ours]), "once_s": middle(took[once])}


_READERS: Final[Mapping[str, Callable[[SparkSession, Path], object]]] = {
    "delta-rs": lambda _, table: DeltaTable(str(table)).to_pyarrow_table(),
    "Polars": lambda _, table: pl.read_delta(str(table)),
    "Spark": lambda spark, table: spark.read.format("delta").load(str(table)).toArrow(),
}


if __name__ == "__main__":
    main()
