"""Ticks in processes of their own, forked from a warm server that has imported everything and opened nothing.

A tick's process is a real one: it may be killed, and then nothing of it goes on but the Spark jobs that it
left to a Connect server.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from checkpointing.config import CheckpointConfig
from checkpointing.job.setup import TickLimits
from jobs.spark.session import SparkConfig
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import KILL_VARIABLE, boundary_from_environment
from jobs.warehouse.refusals import JobHeldError
from tests.scenarios.faults.orders_job import CONFIG, LocalEngine, build
from tests.scenarios.faults.strikes import Strike

WAIT_S = 280
KILLED = -signal.SIGKILL

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.scenarios.faults.warm"])


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a tick is to do: `kill_at` as TIDEMARK_KILL_AT has it; `strike` is called at each boundary before that.

    `notes` is a file that gets a line for each boundary crossed.
    """

    root: Path
    kill_at: str = ""
    connect_url: str | None = None
    take_over: bool = False
    limits: TickLimits = field(default_factory=TickLimits)
    config: CheckpointConfig = CONFIG
    rows: Mapping[str, int] | None = None
    notes: Path | None = None
    strike: Strike | None = None


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what its tick reported, if it lived to."""

    code: int
    said: Mapping[str, Any] = field(default_factory=dict)


class Running:
    """A tick on its way."""

    def __init__(self, order: Order) -> None:
        """Start it."""
        self._answer, said = _SERVER.Pipe(duplex=False)
        self.process = _SERVER.Process(target=_main, args=(order, said))
        self.process.start()
        said.close()

    def wait(self) -> Ended:
        """Return how it ended; a process that does not end in time is killed, and that is an error."""
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


def tick(order: Order) -> Ended:
    """Run one tick to its end, whichever that is."""
    return Running(order).wait()


def _main(order: Order, said: Connection) -> None:
    os.environ[KILL_VARIABLE] = order.kill_at
    settings = RuntimeSettings(
        warehouse=order.root,
        take_over=order.take_over,
        limits=order.limits,
        spark=SparkConfig(cores=2, connect_url=order.connect_url),
    )
    engine = LocalEngine() if order.connect_url is None else None
    try:
        report = run_tick(build(order.config, order.rows), settings, engine=engine, boundary=_boundary(order))
    except JobHeldError as held:
        said.send({"held": str(held), "pid": held.holder.pid})
        sys.exit(3)
    rows = {record.checkpoint: record.statistics.rows for record in report.completed}
    said.send({"outcome": report.outcome.value, "message": report.message, "rows": rows})


def _boundary(order: Order) -> Callable[[str], None]:
    """Strike, note and then perhaps die: all at one boundary, in this order."""
    kill = boundary_from_environment()

    def cross(name: str) -> None:
        if order.strike is not None:
            order.strike(name, order.root)
        if order.notes is not None:
            with order.notes.open("a") as file:
                file.write(f"{name}\n")
        kill(name)

    return cross
