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
"""The lists of a table's files that the subtasks have. Several lists can share a file."""


def live_files(table: Table, record: VertexRecord) -> tuple[FileHandle, ...]:
    """Return the files of an upsert or state table at that cut, in order of the subtasks. An append table has none."""
    return each_once(lists_of(table, record))


def changed_files(
    table: Table, now: VertexRecord, before: VertexRecord | None, shown: tuple[FileHandle, ...] = ()
) -> tuple[FileHandle, ...] | None:
    """Return the live files of an upsert or state table, or None if they are the same as at the cut before.

    `shown` are the files of the table at the cut before, if its entry names them. If no two lists shared a file there,
    only changed lists are read. After a restore, two lists can share a file that only one of them had before. The
    result names such a file once.
    """
    lists, were = lists_of(table, now), lists_of(table, before) if before is not None else []
    if lists == were:
        return None
    if len(lists) == len(were) and is_split(shown, were):
        new, gone = each_changed(lists, were)
        if not (new or gone):
            return None
        once = {file.path: file for file in _with_changed_lists(lists, were, shown)}
        return tuple(once.values()) if gone or len(once) > len(shown) else None
    files = _by_path(lists)
    return tuple(files.values()) if _differ(files.keys(), lists, were) else None


def lists_of(table: Table, record: VertexRecord) -> Lists:
    """Return the lists of a table's files that the subtasks have.

    After a change of parallelism, lists can share files.
    """
    if table.mode is TableMode.STATE and not table.broadcast:
        return [snapshot.state for snapshot in record.subtasks]
    return [each.files for snapshot in record.subtasks for each in snapshot.ranges if each.table == table.name]


def _differ(paths: AbstractSet[str], lists: Lists, were: Lists) -> bool:
    """Return True if the files of `lists`, which have the paths `paths`, are not the files of `were`.

    In most cases, a file that has left its list or the number of files already shows the difference. So only changed
    lists are read. Otherwise all files are compared, because a file may have moved to another list, or several lists
    may share it.
    """
    changed = (old for new, old in zip_longest(lists, were, fillvalue=()) if new is not old)
    if any(each.file.path not in paths for old in changed for each in old) or len(paths) > sum(map(len, were)):
        return True
    return paths != _by_path(were).keys()


def is_split(files: Sequence[FileHandle], lists: Lists) -> bool:
    """Return True if each of `files` is in only one of the lists. `files` must be the files of the lists."""
    return len(files) == sum(map(len, lists))


def each_changed(lists: Lists, were: Lists) -> tuple[tuple[FileHandle, ...], tuple[FileHandle, ...]]:
    """Return the files that are new in these lists, and the files that are gone. No two lists may share a file.

    Lists and files that are the same objects as before are not compared.
    """
    pairs = [(own, old) for own, old in zip_longest(lists, were, fillvalue=()) if own is not old]
    here, there = ([*chain.from_iterable(each)] for each in ((own for own, _ in pairs), (old for _, old in pairs)))
    same = {*map(id, here)} & {*map(id, there)}
    now, before = ({each.file.path: each.file for each in found if id(each) not in same} for found in (here, there))
    new = tuple(file for path, file in now.items() if path not in before)
    return new, tuple(file for path, file in before.items() if path not in now)


def _with_changed_lists(lists: Lists, were: Lists, shown: tuple[FileHandle, ...]) -> tuple[FileHandle, ...]:
    """Return the files of `lists`. `shown` are the files of `were`, which has as many lists."""
    files: list[FileHandle] = []
    same_from = at = 0
    for now, old in zip(lists, were, strict=True):
        if now is not old:
            files += shown[same_from:at]
            files += map(_FILE, now)
            same_from = at + len(old)
        at += len(old)
    return (*files, *shown[same_from:])


def are_shown(files: tuple[FileHandle, ...], lists: Lists) -> bool:
    """Return True if `files`, each of which comes once, are the files that `each_once` returns."""
    return files == tuple(map(_FILE, chain.from_iterable(lists))) or files == each_once(lists)


def each_once(lists: Lists) -> tuple[FileHandle, ...]:
    """Return the files of these lists in their order, each once."""
    return tuple(_by_path(lists).values())


def _by_path(lists: Lists) -> dict[str, FileHandle]:
    return {file.path: file for file in map(_FILE, chain.from_iterable(lists))}
