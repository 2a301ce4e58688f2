"""Tests that files of partitions with odd values are found: by the doctor, a clean-up, a rollback and a copy."""

from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline, count
from jobs.reading import Cuts
from jobs.sources.files.file_source import FileSource
from jobs.testing.trial import Trial

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]

CITIES = ("New York", "a/b", "50%", "%20", "it's", 'say "x"', "a=b", "#?&", "Zürich", " ", "{x}", "a:b", "..", "x+y")
SCHEMA = StructType().add("id", LongType()).add("city", StringType())
JOB, NAME = "odd", f"{__name__}:build"


def build(data):
    config = CheckpointConfig(every_rows=len(CITIES), retained=2, compact_files_min=3)
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    rows = pipeline.source("in", FileSource(data / "in", SCHEMA)).table("raw/orders", id="raw", partition_by=["city"])
    counts = rows.key_by("city").aggregate("by_city", n=count())
    counts.upsert("gold/cities", partition_by=["city"])
    return pipeline


def deliver(made, first):
    ids = pa.array(range(first, first + len(CITIES)), pa.int64())
    made.deliver("in/a", pa.table({"id": ids, "city": list(CITIES)}))


def rows_of(cut):
    return Counter(cut.polars("raw/orders").collect()["city"]), dict(cut.polars("gold/cities").collect().iter_rows())


def test_files_of_odd_partitions_are_found(tmp_path, spark):
    """Nobody calls a file lost or unneeded because its folder has another name than its value."""
    made = Trial(build, tmp_path)
    where = ["--warehouse", str(made.warehouse), "--data", str(made.data)]
    for turn in range(5):
        deliver(made, turn * len(CITIES))
        assert (dict.fromkeys(CITIES, turn + 1),) * 2 == rows_of(made.run())
    assert ExitCode.DONE is execute(["doctor", NAME, "--verify", *where])
    assert ExitCode.DONE is execute(["cleanup", NAME, *where[:2], "--reader-grace", "0ms"])
    assert (dict.fromkeys(CITIES, 5),) * 2 == rows_of(made.cuts.latest())
    there = sorted(cut.checkpoint for cut in made.cuts.all())
    copy = tmp_path / "copy"
    assert ExitCode.DONE is execute(["savepoint", NAME, "--to", str(copy), *where[:2]])
    assert ExitCode.DONE is execute(["rollback", NAME, str(there[0]), *where])
    back = rows_of(made.cuts.latest())
    assert (dict.fromkeys(CITIES, 4),) * 2 == back
    assert ExitCode.DONE is execute(["doctor", NAME, "--verify", *where])
    assert (dict.fromkeys(CITIES, 5),) * 2 == rows_of(Cuts(copy, JOB).latest())
