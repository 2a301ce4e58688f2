"""Tests large entries: each is stored with manifests, which it may share with the entry before it (ADR 14).

The reference holds each entry whole. It counts the handles in the manifests, and never merges or leaves out any.
"""

from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.manifests import Manifest, Sizes, Stored, counted_by, handles_in, newest_stored, stored, whole
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName, VertexId
from checkpointing.metadata.codec import UnreadableRowError, decode_stored, encode
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord, ManifestReference, Statistics, TableRecord, VertexRecord
from spec.machines.judging import expect

HOLD: Final = "manifests-hold"
"""An entry reads as it was appended, whichever of its handles are in manifests."""
FEW: Final = "manifests-stay-few"
"""A manifest has at most `manifest` handles, and the entry counts at least one in `sparse` of them. At most `recent`
handles are in the entry itself. If there are many manifests, no two neighbours fit into one. Without a change, none is
written."""

_VERTICES: Final = (VertexId("joined"), VertexId("totals"))
_HOW: Final = ("as in snapshots", "as in snapshots", "otherwise", "as in snapshots", "not")
"""How the tables are listed, in turn."""
_pick = st.integers(0, 20)
_sizes = st.builds(
    Sizes,
    inline=st.sampled_from([0, 2, 4]),
    recent=st.sampled_from([1, 3, 6]),
    manifest=st.sampled_from([2, 3, 6]),
    sparse=st.sampled_from([2, 3, 8]),
    few=st.integers(1, 2),
)
_Files = list[KeyedFile]


class ManifestsMachine(RuleBasedStateMachine):
    """One job whose subtasks get and lose files, and its entries."""

    def __init__(self) -> None:
        """Begin with two vertices of two subtasks, and without files."""
        super().__init__()
        self.sizes = Sizes(inline=2, recent=1, manifest=3, sparse=2, few=1)
        self.numbers = count(1)
        self.lists: dict[tuple[VertexId, int], list[_Files]] = {}
        """Maps each vertex, and 0 for state or 1 for the range of its table, to the files of its subtasks."""
        for vertex in _VERTICES:
            self._begin(vertex)
        self.entries: list[CheckpointRecord] = []
        """The entries as they are stored, oldest first."""
        self.wholes: list[CheckpointRecord] = []
        self.contents: dict[str, bytes] = {}

    @initialize(sizes=_sizes)
    def configure(self, sizes: Sizes) -> None:
        """Draw the bounds."""
        self.sizes = sizes

    def _begin(self, vertex: VertexId) -> None:
        self.lists |= {(vertex, part): [[], []] for part in (0, 1)}

    # -------------------------------------------------------------- files come and go

    @rule(pick=_pick, many=st.integers(1, 5), at_front=st.booleans())
    def add(self, pick: int, many: int, at_front: bool) -> None:  # noqa: FBT001
        """A subtask gets files, after its others or before them."""
        (vertex, part), files = self._list(pick)
        new = [_keyed(vertex, part, next(self.numbers)) for _ in range(many)]
        files[:] = [*new, *files] if at_front else [*files, *new]

    @rule(pick=_pick, places=st.lists(_pick, min_size=1, max_size=4))
    def lose(self, pick: int, places: list[int]) -> None:
        """A subtask loses some files."""
        _, files = self._list(pick)
        gone = {place % len(files) for place in places} if files else set()
        files[:] = [file for at, file in enumerate(files) if at not in gone]

    @rule(pick=_pick)
    def compact(self, pick: int) -> None:
        """One file replaces all those of a subtask."""
        (vertex, part), files = self._list(pick)
        files[:] = [_keyed(vertex, part, next(self.numbers))]

    @rule(pick=st.integers(0, 1), parallelism=st.integers(1, 3))
    def rescale(self, pick: int, parallelism: int) -> None:
        """A vertex gets another number of subtasks. They share its files."""
        for part in (0, 1):
            files = [*dict.fromkeys(file for own in self.lists.get((_VERTICES[pick], part), ()) for file in own)]
            if (_VERTICES[pick], part) in self.lists:
                self.lists[_VERTICES[pick], part] = [[*files] for _ in range(parallelism)]

    @rule()
    def come_or_go(self) -> None:
        """The first vertex, with its table, comes or goes."""
        if (_VERTICES[0], 0) in self.lists:
            del self.lists[_VERTICES[0], 0], self.lists[_VERTICES[0], 1]
        else:
            self.lists = {(_VERTICES[0], 0): [[], []], (_VERTICES[0], 1): [[], []], **self.lists}

    @rule(pick=_pick)
    def go_back(self, pick: int) -> None:
        """The job goes back to the files of an older entry."""
        if self.wholes:
            then = self.wholes[pick % len(self.wholes)]
            self.lists = {
                (each.vertex, part): [[*(own.ranges[0].files if part else own.state)] for own in each.subtasks]
                for each in then.vertices
                for part in (0, 1)
            }

    def _list(self, pick: int) -> tuple[tuple[VertexId, int], _Files]:
        each = [(place, files) for place, lists in self.lists.items() for files in lists]
        return each[pick % len(each)]

    # -------------------------------------------------------------- entries

    @invariant()
    def commit(self) -> None:
        """After each change, append an entry. It lists all files of a table, all but the first, or not the table."""
        record = self._record([_HOW[(len(self.entries) + at) % len(_HOW)] for at in range(4)])
        newest = newest_stored(reversed(self.entries[-3:]))
        before = None if newest is None else Stored(whole(newest, self._of(newest)), newest, self._of(newest))
        form = stored(record, before, self.sizes)
        self.contents |= form.new
        entry = decode_stored(encode(form.entry, writer="spec"))
        if not isinstance(entry, CheckpointRecord):
            raise TypeError(entry)
        try:
            read = whole(entry, self._of(entry)).model_copy(update={"held_in": ()})
        except UnreadableRowError as error:
            expect(holds=False, invariant=HOLD, what=error)
            return
        expect(read == record, HOLD, f"{self.sizes}: {_shape(read)} is read, due is {_shape(record)}")
        paths = tuple(path for path, _ in _named(entry))
        expect(form.held_in == paths, HOLD, f"{form.held_in} are named, due are {paths}")
        self._judge(record, entry, form, before)
        self.entries.append(entry)
        self.wholes.append(record)

    def _judge(self, record: CheckpointRecord, entry: CheckpointRecord, form: Stored, before: Stored | None) -> None:
        sizes, held = self.sizes, [len(each.handles.files) for each in form.manifests]
        counts = [each.handles - int(each.left_out or "0", 16).bit_count() for each in entry.manifests]
        handles, own = _handles(record), _handles(entry)
        said = f"{sizes}: {handles} handles, {own} in the entry, {held} in manifests, of which {counts} count"
        if handles <= sizes.inline:
            expect(not held and own == handles, FEW, said)
            return
        expect(own <= sizes.recent and max(held, default=0) <= sizes.manifest, FEW, said)
        expect(all(few * sizes.sparse >= all_of for few, all_of in zip(counts, held, strict=True)), FEW, said)
        many = len(held) > sizes.few + handles // sizes.recent
        fits = any(one + other <= sizes.manifest for one, other in pairwise(counts))
        expect(not (many and fits), FEW, said)
        same = before is not None and before.record.vertices == record.vertices
        expect(not (same and form.new), FEW, f"{sorted(form.new)} are written, and nothing has changed")

    def _of(self, entry: CheckpointRecord) -> tuple[Manifest, ...]:
        """Return the manifests of an entry, as a process reads them."""
        return tuple(
            counted_by(entry, each, handles_in(entry, each, self.contents[path])) for path, each in _named(entry)
        )

    def _record(self, listed: Sequence[str]) -> CheckpointRecord:
        """Return the whole entry of the files that the subtasks have now."""
        number = len(self.entries) + 1
        vertices, tables = [], []
        for vertex in dict.fromkeys(vertex for vertex, _ in self.lists):
            state, ranges = self.lists[vertex, 0], self.lists[vertex, 1]
            subtasks = tuple(
                SubtaskSnapshot(state=tuple(own), ranges=(RangeFiles(_table(vertex, 1), tuple(shown)),))
                for own, shown in zip(state, ranges, strict=True)
            )
            vertices.append(VertexRecord(vertex=vertex, micro_batch=number, subtasks=subtasks))
            tables += [(_table(vertex, part), self.lists[vertex, part], part) for part in (0, 1)]
        return CheckpointRecord(
            job="small",
            checkpoint=CheckpointId(number),
            parent=CheckpointId(number - 1),
            generation=Generation(number),
            nonce=f"n/{number}",
            max_parallelism=4,
            vertices=tuple(vertices),
            tables=tuple(
                _listed(table, lists, part, how)
                for (table, lists, part), how in zip(tables, listed, strict=False)
                if how != "not"
            ),
            statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
        )


