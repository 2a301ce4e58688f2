"""A warehouse of any name through a job's whole life, as a user types it; real Delta tables, no Spark."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from jobs.cli import run as run_command
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.reading import Cuts
from jobs.showing.cut import recipes, variable
from jobs.tick.tick import run_tick
from tests.odd_names import ALL_IN_ONE, NAMES_OF_FOLDERS, NOT_FOR_DELTA
from tests.scenarios.runtime import sequence_job
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
EVERY_NAME = [pytest.param(ALL_IN_ONE, id="all in one")] + [
    pytest.param(name, id=what, marks=pytest.mark.dear) for what, name in NAMES_OF_FOLDERS.items()
]
"""The first name holds nearly all of them. The others say which character is to blame if it fails."""


@pytest.fixture
def typed(capsys, monkeypatch):
    """Return what a command line says: exit code, stdout and stderr; its ticks run without Spark."""
    monkeypatch.setattr(run_command, "run_tick", lambda *told: run_tick(*told, engine=LocalEngine()))

    def type_in(*words):
        code = execute([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return type_in


@pytest.fixture
def done(typed):
    """Return what a command line prints that ends well."""

    def type_in(*words):
        code, out, err = typed(*words)
        assert ExitCode.DONE is code, (words, out, err)
        return out

    return type_in


def rows_read(cut):
    """Return the rows of both tables as Polars and as pyarrow read them, which is the same."""
    read = {table: cut.polars(table).collect().height for table in (BRONZE, GOLD)}
    assert read == {table: cut.arrow(table).num_rows for table in (BRONZE, GOLD)}
    return read


def pasted(cut, engine):
    """Return the rows of each table by the printed lines of an engine."""
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
    killed = subprocess.run(
        [sys.executable, sequence_job.__file__, root],
        env=os.environ | {"TIDEMARK_KILL_AT": "after:AppendRow#2", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert -signal.SIGKILL == killed.returncode, killed.stderr
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
    """The savepoint that would be left has nobody who wants it."""
    root = tmp_path / "warehouse"
    done("run", PIPELINE, "--checkpoints", 1, "--warehouse", root)
    before = done("checkpoints", "list", JOB, "--warehouse", root)
    code, _, err = typed("savepoint", JOB, "--to", tmp_path / "x%20y", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert "x%20y cannot hold tables" in err
    assert before == done("checkpoints", "list", JOB, "--warehouse", root)
