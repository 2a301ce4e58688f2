"""Decides which small files of an append table are compacted, and which compactions a publication carries out.

Each micro-batch adds at least one file to an append table, so a table of many checkpoints has many small files. A tick
writes the rows of several small files into one larger file, beside its other work. The next checkpoint's entry names
the new file and the files that it replaces, and they change places in the same Delta commit as the checkpoint's own
files.

The invariant: with or without a compaction, a table shows the same rows at every cut. So a compaction may be left out
at any time. It is left out whenever the table does not show all files that it replaces, since another program may have
changed these files.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from checkpointing.metadata.paths import staged_name_in
from checkpointing.metadata.record import COMPACTED_FILES_MAX, FileCompaction


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A file of the job's own that a table shows, by its warehouse-relative path."""

    path: str
    bytes: int


def groups_to_compact(files: Iterable[ActiveFile], files_min: int, bytes_max: int) -> Iterator[tuple[str, ...]]:
    """Yield the paths of files to write into one file, partition by partition, the smallest files first.

    `files` are the job's own files that a table shows now. A file of more than half of `bytes_max` stays as it is. A
    smaller file joins the group of files that are smaller still, unless it is more than twice as large as the whole
    group. So each time that a row is written again, its new file is at least 1.5 times as large, and few files remain
    of each size. A group has at least `files_min` files, or is as large as a file may become.
    """
    small = sorted((_partition(file), file.bytes, file.path) for file in files if 2 * file.bytes <= bytes_max)
    for _, found in groupby(small, lambda file: file[0]):
        yield from _groups(((size, path) for _, size, path in found), files_min, bytes_max)


def _groups(files: Iterable[tuple[int, str]], files_min: int, bytes_max: int) -> Iterator[tuple[str, ...]]:
    group: list[str] = []
    total = 0
    for size, path in files:
        is_full = total + size > bytes_max or len(group) == COMPACTED_FILES_MAX
        if group and (is_full or size > 2 * total):
            if is_full or len(group) >= files_min:
                yield tuple(group)
            group, total = [], 0
        group.append(path)
        total += size
    if len(group) >= files_min:
        yield tuple(group)


def _partition(file: ActiveFile) -> str:
    name = staged_name_in(file.path)
    return "" if name is None else name.partition


def still_possible(
    compactions: Iterable[FileCompaction], active: Collection[str], marked: Collection[str] = ()
) -> tuple[FileCompaction, ...]:
    """Return the compactions that a table with these active files allows, by warehouse-relative paths.

    The table must show every file that a compaction replaces, without a deletion vector (`marked`), and must not show
    the new file yet.
    """
    return tuple(
        each
        for each in compactions
        if each.into.path not in active and all(path in active and path not in marked for path in each.of)
    )
