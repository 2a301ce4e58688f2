"""A job fails and goes on inside its tick as the next generation, within its limits, with exact tables (G4)."""

import json
import os
import signal
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from pyspark import SparkContext

from checkpointing.commit.fencing import newest_claim, release_of
from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.setup import TickLimits
from checkpointing.messages import RowAppended, SavepointKind, StopKind, StopRequested, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import SourceError
from jobs.spark.session import SparkConfig
from jobs.tick.at_rest.request_client import end_now, stop, take_savepoint
from jobs.tick.driver import Inbox
from jobs.tick.listener import Restarting, TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.tick.trace_files import TraceBounds
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cuts_table import CutsNotRecordedError
from jobs.warehouse.job_stores import JobCuts, JobStores
from jobs.warehouse.lease import this_process
from jobs.warehouse.warehouse import Warehouse
from spec.traces import judge
from spec.traces import judge as judge_trace
from tests.scenarios.faults.strikes import HalfWritten
from tests.scenarios.processes import Dead, Mortal, Running
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    GOLD,
    JOB,
    LocalEngine,
    at,
    build,
    read_cut,
    records,
    ticked,
)


def restarting(**settings):
    given = {"restart_strategy": "fixed_delay", "restart_attempts": 3, "restart_delay_ms": 0} | settings
    return build(config=type(CONFIG)(**(CONFIG.model_dump() | given)))


class Shaky(LocalEngine):
    """An engine that fails `failures` micro-batches whose number is at least `at`, one in each attempt."""

    def __init__(self, failures: int, *, at: int = 2) -> None:
        super().__init__()
        self.left = failures
        self.generations: list[int] = []
        self.closed = 0
        self._at = at
        self._lock = threading.Lock()

    def run(self, planned, effect, warehouse, job):
        with self._lock:
            if effect.generation not in self.generations:
                self.generations.append(effect.generation)
            if effect.micro_batch >= self._at and self.left:
                self.left -= 1
                raise RuntimeError("out of paper")
        return super().run(planned, effect, warehouse, job)

    def close(self):
        self.closed += 1


class Restarts(TickListener):
    def __init__(self) -> None:
        self.heard: list[Restarting] = []
        self.claims: list[int] = []

    def claimed(self, claim, why) -> None:
        self.claims.append(claim.generation)

    def progress(self, progress) -> None:
        if isinstance(progress, Restarting):
            self.heard.append(progress)


def stores_at(root):
    return JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely)


def test_an_operator_that_fails_twice_then_works_ends_with_exact_tables(tick, tmp_path, undisturbed):
    engine, noted = Shaky(2), Restarts()
    report = tick(plan=restarting(), engine=engine, listener=noted)
    assert (TickOutcome.CAUGHT_UP, 2, 3) == (report.outcome, report.restarts, report.generation)
    assert [1, 2, 3] == engine.generations == noted.claims
    assert [1, 2] == [each.restart for each in noted.heard]
    assert {CheckpointFailureReason.TASK_FAILURE} == {each.reason for each in noted.heard}
    assert all("out of paper" in each.message for each in noted.heard)
    counts = report.counts
    assert (len(report.completed), 0) == (counts.completed, counts.in_progress)
    assert counts.total == counts.completed + counts.failed
    rows = stores_at(tmp_path).observe().rows
    assert all(release_of(rows, generation) is not None for generation in engine.generations)
    assert 1 == engine.closed
    assert undisturbed == read_cut(tmp_path)


def test_the_failure_after_the_last_restart_ends_the_tick(tick, tmp_path, undisturbed):
    """The tick restarts up to its limit, and reports the number of restarts. The next tick goes on."""
    report = tick(plan=restarting(restart_attempts=2), engine=Shaky(3))
    assert (TickOutcome.FAILED, 2) == (report.outcome, report.restarts)
    assert "out of paper" in report.message
    assert "after 2 restarts" in report.message
    assert TickOutcome.CAUGHT_UP is tick().outcome
    assert undisturbed == read_cut(tmp_path)


