"""Finds the files of an upsert or state table at a cut, in the snapshots of its vertex."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Final

from checkpointing.graph import Table, TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.metadata.record import VertexRecord

_FILE: Final = attrgetter("file")

Lists = Sequence[tuple[KeyedFile, ...]]
"""The files of a table, as the subtasks have them. Several lists may share a file."""


def live_files(table: Table, record: VertexRecord) -> tuple[FileHandle, ...]:
    """Return the files of an upsert or state table at that cut, in order of the subtasks. An append table has none."""
    return each_once(lists_of(table, record))


def changed_files(table: Table, now: VertexRecord, before: VertexRecord | None) -> tuple[FileHandle, ...] | None:
    """Return the live files of an upsert or state table, or None if they are the same as at the cut before."""
    lists, were = lists_of(table, now), lists_of(table, before) if before is not None else []
    if lists == were:
        return None
    files = _by_path(lists)
    return tuple(files.values()) if _differ(files.keys(), lists, were) else None


def lists_of(table: Table, record: VertexRecord) -> Lists:
    """Return the table's files as the subtasks have them. After a change of parallelism, lists may share files."""
    if table.mode is TableMode.STATE:
        return [snapshot.state for snapshot in record.subtasks]
    return [each.files for snapshot in record.subtasks for each in snapshot.ranges if each.table == table.name]


def _differ(paths: AbstractSet[str], lists: Lists, were: Lists) -> bool:
    """Return True if the files of `lists`, which have these paths, are not those of `were`.

    A file that has left its list tells it most of the time, or else the number of files. So only changed lists cost
    anything. Otherwise a file may have moved to another list, or several lists may share it.
    """
    changed = (old for new, old in zip_longest(lists, were, fillvalue=()) if new is not old)
    if any(each.file.path not in paths for old in changed for each in old) or len(paths) > sum(map(len, were)):
        return True
    return paths != _by_path(were).keys()


def each_changed(lists: Lists, were: Lists) -> tuple[tuple[FileHandle, ...], tuple[FileHandle, ...]]:
    """Return the files that are new in these lists, and those that are gone. No two lists share a file.

    A list that is the same object as before is not looked into.
    """
    pairs = [(now, old) for now, old in zip_longest(lists, were, fillvalue=()) if now is not old]
    now, before = _by_path([now for now, _ in pairs]), _by_path([old for _, old in pairs])
    new = tuple(file for path, file in now.items() if path not in before)
    return new, tuple(file for path, file in before.items() if path not in now)


def are_shown(files: tuple[FileHandle, ...], lists: Lists) -> bool:
    """Return True if these files, each of which comes once, are those of `each_once`."""
    return files == tuple(map(_FILE, chain.from_iterable(lists))) or files == each_once(lists)


def each_once(lists: Lists) -> tuple[FileHandle, ...]:
    """Return the files of these lists in their order, each once."""
    return tuple(_by_path(lists).values())


def _by_path(lists: Lists) -> dict[str, FileHandle]:
    return {file.path: file for file in map(_FILE, chain.from_iterable(lists))}
