"""Measures how long a tick on an object store (30 ms a request) takes to its first micro-batch, after many checkpoints.

`python -m bench.ours.store_starts --checkpoints N` takes N checkpoints of the flights in a folder, which then becomes
the content of the store. The folder lies in memory if the machine has such a place. Each further tick takes one
checkpoint, without a clean-up. For each of these ticks, it prints the seconds from its start to its first micro-batch,
and the longest chain of requests in that time.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from bench.measures import FailedTickError, Laps, print_result
from bench.store_job import BUCKET, job, scratch_folder, server_name, slow_store
from bench.tick_trace import first_micro_batch_ms
from bench.tiny_job import TinyEngine
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from jobs.pipeline.job_plan import JobPlan
from jobs.storage.address import Root, StoreUrl
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from tests.store_proxy import Proxy, longest_chain

_TICKS: Final = 3
_PER_TICK: Final = 250
_PREFIX: Final = "starts"
_URL: Final = StoreUrl(f"s3://{BUCKET}/{_PREFIX}")


def main() -> None:
    """Measure the starts of some ticks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=1_000)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    planned = job(asked.checkpoints + _TICKS + 1)
    with tempfile.TemporaryDirectory(dir=asked.scratch or scratch_folder()) as scratch:
        _lay_out(planned, Path(scratch, BUCKET, _PREFIX), asked.checkpoints)
        with slow_store(Path(scratch)) as slow:
            os.environ.update(slow.environment)
            result = [_start(planned, slow) for _ in range(_TICKS)]
    print_result(
        {
            "program": "tidemark-store-starts",
            "server": server_name(),
            "start_s": [took for took, _, _ in result],
            "sequential": [chain for _, chain, _ in result],
            "requests": result[-1][2],
        }
    )


def _lay_out(planned: JobPlan, root: Path, checkpoints: int) -> None:
    """Take the checkpoints in a folder."""
    done = 0
    while done < checkpoints:
        done += len(_tick(planned, root, min(_PER_TICK, checkpoints - done)).completed)


def _start(planned: JobPlan, slow: Proxy) -> tuple[float, int, dict[str, int]]:
    """Run a tick of one checkpoint.

    Return the time of its start, the longest chain of requests in this time, and all requests.
    """
    started = time.time()
    began = first_micro_batch_ms(_tick(planned, _URL, 1, reader_grace_ms=None).trace) / 1000
    asked = [each for each in slow.seen() if started <= each.began and each.ended <= began]
    return began - started, longest_chain(asked), dict(Counter(each.kind for each in asked))


def _tick(planned: JobPlan, root: Root, checkpoints: int, *, reader_grace_ms: int | None = 0) -> TickReport:
    limits = TickLimits(checkpoints=checkpoints)
    settings = RuntimeSettings(warehouse=root, limits=limits, reader_grace_ms=reader_grace_ms)
    report = run_tick(planned, settings, Laps(), engine=TinyEngine())
    if report.outcome is TickOutcome.FAILED:
        raise FailedTickError(report.message)
    return report


if __name__ == "__main__":
    main()
