"""The PostgreSQL types for the columns of a table."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from typing import Final, TypeVar

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.rows import TupleRow
from pyarrow import types

from checkpointing.commit.outside_sinks import SinkTransaction
from checkpointing.identifiers import NO_CHECKPOINT
from jobs.disk_errors import SERVER_DISK_FULL
from jobs.outside_sinks.postgres.prepared import PreparedTransactions
from jobs.outside_sinks.postgres.staged_rows import (
    ABOUT_ROWS,
    BATCH_ROWS,
    KEYS,
    Refusals,
    RowRefusedError,
    TrialWrite,
    Upserting,
    plain,
)
from jobs.outside_sinks.postgres.staged_rows import create as create_refused
from jobs.sinks.port import Sink, SinkAwayError, SinkError, TableChanges, TwoPhaseSink, UpsertSink
from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.postgres.connection import BLOCKED, Connection, Server, prepared_way_out

_PLAIN: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
}
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "smallint": ("integer", "bigint"),
    "integer": ("bigint",),
    "real": ("double precision",),
}
"""Wider types of a target that hold every value of a column of this type. So does a `numeric` with enough digits."""
_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")


def postgres_type(name: str, of: pa.DataType) -> str:
    """Return a column's type in PostgreSQL. Raise SinkError for a type that PostgreSQL lacks, such as a struct."""
    if types.is_decimal(of):
        return f"numeric({of.precision},{of.scale})"
    if types.is_timestamp(of):
        return f"timestamp {'with' if of.tz else 'without'} time zone"
    if types.is_list(of) and not types.is_nested(of.value_type):
        return f"{postgres_type(name, of.value_type)}[]"
    if of not in _PLAIN:
        raise SinkError(f"column {name} has type {of}, and PostgreSQL has no such type: leave it out, or cast it")
    return _PLAIN[of]


def is_fit(target: str, wanted: str) -> bool:
    """Return whether a column of the type `target` holds every value of a column of the type `wanted`."""
    if wanted == "text":
        return target in ("text", "character varying")
    return target in (wanted, *_WIDER.get(wanted, ())) or _has_room(target, wanted)


def _has_room(target: str, wanted: str) -> bool:
    """Return whether `target` is a `numeric` with as many digits as a number of the type `wanted` may have."""
    needed, there = _NUMERIC.fullmatch(wanted), _NUMERIC.fullmatch(target)
    if needed is None and wanted not in _DIGITS:
        return False
    before, behind = _digits(needed) if needed else (_DIGITS[wanted], 0)
    room = _digits(there) if there else (before, behind)
    return (there is not None or target == "numeric") and before <= room[0] and behind <= room[1]


def _digits(of: re.Match[str]) -> tuple[int, int]:
    """Return how many digits a `numeric` has before its point and behind it."""
    precision, scale = map(int, of.groups())
    return precision - scale, scale


# ------------------------------------------------------------------
# Keeps the number of the newest checkpoint that a target has, in the table `tidemark_published` of its schema.
#
# A row belongs to a job, one of its tables, and a target, so several projects may have their targets in one schema. The
# row identifies the target by two numbers of PostgreSQL: the number of the table, which changes if the table is dropped
# and created again, and the number of its file, which changes if the table is emptied. So the sink notices that a
# target has lost its rows. The row also names the warehouse, so that two warehouses with the same job do not both write
# to the target.


Cursor = psycopg.Cursor[TupleRow]
NAME: Final = "tidemark_published"
_TARGET: Final = """
SELECT concat(nspname, '.', relname), concat(c.oid, '/'), coalesce(pg_relation_filenode(c.oid), 0)::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)
"""
"""The target's name, its number, and the number of its file."""
_IS_OLD: Final = """
SELECT NOT EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'warehouse' AND NOT attisdropped
)
"""


