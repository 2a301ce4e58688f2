"""Who gets the job when several want it: by compare-and-swap in one process, by name between processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from jobs.tick import tick_carrier
from jobs.tick.tick_settings import TickReport
from jobs.warehouse.boundaries import KILL_VARIABLE
from jobs.warehouse.refusals import JobHeldError
from tests.scenarios.runtime.sequence_job import read_cut

PROGRAM = Path(__file__).with_name("sequence_job.py")
LEASE = "_tidemark/numbers/lease"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ticks in processes of their own, in this test's warehouse; none of them outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*flags: str, kill_at: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), str(tmp_path), *flags]
        environment = os.environ | {KILL_VARIABLE: kill_at}
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe, start_new_session=True)
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> dict[str, object]:
    """Wait for a tick and return what it printed."""
    said, complained = process.communicate(timeout=120)
    assert said, complained
    return json.loads(said.splitlines()[-1])


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit, f"{path} never came"
        time.sleep(0.02)


@pytest.mark.parametrize("take_over", [False, True])
def test_of_two_claims_of_one_version_exactly_one_wins(tick, tmp_path, undisturbed, take_over):
    """Two ticks that saw the same version both append their claim. One runs, and the other's error names the first."""
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
    """Others complete checkpoints after a tick has read the entries and before it reads tables and files.

    It looks again.
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
    """While one process runs, another ends and names the first one's pid. The first one ends as if it were alone."""
    gate = tmp_path / "gate"
    first = start("--gate", str(gate))
    wait_for(tmp_path / LEASE)
    assert first.pid == ended(start())["pid"]
    gate.touch()
    assert "caught_up" == ended(first)["outcome"]
    assert undisturbed == read_cut(tmp_path)


def test_a_process_that_was_taken_over_commits_nothing_more(start, tmp_path, undisturbed):
    """With --take-over the second process gets the job.

    The first one's next entry is refused, and it ends with the reason.
    """
    gate = tmp_path / "gate"
    first = start("--gate", str(gate))
    wait_for(tmp_path / LEASE)
    assert "caught_up" == ended(start("--take-over"))["outcome"]
    gate.touch()
    fenced = ended(first)
    assert "failed" == fenced["outcome"]
    assert "claimed by process" in fenced["message"]
    assert undisturbed == read_cut(tmp_path)


def test_sigterm_ends_a_tick_in_order(start, tmp_path, undisturbed):
    """A tick that is terminated releases the job, so that the next begins at once where it stopped."""
    gate = tmp_path / "gate"
    process = start("--gate", str(gate))
    wait_for(tmp_path / LEASE)
    process.send_signal(signal.SIGTERM)
    gate.touch()
    assert "stopped" == ended(process)["outcome"]
    assert not (tmp_path / LEASE).exists()
    assert "caught_up" == ended(start())["outcome"]
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.kill
@pytest.mark.parametrize("kill_at", ["before:AppendRow#2", "after:LogCommit:tables#3"])
def test_a_killed_process_is_taken_over_at_once(start, tmp_path, undisturbed, kill_at):
    """After SIGKILL the holder is certainly dead. The next process starts at once and recovers."""
    killed = start(kill_at=kill_at)
    killed.communicate(timeout=120)
    assert -signal.SIGKILL == killed.returncode
    assert "caught_up" == ended(start())["outcome"]
    assert undisturbed == read_cut(tmp_path)


@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.parametrize("kill_at", ["after:RunMicroBatch#2", "after:AppendRow#2", "after:PublishTable:gold/by_key"])
def test_a_killed_spark_tick_ends_as_an_undisturbed_one(start, tmp_path, undisturbed, kill_at):
    """The same with real Spark: killed after staging, after the commit point and between two publications."""
    killed = start("--spark", kill_at=kill_at)
    killed.communicate(timeout=280)
    assert -signal.SIGKILL == killed.returncode
    process = start("--spark")
    said, complained = process.communicate(timeout=280)
    assert "caught_up" == json.loads(said.splitlines()[-1])["outcome"], complained
    assert undisturbed == read_cut(tmp_path)
