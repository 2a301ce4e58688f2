"""Boundaries by name, the variable that kills at one, interrupts, the lease, and listeners."""

import os
import signal
import subprocess
import sys
import time

import pytest

from checkpointing.identifiers import CheckpointId, Generation, job_name
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder
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
    """Return an empty warehouse."""
    return Warehouse(tmp_path, ProtocolPaths(job_name("numbers")))


def claim_of(generation: int) -> Claim:
    """Return a claim of that generation."""
    holder = Holder(host="h", pid=1, started="s")
    ids = {"first_id": CheckpointId(1), "last_id": CheckpointId(9)}
    return Claim(generation=Generation(generation), holder=holder, at_ms=1, nonce=f"n{generation}", **ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("after:AppendRow#2", ("after:AppendRow", 2)), ("before:PublishTable:gold/a", ("before:PublishTable:gold/a", 1))],
)
def test_the_variable_names_a_boundary_and_its_occurrence(monkeypatch, text, expected):
    """`side:step#n`, and without a number the first time."""
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
    """In a real run nothing happens at a boundary."""
    monkeypatch.delenv(KILL_VARIABLE, raising=False)
    assert cross_freely is boundary_from_environment()


def test_the_kill_strikes_at_that_occurrence_of_any_table():
    """A name without its table means any, and the n-th time is counted over all of them."""
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
    """A step that fails crosses no boundary after it."""
    crossed: list[str] = []
    with pytest.raises(ZeroDivisionError), around(crossed.append, "Step"):
        raise ZeroDivisionError
    assert ["before:Step"] == crossed


def test_an_interrupt_asks_to_stop_and_the_handlers_come_back():
    """Within the block SIGINT and SIGTERM only ask for a stop. After it they have their old handlers."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    asked: list[str] = []
    with stopping_on_interrupt(lambda: asked.append("stop")):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert ["stop", "stop"] == asked
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_a_second_ctrl_c_ends_the_process_at_once():
    """A user who presses Ctrl-C again does not want to wait."""
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
    """An exception of a listener is logged. Later events are still told, in order."""
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
