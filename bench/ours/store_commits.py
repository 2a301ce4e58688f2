"""Measures checkpoints on an object store that takes 30 ms for each request: their time, and their chains of requests.

`python -m bench.ours.store_commits --checkpoints N` prints two figures for each checkpoint of the flights' tables and
states. The first figure is the time from the checkpoint's last micro-batch to its cut, in ms. The second is the length
of the longest chain of requests, in which each request begins after the request before it has ended. Requests for the
lease, the trace and savepoint requests are left out, because no checkpoint waits for them.
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import Final

from bench.measures import Laps, caught_up, print_result
from bench.store_job import BUCKET, job, server_name, slow_store
from bench.tick_trace import commits
from bench.tiny_job import TinyEngine
from jobs.storage.address import StoreUrl
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.store_proxy import longest_chain

_MICRO_BATCH_S: Final = 0.5
_BESIDE: Final = ("/lease", "/requests", "/traces/")


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with slow_store() as slow:
        os.environ.update(slow.environment)
        settings = RuntimeSettings(warehouse=StoreUrl(f"s3://{BUCKET}/commits"), reader_grace_ms=None)
        engine = TinyEngine(lasts_s=_MICRO_BATCH_S)
        report = caught_up(run_tick(job(asked.checkpoints), settings, Laps(), engine=engine))
        requests = [each for each in slow.seen() if not any(word in each.key for word in _BESIDE)]
    times = commits(report.trace)
    chains = [
        [each for each in requests if one.worked_ms <= 1000 * each.began and 1000 * each.ended <= one.recorded_ms]
        for one in times
    ]
    print_result(
        {
            "program": "tidemark-store-commits",
            "server": server_name(),
            "commits_ms": [one.whole_ms for one in times],
            "check_ms": [one.sent_ms - one.checked_ms for one in times],
            "append_ms": [one.appended_ms - one.sent_ms for one in times],
            "publish_ms": [one.published_ms - one.appended_ms for one in times],
            "cut_ms": [one.recorded_ms - one.published_ms for one in times],
            "sequential": [longest_chain(chain) for chain in chains],
            "in_the_last": [
                [each.kind, each.key, round(1000 * each.began - times[-1].worked_ms)] for each in chains[-1]
            ],
            "requests": {kind: count / len(times) for kind, count in Counter(each.kind for each in requests).items()},
        }
    )


if __name__ == "__main__":
    main()
