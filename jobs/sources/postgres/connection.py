"""Connects to a server. No message, log or representation contains the password."""

import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeVar

import psycopg
from psycopg import generators
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow

from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.staged.lsn import parsed

Connection = psycopg.Connection[TupleRow]
Result = TypeVar("Result")

logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what it ignores would stand on stderr

_ENVIRONMENT: Final = "env:"
_PATIENCE_S: Final = 30.0
"""How many seconds a tick waits for a server that it has reached before."""
_PAUSE_S: Final = 0.5
_GID_PARTS: Final = 6
"""The least number of parts in the name of a prepared transaction of a `PostgresSink`."""
_HOPELESS: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
"""Errors of a server that do not go away while the tick waits."""

_SESSION: Final = (
    "SET DateStyle = 'ISO, YMD'",
    "SET TimeZone = 'UTC'",
    "SET IntervalStyle = 'postgres'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
    "SET client_encoding = 'UTF8'",
    "SET row_security = off",
    "SET lock_timeout = '10s'",
    "SET statement_timeout = '1h'",
)
"""The source reads values as text, so the session's settings fix the form of values.

With row_security off, hidden rows cause an error. The timeouts limit how long a statement waits for a lock and how long
it runs.
"""

_ALIVE: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""With these settings, a connection to a host that has vanished ends after a minute."""

SILENT_S: Final = 30.0
"""After this many seconds of silence, a second connection finds out whether the server answers at all."""
_STATEMENT_S: Final = 3600.0
"""How many seconds a statement may take (`statement_timeout`). The client waits about a minute longer."""

_HOLDERS: Final = """
SELECT l.relation::regclass::text, l.pid, coalesce(application_name, ''), coalesce(state, ''), gid
FROM pg_locks AS l
JOIN pg_class AS c ON c.oid = l.relation AND relkind IN ('r', 'p', 'm')
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_locks AS own ON own.virtualtransaction = l.virtualtransaction AND own.locktype = 'transactionid'
                          AND own.granted AND l.pid IS NULL
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = own.transactionid
WHERE l.locktype = 'relation' AND l.granted AND l.relation >= 16384 AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY l.mode = 'AccessShareLock', coalesce(prepared, xact_start) LIMIT 1
"""
"""Finds the oldest transaction that holds a lock on a user's table, preferring transactions that do not only read."""

BLOCKED: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
"""The errors of a statement that has timed out. A retry would wait as long again."""


def timeline_of(connection: Connection) -> int:
    """Return the timeline on which the server writes. A restore and a failover each begin a new timeline."""
    row = connection.execute("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").fetchone()
    return int(row[0], 16) if row else 0