def test_a_source_that_cannot_be_read_for_a_while_is_read_later(tick, tmp_path, undisturbed, monkeypatch):
    polled, listed = Counter(), Counter()
    poll, splits = SequenceSource.poll, SequenceSource.splits

    def failing(self, request):
        polled["all"] += 1
        if polled["all"] == 3:
            raise SourceError("the share is not mounted")
        return poll(self, request)

    def unlisted(self):
        listed["all"] += 1
        if listed["all"] == 2:
            raise SourceError("the share is not mounted")
        return splits(self)

    planned = restarting(tolerable_poll_failures=0)
    monkeypatch.setattr(SequenceSource, "poll", failing)
    monkeypatch.setattr(SequenceSource, "splits", unlisted)
    noted = Restarts()
    report = tick(plan=planned, listener=noted)
    assert (TickOutcome.CAUGHT_UP, 2, 2) == (report.outcome, report.restarts, report.generation)
    assert 2 == sum("not mounted" in each.message for each in noted.heard)
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.parametrize(("failures", "outcome"), [(3, TickOutcome.CAUGHT_UP), (4, TickOutcome.FAILED)])
def test_a_split_that_cannot_be_read_does_not_stop_the_other(
    tick, tmp_path, undisturbed, monkeypatch, failures, outcome
):
    """The split is polled again, without a restart. If it fails too often, the tables have the other split's rows."""
    left, poll = Counter(a=failures), SequenceSource.poll

    def failing(self, request):
        left[request.split] -= 1
        if left[request.split] >= 0:
            raise SourceError("the share is not mounted")
        return poll(self, request)

    monkeypatch.setattr(SequenceSource, "poll", failing)
    report = tick(plan=build())
    assert (outcome, 0) == (report.outcome, report.restarts)
    if outcome is TickOutcome.FAILED:
        assert "source numbers: the share is not mounted" == report.message
        assert {"b"} == {row[0] for row in read_cut(tmp_path)[str(BRONZE)]}
        assert outcome is not tick(plan=build()).outcome
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.parametrize("kill_at", ["before:RecordCut", "before:PublishTable:gold/by_key"])
def test_what_was_committed_before_the_failure_is_published_by_the_restart(tick, tmp_path, undisturbed, kill_at):
    """After a failure between commit point and cut, the same tick rolls forward, and counts the checkpoint once."""
    broken = Counter()

    def breaks(name):
        broken[name] += 1
        if name == kill_at and broken[name] == 2:
            raise OSError("disk full")

    report = tick(plan=restarting(), boundary=breaks)
    assert (TickOutcome.CAUGHT_UP, 1) == (report.outcome, report.restarts)
    ids = [record.checkpoint for record in report.completed]
    assert sorted(set(ids)) == ids
    assert undisturbed == read_cut(tmp_path)


def test_a_stop_during_the_delay_ends_the_tick_at_once_and_in_order(tick, tmp_path, undisturbed):
    """A stop does not wait for a delay of an hour. The tick releases the job, and the next tick goes on."""
    inbox = Inbox()

    class Stops(Restarts):
        def progress(self, progress) -> None:
            super().progress(progress)
            if isinstance(progress, Restarting):
                inbox.put(StopRequested(StopKind.NOW))

    began = time.monotonic()
    report = tick(plan=restarting(restart_delay_ms=3_600_000), engine=Shaky(1), inbox=inbox, listener=Stops())
    assert time.monotonic() - began < 60
    assert TickOutcome.STOPPED is report.outcome
    assert "out of paper" in report.message
    assert release_of(stores_at(tmp_path).observe().rows, report.generation) is not None
    tick()
    assert undisturbed == read_cut(tmp_path)


def rival_claim(root):
    """Append a claim of generation 2 to the job's entries, as another process would while the tick appends."""
    store = stores_at(root)
    while True:
        seen = store.observe()
        newest = max((row for row in seen.rows if isinstance(row, Claim)), key=lambda row: row.generation)
        changed = {"generation": 2, "nonce": "another", "holder": this_process(), "at_ms": seen.now_ms}
        appended = store.entries.append(newest.model_copy(update=changed), seen.version)
        if isinstance(appended, RowAppended):
            return appended


def test_who_claims_the_job_during_the_delay_keeps_it(tick, tmp_path):
    stores = []

    class Claims(Restarts):
        def progress(self, progress) -> None:
            super().progress(progress)
            if isinstance(progress, Restarting):
                stores.append(rival_claim(tmp_path))

    report = tick(plan=restarting(restart_delay_ms=1_500), engine=Shaky(1), listener=Claims(), take_over=True)
    assert isinstance(stores[0], RowAppended)
    assert (TickOutcome.FAILED, CheckpointFailureReason.FENCED) == (report.outcome, report.reason)
    assert "generation 2" in report.message


def test_what_a_rival_took_away_fails_the_tick_as_fenced_off(tick, tmp_path):
    """A rival claims the job, and a staged file is gone. The message names the rival, and no restart follows."""

    class Robbed(Shaky):
        def run(self, planned, effect, warehouse, job):
            if effect.micro_batch == 2 and effect.generation == 1:
                rival_claim(tmp_path)
                raise FileNotFoundError("bronze/numbers/1.parquet")
            return super().run(planned, effect, warehouse, job)

    report = tick(plan=restarting(), engine=Robbed(0))
    assert (TickOutcome.FAILED, CheckpointFailureReason.FENCED) == (report.outcome, report.reason)
    assert f"claimed by process {this_process().pid} " in report.message
    assert "generation 2; before this tick knew: " in report.message
    assert "bronze/numbers/1.parquet" in report.message
    assert 0 == report.restarts


