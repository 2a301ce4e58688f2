"""The job `numbers` with a master hook that writes its calls to a file outside the warehouse."""

import json
import time
from pathlib import Path

from jobs.pipeline import Pipeline
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.pipeline import MasterHook
from jobs.pipeline.planning import plan
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from tests.scenarios.runtime.sequence_job import CONFIG, LocalEngine, declared

LONG_S = 600


class Notebook(MasterHook):
    """Writes a line of JSON for each call: the method, the checkpoint and the state.

    Its state counts the checkpoints that it was asked for since the last reset. It calls `does` with each checkpoint.
    """

    def __init__(self, path: Path, does=lambda checkpoint: None) -> None:
        self._path, self._does = path, does
        self._asked = 0

    def trigger_checkpoint(self, checkpoint, timestamp_ms):
        self._does(checkpoint)
        self._asked += 1
        self._write("trigger", checkpoint, self._asked)
        return {"asked": self._asked}

    def restore_checkpoint(self, checkpoint, state):
        self._asked = 0 if state is None else state["asked"]
        self._write("restore", checkpoint, state)

    def reset(self):
        self._asked = 0
        self._write("reset", None, None)

    def close(self):
        self._write("close", None, None)

    def _write(self, *line):
        with self._path.open("a") as notes:
            notes.write(json.dumps(line) + "\n")


def hooked(*hooks: tuple[str, MasterHook], config=CONFIG, timeout_s: float = 30.0) -> JobPlan:
    return plan(with_hooks(declared(config=config), *hooks, timeout_s=timeout_s))


def with_hooks(pipeline: Pipeline, *hooks: tuple[str, MasterHook], timeout_s: float = 30.0) -> Pipeline:
    for name, hook in hooks:
        assert pipeline.hook(name, hook, timeout_s=timeout_s) is pipeline
    return pipeline


def notes(path: Path) -> list[list[object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tick(warehouse: Path, notebook: Path, *, hangs: bool = False) -> TickReport:
    """Run one tick without Spark. With `hangs` the hook never answers."""
    hook = Notebook(notebook, lambda _: time.sleep(LONG_S) if hangs else None)
    planned = hooked(("notebook", hook), timeout_s=0.2 if hangs else 30.0)
    return run_tick(planned, RuntimeSettings(warehouse=warehouse, drain_ms=200), engine=LocalEngine())
