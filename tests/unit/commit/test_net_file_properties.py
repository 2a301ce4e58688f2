"""Publishing an entry makes each table show its cut, and an entry with manifests reads as it was appended (F3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.manifests import Manifest, Sizes, Stored, counted_by, handles_in, newest_stored, stored, whole
from checkpointing.commit.net_files import (
    NONE_RENAMED,
    Renamed,
    changes_at,
    keyed_lists,
    keyed_tables,
    net_tables,
    with_compactions,
)
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName, VertexId
from checkpointing.messages import Compacted, FileChanges, Publication
from checkpointing.metadata.codec import UnreadableRowError, decode_stored, encode
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import (
    CheckpointRecord,
    FileCompaction,
    ManifestReference,
    RowKind,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from spec.machines import judging
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

NET: Final = "entries-bring-cuts"
"""Publishing an entry makes each table show its cut. What the parent's cut already held is not published again."""
KEYED: Final = "keyed-files-named"
"""For each upsert, overwrite and state table, an entry lists its mode and its files, each file once."""

_JOB: Final = JobName("small")
_MADE_BY: Final = Version(Generation(1), 1)
_APPENDS: Final = (TableName("bronze/orders"), TableName("bronze/rejects"))
_KEYED: Final = {
    TableName("gold/sums"): TableMode.UPSERT,
    TableName("gold/best"): TableMode.UPSERT,
    TableName("gold/days"): TableMode.OVERWRITE,
    TableName("_tidemark/small/state/sums_broadcast"): TableMode.STATE,
}
_STATE: Final = TableName("_tidemark/small/state/sums")
_OWNER: Final = {
    **dict.fromkeys([_APPENDS[0], TableName("gold/days")], VertexId("orders")),
    **dict.fromkeys([_APPENDS[1], *[each for each in _KEYED if each != "gold/days"], _STATE], VertexId("sums")),
}
_LISTED_FOR: Final = 6
"""For this many ids after an entry has added a file, snapshots still list it."""
_table = st.sampled_from([*_APPENDS, *_KEYED, _STATE])
_keyed = st.sampled_from([*_KEYED, _STATE])
_few_files = st.sets(st.integers(0, 5), max_size=4)
_subtask = st.integers(0, 1)
_pick = st.integers(0, 9)
_hows = st.sampled_from(["add", "add", "instead", "all", "none", "equal", "shared", "swapped"])
_staged = st.lists(st.tuples(st.sampled_from(_APPENDS), _subtask, st.booleans()), max_size=3)
_written = st.lists(st.tuples(_keyed, _subtask, _pick, _hows), max_size=4)
_changed = st.lists(st.tuples(_table, _pick, st.sampled_from(["add", "drop", "first", "widen", "rename"])), max_size=2)
_Columns = list[TableColumn]


@dataclass
class _Shown:
    """What a table shows: the paths of its files, and the names of its columns in order."""

    files: set[str] = field(default_factory=set)
    columns: list[str] = field(default_factory=list)


