"""Reads which tables and columns a publication has, and refuses a server that cannot give all changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jobs.sources.port import SourceError
from jobs.sources.postgres.columns import SourceColumn, SourceTable, spark_type
from jobs.sources.postgres.connection import Connection
from jobs.sources.postgres.way_out import ANEW

_VERSION_MIN: Final = 150_000
"""Since version 15, the server lists the published columns and rows of each table (`pg_publication_tables`)."""

_TABLES: Final = """
SELECT c.oid::bigint, p.schemaname::text, p.tablename::text, p.attnames::text[], p.rowfilter, c.relreplident::text,
       b.pubupdate OR b.pubdelete
FROM pg_publication_tables p
JOIN pg_publication b ON b.pubname = p.pubname
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %s ORDER BY 2, 3
"""

_COLUMNS: Final = """
SELECT attname::text, atttypid::bigint, atttypmod FROM pg_attribute
WHERE attrelid = %(table)s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

_TYPE: Final = """
WITH RECURSIVE base AS (
  SELECT t.oid AS type, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE %(typmod)s::int END AS typmod,
         t.typtype, t.typbasetype, t.typelem, t.typcategory
  FROM pg_type t WHERE t.oid = %(type)s
  UNION ALL
  SELECT t.oid, CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE b.typmod END,
         t.typtype, t.typbasetype, t.typelem, t.typcategory
  FROM base b JOIN pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd'
)
SELECT type::bigint, typmod, CASE WHEN typcategory = 'A' THEN typelem::bigint ELSE 0 END
FROM base WHERE typtype <> 'd'
"""

_KEYS: Final = """
SELECT a.attname::text FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = %(table)s
  AND CASE WHEN (SELECT relreplident FROM pg_class WHERE oid = %(table)s) = 'i'
           THEN i.indisreplident ELSE i.indisprimary END
ORDER BY array_position(i.indkey, a.attnum)
"""


@dataclass(frozen=True, slots=True)
class Published:
    """A table of a publication, and the condition on its published rows (None: all rows are published)."""

    table: SourceTable
    row_filter: str | None


def must_decode(connection: Connection) -> None:
    """Raise SourceError for a server that is too old, or that does not write the log for logical decoding."""
    if connection.info.server_version < _VERSION_MIN:
        shown = connection.info.parameter_status("server_version")
        raise SourceError(f"the server is PostgreSQL {shown}: PostgresChanges needs version 15 or newer")
    level = _only(connection, "SHOW wal_level")
    if level != "logical":
        raise SourceError(
            f"the server's wal_level is {level!r}, so it writes no changes of rows: run "
            "ALTER SYSTEM SET wal_level = 'logical', and restart the server"
        )


def system_of(connection: Connection) -> str:
    """Return the identifier that the server's data folder got when it was created."""
    return str(_only(connection, "SELECT system_identifier::text FROM pg_control_system()"))


def published(connection: Connection, publication: str, wanted: Sequence[str] | None) -> tuple[Published, ...]:
    """Return the wanted tables of a publication, by default all. Raise SourceError for a table that is not in it."""
    if not connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]).fetchone():
        tables = ", ".join(wanted or ["TABLE, ..."])
        raise SourceError(
            f"there is no publication {publication!r} in database {connection.info.dbname}: run "
            f"CREATE PUBLICATION {publication} FOR TABLE {tables}"
        )
    found = {each.table.full_name: each for each in _published(connection, publication)}
    for name in wanted or ():
        if name not in found:
            raise SourceError(
                f"publication {publication} has no table {name} (it has {', '.join(found) or 'none'}): run "
                f"ALTER PUBLICATION {publication} ADD TABLE {name}, or leave the table out of `tables`"
            )
    if not found:
        raise SourceError(f"publication {publication} has no table: run ALTER PUBLICATION {publication} ADD TABLE ...")
    return tuple(found[name] for name in wanted or found)


def must_be_published(connection: Connection, publication: str, tables: Sequence[str]) -> None:
    """Raise SourceError if a table was removed from the publication, because its changes would be missing."""
    query = "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s"
    found = {name for (name,) in connection.execute(query, [publication]).fetchall()}
    for name in tables:
        if name not in found:
            raise SourceError(
                f"table {name} is not in publication {publication} any more, or was renamed, so its changes are not "
                f"sent: {ANEW}"
            )


def _published(connection: Connection, publication: str) -> Iterator[Published]:
    for oid, schema, name, names, row_filter, identity, updates in connection.execute(
        _TABLES, [publication]
    ).fetchall():
        keys = tuple(str(key) for (key,) in connection.execute(_KEYS, {"table": oid}).fetchall())
        columns = tuple(each for each in _columns(connection, oid) if each.name in names)
        if updates and (identity == "n" or (identity in "di" and not keys)):
            raise SourceError(
                f"table {schema}.{name} has no replica identity, so updates and deletes name no row: give it a primary "
                f"key, or run ALTER TABLE {schema}.{name} REPLICA IDENTITY FULL"
            )
        yield Published(SourceTable(oid=oid, schema_=schema, name=name, columns=columns, keys=keys), row_filter)


def _columns(connection: Connection, oid: int) -> Iterator[SourceColumn]:
    for name, declared, typmod in connection.execute(_COLUMNS, {"table": oid}).fetchall():
        yield source_column(connection, name, declared, typmod)


def source_column(connection: Connection, name: str, oid: int, typmod: int, *, later: bool = False) -> SourceColumn:
    """Return a column of a declared type, or of its base type. Raise SourceError if the type is gone."""
    row = connection.execute(_TYPE, {"type": oid, "typmod": typmod}).fetchone()
    if row is None:
        raise SourceError(f"column {name} has a type that was dropped since, so its values cannot be read: {ANEW}")
    return SourceColumn(name=name, oid=oid, typmod=typmod, type=spark_type(*row), later=later)


def _only(connection: Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None
