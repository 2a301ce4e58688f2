"""Measures the keyed sums in Flink SQL: rows from CSV, a checkpoint every second, a black-hole sink.

This program runs in Flink's own environment, which `make bench` creates. So it imports nothing of this project. Flink
writes no table here, which is an advantage for Flink. It prints the seconds from the job's submission to its end.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

_EVENTS: Final = """
create table events (k bigint, v bigint) with ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv')
"""
_SUMS: Final = """
create table sums (k bigint, n bigint, total bigint, primary key (k) not enforced) with ('connector' = 'blackhole')
"""
_TIMES: Final = """
create table times (k bigint, v bigint, ts timestamp(3), watermark for ts as ts - interval '10' second)
with ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv')
"""
_WINDOWS: Final = """
create table windows (k bigint, s timestamp(3), e timestamp(3), n bigint, total bigint) with ('connector' = 'blackhole')
"""
_OF: Final = {
    "hourly": "tumble(table times, descriptor(ts), interval '1' hour)",
    "sessions": "session(table times partition by k, descriptor(ts), interval '10' minute)",
}


def main() -> None:
    """Measure one job over the whole workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=["rocksdb", "hashmap"], default="rocksdb")
    parser.add_argument("--windows", choices=sorted(_OF))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--mini-batch", action="store_true")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        tables = _environment(asked, scratch)
        of_rows, to_sums = (_TIMES, _WINDOWS) if asked.windows else (_EVENTS, _SUMS)
        tables.execute_sql(of_rows.format(folder=asked.folder.absolute() / "all"))
        tables.execute_sql(to_sums)
        query = "insert into sums select k, count(*), sum(v) from events group by k"
        if asked.windows:
            by = "k, window_start, window_end"
            query = f"insert into windows select {by}, count(*), sum(v) from {_OF[asked.windows]} group by {by}"  # noqa: S608
        started = time.monotonic()
        tables.execute_sql(query).wait()
        total_s = time.monotonic() - started
    program = f"flink-sql-{asked.windows or 'sums'}-{asked.backend}{'-mini-batch' if asked.mini_batch else ''}"
    sys.stdout.write(json.dumps({"program": program, "total_s": total_s}) + "\n")


def _environment(asked: argparse.Namespace, scratch: str) -> TableEnvironment:
    configuration = Configuration()
    settings = {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{scratch}",
        "state.backend.type": asked.backend,
        "parallelism.default": str(asked.cores),
        "taskmanager.memory.process.size": "4g",
        "taskmanager.memory.managed.size": "1g",
        "table.exec.mini-batch.enabled": str(asked.mini_batch).lower(),
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
    }
    for name, value in settings.items():
        configuration.set_string(name, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )


if __name__ == "__main__":
    main()
