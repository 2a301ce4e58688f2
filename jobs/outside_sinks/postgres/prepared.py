"""Finds, prepares and ends the prepared transactions of one target. A prepared transaction outlives its connection.

Its name has job, table, target, generation and checkpoint. The target is identified there by its number in the database
(`oid`), since two warehouses can write the same job's table into two targets of one database.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from checkpointing.commit.outside_sinks import SinkTransaction
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName
from jobs.sinks.port import SinkError
from jobs.sources.postgres.connection import Connection

NAME_BYTES_MAX: Final = 200
"""The name of a prepared transaction must have fewer bytes than this in PostgreSQL."""
_NUMBERS_BYTES: Final = 41
"""The most bytes of a generation, a checkpoint (64 bits each) and the slash between them."""


@dataclass(frozen=True, slots=True)
class PreparedTransactions:
    """The prepared transactions of one job's table in one target."""

    connection: Connection
    target: sql.Identifier
    job: str
    table: str

    def must_be_possible(self) -> None:
        """Raise SinkError if the server cannot prepare transactions, or if their names would be too long."""
        if self.connection.execute("SHOW max_prepared_transactions").fetchone() == ("0",):
            raise SinkError(
                "this server prepares no transactions, and two_phase=True needs them: set max_prepared_transactions "
                "to at least the number of such sinks and restart the server, or leave two_phase out"
            )
        if len(self._prefix().encode()) + _NUMBERS_BYTES >= NAME_BYTES_MAX:
            raise SinkError(
                f"the names of job {self.job} and table {self.table} are too long for the name of a prepared "
                f"transaction, which has fewer than {NAME_BYTES_MAX} bytes: rename the table, or leave two_phase out"
            )

    def elsewhere(self) -> Iterator[tuple[SinkTransaction, str]]:
        """Yield the job's prepared transactions in other targets of this database, with their names."""
        own, job = self._prefix(), f"tidemark/{self.job}/"
        names = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
        for (gid,) in self.connection.execute(names, [job]).fetchall():
            table, *numbers = gid.removeprefix(job).rsplit("/", 3)
            if not gid.startswith(own) and len(numbers) == 3 and all(each.isdecimal() for each in numbers):  # noqa: PLR2004 - target, generation, checkpoint
                generation, checkpoint = Generation(int(numbers[1])), CheckpointId(int(numbers[2]))
                yield SinkTransaction(JobName(self.job), TableName(table), generation, checkpoint), gid

    def all(self) -> tuple[SinkTransaction, ...]:
        """Return the transactions that are prepared."""
        prefix = self._prefix()
        names = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
        numbers = [gid.removeprefix(prefix).split("/") for (gid,) in self.connection.execute(names, [prefix])]
        return tuple(
            SinkTransaction(
                JobName(self.job), TableName(self.table), Generation(int(each[0])), CheckpointId(int(each[1]))
            )
            for each in numbers
            if len(each) == 2 and all(number.isdecimal() for number in each)  # noqa: PLR2004 - generation, checkpoint
        )

    @contextmanager
    def preparing(self, transaction: SinkTransaction) -> Iterator[None]:
        """Run a block in a transaction. Prepare the transaction at the end, or roll it back after an error."""
        self.connection.execute("BEGIN")
        try:
            yield
            self._end("PREPARE TRANSACTION {}", transaction)
        except BaseException:
            with suppress(psycopg.Error):
                self.connection.execute("ROLLBACK")
            raise

    def commit(self, transaction: SinkTransaction) -> None:
        """Commit a prepared transaction.

        If it no longer exists, do nothing: the checkpoint's number tells how it ended.
        """
        with suppress(psycopg.errors.UndefinedObject):
            self._end("COMMIT PREPARED {}", transaction)

    def roll_back(self, transaction: SinkTransaction) -> None:
        """Roll a prepared transaction back. If it no longer exists, do nothing."""
        with suppress(psycopg.errors.UndefinedObject):
            self._end("ROLLBACK PREPARED {}", transaction)

    def _end(self, statement: str, transaction: SinkTransaction) -> None:
        name = f"{self._prefix()}{transaction.generation}/{transaction.checkpoint}"
        self.connection.execute(sql.SQL(statement).format(name))

    def _prefix(self) -> str:
        asked = [self.target.as_string(self.connection)]
        (oid,) = self.connection.execute("SELECT coalesce(to_regclass(%s)::oid, 0)::bigint", asked).fetchone() or (0,)
        return f"tidemark/{self.job}/{self.table}/{oid}/"