class NetMachine(RuleBasedStateMachine):
    """A job with two vertices. Files come and go between its entries, and columns change."""

    def __init__(self) -> None:
        """Begin without an entry. No table shows anything."""
        super().__init__()
        self.made = 0
        self.parent: CheckpointRecord | None = None
        self.last = 0
        self.lists: dict[tuple[TableName, int], tuple[KeyedFile, ...]] = {}
        """The files of each keyed table at each subtask, in the next cut."""
        self.staged: list[tuple[int, StagedFile]] = []
        """The files that snapshots still list for append tables, each with its subtask."""
        self.columns = {name: [TableColumn(each, "long") for each in "abc"] for name in _OWNER}
        self.renamed: dict[TableName, Renamed] = {}
        self.due: dict[TableName, set[str]] = {name: set() for name in _APPENDS}
        """The files that each append table must show after the next entry."""
        self.shown = {name: _Shown() for name in _OWNER}
        self.versions: dict[TableName, int] = {}
        self.compacted: dict[TableName, tuple[FileCompaction, ...]] = {}
        """The compactions that were reported to the tick since the last entry."""
        self.cut = {**self.lists}, {name: set(files) for name, files in self.due.items()}
        """What the last entry holds: the files of the subtasks, and those of the append tables."""

    def _file(self) -> FileHandle:
        self.made += 1
        return FileHandle(f"file-{self.made}", 1, 1, 1)

    # -------------------------------------------------------------- an epoch

    def _stage(self, table: TableName, subtask: int, late: bool) -> None:
        """A subtask stages a file, before its barrier or after a later barrier whose checkpoint failed."""
        after = self.last + (2 if late else 0)
        self.staged.append((subtask, StagedFile(table, self._file(), CheckpointId(after))))
        self.due[table].add(self.staged[-1][1].file.path)

    def _write(self, table: TableName, subtask: int, pick: int, how: str) -> None:
        """A subtask writes a file of its state or range, or holds others."""
        files, others = self.lists.get((table, subtask), ()), self.lists.get((table, 1 - subtask), ())
        new = KeyedFile(self._file(), KeyedFileKind.BASE, 0, 7, _MADE_BY)
        one = files[pick % len(files)] if files else new
        match how:
            case "add":
                files = (*files, new)
            case "instead":
                files = tuple(new if each is one else each for each in files)
            case "all":
                files = (new,)
            case "none":
                files = ()
            case "equal":
                files = tuple(replace(each) for each in files)
            case "shared":
                others = (*others, one) if one not in others and files else others
            case _:
                files, others = others, files
        self.lists[table, subtask], self.lists[table, 1 - subtask] = files, others

    def _change(self, table: TableName, pick: int, how: str) -> None:
        """The pipeline changes a column."""
        columns = self.columns[table]
        self.made += 1
        one = columns[pick % len(columns)]
        others = [each for each in columns if each is not one]
        changed = one
        if how == "widen":
            changed = replace(one, type="double")
        elif how == "rename" and table in _APPENDS:
            changed = replace(one, name=f"c{self.made}", first=one.identity[0])
        columns = [changed if each is one else each for each in columns]
        if how == "add":
            columns.append(TableColumn(f"c{self.made}", "long", CheckpointId(self.last)))
        elif others and how in ("drop", "first"):
            columns = others if how == "drop" else [one, *others]
        self.columns[table] = columns

    # -------------------------------------------------------------- entries

    @rule(table=_table, again=st.booleans())
    def rename(self, table: TableName, again: bool) -> None:
        """The table has a new name. Its log is empty, or shows another table that had the name before."""
        if table in self.renamed:
            return
        shown = self.shown[table]
        before = tuple(self._file() for _ in range(2)) if again else ()
        if table in _APPENDS:
            files = tuple(FileHandle(path, 1, 1, 1) for path in sorted(shown.files))
            removes = before
        else:
            files, removes = (), ()
        self.made += 1
        old = [f"old{self.made}"] if again else []
        self.shown[table] = _Shown({each.path for each in before}, [*old, *shown.columns] if again else [])
        self.renamed[table] = Renamed(files, removes, tuple(self.shown[table].columns))

    @rule(kind=st.sampled_from([RowKind.ROLLBACK, RowKind.RESET, RowKind.SAVEPOINT]))
    def at_rest(self, kind: RowKind) -> None:
        """A tick ends, and what it has not committed is lost. Then an entry at rest repeats the cut."""
        if self.parent is not None and not self.renamed:
            self.last += 1
            self.staged = []
            self.lists, self.due = {**self.cut[0]}, {name: set(files) for name, files in self.cut[1].items()}
            vertices = tuple(
                each.model_copy(update={"subtasks": tuple(replace(one, staged=()) for one in each.subtasks)})
                for each in self.parent.vertices
            )
            changed = {"kind": kind, "checkpoint": self.last, "vertices": vertices, "tables": ()}
            self.parent = self.parent.model_copy(update=changed)

    @rule(
        staged=_staged,
        written=_written,
        changed=_changed,
        compacted=st.sets(st.sampled_from(_APPENDS)),
        forget=st.booleans(),
    )
    def commit(
        self,
        staged: list[tuple[TableName, int, bool]],
        written: list[tuple[TableName, int, int, str]],
        changed: list[tuple[TableName, int, str]],
        compacted: set[TableName],
        forget: bool,
    ) -> None:
        """Subtasks write files, columns change, and then a checkpoint commits and is published."""
        for one in staged:
            self._stage(*one)
        for other in written:
            self._write(*other)
        for change in changed:
            self._change(*change)
        now = self.last + 3
        columns = tuple(TableColumns(name, tuple(each)) for name, each in self.columns.items())
        vertices = {name: self._vertex(name) for name in (VertexId("orders"), VertexId("sums"))}
        tables = net_tables(
            self._graph(), vertices, self.parent, self.versions, columns, renamed=self.renamed or NONE_RENAMED
        )
        self.compacted = {name: (FileCompaction(into=self._file(), of=("small",)),) for name in sorted(compacted)}
        told = [Compacted(name, each) for name, each in self.compacted.items()]
        entry = plain_entry(
            checkpoint=CheckpointId(now),
            parent=CheckpointId(self.last),
            vertices=tuple(vertices.values()),
            tables=with_compactions(tables, told, self.versions),
            columns=columns,
        )
        self._judge(entry)
        self.parent, self.last, self.renamed = entry, now, {}
        self.cut = {**self.lists}, {name: set(files) for name, files in self.due.items()}
        if forget:
            self.staged = [each for each in self.staged if each[1].after > now - _LISTED_FOR]

    def _judge(self, entry: CheckpointRecord) -> None:
        records = {each.table: each for each in entry.tables}
        expect(len(records) == len(entry.tables), NET, f"a table has two records: {entry.tables}")
        for name, shown in self.shown.items():
            record = records.get(name)
            due = self._due(name)
            columns = [each.name for each in self.columns[name]]
            if not self._was(name) and name not in self.renamed:  # a new table is made with its columns
                shown.columns = [*columns]
            if record is None:
                expect(name not in self.compacted, NET, f"the compaction of {name} is forgotten")
                expect(shown.files == due, NET, f"{name} stays at {shown.files}, the cut holds {due}")
                wider = [each for each in self.columns[name] if self._was(name) and each not in self._was(name)]
                expect(not wider, NET, f"{name} stays as it is, the cut lists {wider}")
            else:
                self._publish(record, name, shown, columns)
                expect(shown.files == due, NET, f"{name} shows {shown.files}, the cut holds {due}")
                self.versions[name] = self.versions.get(name, 0) + 1
            known = {each.identity for each in self._was(name)}
            old = [each.name for each in self.columns[name] if each.identity in known]
            fit = {*shown.columns} == {*columns} and [each for each in shown.columns if each in old] == old
            expect(fit, NET, f"{name} has columns {shown.columns}, the cut lists {columns}")
            shown.columns = columns  # new columns may have another place
        self._judge_keyed(entry)

    def _due(self, name: TableName) -> set[str]:
        if name in _APPENDS:
            return set(self.due[name])
        return {each.file.path for subtask in range(2) for each in self.lists.get((name, subtask), ())}

    def _publish(self, record: TableRecord, name: TableName, shown: _Shown, cut: list[str]) -> None:
        """Change a table as the store does. Check the table's record in the entry."""
        before = replace(shown, files={*shown.files}, columns=[*shown.columns])
        mode = _mode(name)
        said = record.mode, record.parent_version, record.planned_on
        expect(said == (mode, self.versions.get(name, 0), None), NET, f"{name}: {said}")
        if mode is TableMode.APPEND:
            added, gone = {each.path for each in record.adds}, {each.path for each in record.removes}
            expect(len(added) == len(record.adds) and not record.files, NET, f"{name} adds {record.adds}")
            expect(not added & shown.files and gone <= shown.files, NET, f"{name} adds {added} and loses {gone}")
            shown.files = (shown.files - gone) | added
        else:
            shown.files = {each.path for each in record.files}
            expect(len(shown.files) == len(record.files) and not record.adds, NET, f"{name} has {record.files}")
        names = {old: new for new, old in record.renamed}
        left = [new for new in (names.get(each, each) for each in shown.columns) if new not in record.leaving]
        listed = [each for each in cut if each in left]
        if record.in_order:
            left = [*listed, *(each for each in left if each not in cut)]
        shown.columns = [*left, *(each for each in cut if each not in left)]
        missing = {*record.leaving} & {*cut}
        expect(not missing, NET, f"{name} loses the columns {missing}, which the cut lists")
        compacted = self.compacted.get(name, ())
        expect(record.compactions == compacted, NET, f"{name} is compacted: {record.compactions}, not {compacted}")
        is_other = shown != before or name in self.renamed or self._is_wider(name) or bool(compacted)
        expect(is_other, NET, f"{name} has a record, and nothing changes")

    def _is_wider(self, name: TableName) -> bool:
        return tuple(self.columns[name]) != self._was(name)

    def _was(self, name: TableName) -> tuple[TableColumn, ...]:
        """Return the columns that the parent lists for a table."""
        listed = self.parent.columns if self.parent is not None else ()
        return next((each.columns for each in listed if each.table == name), ())

    def _judge_keyed(self, entry: CheckpointRecord) -> None:
        due = {
            name: (mode, self._due(name))
            for name, mode in {**_KEYED, _STATE: TableMode.STATE}.items()
            if (name, 0) in self.lists or (name, 1) in self.lists
            if name != _STATE or self._due(name)
        }
        found = {name: (each.mode, {file.path for file in each.files}) for name, each in keyed_tables(entry, _JOB)}
        expect(found == due, KEYED, f"{found}, the snapshots name {due}")
        for name, each in keyed_tables(entry, _JOB):
            expect(len(each.files) == len(found[name][1]), KEYED, f"{name} has a file twice: {each.files}")
        for name, mode, lists in keyed_lists(entry, _JOB):
            own = [each for each in (self.lists.get((name, 0), ()), self.lists.get((name, 1), ())) if each]
            expect(
                [each for each in lists if each] == own and mode is due[name][0], KEYED, f"{name}: {lists}, not {own}"
            )

    # -------------------------------------------------------------- tables that are not as the parent left them

    @rule(before=_few_files, now=_few_files, odd=_few_files, lost=st.booleans(), moved=st.booleans())
    def publish_onto(self, before: set[int], now: set[int], odd: set[int], lost: bool, moved: bool) -> None:
        """An upsert table has lost files of the parent's cut, or has others. Its version may tell that."""
        was, files = ({each: FileHandle(f"file-{each}", 1, 1, 1) for each in sorted(of)} for of in (before, now))
        new, gone = (tuple(of[each] for each in of.keys() - than.keys()) for of, than in ((files, was), (was, files)))
        active = {each.path for each in was.values()}
        strange = {f"file-{each}" for each in odd}
        active = active - strange if lost else active | strange
        entry = Publication(
            TableName("gold/sums"), TableMode.UPSERT, files=tuple(files.values()), changes=FileChanges(7, new, gone)
        )
        come, leave = changes_at(entry, 8 if moved else 7, active)
        shown = sorted([*(active - leave), *(each.path for each in come)])
        expect(shown == sorted(each.path for each in files.values()), NET, f"{active} becomes {shown}, due is {files}")

    # -------------------------------------------------------------- the job

    def _graph(self) -> JobGraph:
        def table(name: TableName) -> Table:
            declared = tuple(self.columns[name])
            return Table(name, _mode(name), columns=declared, broadcast=name.endswith("_broadcast"))

        kinds = {VertexId("orders"): VertexKind.STATELESS, VertexId("sums"): VertexKind.KEYED}
        vertices = (
            Vertex(vertex, kind, 2, tables=tuple(table(name) for name, of in _OWNER.items() if of == vertex))
            for vertex, kind in kinds.items()
        )
        return JobGraph(tuple(vertices), ())

    def _vertex(self, vertex: str) -> VertexRecord:
        return VertexRecord(
            vertex=VertexId(vertex),
            micro_batch=1,
            subtasks=tuple(self._subtask(vertex, subtask) for subtask in range(2)),
            table_keys=tuple(
                TableKeys(table=name, columns=("key",), mode=mode)
                for name, mode in _KEYED.items()
                if _OWNER[name] == vertex and mode is not TableMode.STATE
            ),
        )

    def _subtask(self, vertex: str, subtask: int) -> SubtaskSnapshot:
        ranges = tuple(
            RangeFiles(name, self.lists[name, subtask])
            for name in _KEYED
            if _OWNER[name] == vertex and (name, subtask) in self.lists
        )
        staged = tuple(each for at, each in self.staged if at == subtask and _OWNER[each.table] == vertex)
        state = self.lists.get((_STATE, subtask), ()) if vertex == "sums" else ()
        return SubtaskSnapshot(state=state, ranges=ranges, staged=staged)


