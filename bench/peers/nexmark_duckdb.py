"""Measures DuckDB's batch answers of all Nexmark queries over the same files, as an estimate of the lower limit.

It writes each answer as Parquet. It prints, for each query, the seconds, the CPU seconds and the bytes of the answer.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from bench.measures import print_result
from bench.nexmark.answers import QUERIES, opened


def main() -> None:
    """Measure each answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        for name, query in QUERIES.items():
            db = opened(asked.folder)
            db.execute(f"SET threads = {asked.cores}")
            out = Path(scratch, f"{name}.parquet")
            text = str(out).replace("'", "''")
            cpu, started = _cpu(), time.monotonic()
            db.execute(f"COPY ({query}) TO '{text}' (FORMAT parquet)")
            found[name] = {
                "total_s": time.monotonic() - started,
                "cpu_s": _cpu() - cpu,
                "bytes": out.stat().st_size,
            }
            db.close()
            out.unlink()
    print_result({"program": "nexmark-duckdb", "by_query": found})


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    main()
