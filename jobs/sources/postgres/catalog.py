"""Reads which tables and columns a publication has, and refuses a server that cannot provide all changes.

A server sends no message when its catalog changes. So each read of changes compares the catalog with the catalog at the
time when the newest staged file was written (`CatalogFacts`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict
from pyspark.sql.types import StructType

from jobs.sources.port import SourceError
from jobs.sources.postgres.connection import Connection
from jobs.sources.postgres.way_out import ANEW, EVOLVE
from jobs.sources.python.ddl import schema_of_text
from jobs.sources.staged.log import StagedNote, StagedOrigin
from jobs.sources.staged.tracked_tables import TrackedColumn, TrackedTable, is_type

# ------------------------------------------------------------------
# The tables and columns of a publication, with the Spark type of each PostgreSQL type.
#
# | PostgreSQL                                  | Spark                                                       |
# |---------------------------------------------|-------------------------------------------------------------|
# | boolean, smallint, integer, bigint, oid     | boolean, smallint, int, bigint, bigint                      |
# | real, double precision                      | float, double                                               |
# | numeric(p, s) with p <= 38 and 0 <= s <= p  | decimal(p, s)                                               |
# | numeric without precision, or a larger one  | string, exactly as the server writes it                     |
# | date, timestamp, timestamptz                | date, timestamp_ntz, timestamp                              |
# | bytea                                       | binary                                                      |
# | an array of one of these                    | array of that type; arrays of several dimensions do not fit |
# | a domain                                    | as the type below it                                        |
# | text, uuid, json, jsonb, enums, time, interval, all others | string, as the server writes it              |


_BY_OID: Final[dict[int, str]] = {
    16: "boolean",
    17: "binary",
    20: "bigint",
    21: "smallint",
    23: "int",
    26: "bigint",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}
"""The object ids of PostgreSQL's own types. They never change (`pg_type.dat`)."""
_TEXT: Final = 25
_VARCHAR: Final = 1043
_NUMERIC: Final = 1700
_DECIMAL_DIGITS_MAX: Final = 38


class SourceColumn(TrackedColumn):
    """A published column: its type in PostgreSQL (object id and modifier), and in Spark."""

    oid: int
    typmod: int

    def reads(self, oid: int, typmod: int) -> bool:
        """Return whether the column can hold values of this type: of the same type, or of a longer text type."""
        if (oid, typmod) == (self.oid, self.typmod):
            return True
        longer = oid == _VARCHAR and (typmod < 0 or 0 <= self.typmod <= typmod)
        return self.oid == _VARCHAR and (oid == _TEXT or longer)


class SourceTable(TrackedTable):
    """A published table as this source reads it. `keys` are the columns of its replica identity.

    `oid` is the server's number of the table. A table that is dropped and created again gets another `oid`.
    """

    oid: int
    columns: tuple[SourceColumn, ...]


def declared_tables(schema: Mapping[str, StructType | str]) -> tuple[SourceTable, ...]:
    """Return the tables that a user declares, named with their schema. Their `oid` is 0, as only the server knows it.

    Raises SourceError for a name without a schema, and for a type that the source never gives to a PostgreSQL column.
    """
    return tuple(_declared(name, columns) for name, columns in schema.items())


def _declared(full_name: str, declared: StructType | str) -> SourceTable:
    schema, dot, name = full_name.partition(".")
    if not (schema and dot and name):
        raise SourceError(f"schema= names the table {full_name!r}: write its schema too, as in 'public.{full_name}'")
    columns = []
    for field in schema_of_text(declared) if isinstance(declared, str) else declared:
        text = field.dataType.simpleString()
        if not is_type(text):
            raise SourceError(
                f"schema= gives column {field.name} of table {full_name} the type {text}, which no column of "
                f"PostgreSQL gets: leave schema= out once, and the source says the types itself"
            )
        columns.append(SourceColumn(name=field.name, oid=0, typmod=-1, type=text))
    return SourceTable(oid=0, schema_=schema, name=name, columns=tuple(columns))


def spark_type(base: int, typmod: int, element: int) -> str:
    """Return the name of the Spark type. `element` is the type of an array's elements, and 0 for other types."""
    if element:
        return f"array<{spark_type(element, typmod, 0)}>"
    if base == _NUMERIC and typmod >= 0:
        precision, scale = (typmod - 4) >> 16 & 0xFFFF, ((typmod - 4 & 0x7FF) ^ 0x400) - 0x400  # 11 bits, signed
        if precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision:
            return f"decimal({precision},{scale})"
    return _BY_OID.get(base, "string")


_VERSION_MIN: Final = 150_000
"""Version 15 is the first that lists the published columns and rows of each table (`pg_publication_tables`)."""

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


_SENT: Final = ("insert", "update", "delete", "truncate")
_PUBLICATION: Final = """
SELECT oid::bigint, pubowner::bigint, xmin::text, pubinsert, pubupdate, pubdelete, pubtruncate
FROM pg_publication WHERE pubname = %s
"""

