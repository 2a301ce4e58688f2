"""The sink that appends the rows of each checkpoint to a PostgreSQL table, in one transaction.

The same transaction raises the checkpoint's number in `tidemark_published`, a table in the schema of the target. It
locks this number first, so two processes with the same checkpoint wait for each other, and the second one finds it.
"""

from collections.abc import Iterable
from contextlib import closing
from itertools import groupby
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import sql

from jobs.postgres_sink.types import is_fit, postgres_type
from jobs.sinks.port import Sink, SinkError
from jobs.sources.port import SourceError
from jobs.sources.postgres.connection import Connection, Server

TRIES: Final = 3
"""How often a publication is tried if the server goes away meanwhile. After each time the server says what it has."""
_BATCH_ROWS: Final = 10_000
_NAME_BYTES_MAX: Final = 63
_COLUMNS: Final = """
SELECT attname, atttypid, format_type(atttypid, atttypmod),
       attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = '', attgenerated <> ''
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


class PostgresSink(Sink):
    """Appends the rows of a table to a PostgreSQL table, each checkpoint once.

    `url` is a URL, libpq's `key=value` pairs, or `env:NAME` of an environment variable. `table` is the target, such as
    `sales` or `reports.sales`. The sink creates it if it does not exist. Only the login's rights limit what it may do.
    """

    def __init__(self, url: str, table: str) -> None:
        """Connect to nothing yet. Raises SinkError if `table` is no name of a table."""
        parts = table.split(".")
        wrong = [part for part in parts if not part or len(part.encode()) > _NAME_BYTES_MAX or "\0" in part]
        if len(parts) > 2 or wrong:  # noqa: PLR2004 - a schema and a table
            raise SinkError(f"{table!r} is no name of a PostgreSQL table: write TABLE or SCHEMA.TABLE")
        self._server = Server(url)
        self._name = table
        self._target = sql.Identifier(*parts)
        self._published = sql.Identifier(*parts[:-1], "tidemark_published")

    def __repr__(self) -> str:
        """Return the target without user and password."""
        return f"PostgresSink({self._name} at {self._server.place})"

    def prepare(self, job: str, table: str, schema: pa.Schema) -> int:
        """Create or check the table, and return the newest checkpoint that it has."""
        wanted = {field.name: postgres_type(field.name, field.type) for field in schema}
        try:
            with closing(self._connected()) as connection, connection.transaction():
                # two ticks may create the tables at the same time
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemark_published', 0))")
                self._create(connection, wanted)
                self._must_fit(connection, wanted)
                found = connection.execute(
                    sql.SQL("SELECT checkpoint FROM {} WHERE job = %s AND sink = %s").format(self._published),
                    [job, table],
                ).fetchone()
        except psycopg.Error as error:
            raise SinkError(f"{self!r}: {self._told(error)}") from None
        return found[0] if found else 0

    def publish(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch]) -> None:
        """Copy the rows and store the checkpoint's number, in one transaction."""
        for left in reversed(range(TRIES)):
            try:
                with closing(self._connected()) as connection, connection.transaction():
                    if self._is_due(connection, job, table, checkpoint):
                        self._copy(connection, rows)
            except psycopg.OperationalError as error:
                if not left:
                    raise SinkError(f"{self!r}: {self._told(error)}") from None
            except psycopg.Error as error:
                raise SinkError(f"{self!r}: {self._told(error)}") from None
            else:
                return

    def _connected(self) -> Connection:
        try:
            return self._server.connect()
        except SourceError as error:
            raise SinkError(str(error)) from None

    def _create(self, connection: Connection, wanted: dict[str, str]) -> None:
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(each)) for name, each in wanted.items()]
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (job text, sink text, checkpoint bigint NOT NULL, "
                "published_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, sink))"
            ).format(self._published)
        )
        create = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
        connection.execute(create.format(self._target, sql.SQL(", ").join(columns)))

    def _must_fit(self, connection: Connection, wanted: dict[str, str]) -> None:
        there = {name: rest for name, *rest in connection.execute(_COLUMNS, [self._target.as_string(connection)])}
        for name, needed in wanted.items():
            if name not in there:
                raise SinkError(f"{self!r} has no column {name}: add it as {needed}, or drop it from the stream")
            _, found, _, is_generated = there[name]
            if is_generated or not is_fit(found, needed):
                said = "as a generated column" if is_generated else f"as {found}"
                raise SinkError(f"{self!r} has column {name} {said}, and the stream has it as {needed}: change one")
        missing = [name for name, (_, _, must_be_given, _) in there.items() if must_be_given and name not in wanted]
        if missing:
            raise SinkError(
                f"{self!r} needs a value for column {missing[0]}, which the stream does not have: give it a default"
            )

    def _is_due(self, connection: Connection, job: str, table: str, checkpoint: int) -> bool:
        """Raise the number to this checkpoint. Return False if it is as high already. The number stays locked."""
        if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
            connection.execute("SET LOCAL synchronous_commit = on")  # the cut is recorded after this commit
        raised = sql.SQL(
            "INSERT INTO {0} AS known (job, sink, checkpoint) VALUES (%s, %s, %s) ON CONFLICT (job, sink) "
            "DO UPDATE SET checkpoint = excluded.checkpoint, published_at = now() "
            "WHERE known.checkpoint < excluded.checkpoint"
        ).format(self._published)
        return connection.execute(raised, [job, table, checkpoint]).rowcount == 1

    def _copy(self, connection: Connection, rows: Iterable[pa.RecordBatch]) -> None:
        types = {name: oid for name, oid, *_ in connection.execute(_COLUMNS, [self._target.as_string(connection)])}
        for names, batches in groupby(rows, lambda batch: tuple(batch.schema.names)):
            unknown = [name for name in names if name not in types]
            if unknown:
                raise SinkError(f"{self!r} has no column {unknown[0]}: add it")
            columns = sql.SQL(", ").join(map(sql.Identifier, names))
            statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(self._target, columns)
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.set_types([types[name] for name in names])
                for batch in batches:
                    for start in range(0, batch.num_rows, _BATCH_ROWS):
                        part = batch.slice(start, _BATCH_ROWS)
                        for row in zip(*(column.to_pylist() for column in part.columns), strict=True):
                            try:
                                copy.write_row(row)
                            except psycopg.DataError as error:
                                shown = dict(zip(names, row, strict=True))
                                raise SinkError(f"{self!r} cannot hold the row {shown} ({error})") from None

    def _told(self, error: psycopg.Error) -> str:
        """Return what the server says, with the row that it refuses, in one line without the password."""
        said = error.diag
        parts = [said.message_primary or str(error), said.message_detail, said.context]
        return self._server.told(psycopg.Error(". ".join(part for part in parts if part)))
