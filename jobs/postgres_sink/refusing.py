"""Puts rows that the server refuses into a table of their own, so that the other rows go on.

Rows, refused rows and the checkpoint's number are in one transaction. So a refused row lies in its table once, whatever
dies. To find the refused rows, a batch that fails is halved until it has one row.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from psycopg import errors, sql

from jobs.sinks.port import SinkError
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
