"""Measures the keyed sums in Flink SQL: rows from CSV, a checkpoint every second, a black-hole sink.

This program runs in Flink's own environment, which `make bench` creates. So it imports nothing of this project. Flink
writes no table here, which is an advantage for Flink. It prints the seconds from the job's submission to its end. With
`--warm-up`, it first runs a job over another folder, so that Flink has started.
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
create table {name} (k bigint, v bigint, ts timestamp(3), id bigint, watermark for ts as ts - interval '10' second)
with ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv')
"""
_WINDOWS: Final = """
create table windows (k bigint, s timestamp(3), e timestamp(3), n bigint, total bigint) with ('connector' = 'blackhole')
"""
_PAIRS: Final = """
create table pairs (k bigint, v bigint, ts timestamp(3), r_v bigint, r_ts timestamp(3)) with ('connector' = 'blackhole')
"""
_JOIN: Final = """
insert into pairs select l.k, l.v, cast(l.ts as timestamp(3)), r.v, cast(r.ts as timestamp(3)) from l, r
where l.k = r.k and r.ts between l.ts - interval '5' minute and l.ts + interval '5' minute
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
    parser.add_argument("--work", choices=[*_OF, "joined"])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--mini-batch", action="store_true")
    parser.add_argument("--warm-up", type=Path)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        if asked.warm_up is not None:
            _seconds(asked, asked.warm_up, scratch)
        total_s = _seconds(asked, asked.folder, scratch)
    program = f"flink-sql-{asked.work or 'sums'}-{asked.backend}{'-mini-batch' if asked.mini_batch else ''}"
    sys.stdout.write(json.dumps({"program": program, "total_s": total_s}) + "\n")


def _seconds(asked: argparse.Namespace, folder: Path, scratch: str) -> float:
    """Return the seconds that a job over a folder takes."""
    tables = _environment(asked, scratch)
    query = _query(tables, folder.absolute(), asked.work)
    started = time.monotonic()
    tables.execute_sql(query).wait()
    return time.monotonic() - started


def _query(tables: TableEnvironment, folder: Path, work: str | None) -> str:
    """Create the tables of the query, and return the query."""
    if work is None:
        tables.execute_sql(_EVENTS.format(folder=folder / "all"))
        tables.execute_sql(_SUMS)
        return "insert into sums select k, count(*), sum(v) from events group by k"
    if work == "joined":
        for name, side in (("l", "left"), ("r", "right")):
            tables.execute_sql(_TIMES.format(name=name, folder=folder / side / "all"))
        tables.execute_sql(_PAIRS)
        return _JOIN
    tables.execute_sql(_TIMES.format(name="times", folder=folder / "all"))
    tables.execute_sql(_WINDOWS)
    by = "k, window_start, window_end"
    return f"insert into windows select {by}, count(*), sum(v) from {_OF[work]} group by {by}"  # noqa: S608


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
