"""Translates a restored cut to the present names of the pipeline's vertices and tables (declared renames, G2).

A pipeline declares `renamed_from=` at the vertex or table, and may leave the declaration there. A rename that has
happened has no further effect. Each entry of `checkpoints` lists the renames that its pipeline declared
(`CheckpointRecord.renames`). So if two vertices swapped their names, the next tick does not swap them back.

The invariant is: **a declared rename changes names and nothing else.** The vertex keeps the cut's state, positions and
rows in flight, and the table keeps its rows. If the cut has both names, the vertex or table that has the new name there
must be renamed too. Otherwise two would have one name, and the rename is refused.

A renamed table has another folder. Its files are linked into that folder under new paths (`relocated`), and the first
checkpoint publishes the whole table. Until then nobody sees it. Cuts from before the rename still name the old table.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from checkpointing.channel_items import ChannelState, Segment, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.commit.net_files import nothing_staged
from checkpointing.graph import JobGraph, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import ChannelId, EdgeId, Generation, JobName, TableName, VertexId
from checkpointing.job.restoring import CutDoesNotFitError, tables_of
from checkpointing.metadata.paths import ProtocolPaths, StagedName, staged_name_in, table_of_broadcast, table_of_state
from checkpointing.metadata.record import CheckpointRecord, Rename, RenameKind, VertexRecord, VertexTimeRecord
from checkpointing.renamed_columns import declared_renames
from checkpointing.state_evolution import Change, ChangeKind


def due_renames(graph: JobGraph, record: CheckpointRecord) -> tuple[Rename, ...]:
    """Return the declared renames that have not happened at this cut. Raise CutDoesNotFitError for an unclear one.

    These are renames of vertices and tables. A column's rename follows from the columns of each file
    (`renamed_columns`).
    """
    there = {
        RenameKind.VERTEX: {str(was.vertex) for was in record.vertices},
        RenameKind.TABLE: {str(name) for name in tables_of(record)},
    }
    due = tuple(
        rename
        for rename in declared_renames(graph)
        if rename not in record.renames and rename.was in there.get(rename.kind, ())
    )
    for rename in due:
        if rename.now not in there[rename.kind]:
            continue
        kind, was, now = rename.kind.value, rename.was, rename.now
        if not any(one.was == now and one.kind is rename.kind for one in due):
            raise CutDoesNotFitError(
                f"checkpoint {record.checkpoint} has a {kind} {now} and a {kind} {was}, and the pipeline says that "
                f"{now} is {was} renamed: take another name for it, or leave renamed_from= out and accept that {was} "
                "stays behind with --allow-non-restored-state"
            )
    return due


def new_append_tables(graph: JobGraph, record: CheckpointRecord) -> tuple[TableName, ...]:
    """Return the pipeline's append tables that are not in the cut, or none if the cut does not list its tables.

    If the log of such a table shows a checkpoint, the job once had a table of that name and gave it up. The new table
    begins without the old rows and columns.
    """
    known = {each.table for each in record.columns}
    append = (table.name for table in graph.tables() if table.mode is TableMode.APPEND)
    return tuple(name for name in append if known and name not in known)


def rename_changes(due: Iterable[Rename]) -> tuple[Change, ...]:
    """Return what the renames change, for a dry run."""
    moves = {
        RenameKind.VERTEX: "goes on under its new id, with its state and positions",
        RenameKind.TABLE: "its rows move to the new name with the next checkpoint",
    }
    return tuple(
        Change(kind=ChangeKind.NAME, thing=one.kind.value, column="", was=one.was, now=one.now, becomes=moves[one.kind])
        for one in due
    )


def under_new_names(graph: JobGraph, record: CheckpointRecord, due: Iterable[Rename]) -> CheckpointRecord:
    """Return the cut under the pipeline's present names. Its files stay where they are.

    Files staged for append tables are left out, because the cut's tables list them.
    """
    names = _Names.of(due, JobName(record.job))
    return record.model_copy(
        update={
            "vertices": tuple(names.vertex(was) for was in nothing_staged(record)),
            "tables": tuple(
                table.model_copy(update={"table": names.tables.get(table.table, table.table)})
                for table in record.tables
            ),
            "columns": tuple(replace(each, table=names.tables.get(each.table, each.table)) for each in record.columns),
            "renames": (*declared_renames(graph), *names.of_columns(record.renames)),
        }
    )


def renamed_tables(due: Iterable[Rename], job: JobName) -> Mapping[TableName, TableName]:
    """Return a dict from old to new names of renamed tables. State tables of renamed vertices are included."""
    return _Names.of(due, job).tables


@dataclass(frozen=True, slots=True)
class Relocated:
    """A cut whose renamed tables have their files in their own folders. `links` has the old path of each new path.

    A file whose content lies inside its handle needs no link.
    """

    record: CheckpointRecord
    links: Mapping[str, str]


def relocated(record: CheckpointRecord, folders: Mapping[TableName, TableName], generation: Generation) -> Relocated:
    """Return the cut with the files of renamed tables in their new folders. `folders` maps old folders to new ones.

    The paths belong to `generation`. Until an entry names them, only that generation uses them. So a clean-up that runs
    at the same time leaves them alone, and if the tick dies they are ordinary leftovers.

    The files that the entry took out of a table are left out. Nobody needs them, so a clean-up may have deleted them.
    """
    moving = _Moving(record.job, folders, generation)
    tables = tuple(
        table.model_copy(
            update={
                "adds": moving.all(table.adds),
                "files": moving.all(table.files),
                "removes": (),
                "compactions": (),
            }
        )
        for table in record.tables
    )
    vertices = tuple(
        was.model_copy(update={"subtasks": tuple(moving.snapshot(each) for each in was.subtasks)})
        for was in record.vertices
    )
    return Relocated(record.model_copy(update={"vertices": vertices, "tables": tables}), moving.links)


def relocated_files(
    files: Iterable[FileHandle], job: JobName, folders: Mapping[TableName, TableName], generation: Generation
) -> tuple[tuple[FileHandle, ...], Mapping[str, str]]:
    """Return only these files under the new folders, with their links."""
    moving = _Moving(job, folders, generation)
    return moving.all(files), moving.links


class _Moving:
    """Gives files new paths, and keeps the old ones."""

    def __init__(self, job: str, folders: Mapping[TableName, TableName], generation: Generation) -> None:
        self._paths = ProtocolPaths(JobName(job))
        self._folders = folders
        self._generation = generation
        self.links: dict[str, str] = {}

    def all(self, files: Iterable[FileHandle]) -> tuple[FileHandle, ...]:
        return tuple(self.one(file) for file in files)

    def one(self, file: FileHandle) -> FileHandle:
        was = next((name for name in self._folders if file.path.startswith(f"{name}/")), None)
        if was is None:
            return file
        path = self._paths.staged_file(self._folders[was], self._generation, _name_of(file.path))
        if not file.inline:
            self.links[path] = file.path
        return replace(file, path=path)

    def snapshot(self, snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
        return replace(
            snapshot,
            state=tuple(replace(keyed, file=self.one(keyed.file)) for keyed in snapshot.state),
            ranges=tuple(
                replace(each, files=tuple(replace(keyed, file=self.one(keyed.file)) for keyed in each.files))
                for each in snapshot.ranges
            ),
            in_flight=tuple(
                replace(held, segments=tuple(self._segment(each) for each in held.segments))
                for held in snapshot.in_flight
            ),
        )

    def _segment(self, segment: Segment) -> Segment:
        return replace(segment, files=self.all(segment.files)) if isinstance(segment, StagedSegment) else segment


def _name_of(path: str) -> StagedName:
    """Return a file's name in its new folder.

    It names micro-batch 0, because this generation did not write the file.
    """
    known = staged_name_in(path)
    unique = hashlib.blake2b(path.encode(), digest_size=16).hexdigest()
    if known is None:
        return StagedName(VertexId("linked"), 0, unique)
    return replace(known, micro_batch=0, unique=unique)


_STATES: Final = (table_of_state, table_of_broadcast)
"""The parts of a vertex's records that name its state's tables."""


@dataclass(frozen=True, slots=True)
class _Names:
    """From old names to new names. Vertices and tables that keep their name are left out."""

    vertices: Mapping[VertexId, VertexId]
    tables: Mapping[TableName, TableName]

    @classmethod
    def of(cls, due: Iterable[Rename], job: JobName) -> "_Names":
        known = tuple(due)
        vertices = {VertexId(one.was): VertexId(one.now) for one in known if one.kind is RenameKind.VERTEX}
        tables = {TableName(one.was): TableName(one.now) for one in known if one.kind is RenameKind.TABLE}
        states = {name(job, was): name(job, now) for was, now in vertices.items() for name in _STATES}
        return cls(vertices, {**tables, **states})

    def of_columns(self, renames: Iterable[Rename]) -> Iterator[Rename]:
        for rename in renames:
            if rename.kind is RenameKind.COLUMN:
                vertex = VertexId(rename.vertex)
                yield rename.model_copy(update={"vertex": self.vertices.get(vertex, vertex)})

    def vertex(self, was: VertexRecord) -> VertexRecord:
        keys = tuple(
            keys.model_copy(update={"table": self.tables.get(keys.table, keys.table)}) for keys in was.table_keys
        )
        return was.model_copy(
            update={
                "vertex": self.vertices.get(was.vertex, was.vertex),
                "subtasks": tuple(self._snapshot(each) for each in was.subtasks),
                "table_keys": keys,
                "time": None if was.time is None else self._time(was.time),
            }
        )

    def _time(self, was: VertexTimeRecord) -> VertexTimeRecord:
        inputs = tuple(
            each.model_copy(update={"upstream": self.vertices.get(each.upstream, each.upstream)}) for each in was.inputs
        )
        return was.model_copy(
            update={"inputs": inputs, "tables": tuple(self.tables.get(each, each) for each in was.tables)}
        )

    def _snapshot(self, snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
        return replace(
            snapshot,
            ranges=tuple(replace(each, table=self.tables.get(each.table, each.table)) for each in snapshot.ranges),
            in_flight=tuple(self._held(each) for each in snapshot.in_flight),
        )

    def _held(self, held: ChannelState) -> ChannelState:
        edge, known = held.channel.edge, self.vertices
        now = EdgeId(known.get(edge.upstream, edge.upstream), known.get(edge.downstream, edge.downstream), edge.input)
        return ChannelState(ChannelId(now, held.channel.subtask), tuple(self._segments(held.segments)))

    def _segments(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        for segment in segments:
            if isinstance(segment, SourceSlice):
                yield replace(segment, source=self.vertices.get(segment.source, segment.source))
            else:
                yield segment
