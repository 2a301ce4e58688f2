"""Reads all rows of the tables at the exact moment at which the changes begin.

A slot that is created over a replication connection exports a snapshot. It shows exactly the transactions before the
slot's consistent point. An ordinary snapshot would not do. A transaction may wait between its commit record and the
moment at which snapshots show it, for example for a synchronous standby. It would then be neither in the snapshot nor
in the changes.

This slot is temporary. The slot of the changes may be older, and somebody else may have created it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus

from jobs.sources.change_rows import SNAPSHOT
from jobs.sources.port import SourceError
from jobs.sources.postgres.batches import Batches, Heads, TableRows
from jobs.sources.postgres.catalog import PublishedTable
from jobs.sources.postgres.connection import Connection, Server, simple
from jobs.sources.postgres.lsn import parsed
from jobs.sources.postgres.slot import PLUGIN

_ROWS_PER_BATCH: Final = 50_000


@contextmanager
def snapshot(server: Server, slot: str) -> Iterator[tuple[Connection, int]]:
    """Yield a connection that shows the database at a horizon, and the horizon. Raises SourceError."""
    with server.connect(replication=True) as exporter:
        horizon, name = _exported(server, exporter, slot)
        with server.connect() as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
            yield reader, horizon
            reader.execute("COMMIT")


def copied_rows(
    reader: Connection, tables: Sequence[PublishedTable], horizon: int, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Yield all published rows of the tables."""
    for number, each in enumerate(tables):
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in each.table.columns)
        query = sql.SQL("COPY (SELECT {} FROM {}").format(columns, sql.Identifier(each.table.schema_, each.table.name))
        if each.row_filter is not None:
            query += sql.SQL(" WHERE ") + sql.SQL(each.row_filter)
        with reader.cursor() as cursor, cursor.copy(query + sql.SQL(") TO STDOUT")) as copy:
            rows = copy.rows()
            while part := list(islice(rows, _ROWS_PER_BATCH)):
                numbers = np.arange(len(part))
                heads = Heads(
                    kinds=[SNAPSHOT] * len(part),
                    tables=np.full_like(numbers, number),
                    lsns=np.full_like(numbers, horizon),
                    unchanged={},
                )
                values = [pa.array(texts, pa.string()) for texts in zip(*part, strict=True)]
                yield batches.made(heads, {number: TableRows(numbers, values)})


def _exported(server: Server, exporter: Connection, slot: str) -> tuple[int, str]:
    """Create the temporary slot. Return its horizon and the name of its snapshot."""
    name = f"{slot}_{exporter.info.backend_pid}"
    command = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL {PLUGIN} (SNAPSHOT 'export')"
    result = simple(exporter, command)
    if result.status != ExecStatus.TUPLES_OK:
        said = server.told(psycopg.OperationalError(result.error_message.decode(errors="replace")))
        raise SourceError(
            f"the server at {server.place} makes no snapshot ({said}): the user needs REPLICATION, and one replication "
            "slot and one WAL sender must be free (max_replication_slots, max_wal_senders)"
        )
    horizon, exported = result.get_value(0, 1), result.get_value(0, 2)
    if horizon is None or exported is None:
        raise SourceError(f"the server at {server.place} exported no snapshot")
    return parsed(horizon.decode()), exported.decode()
