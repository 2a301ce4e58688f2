"""Jobs whose sources end: real ticks on real Delta tables, without Spark; killed around the last checkpoint."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkpointing.identifiers import CheckpointId, VertexId
from checkpointing.messages import TickOutcome
from jobs.sources.hybrid import SequenceSource
from jobs.tick.at_rest.import_entry import import_row
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.discovery import discover
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import KILL_VARIABLE
from jobs.warehouse.job_stores import newest_restorable
from tests.scenarios.runtime.savepoint_job import at, wanted
from tests.scenarios.runtime.sequence_job import KEYS, ONE, ROWS, LocalEngine, build, read_cut

PROGRAM = Path(__file__).with_name("sequence_job.py")
ALL = sum(ROWS.values())
KILLS = (
    "after:RunMicroBatch",
    "before:AppendRow",
    "after:AppendRow",
    "after:PublishTable",
    "before:RecordCut",
    "after:RecordCut",
    "before:NotifyComplete",
)


class NoEngine:
    """Starts nothing: a micro-batch is an error."""

    def run(self, *_of: object) -> None:
        raise AssertionError("a micro-batch was run")

    def close(self) -> None:
        """Nothing was opened."""


def tick(root: Path, *, bounded: bool = True, rows: dict[str, int] | None = None, engine: object = None):
    """Run a tick without Spark."""
    planned = build(rows, config=ONE, bounded=bounded)
    return run_tick(planned, RuntimeSettings(warehouse=root), engine=engine or LocalEngine())


def versions(root: Path) -> int:
    """Return how many log entries the job's table of checkpoints has."""
    return len([*(root / "_tidemark/numbers/checkpoints/_delta_log").glob("*.json")])


def sources():
    return {VertexId("numbers"): SequenceSource(ROWS, keys=KEYS, bounded=True)}


def test_a_finished_job_says_so_and_starts_nothing(tmp_path):
    """The first tick finishes the job. The next one claims nothing, writes nothing and runs nothing."""
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    newest, written = newest_restorable(at(tmp_path)), versions(tmp_path)
    assert newest.finished
    report = tick(tmp_path, engine=NoEngine())
    assert (TickOutcome.FINISHED, 1, ()) == (report.outcome, report.generation, report.completed)
    assert written == versions(tmp_path)
    assert ALL == len(read_cut(tmp_path)["bronze/numbers"])
    assert not discover(sources(), newest)[VertexId("numbers")].any


@pytest.mark.parametrize(
    "boundary", [each if each == "after:AppendRow" else pytest.param(each, marks=pytest.mark.dear) for each in KILLS]
)
def test_a_job_that_was_killed_around_its_last_checkpoint_finishes(tmp_path, boundary):
    """Whatever the killed tick leaves, the next ticks end with every row once, and with one finished entry."""
    command = [sys.executable, str(PROGRAM), str(tmp_path), "--bounded"]
    killed = subprocess.run(command, env=os.environ | {KILL_VARIABLE: boundary}, capture_output=True, check=False)
    assert -signal.SIGKILL == killed.returncode, killed.stderr
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    assert newest_restorable(at(tmp_path)).finished
    rows = read_cut(tmp_path)
    assert ALL == len(rows["bronze/numbers"]) == len(set(rows["bronze/numbers"]))
    assert ALL == sum(count for _, count, _ in rows["gold/by_key"])
    assert TickOutcome.FINISHED is tick(tmp_path, engine=NoEngine()).outcome


def test_a_reset_lets_the_job_go_on_until_it_finishes_again(tmp_path):
    """The split that is moved is read again, and its rows count again; the other one stays at its end."""
    tick(tmp_path)
    reset(at(tmp_path), sources(), Reset("numbers", "100", "a"))
    moved = newest_restorable(at(tmp_path))
    assert not moved.finished
    assert {"a": 50} == {
        split: offer.lag.rows
        for split, offer in discover(sources(), moved)[VertexId("numbers")].splits.items()
        if offer.any
    }
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    assert ALL + 50 == len(read_cut(tmp_path)["bronze/numbers"])


def test_rows_that_come_after_the_end_are_never_read(tmp_path):
    """Neither more rows of a split nor a new split."""
    tick(tmp_path)
    longer = {**ROWS, "a": 500, "c": 10}
    assert TickOutcome.FINISHED is tick(tmp_path, rows=longer, engine=NoEngine()).outcome


def test_a_source_that_is_not_bounded_any_more_goes_on(tmp_path):
    """`bounded=True` is taken away: what came since is read from where the splits stood."""
    tick(tmp_path)
    assert TickOutcome.CAUGHT_UP is tick(tmp_path, bounded=False, rows={**ROWS, "a": 200}).outcome
    assert ALL + 50 == len(read_cut(tmp_path)["bronze/numbers"])
    assert not newest_restorable(at(tmp_path)).finished


def test_a_rollback_to_before_the_end_lets_the_job_finish_again(tmp_path):
    """And a rollback to the finished entry finishes it without a tick."""
    tick(tmp_path, bounded=False, rows={"a": 100, "b": 100})
    before = newest_restorable(at(tmp_path)).checkpoint
    tick(tmp_path)
    finished = newest_restorable(at(tmp_path)).checkpoint
    roll_back(at(tmp_path), CheckpointId(before))
    assert not newest_restorable(at(tmp_path)).finished
    assert TickOutcome.FINISHED is tick(tmp_path).outcome
    assert ALL == len(read_cut(tmp_path)["bronze/numbers"])
    assert finished != newest_restorable(at(tmp_path)).checkpoint


def test_a_job_that_begins_from_a_finished_one_is_finished(tmp_path):
    """The next tick publishes the tables in the other warehouse, and runs nothing."""
    old, new = tmp_path / "old", tmp_path / "new"
    tick(old)
    origin = f"{old}@{newest_restorable(at(old)).checkpoint}"
    import_row(wanted(origin, new, plan=build(config=ONE, bounded=True)))
    assert TickOutcome.FINISHED is tick(new, engine=NoEngine()).outcome
    assert read_cut(old) == read_cut(new)


def test_a_finished_job_whose_table_lost_its_newest_entry_is_repaired(tmp_path):
    """A tick that finds a table behind its cut does what every tick does, and then says that the job is finished."""
    tick(tmp_path)
    log = tmp_path / "bronze/numbers/_delta_log"
    max(log.glob("*.json")).unlink()
    shutil.rmtree(log / "_sidecars", ignore_errors=True)
    assert TickOutcome.FINISHED is tick(tmp_path, engine=NoEngine()).outcome
    assert ALL == len(read_cut(tmp_path)["bronze/numbers"])
