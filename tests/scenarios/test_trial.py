"""Tests what a Trial refuses and reports. The guide on pipelines and new projects show that a Trial works."""

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.warehouse.boundaries import boundary_names
from tests.scenarios.runtime.sequence_job import GOLD, JOB, as_pipeline, build
from tidemark import NoSuchCutError, Pipeline, SequenceSource
from tidemark.testing import NotKilledError, TickFailedError, Trial


def nothing(data) -> Pipeline:
    pipeline = Pipeline("nothing")
    pipeline.source("numbers", SequenceSource({"a": 0})).table("bronze/numbers", id="bronze")
    return pipeline


def broken(data) -> Pipeline:
    pipeline = Pipeline("broken")
    rows = pipeline.source("numbers", SequenceSource({"a": 3})).transform(lambda frame: frame.select("no_such_column"))
    rows.table("bronze/numbers", id="bronze")
    return pipeline


@pytest.mark.parametrize("kind", [pl.DataFrame, pd.DataFrame, pa.table])
def test_each_delivery_is_a_file_of_its_own(kind, tmp_path):
    """A frame of each kind becomes a Parquet file with only its columns, named after the files delivered before."""
    trial = Trial(as_pipeline, tmp_path)
    files = [trial.deliver("orders/berlin", kind({"n": [number, 2]})) for number in (1, 3)]
    assert [tmp_path / "data/orders/berlin" / name for name in ("000000.parquet", "000001.parquet")] == files
    assert [{"n": [1, 2]}, {"n": [3, 2]}] == [pq.read_table(file).to_pydict() for file in files]
    assert sorted(files) == sorted((tmp_path / "data/orders/berlin").iterdir())


def test_a_process_that_cannot_find_the_pipeline_is_not_started(tmp_path):
    """A function inside another one, or a built Pipeline, exists only in this process."""

    def inside(data):
        return nothing(data)

    for pipeline in (inside, nothing(tmp_path)):
        with pytest.raises(ValueError, match="cannot be imported by another process: name the pipeline as"):
            Trial(pipeline, tmp_path).kill("after:AppendRow")


def test_the_boundaries_are_those_of_the_pipeline(tmp_path):
    assert boundary_names(build().graph) == Trial(as_pipeline, tmp_path).boundaries()


@pytest.mark.spark
def test_a_tick_that_is_killed_leaves_what_the_next_one_needs(tmp_path, spark):
    """The kill is real: nothing is published until a tick of this process has rolled the checkpoint forward."""
    trial = Trial("tests.scenarios.runtime.sequence_job:as_pipeline", tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1)
    assert 1 == trial.cuts.latest().checkpoint
    cut = trial.run(checkpoints=1, spark_cores=1)
    assert (JOB, 300) == (cut.job, trial.run(spark_cores=1).polars(GOLD).collect()["rows"].sum())


@pytest.mark.spark
def test_a_tick_that_is_not_killed_or_fails_is_an_error(tmp_path, spark):
    """The message names the boundary that was not reached and the tick's last output, or why the tick failed."""
    with pytest.raises(NotKilledError, match="not killed at after:RollForwardCut, it ended with 0: "):
        Trial(nothing, tmp_path).kill("after:RollForwardCut", spark_cores=1)
    with pytest.raises(NoSuchCutError):
        Trial(nothing, tmp_path).run(spark_cores=1)
    with pytest.raises(TickFailedError, match=r"broken: .*no_such_column"):
        Trial(broken, tmp_path / "other").run(spark_cores=1)
