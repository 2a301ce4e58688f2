"""Deleting what older generations staged and certainly nothing references; never anything else.

The rule is `checkpointing.commit.leftovers`; a file that has another name than a staged one is left alone.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from checkpointing.commit.leftovers import Referenced, is_unreferenced
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.identifiers import Generation, TableName
from checkpointing.metadata.paths import ProtocolPaths, parse_generation, parse_staged_name
from jobs.stores.warehouse import Warehouse


def find_leftovers(
    warehouse: Warehouse, tables: Iterable[TableName], *, current: Generation, by: Referenced
) -> tuple[str, ...]:
    """Return the warehouse-relative paths of the leftovers in these tables' folders, in order."""
    return tuple(path for table in tables for path in sorted(_of_table(warehouse, table, current=current, by=by)))


def delete_leftovers(
    warehouse: Warehouse, tables: Iterable[TableName], *, current: Generation, by: Referenced
) -> tuple[str, ...]:
    """Delete the leftovers and return their paths. A crash in between leaves the rest to the next tick."""
    found = find_leftovers(warehouse, tables, current=current, by=by)
    return tuple(path for path in found if warehouse.delete(path))


def own_folders(warehouse: Warehouse) -> Iterator[TableName]:
    """Yield every folder of state and of channels, those of vertices too that the pipeline no longer has."""
    for root in (warehouse.paths.states, warehouse.paths.channels):
        folder = warehouse.path(root)
        if folder.is_dir():
            yield from (TableName(f"{root}/{each.name}") for each in sorted(folder.iterdir()) if each.is_dir())


def staging_folders(graph: JobGraph, paths: ProtocolPaths) -> tuple[TableName, ...]:
    """Return every folder into which a vertex of the job stages files: its tables', its state's, its channel's."""
    tables = [table.name for table in graph.tables()]
    states = [paths.state_table(vertex.id) for vertex in graph.operators() if vertex.kind is VertexKind.KEYED]
    channels = [paths.channel(vertex.id) for vertex in graph.operators()]
    return tuple(dict.fromkeys([*tables, *states, *channels]))


def _of_table(warehouse: Warehouse, table: TableName, *, current: Generation, by: Referenced) -> Iterator[str]:
    for folder in _folders(warehouse.path(warehouse.paths.staged_root(table))):
        generation = parse_generation(folder.name)
        if generation is None or generation >= current:
            continue
        for file in folder.iterdir():
            name = parse_staged_name(file.name)
            path = f"{warehouse.paths.staged_folder(table, generation)}/{file.name}"
            if name is not None and is_unreferenced(path, name, generation, current=current, by=by):
                yield path


def _folders(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from (path for path in root.iterdir() if path.is_dir())
