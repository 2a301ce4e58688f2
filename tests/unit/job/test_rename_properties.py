"""A renamed vertex or table keeps its files and state, whatever names were used before (G2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from checkpointing.channel_items import ChannelState, RangeFiles, Segment, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    JobName,
    SplitId,
    SubtaskId,
    TableName,
    VertexId,
)
from checkpointing.job.renaming import (
    Relocated,
    due_renames,
    new_append_tables,
    relocated,
    relocated_files,
    rename_changes,
    renamed_tables,
    under_new_names,
)
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata import paths as paths_of
from checkpointing.metadata.record import (
    CheckpointRecord,
    Rename,
    RenameKind,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from checkpointing.renamed_columns import unclear_rename
from spec.machines import judging
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

RENAMED: Final = "renames-keep-things"
"""A declared rename changes only names: each vertex and table keeps its files, state and rows in flight.

The files of a renamed table lie in the folder of its new name. A rename that has happened is not repeated. If the new
name is still taken, the rename is refused. A pipeline may declare exactly those renames that are unambiguous."""

_JOB: Final = JobName("small")
_VERTICES: Final = ("orders", "orders_late", "order", "sums", "late", "src", "source")
_TABLES: Final = ("gold/sums", "gold/sums_late", "gold/sum", "silver/sums", "gold/late")
_MADE_BY: Final = Version(Generation(1), 1)
_CUT: Final = CheckpointId(7)
_vertices = st.permutations(_VERTICES).map(lambda names: tuple(names[:4]))
_tables = st.permutations(_TABLES).map(lambda names: tuple(names[:3]))
_kept = st.lists(st.booleans(), min_size=4, max_size=4)
_vertices_from = st.lists(st.sampled_from([None, None, *_VERTICES]), min_size=4, max_size=4).map(tuple)
_tables_from = st.lists(st.sampled_from([None, None, *_TABLES]), min_size=3, max_size=3).map(tuple)
_Files = tuple[int, ...]


@dataclass(frozen=True)
class _Names:
    """The names of a source, of three operators and of their tables, and the former name that each declares."""

    vertices: tuple[str, ...] = ("src", "orders", "sums", "late")
    tables: tuple[str, ...] = ("gold/sums", "gold/sums_late", "silver/sums")
    vertices_from: tuple[str | None, ...] = (None,) * 4
    tables_from: tuple[str | None, ...] = (None,) * 3

    @property
    def is_clear(self) -> bool:
        """Return whether a pipeline may declare these renames."""
        return all(
            old is None or ((old not in now or before[now.index(old)] is not None) and before.count(old) == 1)
            for now, before in ((self.vertices, self.vertices_from), (self.tables, self.tables_from))
            for old in before
        )


class RenamesMachine(RuleBasedStateMachine):
    """One job whose pipeline sometimes renames its vertices and tables."""

    def __init__(self) -> None:
        """Begin with an entry under the first names."""
        super().__init__()
        self.numbers = count(1)
        self.generation = Generation(1)
        self.names = _Names()
        self.entry = self._first()

    # -------------------------------------------------------------- releases

    @rule(vertices=_vertices, tables=_tables, moved=_kept, kept=st.booleans())
    def release(self, vertices: tuple[str, ...], tables: tuple[str, ...], moved: list[bool], kept: bool) -> None:
        """A release renames some things. It may omit the former names of the other things."""
        self._release(
            *_next(self.names.vertices, self.names.vertices_from, vertices, moved, kept=kept),
            *_next(self.names.tables, self.names.tables_from, tables, moved[1:], kept=kept),
        )

    @rule(one=st.integers(0, 2), other=st.integers(0, 2))
    def swap(self, one: int, other: int) -> None:
        """Two operators exchange their names, and so do their tables."""
        vertices, tables = [*self.names.vertices], [*self.names.tables]
        vertices[one + 1], vertices[other + 1] = vertices[other + 1], vertices[one + 1]
        tables[one], tables[other] = tables[other], tables[one]
        self.release(tuple(vertices), tuple(tables), [True] * 4, kept=True)

    @rule()
    def start_again(self) -> None:
        """The next tick has the same pipeline."""
        self._release(self.names.vertices, self.names.vertices_from, self.names.tables, self.names.tables_from)

    @rule(vertices=_vertices_from, tables=_tables_from)
    def declare(self, vertices: tuple[str | None, ...], tables: tuple[str | None, ...]) -> None:
        """A pipeline that never ran declares former names. A former name may be the present name of another thing."""
        names = replace(self.names, vertices_from=vertices, tables_from=tables)
        own = {*zip(names.vertices, vertices, strict=True), *zip(names.tables, tables, strict=True)}
        clear = names.is_clear and all(now != was for now, was in own)
        why = unclear_rename(_graph(names))
        expect((why is None) == clear, RENAMED, f"{names} is refused: {why}" if clear else f"{names} is believed")

    @rule(gone=st.integers(0, 2), heir=st.integers(0, 2))
    def take_a_name(self, gone: int, heir: int) -> None:
        """A release drops an operator, and gives its name to another one. The cut has both."""
        pair = self.names.vertices[heir + 1], self.names.vertices[gone + 1]
        if gone == heir or pair in {(each.was, each.now) for each in self.entry.renames}:
            return
        vertex = [*self.names.vertices]
        vertex[heir + 1] = self.names.vertices[gone + 1]
        before = [self.names.vertices[heir + 1] if place == heir + 1 else None for place in range(4)]
        graph = _graph(
            replace(self.names, vertices=tuple(vertex), vertices_from=tuple(before), tables_from=(None,) * 3),
            without=gone,
        )
        try:
            due = due_renames(graph, self.entry)
        except CutDoesNotFitError:
            return
        expect(holds=False, invariant=RENAMED, what=f"{due}, and the cut has a {vertex[heir + 1]} of its own")

    def _release(
        self,
        vertices: tuple[str, ...],
        vertices_from: tuple[str | None, ...],
        tables: tuple[str, ...],
        tables_from: tuple[str | None, ...],
    ) -> None:
        names = _Names(vertices, tables, vertices_from, tables_from)
        pairs = [*zip(self.names.vertices, vertices, strict=True), *zip(self.names.tables, tables, strict=True)]
        changed = {(old, new) for old, new in pairs if old != new}
        if not names.is_clear or changed & {(each.was, each.now) for each in self.entry.renames}:
            return  # the declaration is not allowed, or it would repeat a rename that the entry lists
        before, self.names = self.names, names
        graph, was, self.generation = _graph(names), self.entry, Generation(self.generation + 1)
        due = due_renames(graph, was)
        said = {(each.was, each.now) for each in due}
        expect(said == changed, RENAMED, f"{said} are due, {changed} have other names")
        told = {(each.was, each.now) for each in rename_changes(due)}
        expect(told == changed, RENAMED, f"a dry run says {told}, {changed} have other names")
        new = {
            name for place, name in enumerate(tables) if name not in before.tables and _mode(place) is TableMode.APPEND
        }
        found = {*new_append_tables(graph, was)}
        expect(found == new, RENAMED, f"the append tables {found} are new, due are {new}")
        named = under_new_names(graph, was, due)
        folders = renamed_tables(due, _JOB)
        moved = relocated(named, folders, self.generation)
        self._judge(was, moved, folders, before)
        self.entry = moved.record.model_copy(update={"renames": _declared(names)})

    # -------------------------------------------------------------- judging

    def _judge(
        self, was: CheckpointRecord, moved: Relocated, folders: Mapping[TableName, TableName], before: _Names
    ) -> None:
        now, links = moved.record, moved.links
        there, paths = [*_places(was, before)], {}
        found = [*_places(now, self.names)]
        expect([each[:2] for each in there] == [each[:2] for each in found], RENAMED, f"{found}, before: {there}")
        for (place, numbers, old), (_, _, new) in zip(there, found, strict=True):
            folder, then = (_folder(place, names) if numbers else "" for names in (self.names, before))
            for number, path, last in zip(numbers, new, old, strict=True):
                own = path.startswith(f"{folder}/_data/{self.generation}/") if folder != then else path == last
                said = paths_of.staged_name_in(path)
                stays = path == last or (said is not None and (said.vertex, said.micro_batch) == ("v", 0))
                own = own and stays
                expect(own, RENAMED, f"file {number} of {folder} is {path}, it was {last}")
                paths[path] = last
        files = [FileHandle(last, 1, 1, 1) for last in paths.values()]
        alone, more = relocated_files(files, _JOB, folders, self.generation)
        expect([each.path for each in alone] == [*paths], RENAMED, f"{alone} of {files}, due are {[*paths]}")
        expect(dict(more) == dict(links), RENAMED, f"{more} are linked, and {links} with the entry")
        due = {path: last for path, last in paths.items() if path != last}
        expect(dict(links) == due, RENAMED, f"{links} are linked, due are {due}")
        columns = {(each.vertex, each.now, each.was) for each in now.renames if each.kind is RenameKind.COLUMN}
        now_called = {(vertex, "b", "a") for vertex in self.names.vertices[1:]}
        expect(columns == now_called, RENAMED, f"the columns {columns} were renamed, {now_called} were")

    # -------------------------------------------------------------- entries

    def _file(self, folder: str) -> FileHandle:
        number = next(self.numbers)
        return FileHandle(f"{folder}/_data/1/v-{number}-{number:032x}.parquet", number, number, 1)

    def _keyed(self, folder: str) -> tuple[KeyedFile, ...]:
        return tuple(KeyedFile(self._file(folder), KeyedFileKind.BASE, 0, 7, _MADE_BY) for _ in range(2))

    def _first(self) -> CheckpointRecord:
        names = self.names
        source = VertexRecord(vertex=VertexId("src"), micro_batch=1, subtasks=(SubtaskSnapshot(position="5"),))
        operators = [self._operator(place) for place in range(3)]
        tables = tuple(
            TableRecord(table=TableName(name), mode=_mode(place), adds=(self._file(name),), parent_version=0)
            if _mode(place) is TableMode.APPEND
            else TableRecord(table=TableName(name), mode=_mode(place), files=(self._file(name),), parent_version=0)
            for place, name in enumerate(names.tables)
        )
        return plain_entry(
            job=_JOB,
            checkpoint=_CUT,
            generation=self.generation,
            vertices=(source, *operators),
            tables=tables,
            columns=tuple(TableColumns(TableName(name), (TableColumn("b", "long"),)) for name in names.tables),
            renames=_declared(names),
        )

    def _operator(self, place: int) -> VertexRecord:
        vertex, table = self.names.vertices[place + 1], TableName(self.names.tables[place])
        state, broadcast = (TableName(f"_tidemark/{_JOB}/state/{name}") for name in (vertex, f"{vertex}_broadcast"))
        ranges = [RangeFiles(broadcast, self._keyed(broadcast))]
        staged: tuple[StagedFile, ...] = ()
        if _mode(place) is TableMode.APPEND:
            staged = (StagedFile(table, self._file(table), CheckpointId(3)),)
        else:
            ranges.append(RangeFiles(table, self._keyed(table)))
        snapshot = SubtaskSnapshot(
            state=self._keyed(state), ranges=tuple(ranges), staged=staged, in_flight=tuple(self._in_flight(place))
        )
        keys = TableKeys(table=table, columns=("k",)) if _mode(place) is not TableMode.APPEND else None
        return VertexRecord(
            vertex=VertexId(vertex), micro_batch=1, subtasks=(snapshot,), table_keys=(keys,) if keys else ()
        )

    def _in_flight(self, place: int) -> Iterator[ChannelState]:
        """Yield rows in flight: a slice of the source, and files of the previous operator."""
        upstream, vertex = self.names.vertices[place], VertexId(self.names.vertices[place + 1])
        channel = ChannelId(EdgeId(VertexId(upstream), vertex), SubtaskId(VertexId(upstream), 0).index)
        if place == 0:
            items: tuple[Segment, ...] = (SourceSlice(VertexId("src"), SplitId("s"), "1", "2", "{}", 1, 1),)
        else:
            folder = self.names.tables[place - 1]
            items = tuple(StagedSegment((self._file(folder), self._file(folder))) for _ in range(2))
        yield ChannelState(channel, items)


# ------------------------------------------------------------------ the reference


_Place = tuple[str, int, int]
"""The kind of the files' holder, its operator, and the operator to which the files belong."""


