"""Tests named boundaries and the variable that kills at one, interrupts, the lease, and listeners."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from checkpointing.identifiers import CheckpointId, Generation, job_name
from checkpointing.messages import (
    CancelJudgement,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    RunMicroBatch,
    SuitesJudged,
)
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder
from jobs.quality.expectation import Expectation, Suite
from jobs.quality.judge import JudgementCancelledError, never
from jobs.quality.verdict import ExpectationVerdict, Verdict
from jobs.tick.effect_pool import FILE_THREADS, SPARK_THREADS, Crew
from jobs.tick.effects import judge_suites
from jobs.tick.interrupts import stopping_on_interrupt
from jobs.tick.listener import OrderedListener, Recovery, TickListener
from jobs.warehouse.boundaries import (
    KILL_VARIABLE,
    InvalidBoundaryError,
    KillAt,
    around,
    boundary_from_environment,
    cross_freely,
)
from jobs.warehouse.lease import LeaseStore
from jobs.warehouse.warehouse import Warehouse

INTERRUPTED = """
import os, signal, time
from jobs.tick.interrupts import stopping_on_interrupt
with stopping_on_interrupt(lambda: print("stop", flush=True)):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
"""


@pytest.fixture
def warehouse(tmp_path) -> Warehouse:
    return Warehouse(tmp_path, ProtocolPaths(job_name("numbers")))


def claim_of(generation: int) -> Claim:
    holder = Holder(host="h", pid=1, started="s")
    ids = {"first_id": CheckpointId(1), "last_id": CheckpointId(9)}
    return Claim(generation=Generation(generation), holder=holder, at_ms=1, nonce=f"n{generation}", **ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("after:AppendRow#2", ("after:AppendRow", 2)), ("before:PublishTable:gold/a", ("before:PublishTable:gold/a", 1))],
)
def test_the_variable_names_a_boundary_and_its_occurrence(monkeypatch, text, expected):
    """The form is `side:step#n`. Without a number, the first time is meant."""
    monkeypatch.setenv(KILL_VARIABLE, text)
    boundary = boundary_from_environment()
    assert isinstance(boundary, KillAt)
    assert expected == (boundary.name, boundary.occurrence)


@pytest.mark.parametrize("text", ["AppendRow", "during:AppendRow", "after:AppendRow#0", "after:AppendRow#two"])
def test_what_is_no_boundary_is_refused(monkeypatch, text):
    """A kill that can never happen is an error. Otherwise a test would pass without testing anything."""
    monkeypatch.setenv(KILL_VARIABLE, text)
    with pytest.raises(InvalidBoundaryError, match="write before"):
        boundary_from_environment()


def test_without_the_variable_boundaries_are_free(monkeypatch):
    """Without the variable, nothing happens at a boundary."""
    monkeypatch.delenv(KILL_VARIABLE, raising=False)
    assert cross_freely is boundary_from_environment()


def test_the_kill_strikes_at_that_occurrence_of_any_table():
    """A name without a table means any table, and occurrences are counted over all tables."""
    program = (
        "from jobs.warehouse.boundaries import KillAt\nkill = KillAt('before:PublishTable', 2)\n"
        "for name in ('before:PublishTables', 'after:PublishTable:a', 'before:PublishTable:a',\n"
        "             'before:PublishTable:b'):\n"
        "    print(name, flush=True)\n    kill(name)\nprint('survived')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert -signal.SIGKILL == done.returncode
    assert "before:PublishTable:b" == done.stdout.splitlines()[-1]


def test_the_boundary_after_a_step_that_failed_is_not_crossed():
    crossed: list[str] = []
    with pytest.raises(ZeroDivisionError), around(crossed.append, "Step"):
        raise ZeroDivisionError
    assert ["before:Step"] == crossed


def test_an_interrupt_asks_to_stop_and_the_handlers_come_back():
    """Inside the block, SIGINT and SIGTERM only ask for a stop. After the block, the old handlers are back."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    asked: list[str] = []
    with stopping_on_interrupt(lambda: asked.append("stop")):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert ["stop", "stop"] == asked
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_a_second_ctrl_c_ends_the_process_at_once():
    """With a second Ctrl-C, a user does not want to wait."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60)
    assert (-signal.SIGINT, "stop\nstop\n") == (done.returncode, done.stdout)


def test_a_lease_is_renewed_while_it_is_kept_and_gone_afterwards(warehouse):
    """The lease is renewed while the tick lives, and deleted when it ends."""
    leases = LeaseStore(warehouse)
    with leases.kept(claim_of(1), 60):
        first = leases.read().expires_ms
        limit = time.monotonic() + 30
        while leases.read().expires_ms == first:
            assert time.monotonic() < limit
            time.sleep(0.01)
    assert leases.read() is None


def test_a_newer_generation_keeps_its_lease(warehouse):
    """A tick that was taken over neither overwrites nor deletes the new holder's lease."""
    leases = LeaseStore(warehouse)
    with leases.kept(claim_of(1), 60):
        leases.renew(Generation(2), claim_of(2).holder, 60_000)
        time.sleep(0.1)
    assert Generation(2) == leases.read().generation


