"""Lets a PostgreSQL table show an upsert table: stages rows by COPY, then deletes and upserts, all in one transaction.

The staging tables are created and dropped in this transaction, so nobody else ever sees them. They are not logged by
the server. They are no temporary tables, because a transaction that has used one cannot be prepared.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from psycopg import sql

from jobs.postgres_sink.refusing import Refusals
from jobs.sinks.port import TableChanges
from jobs.sources.postgres.connection import Connection

KEYS: Final = """
SELECT array_agg(attname::text), bool_and(attnotnull)
FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
  AND indpred IS NULL AND indexprs IS NULL
GROUP BY indexrelid
"""
"""The columns of each index by which the server can find rows for an upsert, and whether none of them may be null."""

Copy = Callable[[Connection, sql.Identifier, Iterable[pa.RecordBatch]], None]


@dataclass(frozen=True, slots=True)
class Upserting:
    """Writes the changes of one checkpoint into a target. `copy` copies rows into a table."""

    connection: Connection
    target: sql.Identifier
    schema: Sequence[str]
    changes: TableChanges
    copy: Copy

    def write(self, newest: int) -> None:
        """Let the target show the table. It shows the checkpoint `newest` now."""
        found = self.changes.since(newest)
        if found is None:
            self._replace(self.changes.whole())
            return
        if found.deleted.num_rows:
            keys, _ = self._staged(found.deleted.to_batches())
            self._do("DELETE FROM {target} AS t USING {staged} AS s WHERE {same}", keys)
            self._drop(keys)
        if found.rows.num_rows:
            staged, columns = self._staged(found.rows.to_batches())
            self._merge(staged, columns)
            self._drop(staged)

    def write_each(self, newest: int, refusals: Refusals) -> None:
        """Do the same carefully: keep the rows that the server refuses. Their keys leave the target.

        So the target never shows a row that the table no longer has.
        """
        found = self.changes.since(newest)
        if found is None:
            self.connection.execute(sql.SQL("DELETE FROM {}").format(self.target))
        elif found.deleted.num_rows:
            refusals.sort_out(found.deleted.to_batches(), self._delete)
        rows = self.changes.whole() if found is None else found.rows.to_batches()
        refusals.sort_out(rows, self._upsert, lambda row: self._delete(row.select(list(self.changes.keys))))

    def _delete(self, rows: pa.RecordBatch) -> None:
        keys, _ = self._staged([rows])
        self._do("DELETE FROM {target} AS t USING {staged} AS s WHERE {same}", keys)
        self._drop(keys)

    def _upsert(self, rows: pa.RecordBatch) -> None:
        staged, columns = self._staged([rows])
        self._merge(staged, columns)
        self._drop(staged)

    def _replace(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Let the target have these rows and no others. Rows that it has just so stay untouched."""
        staged, columns = self._staged(rows)
        self._do("DELETE FROM {target} AS t WHERE NOT EXISTS (SELECT FROM {staged} AS s WHERE {same})", staged)
        if columns:
            self._merge(staged, columns)
        self._drop(staged)

    def _staged(self, rows: Iterable[pa.RecordBatch]) -> tuple[sql.Identifier, Sequence[str]]:
        """Return a new table of rows with the target's columns, and the names of the columns that the rows have."""
        staged = sql.Identifier(*self.schema, f"tidemark_rows_{uuid4().hex}")
        create = sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT * FROM {} WITH NO DATA")
        self.connection.execute(create.format(staged, self.target))
        columns: dict[str, None] = {}

        def watched() -> Iterator[pa.RecordBatch]:
            for batch in rows:
                columns.update(dict.fromkeys(batch.schema.names))
                yield batch

        self.copy(self.connection, staged, watched())
        return staged, tuple(columns)

    def _merge(self, staged: sql.Identifier, columns: Sequence[str]) -> None:
        """Insert the staged rows, or update those of their keys. A row that is there just so is not written again."""
        others = [name for name in columns if name not in self.changes.keys]
        on = "INSERT INTO {target} AS t ({columns}) SELECT {columns} FROM {staged} ON CONFLICT ({keys}) DO "
        known = {"columns": _names(columns), "keys": _names(self.changes.keys)}
        if not others:
            self._do(f"{on} NOTHING", staged, **known)
            return
        new = _names(others, of="excluded")
        known |= {"others": _names(others), "new": new, "old": _names(others, of="t")}
        update = "UPDATE SET ({others}) = ROW ({new}) WHERE ROW ({old}) IS DISTINCT FROM ROW ({new})"
        self._do(f"{on} {update}", staged, **known)

    def _do(self, statement: str, staged: sql.Identifier, **parts: sql.Composable) -> None:
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(key)) for key in self.changes.keys)
        composed = sql.SQL(statement).format(target=self.target, staged=staged, same=same, **parts)
        self.connection.execute(composed)

    def _drop(self, staged: sql.Identifier) -> None:
        self.connection.execute(sql.SQL("DROP TABLE {}").format(staged))


def _names(columns: Sequence[str], of: str | None = None) -> sql.Composed:
    each = (sql.Identifier(name) if of is None else sql.Identifier(of, name) for name in columns)
    return sql.SQL(", ").join(each)
