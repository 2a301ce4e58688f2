"""Says in the simplest way what an entry means for tables, ranges and names, without the product's own functions.

Judges use this, so that they do not share an error with the product.
"""

from typing import Any

from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.identifiers import JobName, SplitId, VertexId
from checkpointing.messages import Publication
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord, Rename, RenameKind, VertexRecord


def files_of_table(table: Table, vertex: VertexRecord) -> frozenset[str]:
    """Return the files of an upsert or state table at the cut. For an append table there are none.

    Broadcast state lies in the ranges, under a name of its own.
    """
    if table.mode is TableMode.STATE and table.name.endswith(f"/state/{vertex.vertex}"):
        return frozenset(keyed.file.path for subtask in vertex.subtasks for keyed in subtask.state)
    ranges = [each for subtask in vertex.subtasks for each in subtask.ranges if each.table == table.name]
    return frozenset(keyed.file.path for each in ranges for keyed in each.files)


def publishes(record: CheckpointRecord, publication: Publication) -> bool:
    """Return whether the publication is what the entry says of its table."""
    columns = next((each.columns for each in record.columns if each.table == publication.table), ())
    names = {(one.now, one.was) for one in record.renames if one.kind is RenameKind.COLUMN}
    renamed = all(now == was or (now, was) in names for now, was in publication.renamed)
    return renamed and publication.columns == columns and _files(publication) in map(_files, record.tables)


def _files(told: Any) -> tuple[object, ...]:  # noqa: ANN401 - a table's record or its publication
    return told.table, told.mode, told.adds, told.files, told.removes, told.leaving, told.compactions


def publishes_whole(record: CheckpointRecord, publication: Publication) -> bool:
    """Return whether a table that the entry does not change consists of exactly these files, of one vertex."""
    files = frozenset(file.path for file in publication.files)
    for vertex in record.vertices:
        state = Table(table_of_state(JobName(record.job), vertex.vertex), TableMode.STATE)
        upsert = Table(publication.table, TableMode.UPSERT)
        table = state if state.name == publication.table else upsert
        if files and files == files_of_table(table, vertex):
            return True
    return False


def key_groups_of(subtask: int, parallelism: int, max_parallelism: int) -> frozenset[int]:
    """Return the key groups of a subtask. Key group g belongs to subtask g * parallelism // max_parallelism."""
    return frozenset(group for group in range(max_parallelism) if group * parallelism // max_parallelism == subtask)


def says_finished(record: CheckpointRecord) -> bool:
    """Return whether an entry says of every subtask that it has no row left, and holds none in flight."""
    subtasks = [subtask for vertex in record.vertices for subtask in vertex.subtasks]
    return bool(subtasks) and all(each.finished and not each.in_flight for each in subtasks)


def ended_at(record: CheckpointRecord) -> frozenset[tuple[VertexId, SplitId]]:
    """Return the splits of which an entry says that they have ended."""
    return frozenset(
        (vertex.vertex, SplitId(split))
        for vertex in record.vertices
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
        if subtask.finished
    )


def ended_before(graph: JobGraph, record: CheckpointRecord | None) -> frozenset[tuple[VertexId, SplitId]]:
    """Return the splits of a pipeline that had ended at an entry.

    A part of a source has ended if all its splits have. It finds no new ones then. A source without parts is one part.
    """
    found: set[tuple[VertexId, SplitId]] = set()
    for vertex in record.vertices if record is not None else ():
        for source in (each for each in graph.sources() if each.id == vertex.vertex):
            for begin in source.parts or ("",):
                if source.bounded or begin != (source.parts or ("",))[-1]:
                    found |= {(source.id, split) for split in ended_of(source, begin, vertex)}
    return frozenset(found)


def ended_of(source: Vertex, begin: str, vertex: VertexRecord) -> frozenset[SplitId]:
    """Return the splits of a part that an entry says have ended, and if all have, also those that it does not know.

    The names of the part's splits begin with `begin`.
    """
    over = {
        split: subtask.finished
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
        if split.startswith(begin)
    }
    whole = bool(over) and all(over.values())
    return frozenset(split for split in source.splits if split.startswith(begin) and (whole or over.get(split, False)))


def splits_before(graph: JobGraph) -> dict[tuple[VertexId, SplitId], tuple[tuple[VertexId, SplitId], ...]]:
    """Return the splits of earlier parts, for each split of a source that is read in parts."""
    found: dict[tuple[VertexId, SplitId], tuple[tuple[VertexId, SplitId], ...]] = {}
    for source in graph.sources():
        earlier: tuple[tuple[VertexId, SplitId], ...] = ()
        for begin in source.parts:
            own = tuple((source.id, split) for split in source.splits if split.startswith(begin))
            found |= dict.fromkeys(own, earlier)
            earlier += own
    return found


def renames_of(graph: JobGraph) -> frozenset[Rename]:
    """Return the renames that a pipeline declares."""
    vertex, table, column = RenameKind.VERTEX, RenameKind.TABLE, RenameKind.COLUMN
    found: set[Rename] = set()
    for each in graph.vertices:
        found |= {Rename(kind=vertex, was=each.renamed_from, now=each.id)} if each.renamed_from else set()
        found |= {
            Rename(kind=table, was=one.renamed_from, now=one.name)
            for one in each.tables
            if one.renamed_from and one.mode is not TableMode.STATE
        }
        found |= {
            Rename(kind=column, was=was, now=now, vertex=each.id) for now, was in each.columns_renamed_from.items()
        }
    return frozenset(found)
