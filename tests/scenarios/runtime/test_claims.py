"""Of several ticks that claim a job, one gets it: between threads, between processes, and beside commands."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from checkpointing.commit.fencing import LEASE_OF_THE_UNSEEN_MS
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import RowAppended, TickOutcome
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import Claim, Holder
from checkpointing.tick.messages import AppendClaim, AppendEntry, AppendRelease, TickFact
from jobs.cli.errors import ExitCode
from jobs.tick import tick_carrier
from jobs.tick.at_rest.cancellation import delete_checkpoints
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.at_rest.take_savepoint import dispose, savepoint_at_rest
from jobs.tick.carrier import Carrier
from jobs.tick.tick_settings import TickReport
from jobs.warehouse import job_stores
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore
from jobs.warehouse.refusals import JobHeldError
from tests.scenarios.processes import Dead, Mortal, Running, wait_for
from tests.scenarios.runtime.sequence_job import CONFIG, JOB, at, build, read_cut, records, run, ticked

LEASE = "_tidemark/numbers/lease"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return a function that starts a tick in another process, in this test's warehouse. No tick outlives the test."""
    started: list[Running] = []

    def begin(**how: object) -> Running:
        started.append(Running(ticked, tmp_path, **how))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()


@pytest.mark.parametrize("take_over", [False, True])
def test_of_two_claims_of_one_version_exactly_one_wins(tick, tmp_path, undisturbed, take_over):
    """Two ticks that saw the same version both append their claim. One runs. The other's error names that tick."""
    meet = threading.Barrier(2)
    met = threading.local()

    def together(name: str) -> None:
        if name == "before:Claim" and not getattr(met, "once", False):
            met.once = True
            meet.wait(timeout=30)

    def attempt() -> TickReport | JobHeldError:
        try:
            return tick(boundary=together, take_over=take_over)
        except JobHeldError as held:
            return held

    with ThreadPoolExecutor(2) as pool:
        ends = [each.result() for each in [pool.submit(attempt), pool.submit(attempt)]]
    winners = [end for end in ends if isinstance(end, TickReport)]
    losers = [end for end in ends if isinstance(end, JobHeldError)]
    assert (1, 1) == (len(winners), len(losers))
    assert TickOutcome.CAUGHT_UP is winners[0].outcome
    assert f"process {os.getpid()}" in str(losers[0])
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.parametrize("before", [0, 1], ids=["a table ahead", "a file gone"])
def test_what_was_seen_in_two_moments_refuses_nothing(tick, tmp_path, undisturbed, monkeypatch, before):
    """Other ticks complete checkpoints after a tick has read the entries and before it reads tables and files.

    The tick looks again.
    """
    if before:
        tick(limits=TickLimits(checkpoints=before), reader_grace_ms=0)
    seen, raced = tick_carrier.observe_sound, []

    def observe_then_lose_time(*arguments):
        rows = seen(*arguments)
        if not raced:
            raced.append(rows.version)
            assert "" == tick(reader_grace_ms=0).message
        return rows

    monkeypatch.setattr(tick_carrier, "observe_sound", observe_then_lose_time)
    assert ("", TickOutcome.CAUGHT_UP) == ((ended := tick()).message, ended.outcome)
    assert undisturbed == read_cut(tmp_path)


def test_a_second_process_is_told_who_holds_the_job_and_loses_nothing(start, tmp_path, undisturbed):
    """While one process runs, a second one ends with an error that names the first one's pid.

    The first process ends as if it were alone.
    """
    gate = tmp_path / "gate"
    first = start(gate=gate)
    wait_for(tmp_path / LEASE)
    assert first.process.pid == start().wait().said["pid"]
    gate.touch()
    assert "caught_up" == first.wait().said["outcome"]
    assert undisturbed == read_cut(tmp_path)


def test_a_process_that_was_taken_over_commits_nothing_more(start, tmp_path, undisturbed):
    """With --take-over the second process takes the job over.

    The first process's next entry is refused, and its tick ends with the reason.
    """
    gate = tmp_path / "gate"
    first = start(gate=gate)
    wait_for(tmp_path / LEASE)
    assert "caught_up" == start(take_over=True).wait().said["outcome"]
    gate.touch()
    fenced = first.wait().said
    assert "failed" == fenced["outcome"]
    assert "claimed by process" in fenced["message"]
    assert undisturbed == read_cut(tmp_path)


def test_sigterm_ends_a_tick_in_order(start, tmp_path, undisturbed):
    """A tick that gets SIGTERM releases the job, so that the next one goes on at once where it stopped."""
    gate = tmp_path / "gate"
    process = start(gate=gate)
    wait_for(tmp_path / LEASE)
    process.process.terminate()
    gate.touch()
    assert "stopped" == process.wait().said["outcome"]
    assert not (tmp_path / LEASE).exists()
    assert "caught_up" == start().wait().said["outcome"]
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------
# A tick or command sleeps between two reads of the stores, and wakes up after another tick has held the job.


PLAN = build(config=CONFIG.model_copy(update={"retained": 1}))


@pytest.fixture
def overtaken(tick):
    """Return a function that, at its first call, runs a whole tick, which takes the job over."""
    left = [{"plan": PLAN, "take_over": True}]

    def meanwhile() -> None:
        while left:
            tick(**left.pop())

    return meanwhile


def must_be_the_newest_alone(root: Path) -> None:
    assert 2 == len(records(root))
    assert frozenset(records(root)) == CutStore(at(root)).recorded()