def _places(record: CheckpointRecord, names: _Names) -> Iterator[tuple[_Place, _Files, tuple[str, ...]]]:
    """Yield the place of each vertex or table in the pipeline, with the numbers and paths of its files.

    A vertex or table with a name that the pipeline does not have gets a separate place.
    """
    for was in record.vertices:
        at = _at(names.vertices, was.vertex) - 1
        for keys in was.table_keys:
            yield ("keys", at, _at(names.tables, keys.table)), (), ()
        for snapshot in was.subtasks:
            yield ("state", at, at), *_seen([keyed.file for keyed in snapshot.state])
            for ranges in snapshot.ranges:
                own = f"_tidemark/{_JOB}/state/{was.vertex}_broadcast"
                kind = "broadcast" if ranges.table == own else "table"
                of = at if kind == "broadcast" else _at(names.tables, ranges.table)
                yield (kind, at, of), *_seen([keyed.file for keyed in ranges.files])
            for held in snapshot.in_flight:
                edge = held.channel.edge
                between = _at(names.vertices, edge.upstream), _at(names.vertices, edge.downstream)
                yield ("edge", *between), (), ()
                for segment in held.segments:
                    if isinstance(segment, SourceSlice):
                        yield ("slice", at, _at(names.vertices, segment.source)), (), ()
                    else:
                        yield ("table", at, at - 1), *_seen([*segment.files])
    for table in record.tables:
        of = _at(names.tables, table.table)
        yield ("table", of, of), *_seen([*table.adds, *table.files])
    for columns in record.columns:
        yield ("columns", 0, _at(names.tables, columns.table)), (), ()


