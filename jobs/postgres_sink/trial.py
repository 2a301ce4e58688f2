"""Tries rows before a checkpoint is committed, so that a row that the target never takes declines the checkpoint.

A table in the target's likeness takes the rows of most targets. It has their types, constraints and indexes, is not
logged by the server, and vanishes with the transaction. So a trial costs about as much as sending the rows.

Some targets judge a row by other rows, or by other tables: by a unique index besides the keys of an upsert table, a
foreign key, an exclusion, a trigger or rule, row security, or the bounds of a part of a table. Only they can tell. So
they take the rows themselves, and the server takes them back when the transaction is rolled back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from psycopg import sql

from jobs.postgres_sink.upserting import KEYS
from jobs.sinks.port import TableChanges
from jobs.sources.postgres.connection import Connection

_ORDINARY: Final = """
SELECT relkind = 'r' AND NOT relispartition AND NOT relrowsecurity AND NOT relhasrules
       AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid),
       (SELECT count(*) FROM pg_index WHERE indrelid = c.oid AND (indisunique OR indisexclusion))
FROM pg_class AS c WHERE oid = to_regclass(%s)
"""
"""Whether a row is judged by nothing but itself and indexes, and how many indexes compare rows with each other.

A foreign key has triggers of the server's own, in both tables.
"""

Copy = Callable[[Connection, sql.Identifier, Iterable[pa.RecordBatch]], None]


@dataclass(frozen=True, slots=True)
class TrialWrite:
    """A trial of one checkpoint's rows. `copy_into` copies rows into a table."""

    connection: Connection
    target: sql.Identifier
    schema: list[str]
    copy_into: Copy

    def needs_target(self, rows: Iterable[pa.RecordBatch] | TableChanges) -> bool:
        """Return whether only the target itself can judge the rows."""
        named = [self.target.as_string(self.connection)]
        is_ordinary, comparing = self.connection.execute(_ORDINARY, named).fetchone() or (False, 0)
        keys = set(rows.keys) if isinstance(rows, TableChanges) else set()
        by_key = [columns for columns, _ in self.connection.execute(KEYS, named) if keys and set(columns) == keys]
        return not is_ordinary or comparing > len(by_key)

    def copy(self, rows: Iterable[pa.RecordBatch] | TableChanges, newest: int) -> None:
        """Copy the rows into a table in the target's likeness. The target has the checkpoint `newest`."""
        alike = sql.Identifier(*self.schema, f"tidemark_trial_{uuid4().hex}")
        create = sql.SQL("CREATE UNLOGGED TABLE {} (LIKE {} INCLUDING ALL EXCLUDING COMMENTS EXCLUDING STATISTICS)")
        self.connection.execute(create.format(alike, self.target))
        if isinstance(rows, TableChanges):
            found = rows.since(newest)
            rows = rows.whole() if found is None else found.rows.to_batches()
        self.copy_into(self.connection, alike, rows)
