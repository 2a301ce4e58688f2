"""`tidemark cut`: each table's Delta version at a checkpoint, and how to read them all as one."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from jobs.reading import Cut
from jobs.reading.moments import shown
from jobs.showing.reading_lines import Recipe, recipes, state_recipe


def render_cut(cut: Cut, root: Path) -> RenderableType:
    """Return the versions of one consistent cut and the lines that read it, output tables first, then states."""
    published = shown(round(cut.published_at.timestamp() * 1000))
    heading = Text.assemble(
        (f"cut {cut.checkpoint}", "bold"), f" of {cut.job}: every table as of one moment, published at {published}"
    )
    found = [*recipes(cut), *([state_recipe(root, cut)] if cut.operators else [])]
    return Group(heading, _versions(cut), *_recipes(found))


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
