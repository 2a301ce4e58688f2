"""A column of an append table is widened, as far as readers convert the values of old files (D6)."""

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import DoubleType

from checkpointing.job.restoring import CutDoesNotFitError
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.refusals import RollForwardError
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from tests.scenarios.runtime.kept_job import (
    CONFIG,
    JOB,
    NARROW,
    TABLE,
    at,
    foreign,
    laid_out,
    newest,
    numbers,
    run,
    shown,
    tick,
)
from tests.scenarios.runtime.test_kept_columns import HALF, files


def test_a_widened_column_is_read_from_old_files_as_they_are(tmp_path):
    """No file is written again. A rollback gives the type back, and either version goes on."""
    laid_out(tmp_path, HALF, NARROW)
    first, then = newest(tmp_path).checkpoint, files(tmp_path)
    with pytest.raises(CutDoesNotFitError, match="value was int and is now double: change it back"):
        tick_of_type(tmp_path, DoubleType())
    tick(tmp_path, HALF + 1)
    assert "long" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    assert then.items() <= files(tmp_path).items()
    assert numbers(range(HALF + 1)) == shown(tmp_path, "n", "value")
    frame = pl.scan_delta(str(tmp_path / TABLE)).filter(pl.col("value") < 3_000_000_000).collect()
    assert HALF + 1 == frame.height
    roll_back(at(tmp_path), first)
    assert "integer" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    tick(tmp_path, HALF + 2, NARROW)
    tick(tmp_path, HALF + 3)
    with pytest.raises(CutDoesNotFitError, match="value was bigint and is now int: change it back"):
        tick(tmp_path, HALF + 4, NARROW)
    assert numbers(range(HALF + 3)) == shown(tmp_path, "n", "value")


def test_a_rollback_behind_a_widening_refuses_wider_values_of_others(tmp_path):
    """No reader narrows them. Narrow ones from before stay."""
    laid_out(tmp_path, HALF, NARROW)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1)
    foreign(tmp_path, 100)
    with pytest.raises(TableNotRolledBackError, match="column value was widened since, and others have written wider"):
        roll_back(at(tmp_path), first)


def test_wider_values_that_come_between_a_rollback_and_its_publication_stop_it(tmp_path):
    """Once they are gone, the next tick publishes the rollback."""
    laid_out(tmp_path, HALF, NARROW)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1)
    came = []

    def append(name):
        if name == f"before:RollForward:{TABLE}" and not came:
            came.append(name)
            foreign(tmp_path, 100)

    with pytest.raises(RollForwardError, match="column value was widened since, and others have written wider values"):
        roll_back(at(tmp_path), first, boundary=append)
    assert "long" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    DeltaTable(str(tmp_path / TABLE)).delete("n = 100")
    tick(tmp_path, HALF + 2, NARROW)
    assert "integer" == DeltaTable(str(tmp_path / TABLE)).schema().fields[2].type.type
    assert numbers(range(HALF + 2)) == shown(tmp_path, "n", "value")


def tick_of_type(root, kind):
    """Run a tick of a version with another type of the value."""
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=1)
    source = pipeline.source("numbers", SequenceSource({"a": HALF + 1}, keys=7)).with_column("value", "value", kind)
    source.select("n", "key", "value").table(TABLE, id="kept")
    run(root, plan(pipeline))
