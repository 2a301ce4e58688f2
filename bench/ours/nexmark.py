"""Measures a query of Nexmark in a tick: a checkpoint after a number of bids, tables in Delta.

`python -m bench.ours.nexmark DATA --query q5` runs the query over the first files, so that Spark has started. Then it
runs over all files in a new warehouse, and prints the seconds and CPU seconds of that tick. It compares the table with
DuckDB's answer: up to `EXACT_ROWS` bids every row, and above only the number of rows.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from bench.measures import Laps, caught_up, print_result
from bench.nexmark.answers import QUERIES as ANSWERS
from bench.nexmark.answers import number_of_rows
from bench.nexmark.exact import NAMES, InexactError, judge
from bench.nexmark.generate import KINDS, first_files
from bench.nexmark.queries import epochs_of
from bench.process_tree import cpu_seconds, peak_memory_bytes
from jobs.launch import Launch, launch
from jobs.settings import flags_layer
from jobs.testing.trial import session_for
from jobs.tick.tick import run_tick
from tidemark import Cuts

EXACT_ROWS: Final = 2_000_000


def main() -> None:
    """Measure one query over the whole data."""
    asked = _arguments()
    os.environ[NAMES] = asked.query
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        scratch = Path(folder)
        few = first_files(asked.folder)
        warm_up, whole = (_launched(asked, data, scratch / name) for data, name in ((few, "warm"), (asked.folder, "w")))
        spark = session_for(whole.plan.sources.values(), whole.settings)
        caught_up(run_tick(warm_up.plan, warm_up.runtime(), spark=spark))
        laps, cpu, started = Laps(), cpu_seconds(os.getpid()), time.monotonic()
        caught_up(run_tick(whole.plan, whole.runtime(), laps, spark=spark))
        total_s = time.monotonic() - started
        result = {
            "program": f"nexmark-tidemark-{asked.query}",
            "total_s": total_s,
            "cpu_s": cpu_seconds(os.getpid()) - cpu,
            "peak_memory_bytes": peak_memory_bytes(os.getpid()),
            "seconds": laps.seconds,
            "disk_bytes": bytes_below(scratch / "w"),
            "input_bytes": sum(bytes_below(asked.folder / kind) for kind in KINDS),
            "rows": _checked(asked, scratch / "w"),
        }
        spark.stop()
    print_result(result)


def bytes_below(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _launched(asked: argparse.Namespace, data: Path, warehouse: Path) -> Launch:
    given = {"data": data, "warehouse": warehouse, "spark_cores": asked.cores, "parallelism": asked.cores}
    given |= {"spark_memory": asked.memory} | epochs_of([asked.query], asked.every_bids)
    return launch("bench.nexmark.exact:asked", flags_layer(given))


def _checked(asked: argparse.Namespace, warehouse: Path) -> int:
    """Return the number of rows of the table. Raise InexactError if the rows differ from the answer."""
    cut = Cuts(warehouse, "nexmark").latest()
    bids = sum(pq.read_metadata(file).num_rows for file in (asked.folder / "bid").glob("*.parquet"))
    if bids <= EXACT_ROWS:
        return judge(asked.query, cut, asked.folder)
    rows = cut.arrow(f"nexmark/{asked.query}").num_rows
    wanted = number_of_rows(asked.folder, ANSWERS[asked.query])
    if rows != wanted and asked.query != "q12":
        raise InexactError(f"{asked.query} has {rows} rows, and its answer {wanted}")
    return int(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--query", choices=sorted(ANSWERS), required=True)
    parser.add_argument("--every-bids", type=int, default=500_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
