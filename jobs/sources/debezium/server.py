"""Checks, before Debezium's engine starts, whether a MariaDB or MySQL server can provide its tables' changes.

The engine takes seconds to start, and reports a problem in many lines. A query through the client library takes
milliseconds, and each problem that it finds becomes one sentence with the way out.
"""

import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pymysql

from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.secrets import without
from jobs.sources.staged.tracked_tables import TrackedColumn, TrackedTable

_ENVIRONMENT: Final = "env:"
_PORT: Final = 3306
_CONNECT_S: Final = 10
_ANSWER_S: Final = 30
_REFUSED_LOGIN: Final = (1044, 1045, 1698, 1251, 2059)
_NO_DATABASE: Final = 1049
_NOT_ALLOWED: Final = (1142, 1227)
_ENCRYPTED_ONLY: Final = 3159
_NO_ENCRYPTION: Final = 2026
_NOT_TRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_NAME: Final = re.compile(r"[A-Za-z0-9_$-]{1,64}")
_DECIMAL_DIGITS_MAX: Final = 38

ANEW: Final = "read the tables anew, with an empty folder of staged files and another id of the source"
"""The way out in messages: how to begin a new series of changes, with a new snapshot."""
_ENCRYPT: Final = "let the URL end with ?ssl-mode=required, or ?ssl-mode=verify-ca&ssl-ca=FILE"
NAMES: Final[Mapping[str, str]] = {"mariadb": "MariaDB", "mysql": "MySQL"}
GRANTS: Final = "SELECT, RELOAD, SHOW DATABASES, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT"
"""The privileges that the source's database user needs. MariaDB also calls the last one BINLOG MONITOR."""


class Encryption(NamedTuple):
    """How the connection to a server is encrypted.

    | mode              | encrypts | a trusted authority signed the certificate | the certificate is the host's |
    |-------------------|----------|--------------------------------------------|-------------------------------|
    | `disabled`        |          |                                            |                               |
    | `required`        | yes      |                                            |                               |
    | `verify-ca`       | yes      | yes                                        |                               |
    | `verify-identity` | yes      | yes                                        | yes                           |
    """

    mode: str = "disabled"
    authority: str = ""
    """The path of a PEM file with the trusted certificates. If empty, the machine's own certificates are trusted."""

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the client library, or None. Raise SourceError if the file cannot be read."""
        if self.mode == "disabled":
            return None
        try:
            made = ssl.create_default_context(cafile=self.authority or None)
        except OSError as error:  # also what ssl raises
            raise SourceError(
                f"{self.authority}, which ssl-ca in the URL of the database names, is no readable file of certificates "
                f"({error.strerror or error}): name a PEM file"
            ) from None
        made.check_hostname = self.mode == "verify-identity"
        if self.mode == "required":
            made.verify_mode = ssl.CERT_NONE
        return made

    def properties(self, connector: str) -> dict[str, str]:
        """Return the mode as Debezium's property. The engine makes the store of trusted certificates (`engine.py`)."""
        return {"database.ssl.mode": _ENGINE_MODES[connector][self.mode]}

    def certificates(self) -> str:
        """Return the text of the trusted certificates, or an empty text if the machine's own are trusted."""
        return Path(self.authority).read_text(encoding="utf-8", errors="replace") if self.authority else ""


_ENGINE_MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "mariadb": {"disabled": "disable", "required": "trust", "verify-ca": "verify-ca", "verify-identity": "verify-full"},
    "mysql": {
        "disabled": "disabled",
        "required": "required",
        "verify-ca": "verify_ca",
        "verify-identity": "verify_identity",
    },
}
"""The names of the modes of `Encryption` in Debezium's connectors."""


class LogPlace(NamedTuple):
    """A place in the server's binary log: the file, and the bytes before it."""

    file: str
    position: int


