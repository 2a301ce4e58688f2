"""Helps tests of PostgreSQL changes: runs SQL, polls a source to its end, and reads the rows of slices."""

import time

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_position import SliceDetail
from jobs.sources.postgres.changes import PostgresChanges

SPLIT = SplitId("changes")

TABLES = """
CREATE TABLE giro (id int PRIMARY KEY, balance int NOT NULL, note text);
CREATE TABLE savings (id int PRIMARY KEY, balance int NOT NULL);
INSERT INTO giro SELECT n, 100, 'n' || n FROM generate_series(1, 10) n;
INSERT INTO savings SELECT n, 100 FROM generate_series(1, 10) n;
CREATE PUBLICATION bank FOR TABLE giro, savings;
"""
PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"


class Bank:
    """One database with its publication, and the sources that read its changes."""

    def __init__(self, server, name, staged):
        self.server, self.name, self.staged = server, name, staged
        self.connection = psycopg.connect(server.url(name), autocommit=True)
        self.connection.execute(TABLES)
        self.sources = []

    def source(self, **options):
        named = {"publication": "bank", "slot": f"{self.name}_slot", "staged": self.staged} | options
        source = PostgresChanges(named.pop("url", self.server.url(self.name)), **named)
        self.sources.append(source)
        return source

    def sql(self, text, *values):
        found = self.connection.execute(text, values or None)
        return found.fetchall() if found.description else []

    def reconnect(self):
        self.connection = psycopg.connect(self.server.url(self.name), autocommit=True)

    def close(self):
        """Drop the slot and the prepared transactions, so that the server has room for those of the next test."""
        for source in self.sources:
            source.close()
        if self.connection.closed or self.connection.broken:
            self.reconnect()
        for (gid,) in self.sql(PREPARED):
            self.connection.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(gid))
        drop = (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s AND NOT temporary"
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                self.connection.execute(drop, [self.name])
                break
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self.connection.close()


def prepared(bank):
    """Return the parts of each prepared transaction's name, without the part that stands for the target."""
    return [gid.split("/")[:4] + gid.split("/")[5:] for (gid,) in bank.sql(PREPARED)]


def polled(source, position=None, rows_max=1_000_000):
    return source.poll(PollSource(VertexId("bank"), SPLIT, position, rows_max))


def slices(source, position=None, rows_max=1_000_000):
    while (found := polled(source, position, rows_max)) is not None:
        yield found
        position = found.end


def rows_of(source, *pieces):
    parts = []
    for piece in pieces:
        for part in SliceDetail.parse(piece.detail).ranges:
            table = pq.read_table(source._log.folder / part.file.name).slice(part.first, part.rows)
            numbers = pa.array(range(part.before + part.first, part.before + part.end), pa.int64())
            parts.append(pl.from_arrow(table.append_column("_position", numbers)))
    return pl.concat(parts, how="diagonal")  # a later file may have one more column


def all_rows(source, position=None, rows_max=1_000_000):
    return rows_of(source, *slices(source, position, rows_max))


def newest(rows, table, keys=("id",)):
    state = {}
    for row in rows.filter(pl.col("_table") == f"public.{table}").sort("_position").to_dicts():
        values = row[f"public_{table}"]
        if row["_kind"] == "truncate":
            state.clear()
            continue
        key = tuple(values[name] for name in keys)
        if row["_kind"] in ("delete", "update_before"):
            state.pop(key, None)
            continue
        before = state.get(key, {})
        state[key] = {n: before.get(n) if n in (row["_unchanged"] or ()) else v for n, v in values.items()}
    return state
