"""Measures the keyed count and sum on a standalone cluster: workers of one core each, input and tables in an S3 server.

`python -m bench.ours.cluster_sums FOLDER --workers N` starts the S3 server and the cluster on this machine, copies the
input into the store, and runs one tick. It prints the seconds from each completed checkpoint to the next, and the CPU
seconds of driver, store and executors in that time.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench.changed_keys import totals_shown
from bench.measures import FailedTickError, Laps, caught_up, differences, print_result
from bench.ours.keyed_sums import SUMS
from bench.process_tree import cpu_seconds
from bench.workload import SPLIT, require_totals
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.storage.address import StoreUrl
from jobs.storage.place import place_in
from jobs.tick.tick import run_tick
from tests import spark_cluster
from tests.object_store import Server, serving
from tests.wheel_environment import linked

_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = ("checkpointing", "jobs", "tidemark")
_LAKE: Final = StoreUrl("s3://lake")
_EVERY_ROWS: Final = 1_000_000
"""Two files, so that each of two workers scans one of them."""

Cpu = Callable[[], Mapping[str, float]]


class PartLaps(Laps):
    """Records the CPU seconds of each part of the system when each checkpoint was published."""

    def __init__(self, cpu: Cpu) -> None:
        """Record the present figures."""
        super().__init__()
        self._now = cpu
        self._parts = [cpu()]

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record the time and the CPU times."""
        super().completed(record, notes, versions)
        self._parts.append(self._now())

    @property
    def parts(self) -> dict[str, list[float]]:
        """CPU seconds of each part, from one completion to the next."""
        return {name: differences([each[name] for each in self._parts]) for name in self._parts[0]}


def main() -> None:
    """Measure one tick."""
    asked = _arguments()
    if lack := spark_cluster.why_not():
        raise FailedTickError(lack)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, serving() as server:
        server.make_bucket("lake")
        os.environ.update(server.environment | {"SPARK_LOCAL_IP": "127.0.0.1"})
        _copy(asked.folder)
        folder = Path(scratch, "cluster")
        folder.mkdir()
        env = _environment(Path(scratch, "env"))
        with spark_cluster.running(folder, env, server.environment, workers=asked.workers) as cluster:
            os.environ["PYSPARK_PYTHON"] = str(spark_cluster.PYTHON)
            laps = PartLaps(_cpu(server, cluster))
            given = flags_layer(
                {
                    "data": _LAKE / "input",
                    "warehouse": _LAKE / "warehouse",
                    "spark_master": cluster.master,
                    "spark_cores": asked.workers,
                    "spark_memory": "1g",
                    "every_rows": _EVERY_ROWS,
                    "slice_rows_max": _EVERY_ROWS,
                }
            )
            launched = launch("bench.ours.keyed_sums:build", given)
            caught_up(run_tick(launched.plan, launched.runtime(), laps))
        require_totals(asked.folder, totals_shown(_LAKE / "warehouse" / "gold" / SUMS.rpartition("/")[2]))
    print_result(
        {
            "program": "tidemark-cluster-sums",
            "workers": asked.workers,
            "seconds": laps.seconds,
            "cpu_seconds": laps.cpu_seconds,
            "parts": laps.parts,
        }
    )


def _copy(folder: Path) -> None:
    """Copy the input into the store."""
    place = place_in(_LAKE, "").storage
    for path in sorted((folder / SPLIT).iterdir()):
        place.write(f"input/{SPLIT}/{path.name}", path.read_bytes())


def _environment(to: Path) -> Path:
    """Return a copy of this environment that holds this checkout's packages, since workers do not see the checkout."""
    linked(Path(sys.prefix), to)
    (packages,) = to.glob("lib/python3.*/site-packages")
    for name in _OURS:
        shutil.copytree(_ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    return to


def _cpu(server: Server, cluster: spark_cluster.Cluster) -> Cpu:
    """Return a function that returns the CPU seconds of each part so far. All parts are descendants of this process.

    The executors are the children of the workers. Master and workers only start them, and count as driver.
    """

    def now() -> dict[str, float]:
        store = cpu_seconds(server.pid)
        executors = sum(cpu_seconds(pid) for pid in cluster.executors())
        return {"driver": cpu_seconds(os.getpid()) - store - executors, "store": store, "executors": executors}

    return now


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
