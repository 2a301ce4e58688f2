"""Writes the SQL that reads an operator's state at one cut, for plain Spark with Delta and for DuckDB.

Both engines get the same query. They differ in how they quote a column, and in where rows and file names come from.
Spark reads the state table by Delta version. DuckDB reads the cut's Parquet files directly, since its Delta extension
would have to be downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from jobs.engine_paths import duckdb_path, spark_sql_table
from jobs.reading.state_slices import StateSlice, files_of
from jobs.storage.address import Root
from jobs.storage.location import place_in

Dialect = Literal["spark", "duckdb"]
DIALECTS: tuple[Dialect, ...] = ("spark", "duckdb")

_QUERY = """\
WITH counted (_file, _age_rank, _first, _last) AS (
  VALUES
    {counted}
),
newest AS (
  SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY _age_rank DESC) AS _nth
  FROM (SELECT *, {name} AS _file FROM {rows}) AS stored
  JOIN counted USING (_file)
  WHERE _key_group BETWEEN _first AND _last
)
SELECT {columns}
FROM newest
WHERE _nth = 1 AND NOT _deleted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """The parts of a query: the state table's folder and Delta version, its slices, key columns and all columns."""

    title: str
    folder: str
    version: int
    slices: tuple[StateSlice, ...]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    root: Root


def state_sql(query: StateQuery, dialect: Dialect) -> str:
    """Return a query whose result is the state: its columns, one row per key, deleted keys left out.

    It needs no view and no setting. It names a version and files that do not change, so its result never changes.
    """
    quoted = [_column(name, dialect) for name in query.columns]
    if not query.slices:
        nothing = ", ".join(f"NULL AS {name}" for name in quoted)
        return f"-- {query.title}\nSELECT {nothing} WHERE 1 = 0"
    text = _QUERY.format(
        counted=",\n    ".join(_counted(each) for each in query.slices),
        keys=", ".join(_column(key, dialect) for key in query.keys),
        name=_file_name(dialect),
        rows=_rows(query, dialect),
        columns=", ".join(quoted),
    )
    return f"-- {query.title}\n{text}"


def _counted(each: StateSlice) -> str:
    name = each.file.path.rpartition("/")[2]
    return f"({_text(name)}, {each.age_rank}, {each.first}, {each.last})"


def _file_name(dialect: Dialect) -> str:
    match dialect:
        case "spark":
            return "_metadata.file_name"
        case "duckdb":
            return "parse_filename(_path)"
        case _ as unreachable:
            assert_never(unreachable)


def _rows(query: StateQuery, dialect: Dialect) -> str:
    match dialect:
        case "spark":
            return f"{spark_sql_table(query.folder)} VERSION AS OF {query.version}"
        case "duckdb":
            return f"read_parquet({_list(query.root, query.slices)}, filename = '_path', union_by_name = true)"
        case _ as unreachable:
            assert_never(unreachable)


def _list(root: Root, slices: Sequence[StateSlice]) -> str:
    paths = ",\n    ".join(_text(duckdb_path(str(place_in(root, file.path)))) for file in files_of(slices))
    return f"[\n    {paths}\n  ]"


def _column(name: str, dialect: Dialect) -> str:
    mark = "`" if dialect == "spark" else '"'
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
