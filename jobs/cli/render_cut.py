"""`tidemark cut`: each table's Delta version at a checkpoint, and how to read them all as one."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.paths import ROOT
from jobs.cli.reading_lines import Recipe, recipes


def render_cut(job: str, checkpoint: CheckpointId, root: Path, cut: Mapping[TableName, int]) -> RenderableType:
    """Return the versions of one consistent cut and the lines that read it; output tables first, states behind."""
    ordered = dict(sorted(cut.items(), key=lambda entry: (entry[0].startswith(ROOT), entry[0])))
    heading = Text.assemble(("cut ", "bold"), (str(checkpoint), "bold"), f" of {job}: every table as of one moment")
    return Group(heading, _versions(ordered), *_recipes(recipes(root, ordered)))


def _versions(cut: Mapping[TableName, int]) -> Grid:
    grid = Grid("table", "Delta version")
    grid.columns[1].justify = "right"
    for table, version in cut.items():
        grid.add_row(table, str(version))
    return grid


def _recipes(found: tuple[Recipe, ...]) -> Iterator[RenderableType]:
    for recipe in found:
        yield Text(f"\n{recipe.engine}", style="bold")
        for line in recipe.lines:
            yield Text(line, style="cyan", no_wrap=True, overflow="ignore")