class BinlogServer:
    """The address of a server, and the login. It cannot be pickled, so the password reaches no other process."""

    def __init__(self, url: str) -> None:
        """Take a URL, or `env:NAME` for an environment variable that holds the URL."""
        self._url = url

    def __repr__(self) -> str:
        """Return the address without user and password."""
        return f"BinlogServer({self.place})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: the password would be in the bytes."""
        raise TypeError("a server's address stays in its process: it may hold a password")

    @property
    def connector(self) -> str:
        """Return `mariadb` or `mysql`. Raise SourceError for another URL."""
        return self._parts().scheme

    @property
    def database(self) -> str:
        """Return the database of the URL."""
        return self._parts().path.strip("/")

    @property
    def place(self) -> str:
        """Return host, port and database, without user and password."""
        try:
            parts = self._parts()
        except SourceError:
            return self._url if self._url.startswith(_ENVIRONMENT) else "the database"
        return f"{parts.hostname}:{parts.port or _PORT}/{parts.path.strip('/')}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the values that no message may contain."""
        parts = self._parts()
        return tuple(each for each in (parts.password, unquote(parts.password or "")) if each)

    def properties(self) -> dict[str, str]:
        """Return the address and the login as Debezium's properties."""
        parts = self._parts()
        return {
            "database.hostname": str(parts.hostname),
            "database.port": str(parts.port or _PORT),
            "database.user": unquote(parts.username or ""),
            "database.password": unquote(parts.password or ""),
            **self.encryption.properties(self.connector),
        }

    @property
    def encryption(self) -> Encryption:
        """Return the encryption that the URL's parameters select."""
        said = dict(parse_qsl(self._parts().query))
        return Encryption(said.get("ssl-mode", "disabled").lower().replace("_", "-"), said.get("ssl-ca", ""))

    def named(self) -> str:
        """Return the server's kind and place for messages."""
        with suppress(SourceError):
            return f"{NAMES[self.connector]} at {self.place}"
        return self.place

    @contextmanager
    def connected(self) -> Iterator["Questions"]:
        """Yield a connection for queries. Raises SourceError, also for a query inside the block that fails."""
        parts, encrypted = self._parts(), self.encryption.context()
        try:
            connection = pymysql.connect(
                host=str(parts.hostname),
                port=parts.port or _PORT,
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                database=self.database,
                connect_timeout=_CONNECT_S,
                read_timeout=_ANSWER_S,
                write_timeout=_ANSWER_S,
                autocommit=True,
                ssl=encrypted,
                ssl_disabled=encrypted is None,
            )
            try:
                yield Questions(self, connection)
            finally:
                connection.close()
        except (pymysql.Error, OSError, RuntimeError) as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> SourceError:
        code = error.args[0] if error.args else None
        words = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
        told, user = without(words, self.secrets), unquote(self._parts().username or "")
        if code in _REFUSED_LOGIN:
            closed = "" if self.encryption.mode != "disabled" else f". If it wants encryption, {_ENCRYPT}"
            return SourceError(
                f"{self.named()} refuses the login of user {user!r} ({told}): correct user and password in the URL, or "
                f"GRANT {GRANTS} ON *.* TO the user{closed}"
            )
        if code == _NO_DATABASE:
            return SourceError(f"{self.named()} has no such database ({told}): correct the end of the URL")
        if code in _NOT_ALLOWED:
            return SourceError(
                f"{self.named()} does not let user {user!r} read its changes ({told}): "
                f"GRANT {GRANTS} ON *.* TO {user!r}"
            )
        if _NOT_TRUSTED in words:
            return SourceError(
                f"{self.named()} has a certificate that is not trusted ({told}): let ssl-ca in the URL name a file "
                "with the certificate of the authority that signed it, and the host be one for which it was made"
            )
        if code == _ENCRYPTED_ONLY:
            return SourceError(f"{self.named()} lets nobody in without encryption ({told}): {_ENCRYPT}")
        if code == _NO_ENCRYPTION:
            return SourceError(
                f"{self.named()} has no encryption, which ssl-mode in the URL asks for ({told}): give the server a "
                "certificate, or leave ssl-mode out"
            )
        return SourceAwayError(
            f"{self.named()} cannot be reached ({told}): start the server, or correct the URL. The next tick goes on "
            "where this one stopped"
        )

    def _parts(self) -> SplitResult:
        url = self._url
        if url.startswith(_ENVIRONMENT):
            name = url.removeprefix(_ENVIRONMENT)
            found = os.environ.get(name)
            if not found:
                raise SourceError(f"the environment variable {name} is not set: let it hold the URL of the database")
            url = found
        with suppress(ValueError):
            parts = urlsplit(url)
            known = parts.scheme in NAMES and parts.hostname and _NAME.fullmatch(parts.path.strip("/"))
            if known and _is_encryption(parts.query) and (parts.port or _PORT):
                return parts
        raise SourceError(
            "the URL of the database cannot be read (it is not shown, it may hold a password): write "
            "mariadb://USER:PASSWORD@HOST:PORT/DATABASE, mysql://... for MySQL, or env:NAME of an environment "
            "variable. Write a character such as @ or / in the password as %40 or %2F. For an encrypted connection, "
            f"let it end with ?ssl-mode=MODE, which is one of {', '.join(_ENGINE_MODES['mysql'])}, and &ssl-ca=FILE"
        )