def test_a_tick_whose_checkpoints_all_fail_learns_of_a_rival_at_once(tick, tmp_path):
    """The tick cannot read its tables any more. It tolerates this, but not that another process has the job."""
    damaged = HalfWritten(GOLD, 100)

    def taken_over(name):
        damaged(name, tmp_path)
        if name == "after:CheckTables" and damaged.checks == 2:
            rival_claim(tmp_path)

    config = CONFIG.model_copy(update={"tolerable_failures": 100})
    report = tick(plan=build(config=config), boundary=taken_over, limits=TickLimits(duration_ms=20_000))
    assert (TickOutcome.FAILED, CheckpointFailureReason.FENCED) == (report.outcome, report.reason)
    assert f"claimed by process {this_process().pid} " in report.message
    assert damaged.checks <= 3  # the next checkpoint may have begun already
    with report.trace.open("rb") as lines:
        assert [] == judge_trace(lines).problems


def test_a_checkpoint_that_a_dead_tick_committed_counts_for_no_limit(tick, monkeypatch):
    """The first attempt cannot record the dead tick's cut. The second one does, and completes its own checkpoint."""
    with pytest.raises(Dead):
        tick(boundary=Mortal("after:AppendRow"))
    record, broken = JobCuts.record, ["the disk is full"]

    def recorded(stores, checkpoint, versions):
        if broken:
            raise CutsNotRecordedError(broken.pop())
        record(stores, checkpoint, versions)

    monkeypatch.setattr(JobCuts, "record", recorded)
    report = tick(plan=restarting(), limits=TickLimits(checkpoints=1), take_over=True)
    assert (TickOutcome.STOPPED, 1) == (report.outcome, report.restarts)
    assert [1, 3] == [record.generation for record in report.completed]


def loses_its_jvm(root):
    crossed = Counter()

    def boundary(name):
        crossed[name] += 1
        if name == "before:RunMicroBatch" and crossed[name] == 3:
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)

    settings = RuntimeSettings(warehouse=root, spark=SparkConfig(cores=1, memory="512m"))
    return run_tick(restarting(restart_attempts=1), settings, boundary=boundary)


@pytest.mark.kill
@pytest.mark.spark
def test_a_tick_whose_jvm_died_restarts_with_another(tmp_path, undisturbed):
    """Spark's JVM is killed during a micro-batch. The restart starts a new JVM, and every row is there once."""
    said = Running(loses_its_jvm, tmp_path).wait().said
    assert ("caught_up", 1) == (said["outcome"], said["restarts"])
    assert undisturbed == read_cut(tmp_path)


def test_an_answer_to_an_older_attempt_reaches_no_other(tick, tmp_path, undisturbed):
    """A micro-batch that ends long after its attempt failed is not taken for a micro-batch of the next attempt."""
    late = threading.Event()

    class Slow(Shaky):
        def run(self, planned, effect, warehouse, job):
            if effect.generation == 1 and effect.vertex == "by_key":
                late.wait(2)
            if effect.generation == 2:
                late.set()
            return super().run(planned, effect, warehouse, job)

    report = tick(plan=restarting(), engine=Slow(1), drain_ms=10)
    assert (TickOutcome.CAUGHT_UP, 1) == (report.outcome, report.restarts)
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------
# A tick that never ends keeps its traces short. It goes on as its next generation, and each trace can be replayed
# alone.


MANY = CheckpointConfig(every_rows=20, slice_rows_max=20, micro_batch_rows_max=20, retained=2)


def run(root, bounds, inbox=None, **limits):
    settings = RuntimeSettings(warehouse=root, limits=TickLimits(**limits), trace=bounds)
    return run_tick(build(config=MANY), settings, engine=LocalEngine(), inbox=inbox)


def traces(root):
    return sorted((root / "_tidemark/numbers/traces").iterdir(), key=lambda path: int(path.stem))


def judged(path):
    with path.open("rb") as lines:
        return judge(lines)


@pytest.mark.parametrize("bounds", [TraceBounds(checkpoints=3), TraceBounds(bytes=40_000)])
def test_a_full_trace_makes_the_tick_go_on_in_another(tmp_path, undisturbed, bounds):
    """The tick catches up in several generations. Each trace is judged without the earlier ones, and has no problem."""
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
    """The newest trace is judged without the others. If one fact is removed or changed, the judge finds the error."""
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

    A request reaches the tick, also between two attempts.
    """
    root = tmp_path / "warehouse"
    tick = Running(ticked, root, trace_bytes=20_000)
    while not (root / "_tidemark/numbers/traces/3.ndjson").exists():
        assert tick.process.is_alive()
        time.sleep(0.05)
    for _ in range(5):
        assert take_savepoint(at(root), lambda waiting: None).record.checkpoint in records(root)
    if ends == "stop":
        stop(at(root), SavepointKind.SUSPEND, lambda waiting: None)
    else:
        assert end_now(at(root), lambda waiting: None).by is not None
    assert TickOutcome.STOPPED.value == tick.wait().said["outcome"]
    rows = JobStores(at(root), cross_freely).observe().rows
    assert release_of(rows, newest_claim(rows).generation) is not None
    assert len(traces(root)) > 2
    assert [[]] * len(traces(root)) == [judged(path).problems for path in traces(root)]
