"""Takes erased files out of entries: each has a successor without the erased rows, which takes its place (K6, ADR 24).

The commit that appends an entry of kind FORGET writes every other entry again as `forgotten` returns it. So no entry
names an erased file afterwards, and every restore, rollback and copy reads only successors.

Entries also hold samples of values, in verdicts of suites and in messages of failures. Nothing depends on these
samples, and nobody can find out whose values they are. So all samples are deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from checkpointing.channel_items import ChannelState, RangeFiles, Segment, StagedSegment, SubtaskSnapshot
from checkpointing.commit.net_files import keyed_tables
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, StagedFile
from checkpointing.identifiers import JobName, TableName
from checkpointing.metadata.record import (
    CheckpointFailure,
    CheckpointRecord,
    Claim,
    ErasedFile,
    FileCompaction,
    Release,
    Row,
    TableRecord,
    VertexRecord,
)

NOT_KEPT: Final = "(the message went when rows were erased)"

Successors = Mapping[str, FileHandle | None]
"""From the path of each erased file in the warehouse to the file's successor. None: no row of it is left."""


def successors(erased: Iterable[ErasedFile]) -> Successors:
    """Return the successors of these files."""
    return {each.path: each.into for each in erased}


def in_the_way(records: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """Return an entry that prevents an erasure: it holds rows in flight, which no table shows yet."""
    return next((row for row in records if row.has_rows_in_flight), None)


def rewritten_tables(
    newest: CheckpointRecord, job: JobName, erased: Sequence[ErasedFile], versions: Mapping[TableName, int]
) -> tuple[TableRecord, ...]:
    """Return what publishing the entry means for each table whose log is rewritten.

    `versions` has all of these tables, each with its version at the newest cut, or 0. A table that the newest cut does
    not have is treated like an append table, since no entry names all its files.
    """
    keyed = dict(keyed_tables(without(newest, successors(erased)), job))
    return tuple(
        keyed.get(name, TableRecord(table=name, mode=TableMode.APPEND, parent_version=0)).model_copy(
            update={"parent_version": version}
        )
        for name, version in versions.items()
    )


def forgotten(row: Row, erased: Iterable[ErasedFile]) -> Row:
    """Return a whole entry without the erased files and without samples of values.

    Its id and its meaning are unchanged.
    """
    match row:
        case CheckpointRecord():
            return without(row, successors(erased))
        case Release() if row.ended is not None:
            ended = row.ended.model_copy(
                update={"message": _kept(row.ended.message), "failed": _bare(row.ended.failed)}
            )
            return row.model_copy(update={"ended": ended})
        case Claim() | Release():
            return row
        case _ as unreachable:
            assert_never(unreachable)


def without(record: CheckpointRecord, into: Successors) -> CheckpointRecord:
    """Return an entry in which its successor has replaced each erased file."""
    statistics = record.statistics.model_copy(update={"verdicts": (), "failed": _bare(record.statistics.failed)})
    return record.model_copy(
        update={
            "vertices": tuple(_vertex(each, into) for each in record.vertices),
            "tables": tuple(_table(each, into) for each in record.tables),
            "erased": tuple(_again(each, into) for each in record.erased),
            "statistics": statistics,
            "held_in": (),
        }
    )


def _bare(failed: tuple[CheckpointFailure, ...]) -> tuple[CheckpointFailure, ...]:
    return tuple(each.model_copy(update={"message": _kept(each.message)}) for each in failed)


def _kept(message: str) -> str:
    return NOT_KEPT if message else ""


def _vertex(vertex: VertexRecord, into: Successors) -> VertexRecord:
    return vertex.model_copy(update={"subtasks": tuple(_snapshot(each, into) for each in vertex.subtasks)})


def _snapshot(snapshot: SubtaskSnapshot, into: Successors) -> SubtaskSnapshot:
    staged = ((each, _successor(each.file, into)) for each in snapshot.staged)
    return replace(
        snapshot,
        state=_keyed(snapshot.state, into),
        ranges=tuple(RangeFiles(each.table, _keyed(each.files, into)) for each in snapshot.ranges),
        staged=tuple(StagedFile(each.table, file, each.after) for each, file in staged if file is not None),
        in_flight=tuple(
            ChannelState(each.channel, tuple(_segment(segment, into) for segment in each.segments))
            for each in snapshot.in_flight
        ),
    )


def _segment(segment: Segment, into: Successors) -> Segment:
    return StagedSegment(_files(segment.files, into)) if isinstance(segment, StagedSegment) else segment


def _keyed(files: tuple[KeyedFile, ...], into: Successors) -> tuple[KeyedFile, ...]:
    found = ((each, _successor(each.file, into)) for each in files)
    return tuple(replace(each, file=file) for each, file in found if file is not None)


def _table(table: TableRecord, into: Successors) -> TableRecord:
    return table.model_copy(
        update={
            "adds": _files(table.adds, into),
            "files": _files(table.files, into),
            "removes": _files(table.removes, into),
            "compactions": tuple(_compactions(table.compactions, into)),
        }
    )


def _compactions(compactions: tuple[FileCompaction, ...], into: Successors) -> Iterator[FileCompaction]:
    for each in compactions:
        file = _successor(each.into, into)
        if file is not None:
            yield FileCompaction(into=file, of=tuple(_paths(each.of, into)))


def _paths(paths: Iterable[str], into: Successors) -> Iterator[str]:
    for path in paths:
        successor = into.get(path)
        if successor is not None:
            yield successor.path
        elif path not in into:
            yield path


def _again(erased: ErasedFile, into: Successors) -> ErasedFile:
    """Return what an earlier entry erased. Another successor may have replaced the one that it names."""
    if erased.into is None:
        return erased
    return erased.model_copy(update={"into": _successor(erased.into, into)})


def _files(files: Iterable[FileHandle], into: Successors) -> tuple[FileHandle, ...]:
    found = (_successor(each, into) for each in files)
    return tuple(each for each in found if each is not None)


def _successor(file: FileHandle, into: Successors) -> FileHandle | None:
    return into.get(file.path, file)
