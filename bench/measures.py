"""Figures: what is taken of a series, and how a program hands them on."""

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
from jobs.runtime.listener import Progress, SparkStarted, TickListener
from jobs.runtime.report import TickReport


class FailedTickError(RuntimeError):
    """A measured tick did not catch up."""


class Laps(TickListener):
    """A tick's listener that notes when each checkpoint was complete, published and told."""

    def __init__(self) -> None:
        """Begin with the present moment."""
        self._at = [time.monotonic()]
        self._cpu = [cpu_seconds(os.getpid())]
        self.spark_start_s = 0.0
        """What Spark's start took, which is no row's cost."""

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Note time and CPU time."""
        del record, notes, versions
        self._at.append(time.monotonic())
        self._cpu.append(cpu_seconds(os.getpid()))

    def progress(self, progress: Progress) -> None:
        """Note what Spark's start took."""
        if isinstance(progress, SparkStarted):
            self.spark_start_s += progress.duration_ms / 1000

    @property
    def seconds(self) -> list[float]:
        """Seconds from one completion to the next; the first is from the start."""
        return differences(self._at)

    @property
    def cpu_seconds(self) -> list[float]:
        """CPU seconds of the whole process tree from one completion to the next."""
        return differences(self._cpu)


def differences(series: Sequence[float]) -> list[float]:
    """Return each figure less the one before it."""
    return [round(later - earlier, 4) for earlier, later in itertools.pairwise(series)]


def steady(series: Sequence[float], warm_up: int) -> list[float]:
    """Return the series without its first figures; raise ValueError if none is left."""
    if len(series) <= warm_up:
        raise ValueError(f"{len(series)} figures are no more than the {warm_up} of the warm-up")
    return list(series[warm_up:])


def spread(series: Sequence[float]) -> float:
    """Return the largest figure less the smallest."""
    return max(series) - min(series)


def middle(series: Sequence[float]) -> float:
    """Return the median."""
    return float(median(series))


def print_result(result: Mapping[str, object]) -> None:
    """Print a program's result as the one JSON line that the runner reads."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def caught_up(report: TickReport) -> TickReport:
    """Return the report of a measured tick; raise FailedTickError unless it caught up: no figure of it counts."""
    if report.outcome is not TickOutcome.CAUGHT_UP:
        raise FailedTickError(f"{report.outcome.value}: {report.message}")
    return report
