"""What a restore would do, as data: per vertex what it gets, per table what it will show. Pure; nothing is read."""

from dataclasses import dataclass

from checkpointing.evolution import Change
from checkpointing.graph import JobGraph, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, HookName, SplitId, SubtaskId, TableName, VertexId
from checkpointing.job.restoring import hooks_left, in_flight, not_restored, positions
from checkpointing.job.unfit_tables import tables_left
from checkpointing.key_groups import key_group_ranges
from checkpointing.metadata.record import CheckpointRecord, VertexRecord


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Where a source's split goes on: the position at the cut, None from the start."""

    source: VertexId
    split: SplitId
    position: str | None


@dataclass(frozen=True, slots=True)
class StatePlan:
    """A keyed vertex's state: its files at the cut, and how the key groups fall to the subtasks, then and now."""

    vertex: VertexId
    files: int
    bytes: int
    rows: int
    ranges_before: tuple[str, ...]
    ranges_now: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table after the restore: its Delta version if it is there, or the files that it will be made of."""

    table: TableName
    mode: TableMode
    version: int | None
    files: int
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class HookPlan:
    """A master hook, and the state that it is given back: JSON text; None if the checkpoint holds none."""

    hook: HookName
    state: str | None


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The whole of it. `changes` are what the pipeline declares otherwise than the checkpoint holds it.

    `left_behind` is what the pipeline does not take, named for a person.
    """

    checkpoint: CheckpointId
    splits: tuple[SplitPlan, ...]
    vertices: tuple[StatePlan, ...]
    tables: tuple[TablePlan, ...]
    in_flight: int
    left_behind: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    hooks: tuple[HookPlan, ...] = ()


def restore_plan(
    graph: JobGraph,
    record: CheckpointRecord,
    max_parallelism: int,
    versions: dict[TableName, int] | None = None,
    changes: tuple[Change, ...] = (),
) -> RestorePlan:
    """Return what restoring the row into this graph means; `versions`: the tables are there, at these Delta versions.

    Without versions the row must be whole: then its own tables' files are the tables.
    """
    was = {vertex.vertex: vertex for vertex in record.vertices}
    gone = [f"the state of {vertex}" for vertex in not_restored(graph, record)]
    gone += [f"the state of master hook {hook}" for hook in hooks_left(graph, record)]
    gone += [f"table {table}" for table in tables_left(graph, record)]
    keyed = (vertex for vertex in graph.operators() if vertex.kind is VertexKind.KEYED and vertex.id in was)
    return RestorePlan(
        checkpoint=record.checkpoint,
        splits=_splits(graph, record),
        vertices=tuple(_vertex(vertex, was[vertex.id], max_parallelism) for vertex in keyed),
        tables=_tables(graph, record, versions),
        in_flight=sum(1 for _ in in_flight(record)),
        left_behind=tuple(gone),
        changes=changes,
        hooks=_hooks(graph, record),
    )


def _hooks(graph: JobGraph, record: CheckpointRecord) -> tuple[HookPlan, ...]:
    held = {each.hook: each.state for each in record.hooks}
    return tuple(HookPlan(hook.name, held.get(hook.name)) for hook in graph.hooks)


def _splits(graph: JobGraph, record: CheckpointRecord) -> tuple[SplitPlan, ...]:
    found = positions(graph, record)
    return tuple(
        SplitPlan(source.id, split, found[SubtaskId(source.id, index)])
        for source in graph.sources()
        for index, split in enumerate(source.splits)
    )


def _vertex(vertex: Vertex, was: VertexRecord, max_parallelism: int) -> StatePlan:
    files = {keyed.file.path: keyed.file for subtask in was.subtasks for keyed in subtask.state}
    count, size, rows = _sums(tuple(files.values()))
    return StatePlan(
        vertex=vertex.id,
        files=count,
        bytes=size,
        rows=rows,
        ranges_before=_ranges(parallelism=len(was.subtasks), max_parallelism=max_parallelism),
        ranges_now=_ranges(parallelism=vertex.parallelism, max_parallelism=max_parallelism),
    )


def _ranges(*, parallelism: int, max_parallelism: int) -> tuple[str, ...]:
    ranges = key_group_ranges(parallelism=parallelism, max_parallelism=max_parallelism)
    return tuple(f"{own.first}-{own.last}" for own in ranges)


def _tables(graph: JobGraph, record: CheckpointRecord, versions: dict[TableName, int] | None) -> tuple[TablePlan, ...]:
    files = {table.table: (*table.adds, *table.files) for table in record.tables}
    found = []
    for table in graph.tables():
        count, size, rows = _sums(files.get(table.name, ()))
        version = None if versions is None else versions.get(table.name)
        found.append(TablePlan(table.name, table.mode, version, count, size, rows))
    return tuple(found)


def _sums(files: tuple[FileHandle, ...]) -> tuple[int, int, int]:
    return len(files), sum(file.bytes for file in files), sum(file.rows for file in files)
