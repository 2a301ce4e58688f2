"""Writes the SQL that shows every table of a cut as a view, and dbt's sources for the same tables.

Spark reads a table by its Delta version. DuckDB reads the cut's Parquet files directly, since its Delta extension would
have to be downloaded. Both the version and the files never change. So a view shows the cut until a clean-up deletes its
files.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, assert_never

import pyarrow as pa
from deltalake import DeltaTable

from jobs.engine_paths import duckdb_path, spark_sql_table
from jobs.reading.cut import Cut
from jobs.reading.moments import ReadingError
from jobs.reading.state_sql import Dialect, sql_name, sql_text, sql_type
from jobs.storage.place import StoragePlace
from jobs.warehouse.file_checks import is_ours
from jobs.warehouse.table_snapshot import active_paths, paths_with_deletion_vectors

_PARTITION: Final = "partition."


def view_name(table: str) -> str:
    """Return the name of a table's view: `gold_daily` for `gold/daily`."""
    return _joined(table, "_")


def view_names(tables: Iterable[str]) -> dict[str, str]:
    """Return the name of each table's view.

    If `gold/x_y` and `gold_x/y` exist, they get `gold__x_y` and `gold_x__y`.
    """
    names: dict[str, str] = {}
    left, between = tuple(tables), "_"
    while left:
        named = {table: _joined(table, between) for table in left}
        times = Counter([*names.values(), *named.values()])
        names |= {table: name for table, name in named.items() if times[name] == 1}
        left = tuple(table for table, name in named.items() if times[name] > 1)
        between += "_"
    return names


def _joined(table: str, between: str) -> str:
    return between.join(part.lstrip("_") for part in table.split("/"))


def cut_sql(cut: Cut, dialect: Dialect, schema: str) -> str:
    """Return statements that make a view of each output table of the cut, in a schema that they create.

    The views have the names that `view_names` returns. Raises what `Cut.polars` raises, and ReadingError for a table
    that DuckDB cannot read without an extension.
    """
    heading = (
        f"-- cut {cut.checkpoint} of {cut.job}, published at {cut.published_at.isoformat(timespec='seconds')}\n"
        f"CREATE SCHEMA IF NOT EXISTS {sql_name(schema, dialect)};\n"
    )
    names = view_names(cut.tables)
    views = (
        f"CREATE OR REPLACE VIEW {sql_name(schema, dialect)}.{sql_name(names[table], dialect)} AS\n"
        f"{_query(cut, table, dialect)};\n"
        for table in cut.tables
    )
    return heading + "".join(views)


def cut_dbt(cut: Cut) -> str:
    """Return dbt's sources for the output tables of the cut, as YAML for dbt-duckdb. Each is read at the cut.

    It is written as JSON, since JSON is valid YAML and needs no other quotes for any text. Raises what `cut_sql`
    raises.
    """
    names = view_names(cut.tables)
    tables = [
        {
            "name": names[table],
            "description": f"{table} at checkpoint {cut.checkpoint}, Delta version {cut.version(table)}",
            "config": {"meta": {"external_location": _for_format(f"({_query(cut, table, 'duckdb')})")}},
        }
        for table in cut.tables
    ]
    described = f"cut {cut.checkpoint} of {cut.job}: every table as of one moment"
    sources = {"version": 2, "sources": [{"name": cut.job, "description": described, "tables": tables}]}
    return json.dumps(sources, indent=2, ensure_ascii=False)


def _for_format(query: str) -> str:
    """Return a query with its braces escaped, since dbt-duckdb replaces names in braces."""
    return query.replace("{", "{{").replace("}", "}}")


def _query(cut: Cut, table: str, dialect: Dialect) -> str:
    match dialect:
        case "spark":
            rows = spark_sql_table(cut.folder(table))
            return f"SELECT * FROM {rows} VERSION AS OF {cut.version(table)}"  # noqa: S608 - a quoted path
        case "duckdb":
            return _files_query(cut, table)
        case _ as unreachable:
            assert_never(unreachable)


def _files_query(cut: Cut, table: str) -> str:
    """Return a DuckDB query over the files of a table.

    Old files may lack columns, or have columns that were dropped or were of a smaller type. Files of other programs
    lack the partition columns.
    """
    opened = cut.opened(table)
    if paths_with_deletion_vectors(opened):
        raise ReadingError(
            f"table {table} has deletion vectors of another program, which DuckDB reads with its Delta extension only: "
            "read it with Spark (--sql spark), or let the other program purge them (REORG TABLE ... APPLY (PURGE))"
        )
    columns = pa.schema(opened.schema().to_arrow())
    nothing = (f"CAST(NULL AS {_type(field.type)}) AS {_name(field.name)}" for field in columns)
    parts = [f"SELECT {', '.join(nothing)} WHERE false"]
    for values, paths in _by_lacking(opened):
        constants = (f", {_constant(columns.field(name).type, value)} AS {_name(name)}" for name, value in values)
        files = ",\n    ".join(sql_text(duckdb_path(_address(cut.place(table), path))) for path in paths)
        reader = f"read_parquet([\n    {files}\n  ], union_by_name = true, hive_partitioning = false)"
        parts.append(f"SELECT *{''.join(constants)} FROM {reader}")  # noqa: S608 - quoted names and paths
    cast = (f"CAST({_name(field.name)} AS {_type(field.type)}) AS {_name(field.name)}" for field in columns)
    rows = "\n  UNION ALL BY NAME ".join(parts)
    return f"SELECT {', '.join(cast)}\nFROM (\n  {rows}\n)"


def _by_lacking(opened: DeltaTable) -> Iterator[tuple[Sequence[tuple[str, object]], list[str]]]:
    """Yield the partition values that only the log has, and the paths of the files that lack them."""
    actions = pa.table(opened.get_add_actions(flatten=True))
    by = [name for name in actions.column_names if name.startswith(_PARTITION)]
    found: dict[tuple[object, ...], list[str]] = {}
    rows = zip(*(actions.column(name).to_pylist() for name in by), strict=True) if by else [()] * actions.num_rows
    for path, values in zip(active_paths(opened), rows, strict=True):
        found.setdefault(() if is_ours(path) else values, []).append(path)
    for values, paths in found.items():
        yield [(name.removeprefix(_PARTITION), value) for name, value in zip(by, values, strict=False)], sorted(paths)


def _address(folder: StoragePlace, path: str) -> str:
    return path if "://" in path or path.startswith("/") else str(folder / path)


def _constant(of: pa.DataType, value: object) -> str:
    if value is None:
        return f"CAST(NULL AS {_type(of)})"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    return f"CAST({sql_text(str(value))} AS {_type(of)})"


def _name(name: str) -> str:
    return sql_name(name, "duckdb")


def _type(of: pa.DataType) -> str:
    return sql_type(of, "duckdb")
