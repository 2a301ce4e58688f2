"""Renders `tidemark cut pending`: what the cut that waits for approval would change, and how to settle it."""

from collections.abc import Iterator

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from jobs.quality.verdict import verdicts_in
from jobs.reading import PendingCut
from jobs.reading.moments import shown
from jobs.showing.quantities import count, counted


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
