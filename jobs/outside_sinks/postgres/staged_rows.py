"""Puts rows that the server refuses into a table of their own, so that the other rows go on.

Rows, refused rows and the checkpoint's number are in one transaction. So a refused row lies in its table once, whatever
dies. To find the refused rows, a batch that fails is halved until it has one row.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from psycopg import errors, sql

from jobs.sinks.port import SinkError, TableChanges
from jobs.sources.postgres.connection import Connection

BATCH_ROWS: Final = 10_000
ABOUT_ROWS: Final = (errors.DataError, errors.IntegrityError, errors.ProgramLimitExceeded, errors.RaiseException)
"""Errors that the server raises because of a row: its values, a constraint, an index that is too small, a trigger."""


class RowRefusedError(SinkError):
    """A row cannot be written. The message shows it."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """The table of one sink's refused rows, in the transaction of one checkpoint."""

    connection: Connection
    table: sql.Identifier
    job: str
    sink: str
    checkpoint: int
    told: Callable[[Exception], str]
    """Returns the reason for a person."""

    def instead(self, plain: Callable[[], None], careful: Callable[[], None]) -> None:
        """Write all rows at once. If the server refuses one of them, write them carefully."""
        self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        try:
            with self.connection.transaction():
                plain()
        except (RowRefusedError, *ABOUT_ROWS):
            careful()

    def sort_out(
        self,
        batches: Iterable[pa.RecordBatch],
        write: Callable[[pa.RecordBatch], None],
        refused: Callable[[pa.RecordBatch], None] = lambda _: None,
    ) -> None:
        """Write what the server takes. Keep the other rows with the reason, and call `refused` for each."""
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                self._sort_out(batch.slice(start, BATCH_ROWS), write, refused)

    def _sort_out(
        self,
        part: pa.RecordBatch,
        write: Callable[[pa.RecordBatch], None],
        refused: Callable[[pa.RecordBatch], None],
    ) -> None:
        try:
            with self.connection.transaction():
                write(part)
        except (RowRefusedError, *ABOUT_ROWS) as error:
            if part.num_rows > 1:
                half = part.num_rows // 2
                self._sort_out(part.slice(0, half), write, refused)
                self._sort_out(part.slice(half), write, refused)
                return
            with suppress(RowRefusedError, *ABOUT_ROWS), self.connection.transaction():
                refused(part)
            self._keep(part, self.told(error))

    def _keep(self, row: pa.RecordBatch, reason: str) -> None:
        insert = sql.SQL('INSERT INTO {} (job, sink, checkpoint, reason, "row") VALUES (%s, %s, %s, %s, %s)')
        told = reason.replace("\0", "\\0")
        self.connection.execute(insert.format(self.table), [self.job, self.sink, self.checkpoint, told, as_json(row)])


def create(connection: Connection, table: sql.Identifier) -> None:
    """Create the table of refused rows. Raise psycopg.Error if a table of this name cannot take them."""
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (job text, sink text, checkpoint bigint, refused_at timestamptz NOT NULL "
            'DEFAULT now(), reason text, "row" json)'
        ).format(table)
    )
    insert = sql.SQL("INSERT INTO {} (job, sink, checkpoint, reason, \"row\") SELECT '', '', 0, '', '{{}}' LIMIT 0")
    connection.execute(insert.format(table))


def as_json(row: pa.RecordBatch) -> str:
    """Return one row as a JSON object. Bytes are base64, other values are texts, and NUL is a backslash and 0."""
    values = {name: plain(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
    return json.dumps(values, default=str, ensure_ascii=True)


def plain(column: pa.Array) -> object:
    """Return the first value of a column as JSON has it. A value that Python cannot have is shown by its storage."""
    try:
        value = column[0].as_py()
    except (ValueError, OverflowError):
        storage = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.date32(): pa.int32()}
        value = column.view(storage.get(column.type, pa.int64()))[0].as_py()
    return _as_json(value)


def _as_json(value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
        case str():
            return value.replace("\0", "\\0")  # PostgreSQL's JSON cannot be asked for a value with NUL
        case list():
            return [_as_json(each) for each in value]
        case _:
            return value


# ------------------------------------------------------------------
# Lets a PostgreSQL table show an upsert table: stages rows by COPY, then deletes and upserts, all in one transaction.
#
# The staging tables are created and dropped in this transaction, so nobody else ever sees them. They are not logged by
# the server. They are no temporary tables, because a transaction that has used one cannot be prepared.


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


# ------------------------------------------------------------------
# Tries rows before a checkpoint is committed, so that a row that the target never takes declines the checkpoint.
#
# A table in the target's likeness takes the rows of most targets. It has their types, constraints and indexes, is not
# logged by the server, and vanishes with the transaction. So a trial costs about as much as sending the rows.
#
# Some targets judge a row by other rows, or by other tables: by a unique index besides the keys of an upsert table, a
# foreign key, an exclusion, a trigger or rule, row security, or the bounds of a part of a table. Only they can tell.
# So they take the rows themselves, and the server takes them back when the transaction is rolled back.


_ORDINARY: Final = """
SELECT relkind = 'r' AND NOT relispartition AND NOT relrowsecurity AND NOT relhasrules
       AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid),
       (SELECT count(*) FROM pg_index WHERE indrelid = c.oid AND (indisunique OR indisexclusion))
FROM pg_class AS c WHERE oid = to_regclass(%s)
"""
"""Whether a row is judged by nothing but itself and indexes, and how many indexes compare rows with each other.

A foreign key has triggers of the server's own, in both tables.
"""


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
