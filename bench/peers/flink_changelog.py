"""Measures a changelog in Flink SQL: orders and customers change, are joined, and the joined rows are summed by region.

This program runs in Flink's own environment, which `make bench` creates. So it imports nothing of this project.

It reads CSV and takes a checkpoint every second. It writes into a black hole, which is an advantage for Flink. Flink
keeps the newest change of each key by its deduplication, with one row of state. The program runs the job over few rows
first, so that Flink has started. It prints the seconds of the second job, from its submission to its end.
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

_ORDERS: Final = """
create temporary table order_changes (
  seq bigint, order_id bigint, customer bigint, amount bigint, gone boolean,
  changed_at as to_timestamp_ltz(seq, 3), watermark for changed_at as changed_at
) with ('connector' = 'filesystem', 'path' = '{folder}/orders/all', 'format' = 'csv')
"""
_CUSTOMERS: Final = """
create temporary table customer_changes (
  seq bigint, customer bigint, region bigint, gone boolean,
  changed_at as to_timestamp_ltz(seq, 3), watermark for changed_at as changed_at
) with ('connector' = 'filesystem', 'path' = '{folder}/customers/all', 'format' = 'csv')
"""
_NEWEST: Final = """
create temporary view {name} as select * from (
  select *, row_number() over (partition by {key} order by changed_at desc) as newness from {changes}
) where newness = 1 and not gone
"""
_SUMS: Final = """
create temporary table sums (region bigint, orders bigint, amounts bigint, primary key (region) not enforced)
with ('connector' = '{connector}')
"""
_JOB: Final = """
insert into sums
select region, count(*), sum(amount) from orders join customers on orders.customer = customers.customer group by region
"""


def main() -> None:
    """Measure one job over the whole workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=["rocksdb", "hashmap"], default="rocksdb")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--mini-batch", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the changes of the sums")
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        tables = _environment(asked, scratch)
        connector = "print" if asked.show else "blackhole"
        _job_s(tables, asked.folder.absolute() / "few", connector)
        total_s = _job_s(tables, asked.folder.absolute() / "whole", connector)
    program = f"flink-changelog-{asked.backend}{'-mini-batch' if asked.mini_batch else ''}"
    sys.stdout.write(json.dumps({"program": program, "total_s": total_s}) + "\n")


def _job_s(tables: TableEnvironment, folder: Path, connector: str) -> float:
    """Run the job over a folder; return its seconds."""
    tables.execute_sql(_ORDERS.format(folder=folder))
    tables.execute_sql(_CUSTOMERS.format(folder=folder))
    tables.execute_sql(_NEWEST.format(name="orders", key="order_id", changes="order_changes"))
    tables.execute_sql(_NEWEST.format(name="customers", key="customer", changes="customer_changes"))
    tables.execute_sql(_SUMS.format(connector=connector))
    started = time.monotonic()
    tables.execute_sql(_JOB).wait()
    took = time.monotonic() - started
    for kind, name in (
        ("view", "orders"),
        ("view", "customers"),
        ("table", "order_changes"),
        ("table", "customer_changes"),
        ("table", "sums"),
    ):
        tables.execute_sql(f"drop temporary {kind} {name}")
    return took


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
