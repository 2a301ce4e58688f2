"""SIGTERM ends a process in time, whatever its main thread waits for."""

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import signal, socket, sys, threading
from jobs.tick.interrupts import Deadline, stopping_on_interrupt
deadline = Deadline(lambda said: print(said, file=sys.stderr, flush=True), 0.5)
with stopping_on_interrupt(lambda: print("asked", flush=True)):
    print("ready", flush=True)
    HANGS
"""
NEVER = "a, b = socket.socketpair()\n    while True:\n        a.recv(1)"
LATE = "deadline.done(7)\n    threading.Event().wait()"


def ended(hangs: str) -> tuple[int, str, str, float]:
    """Start the program, send SIGTERM, and return its exit code, what it said, and how long it took to end."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("HANGS", hangs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout.readline() == "ready\n"
    begun = time.monotonic()
    program.send_signal(signal.SIGTERM)
    out, said = program.communicate(timeout=60)
    return program.returncode, out, said, time.monotonic() - begun


@pytest.mark.timeout(120)
def test_a_tick_that_does_not_stop_is_ended_with_a_sentence():
    """Its main thread waits for a socket. It is asked to stop first, and gets its time."""
    code, out, said, took_s = ended(NEVER)
    assert (128 + signal.SIGTERM, "asked\n") == (code, out)
    assert "ended by SIGTERM: something did not stop" in said
    assert "the next tick takes over" in said
    assert 0.5 <= took_s < 10


@pytest.mark.timeout(120)
def test_a_command_that_is_done_keeps_its_exit_code():
    """Only a thread of it hangs, such as one that waits for a server. Nothing more is said."""
    assert (7, "") == ended(LATE)[::2][:2]
