"""Renders `tidemark cut`: each table's Delta version at a checkpoint, and the lines of code that read them all as one.

DuckDB gets a table from delta-rs, which needs no extension from the network. It gets a pyarrow table, not a dataset:
with duckdb 2.0.0, polars 2.1.0 and pyarrow 26.0.1 in one process, a scan of a dataset gave the right rows, but the
process aborted at its end in about half of a dozen trials. Operator state is read by a command, since its tables hold
bases and deltas, of which the newest row of a key counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from jobs.engine_paths import polars_reads, spark_address, typed
from jobs.holding.failures import NeverRunError
from jobs.reading import Cut, Cuts, ReadingError
from jobs.reading.moments import shown
from jobs.storage.address import Root, absolute


@dataclass(frozen=True, slots=True)
class Recipe:
    """One engine and the lines to type, imports included."""

    engine: str
    lines: tuple[str, ...]


def render_cut(cut: Cut, root: Root) -> RenderableType:
    """Return the versions of one consistent cut and the lines that read it, output tables first, then states."""
    published = shown(round(cut.published_at.timestamp() * 1000))
    heading = Text.assemble(
        (f"cut {cut.checkpoint}", "bold"),
        f" of {cut.job}: every table as of one moment, published at {published}",
        "; every source had ended" if cut.finished else "",
    )
    chain = [Text(f"{'  ' * depth}rests on {each}") for depth, each in upstream_chain(cut)]
    found = [*recipes(cut), *([state_recipe(root, cut)] if cut.operators else [])]
    return Group(heading, *chain, _versions(cut), *_recipes(found))


def upstream_chain(cut: Cut, depth: int = 1) -> Iterator[tuple[int, str]]:
    """Yield the cuts of other jobs that a cut rests on, those that these rest on, and so on, each with its depth.

    A cut that its own job has dropped since is named, and what it rested on is not known any more.
    """
    for each in cut.rests_on:
        try:
            found = Cuts(each.warehouse, each.job).at(each.checkpoint)
        except ReadingError:
            yield depth, f"{each}, which is no longer retained"
        except NeverRunError:
            yield depth, f"{each}, which is not there"
        else:
            yield depth, str(each)
            yield from upstream_chain(found, depth + 1)


def _versions(cut: Cut) -> Grid:
    grid = Grid("table", "Delta version")
    grid.columns[1].justify = "right"
    states = (name for name in cut.versions if name not in cut.tables)
    for table in (*cut.tables, *states):
        grid.add_row(table, str(cut.version(table)))
    return grid


def _recipes(found: list[Recipe]) -> Iterator[RenderableType]:
    for recipe in found:
        yield Text(f"\n{recipe.engine}", style="bold")
        for line in recipe.lines:
            yield Text(line, style="cyan", no_wrap=True, overflow="ignore")


def variable(table: str) -> str:
    """Return the name that a table gets in the lines: `gold_delays_by_route` for `gold/delays_by_route`."""
    return "_".join(part.lstrip("_") for part in table.split("/"))


def recipes(cut: Cut) -> tuple[Recipe, ...]:
    """Return how each engine reads the output tables of a cut."""
    spark: list[str] = []
    polars = ["import polars as pl"]
    duck = ["import duckdb", "from deltalake import DeltaTable"]
    for table in cut.tables:
        name, folder, version = variable(table), cut.folder(table), cut.version(table)
        through_delta = "" if polars_reads(cut.folder(table)) else ", use_pyarrow=True"
        for_spark = f'spark.read.format("delta").option("versionAsOf", {version}).load({spark_address(folder)!r})'
        spark.append(f"{name} = {for_spark}")
        polars.append(f"{name} = pl.scan_delta({folder!r}, version={version}{through_delta})")
        duck.append(f"{name} = DeltaTable({folder!r}, version={version}).to_pyarrow_table()")
    duck.append(f'duckdb.sql("FROM {variable(next(iter(cut.tables), "table"))} LIMIT 10")')
    return Recipe("Spark", tuple(spark)), Recipe("Polars", tuple(polars)), Recipe("DuckDB", tuple(duck))


def state_recipe(root: Root, cut: Cut) -> Recipe:
    """Return the commands that read each operator's state at the cut; `root` is the warehouse."""
    where = f"--at {cut.checkpoint} --warehouse {typed(absolute(root))}"
    lines = tuple(f"tidemark state {cut.job} {each} {where}" for each in cut.operators)
    return Recipe("Operator state, one row per key", lines)
