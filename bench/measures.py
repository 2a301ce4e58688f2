"""Computes figures from series, and prints a program's result."""

import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

from bench.process_tree import cpu_seconds
from checkpointing.identifiers import TableName
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord
from jobs.tick.listener import Progress, SparkStarted, TickListener
from jobs.tick.tick_settings import TickReport


class FailedTickError(RuntimeError):
    """The measured tick did not catch up."""


class Laps(TickListener):
    """Receives a tick's progress, and records when each checkpoint was complete and published."""

    def __init__(self) -> None:
        """Start at the present time."""
        self._at = [time.monotonic()]
        self._cpu = [cpu_seconds(os.getpid())]
        self.spark_start_s = 0.0
        """The time that Spark's start took. It is left out of the figures of every row of the results."""

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record the time and the CPU time."""
        del record, notes, versions
        self._at.append(time.monotonic())
        self._cpu.append(cpu_seconds(os.getpid()))

    def progress(self, progress: Progress) -> None:
        """Record the time that Spark's start took."""
        if isinstance(progress, SparkStarted):
            self.spark_start_s += progress.duration_ms / 1000

    @property
    def seconds(self) -> list[float]:
        """Seconds from one completion to the next. The first figure begins at the start."""
        return differences(self._at)

    @property
    def cpu_seconds(self) -> list[float]:
        """CPU seconds of all processes of the program, from one completion to the next."""
        return differences(self._cpu)


def differences(series: Sequence[float]) -> list[float]:
    """Return the differences between consecutive figures."""
    return [round(later - earlier, 4) for earlier, later in itertools.pairwise(series)]


def steady(series: Sequence[float], warm_up: int) -> list[float]:
    """Return the series without its first figures. Raise ValueError if none is left."""
    if len(series) <= warm_up:
        raise ValueError(f"{len(series)} figures are no more than the {warm_up} of the warm-up")
    return list(series[warm_up:])


def spread(series: Sequence[float]) -> float:
    """Return the difference between the largest and the smallest figure."""
    return max(series) - min(series)


def middle(series: Sequence[float]) -> float:
    """Return the median."""
    return float(median(series))


def print_result(result: Mapping[str, object]) -> None:
    """Print a program's result as one line of JSON, which the runner reads."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def caught_up(report: TickReport) -> TickReport:
    """Return the report of a measured tick.

    Raise FailedTickError unless the tick caught up, or its sources ended, since otherwise no figure counts.
    """
    if report.outcome not in (TickOutcome.CAUGHT_UP, TickOutcome.FINISHED):
        raise FailedTickError(f"{report.outcome.value}: {report.message}")
    return report