def test_a_tick_that_sleeps_while_it_records_its_cut_takes_no_newer_one_away(tick, tmp_path, overtaken, undisturbed):
    """The tick knows an old list of checkpoints. Since then others were committed, and its own was subsumed."""
    committed = []

    def boundary(name: str) -> None:
        committed.extend([name] if name == "after:AppendRow" else [])
        if committed and name == "before:LogCommit:cuts":
            overtaken()

    report = tick(plan=PLAN, boundary=boundary)
    assert "the job was claimed by" in report.message
    must_be_the_newest_alone(tmp_path)
    assert Generation(2) == next(iter(records(tmp_path).values())).generation
    assert undisturbed == read_cut(tmp_path)


def test_a_tick_that_sleeps_in_its_clean_up_takes_no_newer_cut_away(tick, tmp_path, overtaken, monkeypatch):
    """The tick knows an old list of readable cuts. Since then the other tick has recorded newer cuts."""
    looked = job_stores.readable_cuts

    def asleep(rows, recorded):
        monkeypatch.setattr(job_stores, "readable_cuts", looked)
        overtaken()
        return looked(rows, recorded)

    monkeypatch.setattr(job_stores, "readable_cuts", asleep)
    tick(plan=build({"a": 50, "b": 50}, config=PLAN.config))
    assert Generation(2) == next(iter(records(tmp_path).values())).generation
    must_be_the_newest_alone(tmp_path)


def test_the_end_of_a_savepoint_leaves_what_state_tables_show(tick, tmp_path, monkeypatch):
    """As soon as `dispose` has released the job, a tick begins. It dies between its commit and its publication."""
    run(tmp_path, 1, plan=PLAN)
    savepoint = savepoint_at_rest(at(tmp_path))
    append = Carrier._append

    def asleep(carrier: Carrier, effect: AppendClaim | AppendEntry | AppendRelease) -> TickFact:
        done = append(carrier, effect)
        if isinstance(effect, AppendRelease):
            monkeypatch.setattr(Carrier, "_append", append)
            with pytest.raises(Dead):
                tick(plan=PLAN, take_over=True, boundary=Mortal("after:AppendRow"))
        return done

    monkeypatch.setattr(Carrier, "_append", asleep)
    dispose(at(tmp_path), savepoint.checkpoint)
    table = DeltaTable(str(tmp_path / table_of_state(JOB, VertexId("by_key"))))
    assert [] == [uri for uri in table.file_uris() if not Path(uri).exists()]


# ------------------------------------------------------------------
# If a holder on another host has no lease, a tick writes one for it, and takes the job over only after its end.


PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
FAR = Holder(host="far.example", pid=77, started="then")


@pytest.fixture
def held(tmp_path):
    """Return a warehouse that a process on another host claimed long ago. The process has no lease any more."""
    root = tmp_path / "warehouse"
    run(root, 1)
    savepoint_at_rest(at(root))
    stores = JobStores(at(root), cross_freely)
    seen = stores.observe()
    generation = max(row.generation for row in seen.rows) + 1
    claim = Claim(
        generation=generation, holder=FAR, first_id=CheckpointId(50), last_id=CheckpointId(60), at_ms=1, nonce="far"
    )
    assert isinstance(stores.entries.append(claim, seen.version), RowAppended)
    return root


def test_it_is_named_left_alone_and_replaced_when_its_time_is_over(held, answered):
    """The first start writes a lease for the holder, the second respects it, and one after its end takes over."""
    code, said = answered("run", PIPELINE, "--warehouse", held)
    assert ExitCode.HELD is code
    assert "process 77 on far.example" in said
    assert "has no lease; if it renews none within 30 s from now" in said
    assert "--take-over" in said
    given = LeaseStore(at(held)).read()
    assert (FAR, LEASE_OF_THE_UNSEEN_MS) == (given.holder, given.expires_ms - given.renewed_at_ms)
    code, said = answered("run", PIPELINE, "--warehouse", held)
    assert ExitCode.HELD is code
    assert "its lease runs for another" in said
    LeaseStore(at(held)).renew(given.generation, FAR, -1)
    code, said = answered("run", PIPELINE, "--warehouse", held)
    assert ExitCode.DONE is code
    assert "the lease of process 77 on far.example has run out" in said


@pytest.mark.parametrize(
    "command",
    [
        lambda warehouse: roll_back(warehouse, 1),
        lambda warehouse: reset(warehouse, PLAN.sources, Reset("numbers", "start")),
        savepoint_at_rest,
        lambda warehouse: dispose(warehouse, 2),
        lambda warehouse: delete_checkpoints(warehouse, PLAN),
    ],
    ids=["rollback", "reset", "savepoint", "dispose", "delete"],
)
def test_what_needs_a_job_at_rest_is_refused_while_it_is_held(held, command):
    """The error names the holder, and no entry is appended."""
    before = JobStores(at(held), cross_freely).observe()
    with pytest.raises(JobHeldError, match=r"process 77 on far\.example"):
        command(at(held))
    after = JobStores(at(held), cross_freely).observe()
    assert (before.version, before.rows) == (after.version, after.rows)


def test_a_holder_that_lives_renews_the_lease_that_it_was_given(held, answered):
    answered("run", PIPELINE, "--warehouse", held)
    given = LeaseStore(at(held)).read()
    assert LeaseStore(at(held)).renew(given.generation, FAR, 90_000)
    code, said = answered("run", PIPELINE, "--warehouse", held)
    assert ExitCode.HELD is code
    assert "its lease runs for another 90 s" in said or "another 89 s" in said
