"""Makes one input slow, and a tick die at a chosen moment, for the tests of the modes."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from checkpointing.identifiers import JobName, VertexId
from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from jobs.operators.spec import VertexPlan
from jobs.tick.engine import Engine
from tests.scenarios.processes import Dead

WEATHER = VertexId("bronze_weather")
LATE = (1, 3)
REST_S = 0.8
"""Longer than a commit takes. No micro-batch runs during a commit either."""
LOOK_AGAIN_S = 0.02

Due = Callable[[str, "Fate"], bool]
"""Takes a boundary's name and the tick's fate so far. Returns True if the tick dies there."""


class SlowWeather:
    """An engine that delays the first and the third micro-batch of the weather.

    Each waits until nothing else runs, or until a checkpoint is declined. By then the flights have passed the barrier
    that the weather has not reached, and have gone on as far as they can. So the test does not depend on the speed of
    the machine.
    """

    def __init__(self, engine: Engine, fate: "Fate") -> None:
        self._engine = engine
        self._fate = fate
        self._lock = threading.Lock()
        self._running = 0
        self._rested_since = time.monotonic()

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Path, job: JobName) -> MicroBatchFinished:
        if effect.vertex == WEATHER and effect.micro_batch in LATE:
            self._wait_for_rest()
        with self._lock:
            self._running += 1
        try:
            return self._engine.run(plan, effect, warehouse, job)
        finally:
            with self._lock:
                self._running -= 1
                self._rested_since = time.monotonic()

    def close(self) -> None:
        self._engine.close()

    def _wait_for_rest(self) -> None:
        declined = self._fate.declined
        self._rested_since = time.monotonic()
        while self._fate.declined == declined and not self._fate.dead and not self._has_rested():
            time.sleep(LOOK_AGAIN_S)

    def _has_rested(self) -> bool:
        return not self._running and time.monotonic() - self._rested_since > REST_S


@dataclass
class Fate:
    """Follows a tick over its boundaries: counts declined checkpoints, and lets the tick die once `due` returns True.

    The process dies by SIGKILL, or the tick only pretends: from then on nothing that it does reaches the outside.
    """

    root: Path
    due: Due = lambda *_: False
    for_good: bool = False
    dead: bool = False
    declined: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, name: str) -> None:
        with self._lock:
            self.declined += name == "after:NotifyAborted"
            self.dead = self.dead or self.due(name, self)
        if self.dead and self.for_good:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.dead:
            raise Dead(name)
