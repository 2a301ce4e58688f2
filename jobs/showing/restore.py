"""Renders what a restore would do: where each split goes on, and what each operator, table and hook gets."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.evolution import Change
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import SubtaskId, TableName
from checkpointing.job.restoring import coordinators_left, hooks_left, in_flight, not_restored, positions
from checkpointing.job.unfit_tables import tables_left
from checkpointing.key_groups import key_group_ranges
from checkpointing.metadata.record import CheckpointRecord
from jobs.planner import JobPlan
from jobs.showing.quantities import count, plural, size
from jobs.showing.statistics import right
from jobs.showing.timeline import states_grid
from jobs.sources.position_words import PositionWords


def render_restore(
    what: str,
    plan: JobPlan,
    record: CheckpointRecord,
    versions: Mapping[TableName, int] | None = None,
    changes: Sequence[Change] = (),
) -> RenderableType:
    """Return what restoring the entry into this plan does; `what` names entry and warehouse.

    `versions` are the Delta versions of the tables if they stay. None: they are made anew of the entry's files, so the
    entry must be whole.
    """
    graph = plan.graph
    grids = (
        _splits(graph, record, PositionWords(plan.sources)),
        _states(graph, record, plan.config.max_parallelism),
        _tables(graph, record, versions or {}),
    )
    return Group(
        Text.assemble(("restore plan ", "bold"), (plan.job, "bold"), f": {what}"),
        *([render_changes(changes)] if changes else []),
        *(grid for grid in grids if grid.row_count),
        *_others(graph, record),
    )


def render_changes(changes: Sequence[Change]) -> RenderableType:
    """Return the differences between pipeline and checkpoint, and their consequences."""
    grid = Grid("changed", "of", "column", "was", "is", "verdict", show_lines=True)
    for change in changes:
        style = "red" if change.refused else None
        was, now = change.was or "not there", change.now or "not there"
        cells = (change.kind.value, change.thing, change.column, was, now, change.verdict)
        grid.add_row(*(Text(cell) for cell in cells), style=style)
    return grid


def left_behind(graph: JobGraph, record: CheckpointRecord) -> tuple[str, ...]:
    """Return the state, hooks and tables of the entry that the pipeline no longer has, named for a user."""
    return (
        *(f"the state of {vertex}" for vertex in not_restored(graph, record)),
        *(f"the own state of source {source}" for source in coordinators_left(graph, record)),
        *(f"the state of master hook {hook}" for hook in hooks_left(graph, record)),
        *(f"table {table}" for table in tables_left(graph, record)),
    )


def _splits(graph: JobGraph, record: CheckpointRecord, words: PositionWords) -> Grid:
    grid, found = Grid("source", "split", "goes on after"), positions(graph, record)
    for source in graph.sources():
        for index, split in enumerate(source.splits):
            position = found[SubtaskId(source.id, index)]
            goes_on = "the start (new)" if position is None else words.named(source.id, split, position)
            grid.add_row(source.id, split, goes_on)
    return grid


def _states(graph: JobGraph, record: CheckpointRecord, max_parallelism: int) -> Grid:
    grid = right(Grid("state of", "files", "bytes", "rows", "key groups then", "key groups now"), 1, 2, 3)
    was = {vertex.vertex: vertex.subtasks for vertex in record.vertices}
    for vertex in graph.operators():
        if vertex.kind is VertexKind.KEYED and vertex.id in was:
            files = {keyed.file.path: keyed.file for subtask in was[vertex.id] for keyed in subtask.state}
            then, now = (_ranges(each, max_parallelism) for each in (len(was[vertex.id]), vertex.parallelism))
            grid.add_row(vertex.id, *_amounts(files.values()), then, now)
    return grid


def _ranges(parallelism: int, max_parallelism: int) -> str:
    ranges = key_group_ranges(parallelism=parallelism, max_parallelism=max_parallelism)
    return f"{len(ranges)}: {', '.join(f'{own.first}-{own.last}' for own in ranges)}"


def _tables(graph: JobGraph, record: CheckpointRecord, versions: Mapping[TableName, int]) -> Grid:
    grid = right(Grid("table", "mode", "Delta version", "files", "bytes", "rows"), 2, 3, 4, 5)
    files = {table.table: (*table.adds, *table.files) for table in record.tables}
    for table in graph.tables():
        stays, made = ("as they are", "", ""), _amounts(files.get(table.name, ()))
        known = table.name in versions
        grid.add_row(
            table.name,
            table.mode.value,
            str(versions[table.name]) if known else "new",
            *(stays if known else made),
        )
    return grid


def _amounts(files: Collection[FileHandle]) -> tuple[str, str, str]:
    return count(len(files)), size(sum(file.bytes for file in files)), count(sum(file.rows for file in files))


def _others(graph: JobGraph, record: CheckpointRecord) -> Iterator[RenderableType]:
    if graph.hooks:
        held = {each.hook: each.state for each in record.hooks}
        yield states_grid("master hook", [(hook.name, held.get(hook.name)) for hook in graph.hooks])
    segments = sum(1 for _ in in_flight(record))
    if segments:
        yield Text(f"{plural(segments, 'segment')} in flight will be processed first")
    for left in left_behind(graph, record):
        yield Text(f"left behind: {left}, which the pipeline no longer has", style="yellow")
