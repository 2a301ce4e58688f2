"""Renders `tidemark cut`: each table's Delta version at a checkpoint, and the lines of code that read them all as one.

DuckDB gets a table that delta-rs has read, so that it needs no extension from the network. It gets a pyarrow table, not
a dataset: with duckdb 2.0.0, polars 2.1.0 and pyarrow 26.0.1 in one process, a scan of a dataset gave the right rows,
but the process aborted at its end in about half of a dozen trials. Operator state is read by a command, since a state
table holds bases and deltas, in which only the newest row of each key is valid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from jobs.engine_paths import polars_reads, spark_address, typed
from jobs.quality.verdict import verdicts_in
from jobs.reading import Cut, Cuts, OperatorState, PendingCut, ReadingError
from jobs.reading.cut_sql import view_names
from jobs.reading.moments import shown
from jobs.showing.quantities import count, counted, plural
from jobs.storage.address import Root, absolute
from jobs.warehouse.refusals import NeverRunError


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
    """Yield the cuts of other jobs on which a cut rests, the cuts on which these rest, and so on, each with its depth.

    A cut that its own job no longer retains is named too. On which cuts it rested is no longer known.
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
    complete = {table: cut.complete_until(table) for table in cut.tables}
    in_time = any(complete.values())
    grid = Grid("table", "Delta version", *(["complete until, UTC"] if in_time else []))
    grid.columns[1].justify = "right"
    for table in cut.tables:
        grid.add_row(table, str(cut.version(table)), *([until(complete[table])] if in_time else []))
    for state in (name for name in cut.versions if name not in cut.tables):
        grid.add_row(state, str(cut.version(state)))
    return grid


def until(complete: datetime | None) -> str:
    """Return the time until which a table is complete, as a user reads it."""
    if complete is None:
        return ""
    at = complete.replace(tzinfo=None)
    return "for ever" if at == datetime.max else at.isoformat(" ", "milliseconds")  # noqa: DTZ901 - it is UTC


def _recipes(found: list[Recipe]) -> Iterator[RenderableType]:
    for recipe in found:
        yield Text(f"\n{recipe.engine}", style="bold")
        for line in recipe.lines:
            yield Text(line, style="cyan", no_wrap=True, overflow="ignore")


def recipes(cut: Cut) -> tuple[Recipe, ...]:
    """Return how each engine reads the output tables of a cut."""
    spark: list[str] = []
    polars = ["import polars as pl"]
    duck = ["import duckdb", "from deltalake import DeltaTable"]
    names = view_names(cut.tables)
    for table in cut.tables:
        name, folder, version = names[table], cut.folder(table), cut.version(table)
        through_delta = "" if polars_reads(cut.folder(table)) else ", use_pyarrow=True"
        for_spark = f'spark.read.format("delta").option("versionAsOf", {version}).load({spark_address(folder)!r})'
        spark.append(f"{name} = {for_spark}")
        polars.append(f"{name} = pl.scan_delta({folder!r}, version={version}{through_delta})")
        duck.append(f"{name} = DeltaTable({folder!r}, version={version}).to_pyarrow_table()")
    duck.append(f'duckdb.sql("FROM {next(iter(names.values()), "table")} LIMIT 10")')
    return Recipe("Spark", tuple(spark)), Recipe("Polars", tuple(polars)), Recipe("DuckDB", tuple(duck))


def state_recipe(root: Root, cut: Cut) -> Recipe:
    """Return the commands that read each operator's state at the cut; `root` is the warehouse."""
    where = f"--at {cut.checkpoint} --warehouse {typed(absolute(root))}"
    lines = tuple(f"tidemark state {cut.job} {each} {where}" for each in cut.operators)
    return Recipe("Operator state, one row per key", lines)


# ------------------------------------------------------------------
# Renders `tidemark cut pending`: what the cut that waits for approval would change, and how to settle it.


