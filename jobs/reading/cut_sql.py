"""Writes the SQL that shows every table of a cut as a view, and dbt's sources for the same tables.

Spark reads a table by its Delta version. DuckDB reads the cut's Parquet files directly, since its Delta extension would
have to be downloaded. Both name what never changes. So a view shows the cut until clean-up deletes its files.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

import pyarrow as pa
from deltalake import DeltaTable

from jobs.engine_paths import duckdb_path, spark_sql_table
from jobs.reading.cut import Cut
from jobs.reading.moments import ReadingError
from jobs.reading.state_sql import Dialect, sql_name, sql_text, sql_type
from jobs.storage.place import StoragePlace
from jobs.warehouse.table_snapshot import active_paths, paths_with_deletion_vectors

_PARTITION: Final = "partition."


def view_name(table: str) -> str:
    """Return the name of a table's view: `gold_daily` for `gold/daily`."""
    return "_".join(part.lstrip("_") for part in table.split("/"))


def cut_sql(cut: Cut, dialect: Dialect, schema: str) -> str:
    """Return statements that make a view of each output table of the cut, in a schema that they create.

    The view of `gold/daily` is `gold_daily`. Raises what `Cut.polars` raises, and ReadingError for a table that DuckDB
    cannot read without an extension.
    """
    heading = (
        f"-- cut {cut.checkpoint} of {cut.job}, published at {cut.published_at.isoformat(timespec='seconds')}\n"
        f"CREATE SCHEMA IF NOT EXISTS {sql_name(schema, dialect)};\n"
    )
    views = (
        f"CREATE OR REPLACE VIEW {sql_name(schema, dialect)}.{sql_name(view_name(table), dialect)} AS\n"
        f"{_query(cut, table, dialect)};\n"
        for table in cut.tables
    )
    return heading + "".join(views)


def cut_dbt(cut: Cut) -> str:
    """Return dbt's sources for the output tables of the cut, as YAML for dbt-duckdb. Each is read at the cut.

    JSON is YAML, and no text in it needs other quotes. Raises what `cut_sql` raises.
    """
    tables = [
        {
            "name": view_name(table),
            "description": f"{table} at checkpoint {cut.checkpoint}, Delta version {cut.version(table)}",
            "config": {"meta": {"external_location": _for_format(f"({_query(cut, table, 'duckdb')})")}},
        }
        for table in cut.tables
    ]
    described = f"cut {cut.checkpoint} of {cut.job}: every table as of one moment"
    sources = {"version": 2, "sources": [{"name": cut.job, "description": described, "tables": tables}]}
    return json.dumps(sources, indent=2, ensure_ascii=False)


def _for_format(query: str) -> str:
    """Return a query in which dbt-duckdb replaces no name in braces."""
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
    """Return a query of DuckDB's over the files of a table.

    Old files may lack columns, or have others and smaller ones. No file holds the columns of its table's partitions.
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
    for values, paths in _by_partition(opened):
        constants = (f", {_constant(columns.field(name).type, value)} AS {_name(name)}" for name, value in values)
        files = ",\n    ".join(sql_text(duckdb_path(_address(cut.place(table), path))) for path in paths)
        reader = f"read_parquet([\n    {files}\n  ], union_by_name = true, hive_partitioning = false)"
        parts.append(f"SELECT *{''.join(constants)} FROM {reader}")  # noqa: S608 - quoted names and paths
    cast = (f"CAST({_name(field.name)} AS {_type(field.type)}) AS {_name(field.name)}" for field in columns)
    rows = "\n  UNION ALL BY NAME ".join(parts)
    return f"SELECT {', '.join(cast)}\nFROM (\n  {rows}\n)"


def _by_partition(opened: DeltaTable) -> Iterator[tuple[Sequence[tuple[str, object]], list[str]]]:
    """Yield the partitions of a table, each with the paths of its files."""
    actions = pa.table(opened.get_add_actions(flatten=True))
    by = [name for name in actions.column_names if name.startswith(_PARTITION)]
    found: dict[tuple[object, ...], list[str]] = {}
    rows = zip(*(actions.column(name).to_pylist() for name in by), strict=True) if by else [()] * actions.num_rows
    for path, values in zip(active_paths(opened), rows, strict=True):
        found.setdefault(values, []).append(path)
    for values, paths in found.items():
        yield [(name.removeprefix(_PARTITION), value) for name, value in zip(by, values, strict=True)], sorted(paths)


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