def _at(names: tuple[str, ...], name: str) -> int:
    """Return the place of a name, or an unused place if the pipeline has no such name."""
    return names.index(name) if name in names else len(names)


def _seen(files: list[FileHandle]) -> tuple[_Files, tuple[str, ...]]:
    return tuple(file.rows for file in files), tuple(file.path for file in files)


def _folder(place: _Place, names: _Names) -> str:
    """Return the folder of the files of this place, if the pipeline has these names."""
    kind, _, of = place
    if kind in ("state", "broadcast"):
        return f"_tidemark/{_JOB}/state/{names.vertices[of + 1]}{'_broadcast' if kind == 'broadcast' else ''}"
    return names.tables[of]


def _next(
    now: tuple[str, ...], before: tuple[str | None, ...], drawn: tuple[str, ...], moved: list[bool], *, kept: bool
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Return the next names, and the former name that each declares. If two names would be equal, all names stay."""
    names = [new if moves else old for old, new, moves in zip(now, drawn, moved, strict=True)]
    if len(set(names)) < len(names):
        names = [*now]
    olds = [old if old != new else (last if kept else None) for old, new, last in zip(now, names, before, strict=True)]
    return tuple(names), tuple(olds)


def _mode(place: int) -> TableMode:
    return (TableMode.UPSERT, TableMode.APPEND, TableMode.OVERWRITE)[place]


def _graph(names: _Names, without: int | None = None) -> JobGraph:
    source = Vertex(
        VertexId(names.vertices[0]),
        VertexKind.SOURCE,
        1,
        renamed_from=_id(names.vertices_from[0]),
        splits=(SplitId("s"),),
    )
    operators = (
        Vertex(
            VertexId(names.vertices[place + 1]),
            VertexKind.KEYED,
            1,
            tables=(
                Table(TableName(names.tables[place]), _mode(place), renamed_from=_table(names.tables_from[place])),
            ),
            renamed_from=_id(names.vertices_from[place + 1]),
        )
        for place in range(3)
        if place != without
    )
    return JobGraph((source, *operators), ())


def _id(name: str | None) -> VertexId | None:
    return None if name is None else VertexId(name)


def _table(name: str | None) -> TableName | None:
    return None if name is None else TableName(name)


def _declared(names: _Names) -> tuple[Rename, ...]:
    """Return the renames that an entry lists."""
    pairs = [
        *((RenameKind.VERTEX, was, now) for now, was in zip(names.vertices, names.vertices_from, strict=True)),
        *((RenameKind.TABLE, was, now) for now, was in zip(names.tables, names.tables_from, strict=True)),
    ]
    columns = (Rename(kind=RenameKind.COLUMN, was="a", now="b", vertex=vertex) for vertex in names.vertices[1:])
    return (*(Rename(kind=kind, was=was, now=now) for kind, was, now in pairs if was is not None), *columns)


def test_a_renamed_thing_keeps_what_it_has():
    """Vertices and tables swap names and take used names, and the tick starts again."""
    run_state_machine_as_test(RenamesMachine, settings=judging.fitting(RenamesMachine, settings()))
