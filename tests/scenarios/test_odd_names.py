"""A warehouse of any name through a job's whole life, as a user types it; real Delta tables, no Spark."""

import shlex
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.pipelines import registry
from jobs.reading import Cuts
from jobs.showing.cut import recipes, variable
from jobs.sources.files.file_source import FileSource
from jobs.tick.discovery import look_at_input
from orchestration.epochs import passed_over
from tests.odd_names import ALL_IN_ONE, NAMES_OF_FOLDERS, NOT_FOR_DELTA
from tests.scenarios.processes import killed
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, ticked

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
EVERY_NAME = [pytest.param(ALL_IN_ONE, id="all in one")] + [
    pytest.param(name, id=what, marks=pytest.mark.dear) for what, name in NAMES_OF_FOLDERS.items()
]
"""The first name holds nearly all of them. The others say which character is to blame if it fails."""


@pytest.fixture
def done(typed):
    """Return what a command line prints that ends well."""

    def type_in(*words):
        code, out, err = typed(*words)
        assert ExitCode.DONE is code, (words, out, err)
        return out

    return type_in


def rows_read(cut):
    read = {table: cut.polars(table).collect().height for table in (BRONZE, GOLD)}
    assert read == {table: cut.arrow(table).num_rows for table in (BRONZE, GOLD)}
    return read


def pasted(cut, engine):
    recipe = next(each for each in recipes(cut) if each.engine == engine)
    names: dict = {}
    exec("\n".join(recipe.lines), names)  # noqa: S102 - a user would paste them
    read = {table: names[variable(table)] for table in cut.tables}
    return {table: rows.collect().height if engine == "Polars" else rows.num_rows for table, rows in read.items()}


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_job_lives_in_a_warehouse_of_any_name(tmp_path, done, name):
    """Run, resume, savepoint, copy, restore, roll back, reset, read, examine, clean up: all of it works there."""
    root, copy, fork = tmp_path / name, tmp_path / f"{name} copy", tmp_path / "fork" / name
    where = ("--warehouse", root)
    done("run", PIPELINE, "--checkpoints", 1, *where)
    said = done("savepoint", JOB, "--to", copy, *where)
    number = said.split()[1]
    again = shlex.split(next(line for line in said.splitlines() if line.startswith("restore it with: tidemark ")))
    done("run", PIPELINE, *where)
    cut = Cuts(root, JOB).latest()
    assert {BRONZE: 300, GOLD: 7} == rows_read(cut) == pasted(cut, "Polars") == pasted(cut, "DuckDB")
    by_key = cut.state("by_key").polars().collect().height
    assert 7 == by_key == len(duckdb.connect().sql(cut.state("by_key").sql("duckdb")).fetchall())
    done("state", JOB, "by_key", *where)
    done("checkpoints", "list", JOB, *where)

    assert ["restore", "it", "with:", "tidemark", "run", JOB, "--from", str(copy)] == again[:8]
    done("run", PIPELINE, "--from", again[7], "--warehouse", fork)
    assert {BRONZE: 300, GOLD: 7} == rows_read(Cuts(fork, JOB).latest())

    done("rollback", JOB, number, *where)
    done("reset", PIPELINE, "numbers", "--to", 0, "--split", "a", *where)
    done("run", PIPELINE, *where)
    assert {BRONZE: 350, GOLD: 7} == rows_read(Cuts(root, JOB).latest())
    done("doctor", JOB, *where)
    done("doctor", JOB, "--verify", *where)
    done("savepoint", JOB, "--dispose", number, *where)
    done("cleanup", JOB, "--reader-grace", "0s", *where)
    assert {BRONZE: 350, GOLD: 7} == rows_read(Cuts(root, JOB).latest())


def test_a_killed_tick_in_a_warehouse_of_an_odd_name_is_taken_up(tmp_path, done):
    """Committed and not published when it was killed: the next tick publishes it and loses nothing."""
    root = tmp_path / ALL_IN_ONE
    killed(ticked, root, kill_at="after:AppendRow#2")
    done("run", PIPELINE, "--warehouse", root)
    assert {BRONZE: 300, GOLD: 7} == rows_read(Cuts(root, JOB).latest())