_FACTS: Final = """
SELECT c.oid::bigint, p.schemaname::text, p.tablename::text, coalesce(r.oid, s.oid, 0)::bigint, p.rowfilter,
  c.relreplident::text,
  ARRAY(
    SELECT a.attname::text FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = c.oid
      AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary ELSE false END
    ORDER BY 1
  ),
  (
    SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod, a.attnum) ORDER BY a.attnum)
    FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (p.attnames)
  )
FROM pg_publication_tables p
JOIN pg_publication b ON b.pubname = p.pubname
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
LEFT JOIN pg_publication_rel r ON r.prpubid = b.oid AND r.prrelid = c.oid
LEFT JOIN pg_publication_namespace s ON s.pnpubid = b.oid AND s.pnnspid = n.oid
WHERE p.pubname = %s ORDER BY 2, 3
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication, and the condition on its published rows (None: all rows are published)."""

    table: SourceTable
    row_filter: str | None


def must_decode(connection: Connection) -> None:
    """Raise SourceError for a server that is too old, or that does not write its log for logical decoding."""
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


def published(connection: Connection, publication: str, wanted: Sequence[str] | None) -> tuple[PublishedTable, ...]:
    """Return the wanted tables of a publication, by default all. Raise SourceError if the publication lacks a table."""
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