def _is_encryption(query: str) -> bool:
    """Return True if the part of a URL behind `?` is empty, or has only valid settings of `Encryption`."""
    said = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    names = [name for name, value in said]
    mode = dict(said).get("ssl-mode", "disabled").lower().replace("_", "-")
    return len({*names}) == len(names) and {*names} <= {"ssl-mode", "ssl-ca"} and mode in _ENGINE_MODES["mysql"]


class Questions:
    """A connection, and the source's queries on it."""

    def __init__(self, server: BinlogServer, connection: "pymysql.Connection[Any]") -> None:
        self._server, self._connection = server, connection

    def must_log(self) -> None:
        """Raise SourceError if the server is of another kind, or does not log whole rows."""
        version = str(self._value("SELECT version()"))
        is_mariadb = "mariadb" in version.lower()
        if is_mariadb != (self._server.connector == "mariadb"):
            kind = "mariadb" if is_mariadb else "mysql"
            raise SourceError(
                f"the server at {self._server.place} is {NAMES[kind]} ({version}): let the URL begin with {kind}://"
            )
        if not self._value("SELECT @@log_bin"):
            raise SourceError(
                f"{self._server.named()} writes no binary log, so nobody can read its changes: set log_bin and "
                "binlog_format=ROW in its configuration, and restart it"
            )
        for name, wanted in (("binlog_format", "ROW"), ("binlog_row_image", "FULL")):
            found = str(self._value(f"SELECT @@GLOBAL.{name}"))
            if found.upper() != wanted:
                raise SourceError(
                    f"{self._server.named()} has {name}={found}, so its log has no whole rows: run SET GLOBAL "
                    f"{name}='{wanted}', write it into the configuration, and let all clients connect again"
                )

    def must_let_read(self) -> None:
        """Raise SourceError if the user may not read the log, as far as the user's own grants show."""
        self.end()
        grants = [str(row[0]) for row in self._rows("SHOW GRANTS")]
        text = " ".join(grants)
        has_roles = any(" ON " not in each for each in grants)
        if not has_roles and "REPLICATION SLAVE" not in text and "ALL PRIVILEGES ON *.*" not in text:
            raise SourceError(
                f"{self._server.named()} does not let its user read the binary log: GRANT {GRANTS} ON *.* TO the user"
            )

    def end(self) -> LogPlace:
        """Return the end of the server's log."""
        try:
            row = self._row("SHOW MASTER STATUS")
        except pymysql.ProgrammingError:
            row = self._row("SHOW BINARY LOG STATUS")  # since MySQL 8.4
        if row is None:
            raise SourceError(f"{self._server.named()} does not say where its binary log ends")
        return LogPlace(str(row[0]), int(row[1]))

    def must_hold(self, file: str) -> None:
        """Raise SourceError if the server has removed the log file in which the next changes begin."""
        files = [str(row[0]) for row in self._rows("SHOW BINARY LOGS")]
        if file not in files:
            raise SourceError(
                f"{self._server.named()} no longer has {file} of its binary log, and the changes that follow the "
                "staged ones begin there: the server keeps its log for too short a time (binlog_expire_logs_seconds), "
                f"or is another one. To go on, {ANEW}"
            )

    def identity(self) -> str:
        """Return the server's unique id, or an empty text if the server has none."""
        for name in ("server_uuid", "server_uid"):
            with suppress(pymysql.Error):
                return str(self._value(f"SELECT @@{name}"))
        return ""

    def tables(self, wanted: Sequence[str]) -> tuple[TrackedTable, ...]:
        """Return the tables as they are now. Raise SourceError for a table that is missing or has no primary key."""
        database, found = self._server.database, []
        for name in wanted:
            rows = self._rows(
                "SELECT column_name, column_type, column_key FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                (database, name),
            )
            if not rows:
                raise SourceError(
                    f"{self._server.named()} has no table {name}, or its user may not read it: correct tables=, or "
                    f"GRANT SELECT ON {database}.{name}"
                )
            keys = tuple(str(row[0]) for row in rows if row[2] == "PRI")
            columns = tuple(TrackedColumn(name=str(row[0]), type=type_of_text(str(row[1]))) for row in rows)
            found.append(staged_table(database, name, columns, keys))
        return tuple(found)

    def missing(self, tables: Sequence[TrackedTable]) -> list[str]:
        """Return those of the tables that no longer exist."""
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
        here = {str(row[0]) for row in self._rows(query, (self._server.database,))}
        return [table.full_name for table in tables if table.name not in here]

    def _value(self, query: str) -> object:
        row = self._row(query)
        return row[0] if row else None

    def _row(self, query: str) -> tuple[Any, ...] | None:
        return next(iter(self._rows(query)), None)

    def _rows(self, query: str, values: tuple[str, ...] = ()) -> Sequence[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall())