_IS_MISSING: Final = "SELECT to_regclass(%s) IS NULL"
_MINE: Final = "job = %(job)s AND sink = %(sink)s AND target = %(target)s"
_FORMER: Final = "job = %(job)s AND sink = %(sink)s AND (target = '' OR starts_with(identity, %(number)s))"
"""A row that an older release of Tidemark wrote without a target, or the row of a target that was renamed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a target has: its newest checkpoint, and whether it is still the table to which that one was written."""

    newest: int
    is_known: bool
    is_another: bool = False
    """Another table has the target's name now."""
    warehouse: str | None = None
    """The warehouse that publishes into it. None: an older release of Tidemark has written the row, or nobody has."""

    @property
    def known(self) -> int:
        """The checkpoint after which changes are to be written, or 0 if all rows are to be written."""
        return self.newest if self.is_known else NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class TargetNumbers:
    """The row of one job's table and one target."""

    connection: Connection
    schema: list[str]
    target: sql.Identifier
    job: str
    table: str

    def create(self) -> None:
        """Create the table of numbers. If an older version of Tidemark has created this table, add the new columns."""
        self._do(
            "CREATE TABLE IF NOT EXISTS {here} (job text, sink text, target text NOT NULL DEFAULT '', "
            "checkpoint bigint NOT NULL, published_at timestamptz NOT NULL DEFAULT now(), identity text, "
            "warehouse text, PRIMARY KEY (job, sink, target))"
        )
        if not self.is_new():
            self._do(
                "ALTER TABLE {here} ADD COLUMN IF NOT EXISTS target text NOT NULL DEFAULT '', "
                "ADD COLUMN IF NOT EXISTS identity text, ADD COLUMN warehouse text, "
                "DROP CONSTRAINT tidemark_published_pkey, ADD PRIMARY KEY (job, sink, target)"
            )

    def is_new(self) -> bool:
        """Return whether the table of numbers exists, in the form of this version."""
        return self.connection.execute(_IS_OLD, [self._place()]).fetchone() == (False,)

    def none_yet(self) -> int | None:
        """Return 0 if there is no table of numbers, or else None."""
        return NO_CHECKPOINT if self.connection.execute(_IS_MISSING, [self._place()]).fetchone() == (True,) else None

    def _place(self) -> str:
        return sql.Identifier(*self.schema, NAME).as_string(self.connection)

    def standing(self, *, lock: bool = False) -> Standing:
        """Return what the target has. With `lock`, no other transaction can change that until this one ends."""
        if lock:
            self._do(
                "UPDATE {here} SET target = %(target)s WHERE {former} AND NOT EXISTS (SELECT FROM {here} WHERE {mine})"
            )
            self._do(
                "INSERT INTO {here} (job, sink, target, checkpoint) VALUES (%(job)s, %(sink)s, %(target)s, 0) "
                "ON CONFLICT (job, sink, target) DO NOTHING"
            )
            self._do("SELECT FROM {here} WHERE {mine} FOR UPDATE")
        found = self._do(
            "SELECT checkpoint, identity, warehouse FROM {here} WHERE ({mine}) OR ({former}) "
            "ORDER BY target = %(target)s DESC LIMIT 1"
        ).fetchone()
        newest, was, warehouse = found or (NO_CHECKPOINT, None, None)
        now = self._values()
        is_another = was is not None and not was.startswith(now["number"])
        return Standing(newest, is_known=was == now["identity"], is_another=is_another, warehouse=warehouse)

    def own(self, warehouse: str) -> None:
        """Store which warehouse publishes into the target. The row must be locked."""
        self._do("UPDATE {here} SET warehouse = %(warehouse)s WHERE {mine}", warehouse=warehouse)

    def store(self, checkpoint: int) -> None:
        """Store that the target has this checkpoint."""
        self._do(
            "UPDATE {here} SET checkpoint = %(checkpoint)s, identity = %(identity)s, published_at = now() WHERE {mine}",
            checkpoint=checkpoint,
        )

    def _values(self) -> dict[str, str]:
        """Return the values for statements: job, sink, and name and numbers of the target."""
        found = self.connection.execute(_TARGET, [self.target.as_string(self.connection)]).fetchone()
        name, number, file = found or ("", "/", "")
        return {"job": self.job, "sink": self.table, "target": name, "number": number, "identity": f"{number}{file}"}

    def _do(self, statement: str, **given: object) -> Cursor:
        parts = {"here": sql.Identifier(*self.schema, NAME), "mine": sql.SQL(_MINE), "former": sql.SQL(_FORMER)}
        values = {**self._values(), **given} if "{mine}" in statement or "%(" in statement else None
        return self.connection.execute(sql.SQL(statement).format(**parts), values)