@pytest.mark.parametrize("name", NOT_FOR_DELTA.values(), ids=NOT_FOR_DELTA)
def test_a_warehouse_that_delta_cannot_open_is_refused_before_anything_is_made(tmp_path, typed, name):
    """By one sentence that says what in the name is the trouble; nothing of the folder comes into being."""
    code, out, err = typed("run", PIPELINE, "--warehouse", tmp_path / name)
    assert (ExitCode.FAILED, "", 1) == (code, out, len(err.splitlines()))
    assert "cannot hold tables: delta-rs, which keeps their logs, cannot open a folder with" in err
    assert [] == list(tmp_path.iterdir())


def test_a_copy_that_delta_cannot_open_is_refused_before_a_savepoint_is_taken(tmp_path, done, typed):
    root = tmp_path / "warehouse"
    done("run", PIPELINE, "--checkpoints", 1, "--warehouse", root)
    before = done("checkpoints", "list", JOB, "--warehouse", root)
    code, _, err = typed("savepoint", JOB, "--to", tmp_path / "x%20y", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert "x%20y cannot hold tables" in err
    assert before == done("checkpoints", "list", JOB, "--warehouse", root)


# ------------------------------------------------------------------
# Tests that the tick, the doctor and Dagster report unread input. The commands are real, and none needs Spark.


PIPELINE_OF_INPUT_PASSED_OVER = f"{__name__}:orders"
SCHEMA = StructType().add("n", LongType())


def orders(data: Path) -> Pipeline:
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
def typed_of_input_passed_over(tmp_path, data, capsys):
    """Return a command's exit code, stdout and stderr."""

    def type_in(verb, name, *words):
        code = execute([verb, name, "--warehouse", str(tmp_path / "warehouse"), "--data", str(data), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return type_in


def test_a_tick_that_finds_no_file_does_not_say_that_it_is_caught_up(typed_of_input_passed_over, data):
    code, out, err = typed_of_input_passed_over("run", PIPELINE_OF_INPUT_PASSED_OVER)
    assert ExitCode.DONE is code
    assert "orders has read nothing: source orders found no file, and nothing else is new" in out
    assert "caught up" not in out
    assert 1 == err.count(f"source orders has found no file under {data}/orders: it reads")
    assert 1 == err.count("source orders passes over 1 file in")
    assert "EWR/1.csv" in err


def test_a_tick_that_read_files_names_the_ignored_ones_and_is_caught_up(typed_of_input_passed_over, data):
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), data / "orders" / "EWR" / "1.parquet")
    code, out, err = typed_of_input_passed_over("run", PIPELINE_OF_INPUT_PASSED_OVER)
    assert (ExitCode.DONE, True) == (code, "orders is caught up" in out)
    assert "has found no file" not in err
    assert 1 == err.count("source orders passes over 1 file in")


def test_the_doctor_finds_ignored_files(typed_of_input_passed_over, monkeypatch):
    monkeypatch.setitem(registry.OWN, "orders", PIPELINE_OF_INPUT_PASSED_OVER)
    typed_of_input_passed_over("run", PIPELINE_OF_INPUT_PASSED_OVER)
    code, out, _ = typed_of_input_passed_over("doctor", "orders")
    assert ExitCode.FAILED is code
    assert "source orders has found no file under" in out
    assert "source orders passes over 1 file in" in out
    assert "0 files in 1 splits of" in out


def test_the_doctor_looks_at_a_job_whose_pipeline_cannot_be_loaded(typed_of_input_passed_over, monkeypatch):
    """An error in the pipeline's module is one finding among the others."""
    monkeypatch.setitem(registry.OWN, "orders", f"{__name__}:broken")
    typed_of_input_passed_over("run", PIPELINE_OF_INPUT_PASSED_OVER)
    code, out, _ = typed_of_input_passed_over("doctor", "orders")
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
