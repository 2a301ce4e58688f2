"""Compacts the small files of simulated tables, as a tick does beside its other work."""

from collections.abc import Iterator

from checkpointing.commit.compaction import ActiveFile, groups_to_compact
from checkpointing.identifiers import Generation, TableName
from checkpointing.messages import Compacted, CompactFiles, FilesCompacted
from checkpointing.metadata.record import FileCompaction
from spec.pipeline import ROW_BYTES
from spec.table_log import Written
from spec.world import World


def compacted(world: World, effect: CompactFiles, generation: Generation) -> FilesCompacted:
    """Write the small files that the core chooses into larger ones. A larger file has only files with the same columns.

    If a table has several groups of small files, only the first group is written now. The answer names the table in
    `more`, as if the next group were too much for one request.
    """
    found: list[Compacted] = []
    more: list[TableName] = []
    for table in effect.tables:
        groups = list(_groups(world, table, effect))
        found += [Compacted(table, (_compaction(world, table, alike, generation),)) for alike in groups[:1]]
        more += [table] if len(groups) > 1 else []
    return FilesCompacted(tuple(found), tuple(more))


def _groups(world: World, table: TableName, effect: CompactFiles) -> Iterator[tuple[str, ...]]:
    ours = [path for path in sorted(world.table(table).active) if world.files[path].generation]
    files = [ActiveFile(path, len(world.files[path].rows) * ROW_BYTES) for path in ours]
    for group in groups_to_compact(files, effect.files_min, effect.bytes_max):
        columns = world.files[group[0]].columns
        alike = tuple(path for path in group if world.files[path].columns == columns)
        if len(alike) > 1:
            yield alike


def _compaction(world: World, table: TableName, paths: tuple[str, ...], generation: Generation) -> FileCompaction:
    read = [world.read(path, f"compaction of {table}", generation) for path in paths]
    rows = tuple(row for each in read for row in each.rows)
    written = Written(generation, read[0].vertex, 0, rows, columns=read[0].columns)
    return FileCompaction(into=world.write(str(table), written, len(rows)), of=paths)
