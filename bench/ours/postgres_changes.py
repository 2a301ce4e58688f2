"""Measures a tick that reads changes of a real PostgreSQL server into a bronze table and an upserted silver table.

`python -m bench.ours.postgres_changes --transactions N` starts a server from a wheel. It writes N transactions like
those of pgbench, with four rows each: three updates and an insert. A tick then reads them. The program compares silver
and bronze with the server's tables. It prints the rows per second of the tick, without Spark's start, and of the server
that wrote them.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import polars as pl
import psycopg
from deltalake import DeltaTable
from pyarrow.dataset import field

from bench.measures import Laps, caught_up, print_result
from bench.process_tree import cpu_seconds
from jobs.launch import Launch, launch
from jobs.settings import flags_layer
from jobs.tick.tick import run_tick
from tests.postgres_server import PostgresServer
from tidemark import CheckpointConfig, Pipeline, PostgresChanges, newest_rows

ACCOUNTS: Final = 100_000
ROWS_PER_TRANSACTION: Final = 4
_EPOCH: Final = 200_000
_URL: Final = "BENCH_POSTGRES_URL"

_TABLES: Final = """
CREATE TABLE branches (bid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE tellers (tid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE accounts (aid int PRIMARY KEY, bid int NOT NULL, balance int NOT NULL, filler char(84));
CREATE TABLE history (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tid int, bid int, aid int, delta int,
                      at timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO branches VALUES (1, 0);
INSERT INTO tellers SELECT n, 0 FROM generate_series(1, 10) n;
INSERT INTO accounts SELECT n, 1, 0, 'x' FROM generate_series(1, 100000) n;
CREATE PUBLICATION bench FOR ALL TABLES;
CREATE PROCEDURE load(transactions int) LANGUAGE plpgsql AS $$
DECLARE a int; t int; d int;
BEGIN
  FOR n IN 1..transactions LOOP
    a := 1 + (n::bigint * 7919) % 100000; t := 1 + n % 10; d := n % 1000 - 500;
    UPDATE accounts SET balance = balance + d WHERE aid = a;
    UPDATE tellers SET balance = balance + d WHERE tid = t;
    UPDATE branches SET balance = balance + d WHERE bid = 1;
    INSERT INTO history (tid, bid, aid, delta) VALUES (t, 1, a, d);
    COMMIT;
  END LOOP;
END $$
"""


class NotExactError(RuntimeError):
    """A table has other rows than the server."""


def build(data: Path) -> Pipeline:
    """Return the pipeline. Its tables have all changes, and the newest row of each account."""
    source = PostgresChanges(f"env:{_URL}", "bench", "bench", staged=data / "bench")
    config = CheckpointConfig(every_rows=_EPOCH, slice_rows_max=_EPOCH)
    pipeline = Pipeline("bank", config=config, parallelism=2)
    changes = pipeline.source("bank", source).table("bronze/bank", id="bronze")
    accounts = changes.transform(*source.of("public.accounts"))
    newest_rows(accounts.key_by("aid"), "accounts").upsert("silver/accounts")
    return pipeline


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=250_000)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    server = PostgresServer()
    os.environ[_URL] = server.url()
    try:
        with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, psycopg.connect(server.url()) as connection:
            connection.autocommit = True
            connection.execute(_TABLES)
            print_result(_measured(Path(scratch), connection, asked.transactions))
    finally:
        server.close()


def _measured(scratch: Path, connection: psycopg.Connection, transactions: int) -> dict[str, object]:
    given = flags_layer({"data": scratch, "warehouse": scratch / "warehouse"})
    _tick(launch("bench.ours.postgres_changes:build", given), Laps())  # the snapshot
    written_s = time.monotonic()
    connection.execute("CALL load(%s)", [transactions])
    written_s = time.monotonic() - written_s
    laps, started, cpu = Laps(), time.monotonic(), cpu_seconds(os.getpid())
    _tick(launch("bench.ours.postgres_changes:build", given), laps)
    read_s = time.monotonic() - started - laps.spark_start_s
    rows = transactions * ROWS_PER_TRANSACTION
    _require_exact(scratch / "warehouse", connection, rows)
    return {
        "program": "tidemark-postgres",
        "rows": rows,
        "per_second": rows / read_s,
        "server_per_second": rows / written_s,
        "work_s": read_s,
        "cpu_s": cpu_seconds(os.getpid()) - cpu,
        "seconds": laps.seconds,
    }


def _tick(launched: Launch, laps: Laps) -> None:
    caught_up(run_tick(launched.plan, launched.runtime(), laps))


def _require_exact(warehouse: Path, connection: psycopg.Connection, rows: int) -> None:
    """Raise NotExactError unless bronze has each change once, and silver has the server's row of each account."""
    bronze = DeltaTable(str(warehouse / "bronze/bank")).to_pyarrow_dataset()
    found = bronze.count_rows() - ACCOUNTS - 11
    if found != rows:
        raise NotExactError(f"bronze has {found} changes, the server made {rows}")
    inserted = bronze.to_table(columns=["public_history"], filter=field("_kind") == "insert")
    history = pl.from_arrow(inserted)["public_history"].struct.unnest().select("id", "tid", "bid", "aid", "delta")
    if sorted(history.iter_rows()) != _all(connection, "SELECT id, tid, bid, aid, delta FROM history ORDER BY id"):
        raise NotExactError("bronze does not have each row of the server's history once")
    silver = pl.read_delta(str(warehouse / "silver/accounts")).filter(~pl.col("_is_deleted"))
    shown = sorted(silver.select("aid", "bid", "balance", "filler").iter_rows())
    if shown != _all(connection, "SELECT aid, bid, balance, filler FROM accounts ORDER BY aid"):
        raise NotExactError("silver/accounts does not have the server's accounts")


def _all(connection: psycopg.Connection, query: str) -> list[tuple[object, ...]]:
    return connection.execute(query.encode()).fetchall()


if __name__ == "__main__":
    main()
