"""Finds the files of an upsert or state table at a cut, in the snapshots of its vertex."""

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import Final

from checkpointing.graph import Table, TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.metadata.record import VertexRecord

_FILE: Final = attrgetter("file")


def live_files(table: Table, record: VertexRecord) -> tuple[FileHandle, ...]:
    """Return the files of an upsert or state table at that cut, in order of the subtasks. An append table has none."""
    return each_once(lists_of(table, record))


def changed_files(table: Table, now: VertexRecord, before: VertexRecord | None) -> tuple[FileHandle, ...] | None:
    """Return the live files of an upsert or state table, or None if they are the same as at the cut before."""
    lists, were = lists_of(table, now), lists_of(table, before) if before is not None else []
    if lists == were:
        return None
    files = _by_path(lists)
    return None if files.keys() == _by_path(were).keys() else tuple(files.values())


def lists_of(table: Table, record: VertexRecord) -> list[tuple[KeyedFile, ...]]:
    """Return the table's files as the subtasks have them. After a change of parallelism, lists may share files."""
    if table.mode is TableMode.STATE:
        return [snapshot.state for snapshot in record.subtasks]
    return [each.files for snapshot in record.subtasks for each in snapshot.ranges if each.table == table.name]


def each_once(lists: Iterable[tuple[KeyedFile, ...]]) -> tuple[FileHandle, ...]:
    """Return the files of these lists in their order, each once."""
    return tuple(_by_path(lists).values())


def _by_path(lists: Iterable[tuple[KeyedFile, ...]]) -> dict[str, FileHandle]:
    return {file.path: file for file in map(_FILE, chain.from_iterable(lists))}
