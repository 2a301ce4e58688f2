"""A tick that never ends keeps its traces short: it goes on as its next generation, and each file replays alone."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from checkpointing.commit.fencing import newest_claim, release_of
from checkpointing.config import CheckpointConfig
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, StopKind, StopRequested, TickOutcome
from jobs.tick.at_rest.request_client import end_now, stop, take_savepoint
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.tick.trace_files import TraceBounds
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from spec.traces import judge
from tests.scenarios.runtime import sequence_job
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import LocalEngine, build, read_cut

MANY = CheckpointConfig(every_rows=20, slice_rows_max=20, micro_batch_rows_max=20, retained=2)


def run(root, bounds, inbox=None, **limits):
    settings = RuntimeSettings(warehouse=root, limits=TickLimits(**limits), trace=bounds)
    return run_tick(build(config=MANY), settings, engine=LocalEngine(), inbox=inbox)


def traces(root):
    """Return the trace files, oldest first."""
    return sorted((root / "_tidemark/numbers/traces").iterdir(), key=lambda path: int(path.stem))


def judged(path):
    with path.open("rb") as lines:
        return judge(lines)


@pytest.fixture
def undisturbed(tmp_path):
    """Return what one tick with one trace leaves in the tables."""
    run(tmp_path / "undisturbed", TraceBounds())
    return read_cut(tmp_path / "undisturbed")


@pytest.mark.parametrize("bounds", [TraceBounds(checkpoints=3), TraceBounds(bytes=40_000)])
def test_a_full_trace_makes_the_tick_go_on_in_another(tmp_path, undisturbed, bounds):
    """The tick catches up in several generations; every trace is judged whole, whatever became of those before it."""
    root = tmp_path / "warehouse"
    report = run(root, bounds)
    assert (TickOutcome.CAUGHT_UP, 0) == (report.outcome, report.restarts)
    assert undisturbed == read_cut(root)
    files = traces(root)
    assert len(files) > 2
    for older in files[:-1]:
        older_size = older.stat().st_size
        assert older_size < 400_000
    for path in files:
        verdict = judged(path)
        assert ([], True) == (verdict.problems, verdict.ended), path
    ids = sorted(records(root))
    assert [1] == [later - earlier for earlier, later in pairwise(ids)]
    assert ids[-1] <= 20, "an orderly end skips no ids"


def test_a_trace_without_its_predecessors_is_accepted_and_a_changed_one_refused(tmp_path):
    """The newest trace is judged without the others. If one fact is removed or changed, the judge finds it."""
    root = tmp_path / "warehouse"
    run(root, TraceBounds(checkpoints=3))
    *older, newest = traces(root)[:-1]
    for path in older:
        path.unlink()
    assert [] == judged(newest).problems
    lines = newest.read_bytes().splitlines(keepends=True)
    assert judge([*lines[:5], *lines[6:]]).problems
    place = next(place for place, line in enumerate(lines) if b'"is":"AppendRow"' in line)
    entry = json.loads(lines[place])
    entry["body"]["row"]["statistics"]["rows"] += 1
    changed = [*lines[:place], json.dumps(entry, separators=(",", ":")).encode() + b"\n", *lines[place + 1 :]]
    assert judge(changed).problems


def test_the_limits_hold_for_all_traces_together(tmp_path):
    """A tick of seven checkpoints ends after seven, whatever its traces hold."""
    root = tmp_path / "warehouse"
    report = run(root, TraceBounds(checkpoints=3), checkpoints=7)
    assert TickOutcome.STOPPED is report.outcome
    assert 7 == len(report.completed)
    assert 7 == max(records(root))


def test_a_user_who_stops_the_tick_stops_it(tmp_path):
    """After a requested stop no attempt follows, even if the trace is full at that moment."""
    inbox = Inbox()
    inbox.put(StopRequested(StopKind.AFTER_CHECKPOINT))
    report = run(tmp_path / "warehouse", TraceBounds(bytes=1), inbox)
    assert TickOutcome.STOPPED is report.outcome
    assert 1 == len(traces(tmp_path / "warehouse"))


@pytest.mark.parametrize("ends", ["stop", "cancel"])
def test_a_waiting_tick_is_asked_over_its_traces_and_ends_when_it_is_told(tmp_path, ends):
    """A tick that waits for more input writes one trace after the other.

    A request reaches it, also between two attempts.
    """
    root = tmp_path / "warehouse"
    words = [sys.executable, sequence_job.__file__, str(root), "--wait", "20000"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as tick:
        while not (root / "_tidemark/numbers/traces/3.ndjson").exists():
            assert tick.poll() is None
            time.sleep(0.05)
        for _ in range(5):
            assert take_savepoint(at(root), lambda waiting: None).record.checkpoint in records(root)
        if ends == "stop":
            stop(at(root), SavepointKind.SUSPEND, lambda waiting: None)
        else:
            assert end_now(at(root), lambda waiting: None).by is not None
        said = json.loads(tick.communicate(timeout=60)[0])
    assert TickOutcome.STOPPED.value == said["outcome"]
    rows = JobStores(at(root), cross_freely).observe().rows
    assert release_of(rows, newest_claim(rows).generation) is not None
    assert len(traces(root)) > 2
    assert [[]] * len(traces(root)) == [judged(path).problems for path in traces(root)]
