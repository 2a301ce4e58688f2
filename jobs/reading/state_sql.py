"""Writes the SQL that reads an operator's state at one cut, for plain Spark with Delta and for DuckDB.

Both engines get the same query. They differ in how they quote a column, and in where rows and file names come from.
Spark reads the state table by Delta version. DuckDB reads the cut's Parquet files directly, since its Delta extension
would have to be downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

import pyarrow as pa

from jobs.engine_paths import duckdb_path, spark_sql_table
from jobs.reading.state_slices import StateSlice, files_of
from jobs.storage.address import Root
from jobs.storage.place import place_in

Dialect = Literal["spark", "duckdb"]
DIALECTS: tuple[Dialect, ...] = ("spark", "duckdb")

_QUERY = """\
WITH counted ({own}_file, {own}_age_rank, {own}_first, {own}_last) AS (
  VALUES
    {counted}
),
newest AS (
  SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {own}_age_rank DESC) AS {own}_nth
  FROM (SELECT *, {name} AS {own}_file FROM {rows}) AS stored
  JOIN counted USING ({own}_file)
  WHERE _key_group BETWEEN {own}_first AND {own}_last
)
SELECT {columns}
FROM newest
WHERE {own}_nth = 1 AND NOT _deleted"""
_OWN: Final = ("_file", "_age_rank", "_first", "_last", "_nth", "_path")
_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}
"""The types that have the same name in both engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """The parts of a query: the state table's folder and Delta version, its slices, key columns and all columns."""

    title: str
    folder: str
    version: int
    slices: tuple[StateSlice, ...]
    keys: tuple[str, ...]
    columns: pa.Schema
    root: Root


def state_sql(query: StateQuery, dialect: Dialect) -> str:
    """Return a query whose result is the state: its columns, one row per key, deleted keys left out.

    The query needs no view and no setting. It names a version and files that do not change, so its result never
    changes.
    """
    quoted = [sql_name(name, dialect) for name in query.columns.names]
    if not query.slices:
        nothing = (
            f"CAST(NULL AS {sql_type(of, dialect)}) AS {name}"
            for name, of in zip(quoted, query.columns.types, strict=True)
        )
        return f"-- {query.title}\nSELECT {', '.join(nothing)} WHERE 1 = 0"
    own = _own(query.columns.names)
    text = _QUERY.format(
        counted=",\n    ".join(_counted(each) for each in query.slices),
        keys=", ".join(sql_name(key, dialect) for key in query.keys),
        name=_file_name(own, dialect),
        rows=_rows(query, own, dialect),
        columns=", ".join(quoted),
        own=own,
    )
    return f"-- {query.title}\n{text}"


def _own(columns: Sequence[str]) -> str:
    """Return a prefix for the names of the query's own columns, so that none of them is also a column of the state."""
    taken, own = {name.lower() for name in columns}, ""
    while any(f"{own}{name}" in taken for name in _OWN):
        own += "_"
    return own


def sql_type(of: pa.DataType, dialect: Dialect) -> str:
    """Return the name of a column's type in SQL."""
    spark = dialect == "spark"
    if pa.types.is_timestamp(of):
        return ("timestamp" if spark else "timestamptz") if of.tz else ("timestamp_ntz" if spark else "timestamp")
    if pa.types.is_decimal(of):
        return f"decimal({of.precision}, {of.scale})"
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        inner = sql_type(of.value_type, dialect)
        return f"array<{inner}>" if spark else f"{inner}[]"
    if pa.types.is_map(of):
        key, item = sql_type(of.key_type, dialect), sql_type(of.item_type, dialect)
        return f"map<{key}, {item}>" if spark else f"map({key}, {item})"
    if pa.types.is_struct(of):
        colon, marks = (":", "<>") if spark else ("", "()")
        fields = (f"{sql_name(each.name, dialect)}{colon} {sql_type(each.type, dialect)}" for each in of)
        return f"struct{marks[0]}{', '.join(fields)}{marks[1]}"
    return _TYPES[of]


def _counted(each: StateSlice) -> str:
    name = each.file.path.rpartition("/")[2]
    return f"({sql_text(name)}, {each.age_rank}, {each.first}, {each.last})"


def _file_name(own: str, dialect: Dialect) -> str:
    match dialect:
        case "spark":
            return "_metadata.file_name"
        case "duckdb":
            return f"parse_filename({own}_path)"
        case _ as unreachable:
            assert_never(unreachable)


def _rows(query: StateQuery, own: str, dialect: Dialect) -> str:
    match dialect:
        case "spark":
            return f"{spark_sql_table(query.folder)} VERSION AS OF {query.version}"
        case "duckdb":
            return f"read_parquet({_list(query.root, query.slices)}, filename = '{own}_path', union_by_name = true)"
        case _ as unreachable:
            assert_never(unreachable)


def _list(root: Root, slices: Sequence[StateSlice]) -> str:
    paths = ",\n    ".join(sql_text(duckdb_path(str(place_in(root, file.path)))) for file in files_of(slices))
    return f"[\n    {paths}\n  ]"


def sql_name(name: str, dialect: Dialect) -> str:
    """Return a name in the quotes of a dialect."""
    mark = "`" if dialect == "spark" else '"'
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def sql_text(value: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"