class ColumnFacts(BaseModel):
    """A published column as the catalog has it now. A column that is dropped and added again gets another `place`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    oid: int
    typmod: int
    place: int


class TableFacts(BaseModel):
    """A published table according to the catalog.

    `membership` is the number of the catalog's entry that makes the table part of the publication, or 0 if the
    publication has all tables. `full` is True if old rows were sent whole ever since the first read (`REPLICA IDENTITY
    FULL`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    oid: int
    membership: int
    row_filter: str | None
    identity: tuple[str, ...]
    full: bool
    columns: tuple[ColumnFacts, ...]


class CatalogFacts(BaseModel):
    """A publication according to the catalog: its number, its owner, its newest change, and what it sends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    publication: int
    owner: int
    altered: str
    kinds: tuple[str, ...]
    tables: dict[str, TableFacts]

    @property
    def names_rows(self) -> bool:
        """Return True if the publication sends updates or deletes, which identify a row by its replica identity."""
        return not {"update", "delete"}.isdisjoint(self.kinds)

    def of(self, tables: Sequence[SourceTable], before: "CatalogFacts | None") -> "CatalogFacts":
        """Return the facts of these tables, for the file's footer. Once `full` is False, it stays False."""
        known = before.tables if before is not None else {}
        kept = {}
        for table in tables:
            facts, older = self.tables[table.full_name], known.get(table.full_name)
            full = facts.full and (older is None or older.full)
            kept[table.full_name] = facts.model_copy(update={"full": full})
        return self.model_copy(update={"tables": kept})


def catalog_facts(connection: Connection, publication: str) -> CatalogFacts | None:
    """Return what the catalog says about a publication now, or None if there is no such publication."""
    found = connection.execute(_PUBLICATION, [publication]).fetchone()
    if found is None:
        return None
    oid, owner, altered, *sends = found
    tables = {
        f"{schema}.{name}": TableFacts(
            oid=number,
            membership=membership,
            row_filter=row_filter,
            identity=tuple(identity),
            full=replica_identity == "f",
            columns=tuple(
                ColumnFacts(name=name, oid=type_, typmod=typmod, place=place) for name, type_, typmod, place in columns
            ),
        )
        for number, schema, name, membership, row_filter, replica_identity, identity, columns in connection.execute(
            _FACTS, [publication]
        ).fetchall()
    }
    kinds = tuple(kind for kind, sent in zip(_SENT, sends, strict=True) if sent)
    return CatalogFacts(publication=oid, owner=owner, altered=altered, kinds=kinds, tables=tables)


def must_go_on(
    publication: str, tables: Sequence[SourceTable], before: CatalogFacts | None, now: CatalogFacts | None, *, new: bool
) -> CatalogFacts:
    """Return the facts to store with the next changes. Raise SourceError if these cannot follow the older changes.

    `before` is None for files that an older version of Tidemark wrote. `new` says whether a new column is an error.
    """
    for table in tables:
        facts = None if now is None else now.tables.get(table.full_name)
        if now is None or facts is None:
            raise SourceError(
                f"table {table.full_name} is not in publication {publication} any more, or was renamed, so its changes "
                f"are not sent: {ANEW}"
            )
        if facts.oid != table.oid:
            raise _refused(f"table {table.full_name} was dropped and created again")
        older = None if before is None else before.tables.get(table.full_name)
        _must_have_its_columns(table, facts, older, new=new)
        if now.names_rows:
            _must_name_its_rows(table, facts, older)
        if before is not None and older is not None:
            _must_be_the_same_member(publication, table.full_name, older, facts)
    if now is None:
        raise SourceError(f"there is no publication {publication!r} any more: {ANEW}")
    if before is not None:
        _must_send_the_same(publication, before, now)
    return now.of(tables, before)


def _must_have_its_columns(table: SourceTable, facts: TableFacts, older: TableFacts | None, *, new: bool) -> None:
    name, now = table.full_name, {column.name: column for column in facts.columns}
    places = {} if older is None else {column.name: column.place for column in older.columns}
    for column in table.columns:
        found = now.pop(column.name, None)
        if found is None:
            if not column.later:
                raise _refused(
                    f"column {column.name} of table {name} was dropped, renamed or taken out of the publication"
                )
            continue
        if not column.reads(found.oid, found.typmod):
            raise _refused(f"column {column.name} of table {name} has another type (it was read as {column.type})")
        if not column.later and places.get(column.name, found.place) != found.place:
            raise _refused(
                f"column {column.name} of table {name} was dropped and added again, so the rows that were read have "
                "values that the table has lost"
            )
    if new and now:
        raise SourceError(f"table {name} has the new column {next(iter(now))}. {EVOLVE}")


def _must_name_its_rows(table: SourceTable, facts: TableFacts, older: TableFacts | None) -> None:
    name = table.full_name
    if facts.full:
        return
    if older is not None and older.full:
        raise SourceError(
            f"table {name} has no REPLICA IDENTITY FULL any more, so its changes have no whole old rows: run "
            f"ALTER TABLE {name} REPLICA IDENTITY FULL before it has other changes, or {ANEW}"
        )
    lost = [key for key in table.keys if key not in facts.identity]
    if lost or not facts.identity:
        raise SourceError(
            f"table {name} has no replica identity{' with ' if lost else ''}{', '.join(lost)} any more, so "
            "its updates and deletes would name no row that was read: give it that key again, or run "
            f"ALTER TABLE {name} REPLICA IDENTITY FULL"
        )


def _must_be_the_same_member(publication: str, table: str, older: TableFacts, now: TableFacts) -> None:
    if older.row_filter != now.row_filter:
        was, is_ = older.row_filter or "none", now.row_filter or "none"
        raise _refused(
            f"publication {publication} sends other rows of table {table} than before (its filter was {was}, and is "
            f"{is_})"
        )
    if older.membership != now.membership:
        raise _refused(
            f"table {table} was taken out of publication {publication} and put into it again, and its changes between "
            "were not sent"
        )


def _must_send_the_same(publication: str, before: CatalogFacts, now: CatalogFacts) -> None:
    if before.publication != now.publication:
        raise _refused(
            f"publication {publication} was dropped and created again, and the changes between were not sent"
        )
    missing = [kind for kind in before.kinds if kind not in now.kinds]
    if missing:
        raise _refused(
            f"publication {publication} sends no {' and no '.join(missing)} any more, so such changes are missing. Run "
            f"ALTER PUBLICATION {publication} SET (publish = '{', '.join(before.kinds)}') first"
        )
    altered = before.altered != now.altered and before.owner == now.owner  # another owner alters it too
    if altered and before.kinds == now.kinds:
        raise _refused(
            f"publication {publication} was altered and altered back, and some changes between may not have been sent"
        )


def _refused(what: str) -> SourceError:
    return SourceError(f"{what}. To go on, {ANEW}")


def tables_not_read(connection: Connection, publication: str, tables: Sequence[SourceTable]) -> list[str]:
    """Return the tables of a publication that the source does not read, because they were added later."""
    found = catalog_facts(connection, publication)
    return [] if found is None else sorted(found.tables.keys() - {table.full_name for table in tables})


def _published(connection: Connection, publication: str) -> Iterator[PublishedTable]:
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
        yield PublishedTable(SourceTable(oid=oid, schema_=schema, name=name, columns=columns, keys=keys), row_filter)


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


# ------------------------------------------------------------------
# The origin of a staged file's rows, as the file's footer has it.


FORMAT: Final = 2
"""The newest format of a file's footer that this version reads, and the format that it writes."""


class Origin(StagedOrigin):
    """Where the rows of a file come from. A file with another origin cannot follow such a file."""

    system: str
    """The identifier that the server's data folder got when it was created."""
    database: str
    slot: str
    publication: str
    tables: tuple[SourceTable, ...]
    timeline: int | None = None
    """The server's timeline when the file was written. None in files of an older version of Tidemark."""
    catalog: CatalogFacts | None = None
    """The server's catalog when the file was written. None in files of an older version of Tidemark."""

    def must_be(self, now: "Origin", folder: Path) -> None:
        """Raise SourceError if changes from the origin `now` must not follow the changes in the folder."""
        for what in ("system", "database", "slot", "publication"):
            before, after = getattr(self, what), getattr(now, what)
            if before != after:
                raise SourceError(
                    f"{folder} has changes of {what} {before}, and this one is {after}: name what it was before, or "
                    f"{ANEW}"
                )


class Note(StagedNote):
    """The content of a file's footer: the horizons where its transactions begin and end, and the rows before the file.

    Since format 2 the origin has the server's timeline and catalog.
    """

    format: int = FORMAT
    origin: Origin