class WatchedConnection(psycopg.Connection[TupleRow]):
    """A connection that does not wait for ever for a server that has stopped answering, such as a frozen process.

    The kernel of such a server still acknowledges packets, so no TCP timeout detects the problem.
    """

    is_answering: Callable[[], bool]
    """Finds out over a second connection whether the server answers."""
    silent: str | None = None
    """Why this connection can no longer be used."""

    def wait(self, gen: Generator[Any, Any, Result], *arguments: Any, **more: Any) -> Result:  # noqa: ANN401 - as psycopg has it
        """Return what `gen` returns. Raises OperationalError if the server sends nothing and does not answer."""
        return super().wait(self._heard(gen), *arguments, **more)

    def _heard(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        """Pass on what the socket is ready for. While the socket is not ready, check whether the server answers."""
        if self.silent is not None:
            raise psycopg.OperationalError(self.silent)
        waited = next_look = SILENT_S
        try:
            wanted, since = next(gen), time.monotonic()
            while True:
                ready = yield wanted
                waited = time.monotonic() - since
                if ready:
                    since, next_look = time.monotonic(), SILENT_S
                elif waited >= next_look:
                    if waited >= _STATEMENT_S + 2 * SILENT_S or not self.is_answering():
                        break
                    next_look = time.monotonic() - since + SILENT_S
                wanted = gen.send(ready)
        except StopIteration as done:
            value: Result = done.value
            return value
        self.silent = f"the server has not answered for {waited:.0f} s: its process or its machine stands still"
        self.pgconn.finish()
        raise psycopg.OperationalError(self.silent)


def simple(connection: Connection, command: str) -> PGresult:
    """Return the result of a command that needs the simple query protocol."""

    def asked() -> Generator[Any, Any, PGresult]:
        connection.pgconn.send_query(command.encode())
        results: list[PGresult] = yield from generators.execute(connection.pgconn)
        return results[-1]

    return connection.wait(asked())


class Server:
    """The address of the server, and the login. It cannot be pickled, so the password reaches no other process."""

    def __init__(self, url: str) -> None:
        """Take a URL, libpq's `key=value` pairs (`service=bank`), or `env:NAME` for an environment variable."""
        self._url = url
        self._reached = False

    def __repr__(self) -> str:
        """Return the address without user and password."""
        return f"Server({self.place})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: the password would be in the bytes."""
        raise TypeError("a PostgreSQL server's address stays in its process: it may hold a password")

    @property
    def place(self) -> str:
        """Return host, port and database, without user and password."""
        try:
            known = self._parameters()
        except SourceError:
            return self._url if self._url.startswith(_ENVIRONMENT) else "PostgreSQL"
        if "service" in known and "host" not in known:
            return f"service {known['service']}"
        host = known.get("host") or known.get("hostaddr") or os.environ.get("PGHOST") or "localhost"
        port = known.get("port") or os.environ.get("PGPORT") or "5432"
        return f"{host}:{port}/{known.get('dbname') or os.environ.get('PGDATABASE') or ''}"

    def connect(self, *, replication: bool = False) -> Connection:
        """Return a connection in autocommit mode. Raise SourceError if the server cannot be reached.

        If this process has reached the server before, the method waits, because the server may be restarting.
        """
        deadline = time.monotonic() + (_PATIENCE_S if self._reached else 0)
        while True:
            try:
                connection = self._connected(replication=replication)
            except psycopg.OperationalError as error:
                text = self.told(error)
                if time.monotonic() >= deadline or any(each in text for each in _HOPELESS):
                    raise SourceAwayError(
                        f"PostgreSQL at {self.place} cannot be reached ({text}): start the server, or correct the URL. "
                        "The next tick goes on where this one stopped"
                    ) from None
                time.sleep(_PAUSE_S)
            else:
                self._reached = True
                return connection

    def left_timeline(self, timeline: int, now: int) -> int | None:
        """Return the place where the server left an older timeline, or None if timeline `now` does not come from it."""
        with self.connect(replication=True) as connection:
            result = simple(connection, f"TIMELINE_HISTORY {int(now)}")
            content = result.get_value(0, 1) if result.status == ExecStatus.TUPLES_OK else None
            if content is None:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace") or "no timeline history")
        for line in content.decode().splitlines():
            number, _, rest = line.strip().partition("\t")
            if number == str(timeline):
                return parsed(rest.split("\t")[0])
        return None

    def told(self, error: Exception) -> str:
        """Return a message of the server or its client in one line, without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        with suppress(SourceError):
            password = self._parameters().get("password")
            text = text.replace(str(password), "***") if password else text
        return f"{text}. {self._holder()}" if isinstance(error, psycopg.errors.LockNotAvailable) else text

    def _holder(self) -> str:
        """Return who holds the lock for which a statement timed out, and how to release it."""
        with suppress(psycopg.Error, SourceError), self.connect() as connection:
            found = connection.execute(_HOLDERS).fetchone()
            if found is not None:
                table, pid, application, state, gid = found
                if gid is not None:
                    return f"Table {table} is locked by a prepared transaction: {prepared_way_out(gid)}"
                return (
                    f"Table {table} is locked by process {pid} of the server (application {application!r}, {state}): "
                    f"wait for it, or end it with SELECT pg_terminate_backend({pid}), and start again"
                )
        return "Nobody holds the lock any more: start again"

    def _connected(self, *, replication: bool) -> Connection:
        more = {"replication": "database"} if replication else {}
        conninfo = make_conninfo("", **(self._parameters() | more))
        connection = WatchedConnection.connect(conninfo, autocommit=True)
        connection.is_answering = lambda: _is_answering(conninfo)
        if not replication:
            for setting in _SESSION:
                connection.execute(setting)
        return connection

    def _parameters(self) -> dict[str, Any]:
        url = self._url
        if url.startswith(_ENVIRONMENT):
            name = url.removeprefix(_ENVIRONMENT)
            found = os.environ.get(name)
            if not found:
                raise SourceError(f"the environment variable {name} is not set: let it hold the URL of the database")
            url = found
        try:
            known = {"application_name": "tidemark", "connect_timeout": "10"} | _ALIVE | dict(conninfo_to_dict(url))
        except psycopg.ProgrammingError:
            raise SourceError(
                "the URL of the PostgreSQL database cannot be read (it is not shown, it may hold a password): write "
                "postgresql://USER@HOST:PORT/DATABASE, service=NAME, or env:NAME of an environment variable"
            ) from None
        return known


def _is_answering(conninfo: str) -> bool:
    """Return whether the server answers a new connection, even if it refuses the connection."""
    try:
        psycopg.connect(conninfo).close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.OperationalError:
        return True
    return True


def prepared_way_out(gid: str) -> str:
    """Return how a user ends a prepared transaction. Names of Tidemark's transactions contain job and checkpoint."""
    named = "'" + gid.replace("'", "''") + "'"
    parts = gid.split("/")
    if parts[0] != "tidemark" or len(parts) < _GID_PARTS:
        return f"end it with COMMIT PREPARED {named} or ROLLBACK PREPARED {named}"
    return (
        f"if checkpoint {parts[-1]} of {parts[1]} was committed ('tidemark checkpoints list {parts[1]}'), type COMMIT "
        f"PREPARED {named}, else ROLLBACK PREPARED {named}"
    )
