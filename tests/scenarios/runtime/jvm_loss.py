"""A program that other processes start: one tick on Spark that loses its JVM in mid-work, and restarts.

`python jvm_loss.py WAREHOUSE` prints the tick's outcome as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark import SparkContext

from checkpointing.config import CheckpointConfig
from jobs.spark.session import SparkConfig
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.scenarios.runtime.sequence_job import CONFIG, build

LOST_AT = 3
"""The micro-batch before which the JVM is killed."""


class LosesJvm:
    """A boundary at which the JVM dies once."""

    def __init__(self) -> None:
        """It still lives."""
        self._left = LOST_AT

    def __call__(self, name: str) -> None:
        """Count the micro-batches."""
        if name == "before:RunMicroBatch":
            self._left -= 1
            if self._left == 0:
                os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)


def main() -> None:
    """Run one tick and print what became of it."""
    restarts = {"restart_strategy": "fixed_delay", "restart_attempts": 1, "restart_delay_ms": 0}
    config = CheckpointConfig(**(CONFIG.model_dump() | restarts))
    settings = RuntimeSettings(warehouse=Path(sys.argv[1]), spark=SparkConfig(cores=1, memory="512m"))
    report = run_tick(build(config=config), settings, boundary=LosesJvm())
    print(json.dumps({"outcome": report.outcome.value, "restarts": report.restarts, "message": report.message}))


if __name__ == "__main__":
    main()
