"""Returns the exact lines of code that read a cut with Spark, Polars and DuckDB, each table at its version.

DuckDB gets the table from delta-rs, which needs no extension from the network. It gets it as a pyarrow table, not as a
dataset: with duckdb 2.0.0, polars 2.1.0 and pyarrow 26.0.1 in one process, a scan of a dataset gave the right rows,
but the process aborted at its end in about half of a dozen trials.

Operator state is read by a command instead, since its tables hold bases and deltas, of which the newest row of a key
counts.
"""

from dataclasses import dataclass
from pathlib import Path

from jobs.engine_paths import polars_reads, typed
from jobs.reading import Cut


@dataclass(frozen=True, slots=True)
class Recipe:
    """One engine and the lines to type, imports included."""

    engine: str
    lines: tuple[str, ...]


def variable(table: str) -> str:
    """Return the name that a table gets in the lines: `gold_delays_by_route` for `gold/delays_by_route`."""
    return "_".join(part.lstrip("_") for part in table.split("/"))


def recipes(cut: Cut) -> tuple[Recipe, ...]:
    """Return how each engine reads the output tables of a cut."""
    folders = {table: str(cut.folder(table)) for table in cut.tables}
    through_delta = {table: "" if polars_reads(cut.folder(table)) else ", use_pyarrow=True" for table in cut.tables}
    versions = {table: cut.version(table) for table in cut.tables}
    spark = tuple(
        f'{variable(table)} = spark.read.format("delta").option("versionAsOf", {version}).load({folders[table]!r})'
        for table, version in versions.items()
    )
    polars = tuple(
        f"{variable(table)} = pl.scan_delta({folders[table]!r}, version={version}{through_delta[table]})"
        for table, version in versions.items()
    )
    duck = tuple(
        f"{variable(table)} = DeltaTable({folders[table]!r}, version={version}).to_pyarrow_table()"
        for table, version in versions.items()
    )
    first = variable(next(iter(versions), "table"))
    return (
        Recipe("Spark", spark),
        Recipe("Polars", ("import polars as pl", *polars)),
        Recipe(
            "DuckDB",
            ("import duckdb", "from deltalake import DeltaTable", *duck, f'duckdb.sql("FROM {first} LIMIT 10")'),
        ),
    )


def state_recipe(root: Path, cut: Cut) -> Recipe:
    """Return the commands that read each operator's state at the cut; `root` is the warehouse."""
    where = f"--at {cut.checkpoint} --warehouse {typed(root.absolute())}"
    lines = tuple(f"tidemark state {cut.job} {each} {where}" for each in cut.operators)
    return Recipe("Operator state, one row per key", lines)
