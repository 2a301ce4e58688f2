"""Tests that the tick, the doctor and Dagster report unread input. The commands are real, and none needs Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.pipelines import registry
from jobs.sources.files.file_source import FileSource
from jobs.tick.discovery import look_at_input
from orchestration.epochs import passed_over

PIPELINE = f"{__name__}:orders"
SCHEMA = StructType().add("n", LongType())


def orders(data: Path) -> Pipeline:
    """Return the pipeline: files of numbers to bronze."""
    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource(data / "orders", SCHEMA)).table("bronze/orders", id="bronze")
    return pipeline


def broken(data: Path) -> Pipeline:
    """Raise an error, as a user's module may."""
    raise RuntimeError("out of ideas")


@pytest.fixture
def data(tmp_path):
    """Return the data folder. Its split has a file that is not read."""
    (tmp_path / "data" / "orders" / "EWR").mkdir(parents=True)
    (tmp_path / "data" / "orders" / "EWR" / "1.csv").write_text("n\n1\n")
    return tmp_path / "data"


@pytest.fixture
def typed(tmp_path, data, capsys):
    """Return a command's exit code, stdout and stderr."""

    def type_in(verb, name, *words):
        code = execute([verb, name, "--warehouse", str(tmp_path / "warehouse"), "--data", str(data), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return type_in


def test_a_tick_that_finds_no_file_does_not_say_that_it_is_caught_up(typed, data):
    """It names the source, the place where it looks, and the files that it passes over."""
    code, out, err = typed("run", PIPELINE)
    assert ExitCode.DONE is code
    assert "orders has read nothing: source orders found no file, and nothing else is new" in out
    assert "caught up" not in out
    assert 1 == err.count(f"source orders has found no file under {data}/orders: it reads")
    assert 1 == err.count("source orders passes over 1 file in")
    assert "EWR/1.csv" in err


def test_a_tick_that_read_files_names_the_ignored_ones_and_is_caught_up(typed, data):
    """Empty files are files. Nothing is left to read, and the source has found a file."""
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), data / "orders" / "EWR" / "1.parquet")
    code, out, err = typed("run", PIPELINE)
    assert (ExitCode.DONE, True) == (code, "orders is caught up" in out)
    assert "has found no file" not in err
    assert 1 == err.count("source orders passes over 1 file in")


def test_the_doctor_finds_ignored_files(typed, monkeypatch):
    """For a source without files, the doctor says where it looks."""
    monkeypatch.setitem(registry.OWN, "orders", PIPELINE)
    typed("run", PIPELINE)
    code, out, _ = typed("doctor", "orders")
    assert ExitCode.FAILED is code
    assert "source orders has found no file under" in out
    assert "source orders passes over 1 file in" in out
    assert "0 files in 1 splits of" in out


def test_the_doctor_looks_at_a_job_whose_pipeline_cannot_be_loaded(typed, monkeypatch):
    """An error in the pipeline's module is one finding among the others."""
    monkeypatch.setitem(registry.OWN, "orders", f"{__name__}:broken")
    typed("run", PIPELINE)
    code, out, _ = typed("doctor", "orders")
    assert ExitCode.FAILED is code
    said = next(line for line in out.splitlines() if "the pipeline cannot be loaded, so its input was not" in line)
    assert "RuntimeError: out of ideas" in said


def test_dagster_shows_ignored_files(data):
    """The source's metadata has their number and the sentence. There is none if every file is read."""
    (seen,) = look_at_input(plan(orders(data)).sources, None)
    told = passed_over(seen)
    assert 1 == told["files_passed_over"].value
    assert "EWR/1.csv" in told["passed_over"].value
    (data / "orders" / "EWR" / "1.csv").unlink()
    assert {} == passed_over(look_at_input(plan(orders(data)).sources, None)[0]) == passed_over(None)