def staged_table(database: str, name: str, columns: tuple[TrackedColumn, ...], keys: tuple[str, ...]) -> TrackedTable:
    """Return a table. Raise SourceError if it has no primary key, since its updates and deletes identify no row."""
    if not keys:
        raise SourceError(
            f"table {database}.{name} has no primary key, so updates and deletes name no row: give it one, or leave it "
            "out of tables="
        )
    return TrackedTable(schema_=database, name=name, columns=columns, keys=keys)


# ------------------------------------------------------------------
# The Spark types of columns, as Debezium delivers their values.
#
# | MariaDB, MySQL                                      | Spark                                                   |
# |-----------------------------------------------------|---------------------------------------------------------|
# | tinyint(1), boolean, bit(1)                         | boolean                                                 |
# | tinyint, smallint; mediumint, int; bigint           | smallint; int; bigint                                   |
# | smallint unsigned; int unsigned; bigint unsigned    | int; bigint; decimal(20,0)                              |
# | float, double                                       | float, double                                           |
# | decimal(p, s) with up to 38 digits                  | decimal(p, s)                                           |
# | date, datetime, timestamp, year                     | date, timestamp_ntz, timestamp, int                     |
# | binary, varbinary, blob, bit(n)                     | binary                                                  |
# | other decimal, time, text, enum, set, json, others  | string                                                  |


_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bool", "boolean"), "boolean"),
    **dict.fromkeys(("tinyint", "smallint", "int1", "int2"), "smallint"),
    **dict.fromkeys(("mediumint", "int", "integer", "int3", "int4", "middleint", "year"), "int"),
    **dict.fromkeys(("bigint", "int8"), "bigint"),
    **dict.fromkeys(("float", "float4"), "float"),
    **dict.fromkeys(("double", "double precision", "real", "float8"), "double"),
    "date": "date",
    "datetime": "timestamp_ntz",
    "timestamp": "timestamp",
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit"), "binary"),
}
_UNSIGNED: Final[Mapping[str, str]] = {"smallint": "int", "int": "bigint", "bigint": "decimal(20,0)"}
_DECIMALS: Final = ("decimal", "numeric", "dec", "fixed")
_FLOAT_DIGITS_MAX: Final = 23
_SIZES: Final = re.compile(r"\((\d+)(?:,(\d+))?\)")


def type_of(name: str, size: int | None, scale: int | None, *, unsigned: bool) -> str:
    """Return the Spark type of a column, by the name of its type and the numbers in the type's brackets."""
    base = name.lower()
    if base in _DECIMALS:
        digits, places = size or 10, scale or 0
        return f"decimal({digits},{places})" if digits <= _DECIMAL_DIGITS_MAX and places <= digits else "string"
    if (base in ("tinyint", "int1") and size == 1) or (base == "bit" and size in (1, None)):
        return "boolean"
    if base in ("float", "float4") and scale is None and (size or 0) > _FLOAT_DIGITS_MAX:
        return "double"
    found = _TYPES.get(base, "string")
    if unsigned and base in ("tinyint", "int1", "mediumint", "int3", "middleint"):
        return found
    return _UNSIGNED.get(found, found) if unsigned else found


def type_of_text(text: str) -> str:
    """Return the Spark type for a column's type as the server writes it, such as `decimal(12,2) unsigned`."""
    sizes = _SIZES.search(text)
    size, scale = (None, None) if sizes is None else (int(sizes[1]), None if sizes[2] is None else int(sizes[2]))
    words = _SIZES.sub(" ", text).split()
    return type_of(words[0], size, scale, unsigned=not {"unsigned", "zerofill"}.isdisjoint(words))


def described_table(database: str, said: Mapping[str, Any]) -> TrackedTable:
    """Return a table as an event of Debezium describes it (`tableChanges`). Raise SourceError like `staged_table`."""
    name = str(said["id"]).replace('"', "").rpartition(".")[2]
    columns = []
    for each in said["table"]["columns"]:
        kind, _, more = str(each["typeName"]).lower().partition(" ")
        if more.startswith("precision"):
            kind = "double"
        unsigned = "unsigned" in more or "zerofill" in more
        columns.append(
            TrackedColumn(
                name=each["name"], type=type_of(kind, each.get("length"), each.get("scale"), unsigned=unsigned)
            )
        )
    return staged_table(database, name, tuple(columns), tuple(said["table"]["primaryKeyColumnNames"]))