# ------------------------------------------------------------------
# The sink that writes each checkpoint into a PostgreSQL table, in one transaction.
#
# The same transaction raises the checkpoint's number in `tidemark_published`, a table in the schema of the target. It
# locks this number first. So if two processes publish the same checkpoint, the second one waits, and then finds the
# number there.


TRIES: Final = 3
"""How often a publication is tried if the server goes away. Each try first reads which checkpoint the target has."""
Result = TypeVar("Result")
_NAME_BYTES_MAX: Final = 63
_SHOWN_MAX: Final = 100
"""The length to which a message cuts a text."""
_COLUMNS: Final = """
SELECT attname, atttypid, format_type(atttypid, atttypmod),
       attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = '', attgenerated <> ''
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


_LINE: Final = re.compile(r"COPY .*, line (\d+)", re.DOTALL)
"""Finds the number of the row of a COPY that the server has refused."""
_ELSEWHERE: Final = "With refused=, such rows go into a table of their own"
_STAGED: Final = re.compile(r"tidemark_(?:rows|trial)_[0-9a-f]{32}")
"""The name of a table that stands for the target inside a transaction. Messages name the target instead."""


class PostgresSink(Sink, UpsertSink, TwoPhaseSink):
    """Writes a table to a PostgreSQL table, each checkpoint once: an append table's rows, or an upsert table's changes.

    `url` is a URL, libpq's `key=value` pairs, or `env:NAME` of an environment variable. `table` is the target, such as
    `sales` or `reports.sales`. The sink creates it if it does not exist. Only the rights of the database user limit
    what the sink may do. With `two_phase`, the server checks the rows of a checkpoint before the checkpoint is
    committed. `refused` names a table of the same database. Rows that the server refuses go there with the reason, and
    the other rows go to the target.
    """

    def __init__(self, url: str, table: str, *, two_phase: bool = False, refused: str | None = None) -> None:
        """Open no connection yet. Raises SinkError if `table` or `refused` is not a valid name of a table."""
        parts = _parts(table)
        if refused == table:
            raise SinkError(f"{table!r} is the table and the table of its refused rows: name another one")
        self.two_phase = two_phase
        self._refused = None if refused is None else sql.Identifier(*_parts(refused))
        self._server = Server(url)
        self._name = table
        self._target = sql.Identifier(*parts)
        self._schema = parts[:-1]

    def __repr__(self) -> str:
        """Return the target without user and password."""
        return f"PostgresSink({self._name} at {self._server.place})"

    def prepare(self, job: str, table: str, schema: pa.Schema) -> int:
        """Create or check the table, and return the newest checkpoint that it has."""
        return self._prepared(job, table, schema, ())

    def prepare_upsert(self, job: str, table: str, schema: pa.Schema, keys: tuple[str, ...]) -> int:
        """Create the table with this primary key, or check it. Return the newest checkpoint that it shows."""
        return self._prepared(job, table, schema, keys)

    def publish(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch]) -> None:
        """Copy the rows and store the checkpoint's number, in one transaction."""
        self._once(job, table, checkpoint, rows)

    def apply(self, job: str, table: str, checkpoint: int, changes: TableChanges) -> None:
        """Make the table show this checkpoint, and store the checkpoint's number, in one transaction."""
        self._once(job, table, checkpoint, changes)

    def newest(self, job: str, table: str) -> int | None:
        """Return the newest checkpoint that the table has, or None if only an older release has written to it."""

        def asked(connection: Connection) -> int | None:
            numbers = self._numbers(connection, job, table)
            return numbers.standing().newest if numbers.is_new() else numbers.none_yet()

        return self._tried(asked)

    def take(self, job: str, table: str, warehouse: str, *, over: bool = False) -> bool:
        """Store the warehouse beside the checkpoint's number. An empty table may be taken from another warehouse."""

        def taken(connection: Connection) -> bool:
            numbers = self._numbers(connection, job, table)
            if not numbers.is_new() or numbers.standing().warehouse == warehouse:
                return False
            with connection.transaction():
                standing = numbers.standing(lock=True)
                is_anew = standing.warehouse not in (None, warehouse) and not over and standing.newest > 0
                if is_anew and not self._is_empty(connection):
                    raise SinkError(
                        f"{self!r} has rows of another warehouse, up to checkpoint {standing.newest}: name that "
                        "warehouse with --warehouse, give the sink another table, or empty this one"
                    )
                numbers.own(warehouse)
                if is_anew:
                    numbers.store(NO_CHECKPOINT)
                return is_anew

        return self._tried(taken)

    def check(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch] | TableChanges) -> None:
        """Try the rows in a transaction that is rolled back (`trial`)."""
        if self._refused is not None:  # no row can be in the way
            return

        def tried(connection: Connection) -> None:
            standing = self._numbers(connection, job, table).standing()
            if standing.newest >= checkpoint:
                return
            trial = TrialWrite(connection, self._target, self._schema, self._copy)
            with connection.transaction(force_rollback=True):
                if trial.needs_target(rows):
                    self._write(connection, job, table, checkpoint, rows)
                    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                else:
                    trial.copy(rows, standing.known)

        self._tried(tried)

    def pre_commit(self, transaction: SinkTransaction, rows: Iterable[pa.RecordBatch] | TableChanges) -> None:
        """Write the rows and the checkpoint's number, and prepare the transaction."""
        job, table, checkpoint = transaction.job, transaction.table, transaction.checkpoint

        def prepare(connection: Connection) -> None:
            prepared = PreparedTransactions(connection, self._target, job, table)
            newest = self._numbers(connection, job, table).standing().newest
            if transaction not in prepared.all() and newest < checkpoint:
                with prepared.preparing(transaction):
                    self._write(connection, job, table, checkpoint, rows)

        self._tried(prepare)

    def pre_committed(self, job: str, table: str) -> tuple[SinkTransaction, ...]:
        """Return the prepared transactions of this job's table."""
        return self._tried(lambda connection: PreparedTransactions(connection, self._target, job, table).all())

    def left_elsewhere(self, job: str, table: str) -> tuple[tuple[SinkTransaction, str], ...]:
        """Return the job's prepared transactions in other targets of the database, such as a former target."""
        found = self._tried(
            lambda connection: [*PreparedTransactions(connection, self._target, job, table).elsewhere()]
        )
        return tuple((each, f"{gid} at {self._server.place}: {prepared_way_out(gid)}") for each, gid in found)

    def commit(self, transaction: SinkTransaction) -> None:
        """Commit a prepared transaction."""
        self._tried(lambda connection: self._prepared_by(connection, transaction).commit(transaction))

    def roll_back(self, transaction: SinkTransaction) -> None:
        """Roll a prepared transaction back."""
        self._tried(lambda connection: self._prepared_by(connection, transaction).roll_back(transaction))

    def _prepared_by(self, connection: Connection, transaction: SinkTransaction) -> PreparedTransactions:
        return PreparedTransactions(connection, self._target, transaction.job, transaction.table)

    def _once(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch] | TableChanges) -> None:
        """Write the rows and the checkpoint's number in one transaction, unless the target has this checkpoint."""

        def publish(connection: Connection) -> None:
            with connection.transaction():
                self._write(connection, job, table, checkpoint, rows)

        self._tried(publish)

    def _write(
        self,
        connection: Connection,
        job: str,
        table: str,
        checkpoint: int,
        rows: Iterable[pa.RecordBatch] | TableChanges,
    ) -> None:
        if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
            connection.execute("SET LOCAL synchronous_commit = on")  # the cut is recorded after this commit
        numbers = self._numbers(connection, job, table)
        standing = numbers.standing(lock=True)
        if standing.newest >= checkpoint:
            return
        is_emptied = isinstance(rows, TableChanges) and self._is_empty(connection)
        newest = 0 if is_emptied else standing.known
        refusals = None
        if self._refused is not None:
            refusals = Refusals(connection, self._refused, job, table, checkpoint, self._reason)
        if isinstance(rows, TableChanges):
            upserting = Upserting(connection, self._target, self._schema, rows, self._copy)
            if refusals is None:
                upserting.write(newest)
            else:
                refusals.instead(partial(upserting.write, newest), partial(upserting.write_each, newest, refusals))
        elif refusals is None:
            self._copy(connection, self._target, rows)
        else:
            copied = partial(self._copy, connection, self._target)
            refusals.instead(partial(copied, rows), partial(refusals.sort_out, rows, lambda part: copied([part])))
        numbers.store(checkpoint)

    def _tried(self, call: Callable[[Connection], Result]) -> Result:
        """Return what `call` returns for a new connection. If the server goes away meanwhile, try again."""
        for left in reversed(range(TRIES)):
            try:
                with closing(self._connected()) as connection:
                    return call(connection)
            except psycopg.OperationalError as error:
                if isinstance(error, (*BLOCKED, psycopg.errors.DiskFull)):
                    raise SinkError(f"{self!r}: {self._told(error)}") from None
                if not left:
                    raise SinkAwayError(f"{self!r}: {self._told(error)}") from None
            except psycopg.Error as error:
                raise SinkError(f"{self!r}: {self._told(error)}") from None
        raise AssertionError("the last try returns or raises")

    def _prepared(self, job: str, table: str, schema: pa.Schema, keys: tuple[str, ...]) -> int:
        wanted = {field.name: postgres_type(field.name, field.type) for field in schema}
        try:
            with closing(self._connected()) as connection, connection.transaction():
                # two ticks may create the tables at the same time
                connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemark_published', 0))")
                numbers = self._numbers(connection, job, table)
                numbers.create()
                self._create(connection, wanted, keys)
                self._must_fit(connection, wanted)
                if self._refused is not None:
                    create_refused(connection, self._refused)
                standing = numbers.standing()
                newest = standing.newest
                if self.two_phase:
                    self._must_prepare(connection, job, table)
                if keys:
                    self._must_have_keys(connection, keys)
                is_empty = (keys or standing.is_another) and self._is_empty(connection)
                if is_empty:
                    newest = 0  # nothing of what was written is there
                elif keys and (standing.is_another or not newest):
                    written = "this job has written none of them"
                    if standing.is_another:
                        written = "this table is not the one that the job has written: somebody has created it anew"
                    raise SinkError(f"{self!r} has rows, and {written}: empty it, or name another table")
        except psycopg.Error as error:
            raise SinkError(f"{self!r}: {self._told(error)}") from None
        return newest

    def _numbers(self, connection: Connection, job: str, table: str) -> TargetNumbers:
        return TargetNumbers(connection, self._schema, self._target, job, table)

    def _must_prepare(self, connection: Connection, job: str, table: str) -> None:
        try:
            PreparedTransactions(connection, self._target, job, table).must_be_possible()
        except SinkError as error:
            raise SinkError(f"{self!r}: {error}") from None

    def _connected(self) -> Connection:
        try:
            return self._server.connect()
        except SourceAwayError as error:
            raise SinkAwayError(str(error)) from None
        except SourceError as error:
            raise SinkError(str(error)) from None

    def _create(self, connection: Connection, wanted: dict[str, str], keys: tuple[str, ...]) -> None:
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(each)) for name, each in wanted.items()]
        if keys:
            columns.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys))))
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

    def _must_have_keys(self, connection: Connection, keys: tuple[str, ...]) -> None:
        """Raise SinkError unless a unique index has exactly these keys, by which the server finds each row."""
        wanted, named = set(keys), ", ".join(keys)
        found = connection.execute(KEYS, [self._target.as_string(connection)]).fetchall()
        if not any(set(columns) == wanted for columns, _ in found):
            raise SinkError(f"{self!r} needs a primary key or a unique index on ({named}): add it")
        if not any(set(columns) == wanted and never_null for columns, never_null in found):
            raise SinkError(f"{self!r} may have nulls in its key ({named}): set these columns NOT NULL")

    def _is_empty(self, connection: Connection) -> bool:
        return not connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(self._target)).rowcount

    def _copy(self, connection: Connection, into: sql.Identifier, rows: Iterable[pa.RecordBatch]) -> None:
        types = {name: oid for name, oid, *_ in connection.execute(_COLUMNS, [into.as_string(connection)])}
        before = 0
        for names, batches in groupby(rows, lambda batch: tuple(batch.schema.names)):
            unknown = [name for name in names if name not in types]
            if unknown:
                raise SinkError(f"{self!r} has no column {unknown[0]}: add it")
            columns = sql.SQL(", ").join(map(sql.Identifier, names))
            statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(into, columns)
            copied = 0
            try:
                with connection.cursor() as cursor, cursor.copy(statement) as copy:
                    copy.set_types([types[name] for name in names])
                    for batch in batches:
                        copied += batch.num_rows
                        self._copy_batch(copy, batch)
            except ABOUT_ROWS as error:
                row = _refused_row(error, rows, before)
                if row is None or (error.diag.message_detail or "").startswith("Failing row"):
                    raise
                raise RowRefusedError(f"{self!r} refuses the row {_shown(row)}: {self._told(error)}") from None
            before += copied

    def _copy_batch(self, copy: psycopg.Copy, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for row in self._values(batch.slice(start, BATCH_ROWS)):
                try:
                    copy.write_row(row)
                except (psycopg.DataError, ValueError, OverflowError) as error:
                    shown = {name: _cut(value) for name, value in zip(batch.schema.names, row, strict=True)}
                    raise self._cannot_hold(shown, error) from None

    def _values(self, part: pa.RecordBatch) -> Iterable[tuple[object, ...]]:
        """Return rows as Python values.

        Raise SinkError for a value that Python cannot hold, such as a text that is not UTF-8.
        """
        try:
            return zip(*(column.to_pylist() for column in part.columns), strict=True)
        except (ValueError, OverflowError) as error:
            if part.num_rows > 1:
                halves = (part.slice(0, part.num_rows // 2), part.slice(part.num_rows // 2))
                return chain.from_iterable(self._values(half) for half in halves)
            raise self._cannot_hold(_shown(part), error) from None

    def _cannot_hold(self, shown: dict[str, object], error: Exception) -> RowRefusedError:
        way_out = f". {_ELSEWHERE}" if self._refused is None else ""
        return RowRefusedError(f"{self!r} cannot hold the row {shown} ({error}){way_out}")

    def _reason(self, error: Exception) -> str:
        """Return why a row is refused."""
        return self._told(error) if isinstance(error, psycopg.Error) else str(error)

    def _told(self, error: psycopg.Error) -> str:
        """Return the server's message, with the row that it refuses, in one line without the password."""
        said = error.diag
        parts = [said.message_primary or str(error), said.message_detail, said.context]
        text = _STAGED.sub(self._name, ". ".join(part.rstrip(".") for part in parts if part))
        told = self._server.told(type(error)(text))
        if isinstance(error, ABOUT_ROWS) and self._refused is None:
            return f"{told}. {_ELSEWHERE}"
        return f"{SERVER_DISK_FULL}. The server said: {told}" if isinstance(error, psycopg.errors.DiskFull) else told


def _parts(table: str) -> list[str]:
    """Return the schema and table that a name gives. Raise SinkError if it is not a valid name of a table."""
    parts = table.split(".")
    wrong = [part for part in parts if not part or len(part.encode()) > _NAME_BYTES_MAX or "\0" in part]
    if len(parts) > 2 or wrong:  # noqa: PLR2004 - a schema and a table
        raise SinkError(f"{table!r} is no name of a PostgreSQL table: write TABLE or SCHEMA.TABLE")
    return parts


def _refused_row(error: psycopg.Error, rows: Iterable[pa.RecordBatch], before: int) -> pa.RecordBatch | None:
    """Return the row that the server refused, if the error has its number and the rows can be read again."""
    line = _LINE.search(error.diag.context or "")
    if line is None or line[1] == "0" or isinstance(rows, Iterator):
        return None
    left = before + int(line[1]) - 1
    for batch in rows:
        if left < batch.num_rows:
            return batch.slice(left, 1)
        left -= batch.num_rows
    return None


def _shown(row: pa.RecordBatch) -> dict[str, object]:
    """Return a row as a message shows it."""
    return {name: _cut(plain(column)) for name, column in zip(row.schema.names, row.columns, strict=True)}


def _cut(value: object) -> object:
    """Return a value as a message shows it, which is only the beginning of a long text."""
    return value[:_SHOWN_MAX] if isinstance(value, (str, bytes)) else value
