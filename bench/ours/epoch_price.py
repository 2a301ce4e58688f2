"""Measures what an epoch costs: seconds, CPU seconds by process, Spark jobs, and bytes that Spark itself moved.

`python -m bench.ours.epoch_price sums FOLDER` runs the keyed sums over a folder of the workload. `... flights FOLDER`
runs the demo's whole pipeline over the folder that `jobs.pipelines.flights_data` wrote.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext

from bench.measures import Laps, caught_up, differences, print_result
from bench.process_tree import cpu_seconds_by_kind
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.tick.tick import run_tick

_PIPELINES: Final = {"sums": "bench.ours.keyed_sums:build", "flights": "flights"}
_MOVED: Final = ("inputBytes", "shuffleReadBytes", "shuffleWriteBytes")


class Prices(Laps):
    """Records at each completed checkpoint what all processes and Spark have done so far."""

    def __init__(self) -> None:
        """Start without any checkpoint."""
        super().__init__()
        self._cpu_by_kind: list[Mapping[str, float]] = []
        self._jobs: list[int] = []
        self._moved: list[int] = []

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record what has been done."""
        super().completed(record, notes, versions)
        self._cpu_by_kind.append(cpu_seconds_by_kind(os.getpid()))
        new = _bytes_moved_by_jobs(self._jobs[-1] if self._jobs else 0)
        self._jobs.append((self._jobs[-1] if self._jobs else 0) + len(new))
        self._moved.append((self._moved[-1] if self._moved else 0) + sum(new))

    @property
    def cpu_by_kind(self) -> dict[str, list[float]]:
        """CPU seconds of the driver, the JVM and the Python workers, from one completion to the next."""
        kinds = sorted({kind for each in self._cpu_by_kind for kind in each})
        return {kind: differences([each.get(kind, 0.0) for each in self._cpu_by_kind]) for kind in kinds}

    @property
    def jobs(self) -> list[float]:
        """Spark jobs that were begun from one completion to the next."""
        return differences(self._jobs)

    @property
    def moved_bytes(self) -> list[float]:
        """Bytes that Spark's tasks read from files and sent through exchanges, from one completion to the next."""
        return differences(self._moved)


def _bytes_moved_by_jobs(after: int) -> list[int]:
    """Return how many bytes the stages of each job have read and exchanged so far, without the first `after` jobs."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - the tick keeps its session to itself
    if context is None:
        return []
    store: Any = context._jsc.sc().statusStore()  # noqa: SLF001
    newest_first = store.jobsList(None)
    return [_bytes_moved(store, newest_first.apply(place)) for place in range(newest_first.size() - after)]


def _bytes_moved(store: Any, job: Any) -> int:  # noqa: ANN401 - of the JVM
    stages = job.stageIds()
    of = [store.lastStageAttempt(stages.apply(place)) for place in range(stages.size())]
    return sum(getattr(stage, name)() for stage in of for name in _MOVED)


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", choices=sorted(_PIPELINES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        prices = Prices()
        given = flags_layer({"data": asked.folder, "warehouse": Path(scratch), "spark_cores": asked.cores})
        launched = launch(_PIPELINES[asked.pipeline], given)
        caught_up(run_tick(launched.plan, launched.runtime(), prices))
    print_result(
        {
            "program": f"tidemark-price-{asked.pipeline}",
            "seconds": prices.seconds[1:],
            "cpu_seconds": prices.cpu_seconds[1:],
            "cpu_by_kind": prices.cpu_by_kind,
            "jobs": prices.jobs,
            "moved_bytes": prices.moved_bytes,
        }
    )


if __name__ == "__main__":
    main()