def _mode(name: TableName) -> TableMode:
    return TableMode.APPEND if name in _APPENDS else _KEYED.get(name, TableMode.STATE)


# ------------------------------------------------------------------
# Tests large entries. Each is stored with manifests, and may share these with the previous entry (ADR 14). The
# reference keeps each entry as a whole. It counts the handles in the manifests, and never merges or omits handles.


HOLD: Final = "manifests-hold"
"""An entry reads as it was appended, whichever of its handles are in manifests."""
FEW: Final = "manifests-stay-few"
"""A manifest has at most `manifest` handles. At least one in `sparse` of them belongs to the entry.

At most `recent` handles are in the entry itself. If there are many manifests, no two neighbours would fit into one.
Without a change, no manifest is written."""

_VERTICES: Final = (VertexId("joined"), VertexId("totals"))
_HOW: Final = ("as in snapshots", "as in snapshots", "otherwise", "as in snapshots", "not")
"""How the tables of successive entries are listed."""
_pick_of_manifests = st.integers(0, 20)
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
    """Drives one job whose subtasks get and lose files, and writes its entries."""

    def __init__(self) -> None:
        """Begin with two vertices of two subtasks, and without files."""
        super().__init__()
        self.sizes = Sizes(inline=2, recent=1, manifest=3, sparse=2, few=1)
        self.numbers = count(1)
        self.lists: dict[tuple[VertexId, int], list[_Files]] = {}
        """The files of each vertex's subtasks.

        The key is the vertex, and 0 for its state or 1 for the range of its table.
        """
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

    @rule(pick=_pick_of_manifests, many=st.integers(1, 5), at_front=st.booleans())
    def add(self, pick: int, many: int, at_front: bool) -> None:
        """A subtask gets files, after its others or before them."""
        (vertex, part), files = self._list(pick)
        new = [_keyed_of_manifests(vertex, part, next(self.numbers)) for _ in range(many)]
        files[:] = [*new, *files] if at_front else [*files, *new]

    @rule(pick=_pick_of_manifests, places=st.lists(_pick_of_manifests, min_size=1, max_size=4))
    def lose(self, pick: int, places: list[int]) -> None:
        """A subtask loses some files."""
        _, files = self._list(pick)
        gone = {place % len(files) for place in places} if files else set()
        files[:] = [file for at, file in enumerate(files) if at not in gone]

    @rule(pick=_pick_of_manifests)
    def compact(self, pick: int) -> None:
        """One file replaces all those of a subtask."""
        (vertex, part), files = self._list(pick)
        files[:] = [_keyed_of_manifests(vertex, part, next(self.numbers))]

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

    @rule(pick=_pick_of_manifests)
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
                SubtaskSnapshot(state=tuple(own), ranges=(RangeFiles(_table_of_manifests(vertex, 1), tuple(shown)),))
                for own, shown in zip(state, ranges, strict=True)
            )
            vertices.append(VertexRecord(vertex=vertex, micro_batch=number, subtasks=subtasks))
            tables += [(_table_of_manifests(vertex, part), self.lists[vertex, part], part) for part in (0, 1)]
        return plain_entry(
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
        )


