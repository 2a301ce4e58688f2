"""Runs functions of tests in other processes, and kills ticks: by SIGKILL, or by an exception in this process.

The processes are forked from a warm server. It has imported all modules but opened no table, since delta-rs and Polars
start threads that do not survive a fork. If such a process is killed, only the Spark jobs that it left to a Connect
server go on.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jobs.tick.tick_settings import TickReport
from jobs.warehouse.boundaries import KILL_VARIABLE
from jobs.warehouse.refusals import JobHeldError

WAIT_S = 280
KILLED = -signal.SIGKILL

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "great_expectations.core.expectation_suite",
        "great_expectations.execution_engine.pandas_execution_engine",
        "pyspark.sql.connect.dataframe",
        "pyspark.sql.connect.session",
        "tests.scenarios.faults.orders_job",
        "tests.scenarios.runtime.sequence_job",
    ]
)


@dataclass(frozen=True)
class Ended:
    """A process's exit code, and its function's result or its tick's report.

    `said` is empty if the process died before its function returned.
    """

    code: int
    said: Mapping[str, Any] = field(default_factory=dict)


class Running:
    """Runs a function in a process with a copy of the environment. Its ticks are killed at the boundary `kill_at`."""

    def __init__(self, function: Callable[..., object], *given: object, kill_at: str = "", **named: object) -> None:
        self._answer, said = _SERVER.Pipe(duplex=False)
        environment = os.environ | {KILL_VARIABLE: kill_at}
        self.process = _SERVER.Process(target=_main, args=(function, given, named, environment, said))
        self.process.start()
        said.close()

    def wait(self) -> Ended:
        try:
            self.process.join(WAIT_S)
            if self.process.exitcode is None:
                raise TimeoutError(f"process {self.process.pid} did not end in {WAIT_S} s")
            said = self._answer.recv() if self._answer.poll() else {}
        except EOFError:
            said = {}
        finally:
            self.process.kill()
            self._answer.close()
        return Ended(self.process.exitcode, said)


def killed(function: Callable[..., object], *given: object, **named: object) -> None:
    assert Ended(KILLED) == Running(function, *given, **named).wait()


def _main(
    function: Callable[..., object],
    given: tuple[object, ...],
    named: Mapping[str, object],
    environment: Mapping[str, str],
    said: Connection,
) -> None:
    os.environ.update(environment)
    try:
        answer = function(*given, **named)
    except JobHeldError as held:
        said.send({"held": str(held), "pid": held.holder.pid})
        sys.exit(3)
    said.send(_told(answer) if isinstance(answer, TickReport) else answer)


def _told(report: TickReport) -> dict[str, Any]:
    rows = {record.checkpoint: record.statistics.rows for record in report.completed}
    return {"outcome": report.outcome.value, "message": report.message, "restarts": report.restarts, "rows": rows}


def wait_for(path: Path) -> None:
    limit = time.monotonic() + WAIT_S / 2
    while not path.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"{path} never came")
        time.sleep(0.02)


class Dead(BaseException):
    """Plays the death of a process. It is raised at each later boundary too, so no later effect is carried out."""


class Mortal:
    """Raises `Dead` when a tick crosses one boundary for the n-th time, and from then on at every boundary."""

    def __init__(self, name: str, occurrence: int = 1) -> None:
        self.dead = False
        self._name = name
        self._left = occurrence

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            self.dead = self.dead or self._left == 0
        if self.dead:
            raise Dead(name)
