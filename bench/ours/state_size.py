"""Measures the cost of state by size: a tick writes every key, another changes some keys, and others restore them.

`python -m bench.ours.state_size --keys N --touched M` takes checkpoints of 100,000 rows over M of the N keys. It prints
the time of each checkpoint after its last micro-batch, the seconds from one checkpoint to the next, and the time from
the start of a restore to the first micro-batch. It compares the output table with the totals of the input.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from bench.changed_keys import totals_shown
from bench.measures import Laps, caught_up, print_result
from bench.ours.keyed_sums import SUMS
from bench.process_tree import peak_memory_bytes
from bench.tick_trace import commits, first_micro_batch_ms
from bench.workload import SPLIT, Totals, Workload, WrongTotalsError, lay_out, totals_of
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.spark.session import SparkConfig, open_session
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import TickReport

_ROWS: Final = 100_000
_EPOCHS: Final = 24
_RESTORES: Final = 3
_SEED_ROWS: Final = 1_000_000


def main() -> None:
    """Measure one size of the state."""
    asked = _arguments()
    every = Workload(
        rows=min(asked.keys, _SEED_ROWS), files=-(-asked.keys // _SEED_ROWS), keys=asked.keys, in_order=True
    )
    some = Workload(rows=_ROWS, files=_EPOCHS + _RESTORES, keys=asked.keys, touched=asked.touched)
    seed, touching = (lay_out(workload, asked.data) for workload in (every, some))
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        (Path(scratch) / "in" / SPLIT).mkdir(parents=True)
        spark = open_session(SparkConfig(cores=asked.cores, memory=asked.memory))
        try:
            result = _measured(Path(scratch), seed / SPLIT, touching / SPLIT, spark)
        finally:
            spark.stop()
        _require(Path(scratch), totals_of(seed), totals_of(touching))
    print_result({"program": f"tidemark-state-{asked.keys}-keys-{asked.touched}-touched", **result})


def _measured(scratch: Path, seed: Path, touching: Path, spark: SparkSession) -> dict[str, object]:
    _bring(scratch, sorted(seed.iterdir()), "a")
    _tick(scratch, spark, Laps(), rows=2 * _SEED_ROWS)
    files, laps = sorted(touching.iterdir()), Laps()
    _bring(scratch, files[:_EPOCHS], "b")
    measured = commits(_tick(scratch, spark, laps, rows=_ROWS).trace)
    restores = []
    for place, file in enumerate(files[_EPOCHS:]):
        _bring(scratch, [file], f"c{place}")
        started_ms = time.time_ns() / 1_000_000
        report = _tick(scratch, spark, Laps(), rows=_ROWS)
        restores.append((first_micro_batch_ms(report.trace) - started_ms) / 1000)
    return {
        "seconds": laps.seconds,
        "cpu_seconds": laps.cpu_seconds,
        "commits_ms": [one.whole_ms for one in measured],
        "append_ms": [one.appended_ms - one.sent_ms for one in measured],
        "publish_ms": [one.published_ms - one.appended_ms for one in measured],
        "cut_ms": [one.recorded_ms - one.published_ms for one in measured],
        "restore_s": restores,
        "peak_memory_bytes": peak_memory_bytes(os.getpid()),
    }


def _tick(scratch: Path, spark: SparkSession, laps: Laps, *, rows: int) -> TickReport:
    given = flags_layer(
        {
            "data": scratch / "in",
            "warehouse": scratch / "warehouse",
            "every_rows": rows,
            "slice_rows_max": min(rows, _SEED_ROWS),
            "micro_batch_rows_max": max(rows, _SEED_ROWS),
        }
    )
    launched = launch("bench.ours.keyed_sums:build", given)
    return caught_up(run_tick(launched.plan, launched.runtime(), laps, spark=spark))


def _bring(scratch: Path, files: list[Path], prefix: str) -> None:
    """Add these files to the source's split, after the files that the split has."""
    for file in files:
        shutil.copyfile(file, scratch / "in" / SPLIT / f"{prefix}-{file.name}")


def _require(scratch: Path, seed: Totals, touching: Totals) -> None:
    """Raise WrongTotalsError unless the table has every key once, with the changes of the touched keys."""
    expected = Totals(seed.rows + touching.rows, seed.keys, touching.total)
    found = totals_shown(scratch / "warehouse" / SUMS)
    if found != expected:
        raise WrongTotalsError(f"laid out {expected}, found {found}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--touched", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