def render_pending(cut: PendingCut, typed: str) -> RenderableType:
    """Return the tables that the approval would change, the suites' verdicts, and the commands that settle the cut.

    The user named the pipeline as `typed`.
    """
    held = shown(round(cut.held_at.timestamp() * 1000))
    heading = Text.assemble(
        (f"pending cut {cut.checkpoint}", "bold"),
        f" of {cut.job}, held at {held}: {counted(cut.rows, cut.rows_estimated)} rows of the sources. "
        "No table shows anything of it",
    )
    read = f'Cuts("{cut._warehouse.root}", "{cut.job}").pending()'  # noqa: SLF001 - the address that a user types
    return Group(
        heading,
        _tables(cut),
        *_verdicts(cut),
        Text(f"read it in Python: {read}.polars(TABLE), and .added(TABLE) for its own rows"),
        Text(f"publish it: tidemark approve {typed}"),
        Text(f"discard it: tidemark reject {typed}"),
    )


def _tables(cut: PendingCut) -> Grid:
    grid = Grid("table", "rows that it brings", "rows then")
    for column in grid.columns[1:]:
        column.justify = "right"
    for table in cut.tables:
        brings = _rows(cut.added(table)) if table in cut.changed else 0
        grid.add_row(table, count(brings), count(_rows(cut.polars(table))))
    return grid


def _rows(frame: pl.LazyFrame) -> int:
    return int(frame.select(pl.len()).collect().item())


def _verdicts(cut: PendingCut) -> Iterator[Text]:
    for verdict in verdicts_in(cut.verdicts):
        yield Text(verdict.report())


# ------------------------------------------------------------------
# Renders `tidemark state`: real columns, one row per key, and a note on rows that are not in the state yet.


_CELL_MAX = 60


def render_state(cut: Cut, state: OperatorState, rows: pl.DataFrame, total: int) -> RenderableType:
    """Return these rows of an operator's state; `total` is how many keys match."""
    heading = Text.assemble(("state of ", "bold"), (state.operator, "bold"), f" at cut {cut.checkpoint} of {cut.job}")
    return Group(heading, _grid(state, rows), *_notes(state, rows.height, total))


def render_operators(cut: Cut, states: Sequence[OperatorState]) -> RenderableType:
    """Return which operators have state at a cut."""
    heading = Text.assemble(("operators with state ", "bold"), f"at cut {cut.checkpoint} of {cut.job}")
    grid = Grid("operator", "key", "state", "files")
    grid.columns[3].justify = "right"
    for state in states:
        values = [name for name in state.schema.names if name not in state.keys]
        grid.add_row(state.operator, ", ".join(state.keys), ", ".join(values), str(state.files))
    return Group(heading, grid)


def _grid(state: OperatorState, rows: pl.DataFrame) -> Grid:
    grid = Grid()
    for name in rows.columns:
        grid.add_column(Text(name), style="bold" if name in state.keys else None, no_wrap=True)
    for row in rows.iter_rows():
        grid.add_row(*(Text(_cell(value)) for value in row))
    return grid


def _notes(state: OperatorState, shown: int, total: int) -> Iterator[RenderableType]:
    if shown < total:
        yield Text(f"{shown} of {total:,} keys: --limit shows more, --key one of them, --sql the query for all")
    else:
        yield Text(plural(total, "key"))
    if state.rows_on_their_way:
        yield Text(
            f"an unaligned checkpoint: {plural(state.rows_on_their_way, 'row')} in flight to {state.operator} "
            "belong to this cut and are not in the state yet"
        )


def _cell(value: object) -> str:
    """Return a value on one line, and of a long value only the beginning."""
    if value is None:
        return "null"
    more = f" and {len(value) - 1} more" if isinstance(value, list) and len(value) > 1 else ""
    text = str(value[0]) if more and isinstance(value, list) else str(value)
    room = _CELL_MAX - len(more)
    return f"{text if len(text) <= room else f'{text[: room - 1]}…'}{more}"