def _named(entry: CheckpointRecord) -> Iterator[tuple[str, ManifestReference]]:
    for each in entry.manifests:
        yield f"_tidemark/small/manifests/_data/{each.generation}/{each.digest}.json.zst", each


def _handles(record: CheckpointRecord) -> int:
    """Return how many files the entry itself lists in its snapshots."""
    snapshots = [snapshot for vertex in record.vertices for snapshot in vertex.subtasks]
    return sum(len(each.state) + sum(len(own.files) for own in each.ranges) for each in snapshots)


def _shape(record: CheckpointRecord) -> list[list[list[str]]]:
    """Return the names of the files in each list of the entry."""
    return [
        [[keyed.file.path[-6:] for keyed in (*own.state, *own.ranges[0].files)] for own in vertex.subtasks]
        for vertex in record.vertices
    ]


def _table(vertex: VertexId, part: int) -> TableName:
    return TableName(f"gold/{vertex}") if part else table_of_state(JobName("small"), vertex)


def _keyed(vertex: VertexId, part: int, number: int) -> KeyedFile:
    path = f"{_table(vertex, part)}/_data/1/{vertex}-{number}-{number:032x}.parquet"
    version = Version(Generation(1), number)
    return KeyedFile(FileHandle(path, 1, 10, 7), KeyedFileKind.DELTA, 0, 3, version)


def _listed(table: TableName, lists: Sequence[_Files], part: int, how: str) -> TableRecord:
    files = [*dict.fromkeys(keyed.file for own in lists for keyed in own)]
    files = files[1:] if how == "otherwise" else files
    mode = TableMode.UPSERT if part else TableMode.STATE
    return TableRecord(table=table, mode=mode, files=tuple(files), parent_version=1)
