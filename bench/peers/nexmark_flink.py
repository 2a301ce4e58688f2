"""Measures a query of Nexmark in Flink SQL, over Parquet files. The query is in `nexmark/<query>.sql`.

This program runs in Flink's own environment, which `make bench` creates. It imports only modules that need no further
packages.

Flink reads files in no particular order, and drops rows that are late for their windows. So it gets the same rows in
one file for each core: in the order of event time, each row goes to the next file in turn.

It writes into a black hole, which is an advantage for Flink. Only q10 writes files, by day and minute. The program
first runs the query over the files of `--warm-up`, so that Flink has started. From the rate of this run it computes the
interval of checkpoints, so that the requested number of bids lies between two checkpoints. It prints the seconds of the
second run, from its submission to its end. With `--answers`, it instead writes the rows that remain after all changes
into this folder, for several queries. With `--servers`, it reads Kafka until another process ends it
(`bench.peers.nexmark_flink_freshness`).
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyflink.common import Configuration, RowKind
from pyflink.table import EnvironmentSettings, Schema, TableDescriptor, TableEnvironment

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.process_tree import cpu_seconds, peak_memory_bytes  # noqa: E402 - after its folder is known

_TABLE: Final = """
create temporary table {kind} ({columns}, watermark for `dateTime` as `dateTime` - interval '4' second) with ({source})
"""
_FILES: Final = "'connector' = 'filesystem', 'path' = '{path}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
_KAFKA: Final = (
    "'connector' = 'kafka', 'topic' = '{kind}', 'properties.bootstrap.servers' = '{servers}', "
    "'properties.group.id' = '{group}', 'scan.startup.mode' = 'earliest-offset', "
    "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'"
)
_COLUMNS: Final = {
    "person": "id bigint, name string, emailAddress string, creditCard string, city string, state string, "
    "`dateTime` timestamp(3), extra string",
    "auction": "id bigint, itemName string, description string, initialBid bigint, reserve bigint, "
    "`dateTime` timestamp(3), expires timestamp(3), seller bigint, category bigint, extra string",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, `dateTime` timestamp(3), "
    "extra string",
}
_CLOCK: Final = "create temporary view bid_by_the_clock as select *, proctime() as p_time from bid"
_SIDE: Final = """
create temporary table side_input (
  key bigint, `value` string, valid_from as timestamp '2000-01-01 00:00:00.000', watermark for valid_from as valid_from,
  primary key (key) not enforced
) with ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'parquet')
"""
_KEYS: Final = {
    "q4": ("category",),
    "q9": ("id",),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank_number"),
}
"""The key columns of answers whose rows Flink changes. Its file sink takes no changes, so these answers go into a black
hole. All other answers become Parquet files."""
_INTERVAL_S: Final = (0.5, 60.0)
"""The shortest and the longest interval of checkpoints."""


def main() -> None:
    """Measure one query over the whole data, or write its answer."""
    asked = _arguments()
    if asked.servers is not None:
        _run_on(asked)
        return
    data = _arranged(asked.folder, asked.cores)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        if asked.answers is not None:
            for name in asked.query.split(","):
                _write_answer(_environment(asked, scratch, 1.0), data, name, asked.answers)
            return
        rows, seconds, _ = _ran(_environment(asked, scratch, 1.0), asked.warm_up, asked.query, Path(scratch, "out-few"))
        interval = min(max(asked.every_bids * seconds / max(rows, 1), _INTERVAL_S[0]), _INTERVAL_S[1])
        tables = _environment(asked, scratch, interval)
        cpu = cpu_seconds(os.getpid())
        _, seconds, job = _ran(tables, data, asked.query, Path(scratch, "out"))
        result = {
            "program": f"nexmark-flink-{asked.query}-{asked.backend}{'-mini-batch' if asked.mini_batch else ''}",
            "total_s": seconds,
            "cpu_s": cpu_seconds(os.getpid()) - cpu,
            "peak_memory_bytes": peak_memory_bytes(os.getpid()),
            "interval_s": interval,
            "job": job,
        }
    sys.stdout.write(json.dumps(result) + "\n")


def _arranged(folder: Path, cores: int) -> Path:
    """Return a folder with the same rows, in one file of each kind for each core. Write it if it is missing."""
    to = folder.with_name(f"{folder.name}-in-{cores}")
    if not (to / "complete").exists():
        for kind in _COLUMNS:
            (to / kind).mkdir(parents=True, exist_ok=True)
            files = sorted((folder / kind).glob("*.parquet"))
            schema = pq.read_schema(files[0])
            with ExitStack() as stack:
                paths = [to / kind / f"{core}.parquet" for core in range(cores)]
                writers = [stack.enter_context(pq.ParquetWriter(path, schema)) for path in paths]
                for file in files:
                    rows = pq.read_table(file)
                    for core, writer in enumerate(writers):
                        writer.write_table(rows.take(pa.array(range(core, rows.num_rows, cores))))
        shutil.copytree(folder / "value", to / "value", dirs_exist_ok=True)
        (to / "complete").touch()
    return to


def _run_on(asked: argparse.Namespace) -> None:
    """Run the query over the records that come into Kafka, into a black hole, until another process ends this one."""
    tables = _environment(asked, str(asked.scratch), asked.interval_ms / 1000)
    for kind, columns in _COLUMNS.items():
        source = _KAFKA.format(kind=kind, servers=asked.servers, group=asked.group)
        tables.execute_sql(_TABLE.format(kind=kind, columns=columns, source=source))
    table = tables.sql_query(_sql(asked.query))
    schema = Schema.new_builder().from_resolved_schema(table.get_resolved_schema()).build()
    tables.create_temporary_table("out", TableDescriptor.for_connector("blackhole").schema(schema).build())
    table.execute_insert("out").wait()


def _declare(tables: TableEnvironment, folder: Path) -> None:
    for kind, columns in _COLUMNS.items():
        source = _FILES.format(path=(folder / kind).absolute())
        tables.execute_sql(_TABLE.format(kind=kind, columns=columns, source=source))
    tables.execute_sql(_CLOCK)
    tables.execute_sql(_SIDE.format(path=(folder / "value").absolute()))


def _ran(tables: TableEnvironment, folder: Path, name: str, out: Path) -> tuple[int, float, str]:
    """Run the query over a folder. Return its number of bids, its seconds and the id of its job."""
    _declare(tables, folder)
    table = tables.sql_query(_sql(name))
    schema = Schema.new_builder().from_resolved_schema(table.get_resolved_schema()).build()
    sink = TableDescriptor.for_connector("blackhole").schema(schema)
    if name not in _KEYS:
        files = TableDescriptor.for_connector("filesystem").option("path", str(out.absolute())).format("parquet")
        sink = files.schema(schema)
    if name == "q10":
        sink = sink.partitioned_by("dt", "hm")
    tables.create_temporary_table("out", sink.build())
    started = time.monotonic()
    done = table.execute_insert("out")
    done.wait()
    seconds = time.monotonic() - started
    files = sorted((folder / "bid").glob("*.parquet"))
    return sum(pq.read_metadata(file).num_rows for file in files), seconds, str(done.get_job_client().get_job_id())


def _sql(name: str) -> str:
    return (Path(__file__).parent / "nexmark" / f"{name}.sql").read_text()


def _write_answer(tables: TableEnvironment, folder: Path, name: str, to: Path) -> None:
    """Write the rows that are left once all changes are applied."""
    _declare(tables, folder)
    result = tables.sql_query(_sql(name)).execute()
    names = list(result.get_table_schema().get_field_names())
    keys = [names.index(key) for key in _KEYS.get(name, ())]
    left: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    with result.collect() as rows:
        for number, row in enumerate(rows):
            key = tuple(row[place] for place in keys) or (number,)
            if row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                left[key] = tuple(row)
            elif row.get_row_kind() == RowKind.DELETE:
                del left[key]
    columns = zip(*left.values(), strict=True)
    pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), to / f"{name}.parquet")


def _environment(asked: argparse.Namespace, scratch: str, interval_s: float) -> TableEnvironment:
    """Return Flink with an expert's settings: RocksDB's files in memory if there is room, object reuse, UTC."""
    fast = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else scratch)  # noqa: S108
    settings = {
        "execution.checkpointing.interval": f"{round(interval_s * 1000)} ms",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{scratch}/checkpoints",
        "state.backend.type": asked.backend,
        "state.backend.rocksdb.localdir": fast,
        "parallelism.default": str(asked.cores),
        "pipeline.object-reuse": "true",
        "taskmanager.memory.managed.size": "2g",
        "taskmanager.memory.network.max": "256m",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": str(asked.mini_batch).lower(),
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.distinct-agg.split.enabled": str(asked.mini_batch).lower(),
    }
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--warm-up", type=Path)
    parser.add_argument("--query", required=True)
    parser.add_argument("--backend", choices=["rocksdb", "hashmap"], default="rocksdb")
    parser.add_argument("--mini-batch", action="store_true")
    parser.add_argument("--every-bids", type=int, default=500_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--servers")
    parser.add_argument("--group")
    parser.add_argument("--interval-ms", type=int, default=1_000)
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