def test_a_listener_that_fails_fails_nothing_and_hears_the_rest():
    """A listener's exception is logged. The listener still gets later events, in order."""
    heard: list[object] = []

    class Fragile(TickListener):
        def recovered(self, recovery):
            heard.append(recovery.leftovers)
            if recovery.leftovers == 0:
                raise ValueError("no")

    ordered = OrderedListener(Fragile())
    for leftovers in range(3):
        ordered.recovered(Recovery(None, None, leftovers))
    ordered.close()
    assert [0, 1, 2] == heard


# ------------------------------------------------------------------
# The threads beside the driver: what the end of a tick waits for, and what it does not.


DRAIN_MS = 5_000


class Gated:
    """Handlers whose effects wait for a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)

    def carry_out(self, effect):
        self.begun.release()
        self.gate.wait(DRAIN_MS / 1000)
        return MicroBatchFinished(effect.vertex, effect.micro_batch, ())

    def end(self):
        """Nothing here ends early."""


def micro_batch(number: int) -> RunMicroBatch:
    return RunMicroBatch("v", number, 1, (), (), ())


def test_the_end_waits_for_what_runs_and_not_for_what_was_never_begun():
    """There is one more micro-batch than threads. This last one is dropped, and the end does not wait for it."""
    handlers, answers = Gated(), []
    crew = Crew(handlers, answers.append)
    for number in range(SPARK_THREADS + 1):
        crew.start(micro_batch(number))
    for _ in range(SPARK_THREADS):
        handlers.begun.acquire()
    threading.Timer(0.1, handlers.gate.set).start()
    started = time.monotonic()
    assert () == crew.dismiss(DRAIN_MS)
    assert DRAIN_MS / 1000 > time.monotonic() - started
    assert sorted(range(SPARK_THREADS)) == sorted(answer.micro_batch for answer in answers)


class Judging(Gated):
    """Handlers whose judgements wait for a gate, or until they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[int] = []

    def carry_out(self, effect):
        self.begun.release()
        while not self.gate.is_set() and effect.checkpoint not in self.cancelled:
            time.sleep(0.01)
        return None if effect.checkpoint in self.cancelled else SuitesJudged("v", effect.checkpoint, True, "[]")

    def cancel(self, effect):
        self.cancelled.append(effect.checkpoint)


