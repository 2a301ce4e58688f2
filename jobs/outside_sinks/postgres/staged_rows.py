"""Puts rows that the server refuses into a table of their own, so that the other rows reach the target.

One transaction writes rows, refused rows and the checkpoint's number. So a refused row is in its table once, even after
a crash. To find the refused rows, a batch that fails is halved until it has one row.
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
"""Errors that the server raises because of a row: its values, a constraint, a limit of an index, a trigger."""


class RowRefusedError(SinkError):
    """A row cannot be written. The message shows the row."""


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
        """Write the rows that the server accepts. Store each other row with the reason, and call `refused` for it."""
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
    """Create the table of refused rows. Raise psycopg.Error if a table of this name exists that cannot hold them."""
    connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (job text, sink text, checkpoint bigint, refused_at timestamptz NOT NULL "
            'DEFAULT now(), reason text, "row" json)'
        ).format(table)
    )
    insert = sql.SQL("INSERT INTO {} (job, sink, checkpoint, reason, \"row\") SELECT '', '', 0, '', '{{}}' LIMIT 0")
    connection.execute(insert.format(table))


def as_json(row: pa.RecordBatch) -> str:
    """Return one row as a JSON object.

    Bytes are in base64, types that JSON lacks are texts, and NUL is a backslash and 0.
    """
    values = {name: plain(column) for name, column in zip(row.schema.names, row.columns, strict=True)}
    return json.dumps(values, default=str, ensure_ascii=True)


def plain(column: pa.Array) -> object:
    """Return the first value of a column as JSON has it.

    If Python cannot hold the value, return its bytes or its stored number.
    """
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
# Makes a PostgreSQL table show an upsert table: stages rows by COPY, then deletes and upserts, in one transaction.
#
# The staging tables are created and dropped in this transaction, so nobody else ever sees them. The server does not log
# them. They are not temporary tables, because a transaction that has used a temporary table cannot be prepared.


KEYS: Final = """
SELECT array_agg(attname::text), bool_and(attnotnull)
FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
  AND indpred IS NULL AND indexprs IS NULL
GROUP BY indexrelid
"""
"""The columns of each index by which the server can upsert rows, and whether all these columns are NOT NULL."""

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
        """Make the target show the table. So far, the target shows the checkpoint `newest`."""
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
        """Do the same in parts, and store the rows that the server refuses. Delete their keys from the target.

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
        """Make these rows the only rows of the target. Rows that it already has unchanged are not written again."""
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
        """Insert the staged rows, or update the rows with their keys. A row that is unchanged is not written again."""
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
# Tries rows before a checkpoint is committed, so that a row that the target would always refuse declines the
# checkpoint.
#
# For most targets, the rows are written into a copy of the target without rows. This table has the target's types,
# constraints and indexes, is not logged by the server, and vanishes with the transaction. So a trial costs about as
# much as sending the rows.
#
# Some targets accept or refuse a row by other rows, or by other tables: by a unique index besides the keys of an upsert
# table, a foreign key, an exclusion constraint, a trigger or rule, row security, or the bounds of a partition. For
# these, the rows are written into the target itself, and the transaction is rolled back.


_ORDINARY: Final = """
SELECT relkind = 'r' AND NOT relispartition AND NOT relrowsecurity AND NOT relhasrules
       AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid),
       (SELECT count(*) FROM pg_index WHERE indrelid = c.oid AND (indisunique OR indisexclusion))
FROM pg_class AS c WHERE oid = to_regclass(%s)
"""
"""Whether only a row itself and indexes decide if it is accepted, and how many indexes compare rows with each other.

A foreign key counts as a trigger, since the server makes triggers of its own in both tables.
"""


@dataclass(frozen=True, slots=True)
class TrialWrite:
    """A trial of one checkpoint's rows. `copy_into` copies rows into a table."""

    connection: Connection
    target: sql.Identifier
    schema: list[str]
    copy_into: Copy

    def needs_target(self, rows: Iterable[pa.RecordBatch] | TableChanges) -> bool:
        """Return whether the rows must be tried in the target itself."""
        named = [self.target.as_string(self.connection)]
        is_ordinary, comparing = self.connection.execute(_ORDINARY, named).fetchone() or (False, 0)
        keys = set(rows.keys) if isinstance(rows, TableChanges) else set()
        by_key = [columns for columns, _ in self.connection.execute(KEYS, named) if keys and set(columns) == keys]
        return not is_ordinary or comparing > len(by_key)

    def copy(self, rows: Iterable[pa.RecordBatch] | TableChanges, newest: int) -> None:
        """Copy the rows into an empty copy of the target. The target has the checkpoint `newest`."""
        alike = sql.Identifier(*self.schema, f"tidemark_trial_{uuid4().hex}")
        create = sql.SQL("CREATE UNLOGGED TABLE {} (LIKE {} INCLUDING ALL EXCLUDING COMMENTS EXCLUDING STATISTICS)")
        self.connection.execute(create.format(alike, self.target))
        if isinstance(rows, TableChanges):
            found = rows.since(newest)
            rows = rows.whole() if found is None else found.rows.to_batches()
        self.copy_into(self.connection, alike, rows)
