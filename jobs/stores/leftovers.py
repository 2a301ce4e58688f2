"""Deletes files that older generations staged and that nothing can refer to.

`checkpointing.commit.leftovers` has the rule. A file whose name is not that of a staged file stays.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from checkpointing.commit.leftovers import Referenced, is_unreferenced, oldest_with_leftovers
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.identifiers import Generation, TableName
from checkpointing.messages import RunMicroBatch
from checkpointing.metadata.paths import ProtocolPaths, parse_generation, parse_staged_name
from jobs.storage.together import together
from jobs.stores.warehouse import Warehouse

LISTED_ALONE: Final = 4
"""The folders of so many generations are listed one by one. If there are more, all files of the table are listed."""


def delete_leftovers(
    warehouse: Warehouse, tables: Iterable[TableName], *, current: Generation, by: Referenced
) -> tuple[str, ...]:
    """Delete the leftovers in these tables' folders. Return their warehouse-relative paths, in order.

    If the process dies before the end, the next tick deletes the rest.
    """
    found = together(
        warehouse.storage, lambda table: sorted(_of_table(warehouse, table, current=current, by=by)), tables
    )
    paths = [path for of_table in found for path in of_table]
    deleted = together(warehouse.storage, warehouse.delete, paths)
    return tuple(path for path, gone in zip(paths, deleted, strict=True) if gone)


def delete_unfinished(warehouse: Warehouse, tables: Iterable[TableName], effect: RunMicroBatch) -> None:
    """Delete the files of a failed micro-batch, so that a full disk has room again.

    A file may stay because a task writes it later, or because the system refuses. The clean-up deletes it then.
    """
    for table in tables:
        folder = warehouse.paths.staged_folder(table, Generation(effect.generation))
        with suppress(OSError):
            for file in [*warehouse.place(folder).entries(deep=True)]:
                name = parse_staged_name(file.name)
                if name is not None and (name.vertex, name.micro_batch) == (effect.vertex, effect.micro_batch):
                    warehouse.delete(f"{folder}/{file.name}")


def own_folders(warehouse: Warehouse) -> Iterator[TableName]:
    """Yield every folder of state and of channels. This includes those of vertices that the pipeline no longer has."""
    for root in (warehouse.paths.states, warehouse.paths.channels):
        yield from (TableName(folder.name) for folder in warehouse.place(root).folders())


def staging_folders(graph: JobGraph, paths: ProtocolPaths) -> tuple[TableName, ...]:
    """Return every folder into which the job's vertices stage files: of tables, states and channels."""
    tables = [table.name for table in graph.tables()]
    states = [paths.state_table(vertex.id) for vertex in graph.operators() if vertex.kind is VertexKind.KEYED]
    channels = [paths.channel(vertex.id) for vertex in graph.operators()]
    return tuple(dict.fromkeys([*tables, *states, *channels]))


def _of_table(warehouse: Warehouse, table: TableName, *, current: Generation, by: Referenced) -> Iterator[str]:
    for generation, last in _staged(warehouse, table, oldest_with_leftovers(by), current):
        name, path = parse_staged_name(last), f"{warehouse.paths.staged_folder(table, generation)}/{last}"
        if name is not None and is_unreferenced(path, name, generation, current=current, by=by):
            yield path


def _staged(
    warehouse: Warehouse, table: TableName, oldest: Generation, current: Generation
) -> Iterator[tuple[Generation, str]]:
    """Yield the generation and name of each file that generations from `oldest` up to `current` staged.

    Mostly they are one generation. A store lists its files alone, and not those of a thousand checkpoints.
    """
    if current - oldest <= LISTED_ALONE:
        for generation in map(Generation, range(oldest, current)):
            staged = warehouse.place(warehouse.paths.staged_folder(table, generation))
            yield from ((generation, file.name) for file in staged.entries(deep=True))
        return
    for file in warehouse.place(warehouse.paths.staged_root(table)).entries(deep=True):
        folder, _, last = file.name.partition("/")
        by = parse_generation(folder)
        if by is not None and by < current:
            yield by, last