def test_a_cancelled_judgement_is_dropped_from_the_queue_or_told_to_end():
    """There is one more judgement than threads.

    The last one never begins, the first ends early, and the others answer.
    """
    handlers, answers = Judging(), []
    crew = Crew(handlers, answers.append)
    for checkpoint in range(FILE_THREADS + 1):
        crew.start(JudgeSuites("v", checkpoint, ()))
    for _ in range(FILE_THREADS):
        handlers.begun.acquire()
    crew.cancel(CancelJudgement("v", FILE_THREADS))
    assert [] == handlers.cancelled
    crew.cancel(CancelJudgement("v", 0))
    assert [0] == handlers.cancelled
    handlers.gate.set()
    assert () == crew.dismiss(DRAIN_MS)
    assert list(range(1, FILE_THREADS)) == sorted(answer.checkpoint for answer in answers)


# ------------------------------------------------------------------
# The common result of a vertex's suites: rejected, not judged, or accepted (J3).


NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "n"})
TABLES = ("bronze/a", "bronze/b")
SUITES = {table: Suite(f"suite_{table[-1]}", table, (NOT_NULL,)) for table in TABLES}
EFFECT = JudgeSuites("v", 3, tuple((table, ()) for table in TABLES))


class Answers:
    """A judge with a prepared answer for each suite: a verdict, or an error."""

    def __init__(self, **by_suite):
        self._by_suite = by_suite

    def judge(self, suite, files, is_cancelled):
        answer = self._by_suite[suite.name]
        if isinstance(answer, Exception):
            raise answer
        return Verdict(suite=suite.name, table=suite.table, passed=answer.success, rows=3, expectations=(answer,))


def found(**changes):
    return ExpectationVerdict(type=NOT_NULL.type, kwargs=dict(NOT_NULL.kwargs), **{"success": True, **changes})


def judged(a, b):
    return judge_suites(Answers(suite_a=a, suite_b=b), SUITES, EFFECT, never)


MET = found()
REJECTED = found(success=False, unexpected_count=2, sample=("null",))
UNKNOWN = found(success=False, error='the column "n" does not exist')
DAMAGED = OSError("Parquet magic bytes not found")


@pytest.mark.parametrize(
    ("a", "b", "suite", "cause"),
    [
        (MET, DAMAGED, "suite suite_b of table bronze/b", "OSError: Parquet magic bytes not found"),
        (DAMAGED, MET, "suite suite_a of table bronze/a", "OSError: Parquet magic bytes not found"),
        (UNKNOWN, MET, "suite suite_a of table bronze/a", 'could not be judged: the column "n" does not exist'),
    ],
)
def test_what_could_not_be_judged_is_named_and_rejects_nothing(a, b, suite, cause):
    """The message names suite, table and cause. Verdicts of the other suites stay readable."""
    answer = judged(a, b)
    assert isinstance(answer, JudgementFailed)
    assert ("v", 3) == (answer.vertex, answer.checkpoint)
    assert f"{suite} could not be judged, so nothing is published" in answer.error
    assert cause in answer.error
    assert {"suite_a", "suite_b"} - {suite.split()[1]} <= {each["suite"] for each in json.loads(answer.report)}


@pytest.mark.parametrize(("a", "b"), [(REJECTED, DAMAGED), (DAMAGED, REJECTED), (UNKNOWN, REJECTED)])
def test_a_rejection_counts_whatever_happened_to_the_others(a, b):
    """Bad rows fail the job, even if another suite could not be judged."""
    answer = judged(a, b)
    assert isinstance(answer, SuitesJudged)
    assert not answer.passed
    assert "rejects 3 rows" in answer.message
    assert "could not be judged" not in answer.message


def test_all_that_accept_let_the_rows_in():
    """The message is empty if all suites accept."""
    answer = judged(MET, MET)
    assert (True, "") == (answer.passed, answer.message)


def test_a_cancelled_judgement_has_no_answer():
    with pytest.raises(JudgementCancelledError):
        judged(MET, JudgementCancelledError())


def test_a_disk_that_cannot_be_read_is_explained():
    """The message says what the user can repair."""
    answer = judged(MET, PermissionError(13, "Permission denied"))
    assert "the system forbids this user" in answer.error
