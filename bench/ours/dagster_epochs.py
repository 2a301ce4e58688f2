"""Measures what Dagster adds to an epoch: a tick of the tiny job runs as a Dagster job, or as the command line runs it.

`python -m bench.ours.dagster_epochs --by dagster|command` prints the seconds from one recorded cut to the next. The
last figure ends when the tick returns, because the tick's listener may run after the cut is recorded.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import dagster as dg
from rich.console import Console

from bench.measures import caught_up, differences, print_result
from bench.tick_trace import commits
from bench.tiny_job import TinyEngine, pipeline
from jobs.cli.run import display_for
from jobs.launch import launch
from jobs.pipeline.job_plan import JobPlan
from jobs.settings import flags_layer
from jobs.showing.quantities import Tally
from jobs.tick.driver import Inbox
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from orchestration.pipelines import build_definitions
from tidemark import Pipeline

_EPOCHS: Final = 100
_REFERENCE: Final = "bench.ours.dagster_epochs:build"


def build(data: Path) -> Pipeline:
    """Return the tiny job."""
    del data
    return pipeline(_EPOCHS)


class _Runner:
    """Runs ticks without Spark, and keeps the times at which their cuts are recorded."""

    def __init__(self) -> None:
        self.cuts_s: list[float] = []

    def __call__(
        self,
        plan: JobPlan,
        settings: RuntimeSettings,
        listener: TickListener | None = None,
        *,
        inbox: Inbox | None = None,
    ) -> TickReport:
        """Run one tick."""
        report = caught_up(run_tick(plan, settings, listener, engine=TinyEngine(), inbox=inbox))
        ended_s = time.time()
        self.cuts_s = [one.recorded_ms / 1000 for one in commits(report.trace)] + [ended_s]
        return report


def main() -> None:
    """Measure one tick."""
    ways = {"dagster": _by_dagster, "command": _by_command}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=list(ways), required=True)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    runner = _Runner()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        ways[asked.by](Path(scratch), runner)
    first, last = runner.cuts_s[0], runner.cuts_s[-1]
    print_result(
        {
            "program": f"tidemark-epochs-by-{asked.by}",
            "seconds": differences(runner.cuts_s),
            "epoch_s": (last - first) / (_EPOCHS - 1),
        }
    )


def _by_dagster(scratch: Path, runner: _Runner) -> None:
    definitions = build_definitions(_REFERENCE, runner=runner)
    config = {"warehouse": str(scratch / "warehouse")}
    with dg.DagsterInstance.local_temp(str(scratch)) as instance:
        definitions.resolve_job_def("tiny_tick").execute_in_process(
            run_config={"ops": {"tiny": {"config": config}}}, instance=instance
        )


def _by_command(scratch: Path, runner: _Runner) -> None:
    started = launch(_REFERENCE, flags_layer({"warehouse": scratch / "warehouse"}))
    with Path(os.devnull).open("w") as nowhere, display_for(Console(file=nowhere), Tally()) as display:
        runner(started.plan, started.runtime(), display)


if __name__ == "__main__":
    main()