def _named(entry: CheckpointRecord) -> Iterator[tuple[str, ManifestReference]]:
    for each in entry.manifests:
        yield f"_tidemark/small/manifests/_data/{each.generation}/{each.digest}.json.zst", each


def _handles(record: CheckpointRecord) -> int:
    """Return how many files the snapshots inside the entry list."""
    snapshots = [snapshot for vertex in record.vertices for snapshot in vertex.subtasks]
    return sum(len(each.state) + sum(len(own.files) for own in each.ranges) for each in snapshots)


def _shape(record: CheckpointRecord) -> list[list[list[str]]]:
    """Return the names of the files in each list of the entry."""
    return [
        [[keyed.file.path[-6:] for keyed in (*own.state, *own.ranges[0].files)] for own in vertex.subtasks]
        for vertex in record.vertices
    ]


def _table_of_manifests(vertex: VertexId, part: int) -> TableName:
    return TableName(f"gold/{vertex}") if part else table_of_state(JobName("small"), vertex)


def _keyed_of_manifests(vertex: VertexId, part: int, number: int) -> KeyedFile:
    path = f"{_table_of_manifests(vertex, part)}/_data/1/{vertex}-{number}-{number:032x}.parquet"
    version = Version(Generation(1), number)
    return KeyedFile(FileHandle(path, 1, 10, 7), KeyedFileKind.DELTA, 0, 3, version)


def _listed(table: TableName, lists: Sequence[_Files], part: int, how: str) -> TableRecord:
    files = [*dict.fromkeys(keyed.file for own in lists for keyed in own)]
    files = files[1:] if how == "otherwise" else files
    mode = TableMode.UPSERT if part else TableMode.STATE
    return TableRecord(table=table, mode=mode, files=tuple(files), parent_version=1)


def test_publishing_an_entry_makes_each_table_show_the_cut():
    """Files and columns come and go, tables are renamed, and small files are compacted."""
    run_state_machine_as_test(NetMachine, settings=judging.fitting(NetMachine, settings()))


def test_an_entry_with_manifests_reads_as_it_was_appended():
    """Files and vertices come and go, and the job is rescaled and rolled back."""
    run_state_machine_as_test(ManifestsMachine, settings=judging.fitting(ManifestsMachine, settings()))
