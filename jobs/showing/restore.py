"""Renders what a restore would do."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.evolution import Change
from jobs.at_rest.restore_plan import RestorePlan, SplitPlan, StatePlan, TablePlan
from jobs.showing.quantities import count, plural, size
from jobs.showing.timeline import describe_position, hooks_grid


def render_restore(job: str, what: str, plan: RestorePlan) -> RenderableType:
    """Return the plan of a restore; `what` names the entry, its warehouse, and what happens to its files."""
    heading = Text.assemble(("restore plan ", "bold"), (job, "bold"), f": {what}")
    return Group(heading, *_parts(plan))


def render_changes(changes: Sequence[Change]) -> RenderableType:
    """Return the differences between pipeline and checkpoint, and their consequences."""
    grid = Grid("changed", "of", "column", "was", "is", "verdict", show_lines=True)
    for change in changes:
        style = "red" if change.refused else None
        was, now = change.was or "not there", change.now or "not there"
        cells = (change.kind.value, change.thing, change.column, was, now, change.verdict)
        grid.add_row(*(Text(cell) for cell in cells), style=style)
    return grid


def _parts(plan: RestorePlan) -> Iterator[RenderableType]:
    if plan.changes:
        yield render_changes(plan.changes)
    if plan.splits:
        yield _splits(plan.splits)
    if plan.vertices:
        yield _states(plan.vertices)
    if plan.tables:
        yield _tables(plan.tables)
    if plan.hooks:
        yield hooks_grid([(each.hook, each.state) for each in plan.hooks])
    if plan.in_flight:
        yield Text(f"{plural(plan.in_flight, 'segment')} in flight will be processed first")
    for left in plan.left_behind:
        yield Text(f"left behind: {left}, which the pipeline no longer has", style="yellow")


def _splits(splits: tuple[SplitPlan, ...]) -> Grid:
    grid = Grid("source", "split", "goes on after")
    for split in splits:
        grid.add_row(split.source, split.split, _position(split.position))
    return grid


def _position(position: str | None) -> str:
    if position is None:
        return "the start (new)"
    return describe_position(position)


def _states(vertices: tuple[StatePlan, ...]) -> Grid:
    grid = Grid("state of", "files", "bytes", "rows", "key groups then", "key groups now")
    for column in (1, 2, 3):
        grid.columns[column].justify = "right"
    for vertex in vertices:
        amounts = (count(vertex.files), size(vertex.bytes), count(vertex.rows))
        before, now = (f"{len(ranges)}: {', '.join(ranges)}" for ranges in (vertex.ranges_before, vertex.ranges_now))
        grid.add_row(vertex.vertex, *amounts, before, now)
    return grid


def _tables(tables: tuple[TablePlan, ...]) -> Grid:
    grid = Grid("table", "mode", "Delta version", "files", "bytes", "rows")
    for column in (2, 3, 4, 5):
        grid.columns[column].justify = "right"
    for table in tables:
        grid.add_row(table.table, table.mode.value, *_shown(table))
    return grid


def _shown(table: TablePlan) -> tuple[str, str, str, str]:
    if table.version is not None:
        return str(table.version), "as they are", "", ""
    return "new", count(table.files), size(table.bytes), count(table.rows)
