"""Deleting what older generations staged and certainly nothing references; never anything else.

A file `<vertex>-<micro-batch>-<uuid>.parquet` in `_data/<g>/` is a leftover if and only if g is older than
the present claim, and either g is newer than the newest committed row's generation, or it is that
generation and the micro-batch came after the vertex's last one in that row. Whatever a row (or a row
before it) can name lies outside that rule, and so does every file that has another name.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from checkpointing.identifiers import Generation, TableName
from checkpointing.metadata.paths import StagedName, parse_generation, parse_staged_name
from checkpointing.metadata.record import CheckpointRecord
from jobs.stores.warehouse import Warehouse


def is_leftover(
    name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
) -> bool:
    """Return whether a staged file of that generation is certainly referenced by nothing."""
    if generation >= current:
        return False
    if newest is None or generation > newest.generation:
        return True
    if generation < newest.generation:
        return False
    counter = next((vertex.micro_batch for vertex in newest.vertices if vertex.vertex == name.vertex), None)
    return counter is not None and name.micro_batch > counter


def find_leftovers(
    warehouse: Warehouse, tables: Iterable[TableName], *, current: Generation, newest: CheckpointRecord | None
) -> tuple[str, ...]:
    """Return the warehouse-relative paths of the leftovers in these tables' folders, in order."""
    return tuple(
        path for table in tables for path in sorted(_of_table(warehouse, table, current=current, newest=newest))
    )


def delete_leftovers(
    warehouse: Warehouse, tables: Iterable[TableName], *, current: Generation, newest: CheckpointRecord | None
) -> tuple[str, ...]:
    """Delete the leftovers and return their paths. A crash in between leaves the rest to the next tick."""
    found = find_leftovers(warehouse, tables, current=current, newest=newest)
    for path in found:
        warehouse.path(path).unlink(missing_ok=True)
    return found


def _of_table(
    warehouse: Warehouse, table: TableName, *, current: Generation, newest: CheckpointRecord | None
) -> Iterator[str]:
    for folder in _folders(warehouse.path(warehouse.paths.staged_root(table))):
        generation = parse_generation(folder.name)
        if generation is None or generation >= current:
            continue
        for file in folder.iterdir():
            name = parse_staged_name(file.name)
            if name is not None and is_leftover(name, generation, current=current, newest=newest):
                yield f"{warehouse.paths.staged_folder(table, generation)}/{file.name}"


def _folders(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from (path for path in root.iterdir() if path.is_dir())
