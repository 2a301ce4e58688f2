"""A cut is refused exactly if the pipeline has no place for a part of it.

Otherwise each subtask gets its part (G2, D3).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import ChannelState, RangeFiles, SourceSlice, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.graph import Hook, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    HookName,
    SplitId,
    SubtaskId,
    TableName,
    VertexId,
)
from checkpointing.job.operator_run import LiveFiles
from checkpointing.job.restoring import (
    CutDoesNotFitError,
    channel_now,
    check_fits,
    ended_splits,
    in_flight,
    live_files,
    positions,
)
from checkpointing.key_groups import (
    KEY_GROUPS_MAX,
    InvalidParallelismError,
    KeyGroupRange,
    key_group_ranges,
    range_of,
)
from checkpointing.metadata.record import CheckpointRecord, HookState, TableKeys, TableRecord, VertexRecord
from checkpointing.state_meaning import ColumnMeaning
from spec.machines.judging import expect
from tests.unit.full_entry import OWN, plain_entry, staged

KEY_GROUPS: Final = 8
_ORDERS, _ROWS, _TOTALS, _SUMS, _NEWEST = map(VertexId, ("orders", "rows", "totals", "sums", "newest"))
_A, _B = SplitId("a"), SplitId("b")
_ROWS_TABLE, _TOTALS_TABLE, _NEWEST_TABLE = map(TableName, ("bronze/rows", "gold/totals", "gold/newest"))
_BROADCAST: Final = TableName(f"{OWN}/state/totals_broadcast")
_TO_ROWS: Final = EdgeId(_ORDERS, _ROWS, 0)
_SUM: Final = ColumnMeaning(column="sum", function="sum")


class Case(NamedTuple):
    """A cut, a graph, and whether the cut fits the graph. If it does not fit, the refusal must hold the text `why`."""

    what: str
    graph: JobGraph
    record: CheckpointRecord
    why: str = ""
    """Why the cut does not fit. The text is empty if it fits."""
    why_allowed: str | None = None
    """The reason if `allow_non_restored_state` is set. None means that the reason is still `why`."""
    max_parallelism: int = KEY_GROUPS

    def reason(self, *, allowed: bool) -> str:
        """Return why the cut does not fit, or an empty text if it fits."""
        return self.why_allowed if allowed and self.why_allowed is not None else self.why


def pipeline() -> JobGraph:
    """Return the pipeline that wrote the cut."""
    state = Table(TableName(f"{OWN}/state/totals"), TableMode.STATE)
    broadcast = Table(_BROADCAST, TableMode.STATE, broadcast=True)
    upserts = Table(_TOTALS_TABLE, TableMode.UPSERT, keys=("key",))
    vertices = (
        Vertex(_ORDERS, VertexKind.SOURCE, 2, splits=(_A, _B), coordinated=True),
        Vertex(
            _ROWS,
            VertexKind.STATELESS,
            1,
            tables=(Table(_ROWS_TABLE, TableMode.APPEND, partitioned_by=("day",)),),
            outputs_read=("rejected",),
        ),
        Vertex(_TOTALS, VertexKind.KEYED, 2, tables=(upserts, state, broadcast), meanings=(_SUM,)),
        Vertex(_SUMS, VertexKind.KEYED, 1, meanings=(_SUM,), changes_of=(_TOTALS,)),
        Vertex(_NEWEST, VertexKind.STATELESS, 1, tables=(Table(_NEWEST_TABLE, TableMode.OVERWRITE, keys=("at",)),)),
    )
    edges = (_TO_ROWS, EdgeId(_ORDERS, _TOTALS, 0), EdgeId(_TOTALS, _SUMS, 0), EdgeId(_ORDERS, _NEWEST, 0))
    return JobGraph(vertices, edges, (Hook(HookName("ledger"), 100),))


def _file(folder: str, unique: int, inside: str = "") -> FileHandle:
    return FileHandle(staged(folder, "totals", unique, inside), 1, 10, 0)


def _keyed(folder: str, unique: int, first: int, last: int) -> KeyedFile:
    return KeyedFile(_file(folder, unique), KeyedFileKind.BASE, first, last, Version(Generation(3), 7))


def cut() -> CheckpointRecord:
    """Return the cut."""
    state, totals = f"{OWN}/state/totals", str(_TOTALS_TABLE)
    in_flight = ChannelState(ChannelId(_TO_ROWS, 1), (SourceSlice(_ORDERS, _B, "1", "2", "{}", 1, 10),))
    rows = SubtaskSnapshot(
        staged=(StagedFile(_ROWS_TABLE, _file("bronze/rows", 1, "day=1/"), CheckpointId(4)),), in_flight=(in_flight,)
    )
    everywhere = RangeFiles(_BROADCAST, (_keyed(str(_BROADCAST), 8, 0, 7),))
    keyed = tuple(
        SubtaskSnapshot(
            state=(_keyed(state, 10 + first, first, first + 3),),
            ranges=(RangeFiles(_TOTALS_TABLE, (_keyed(totals, 20 + first, first, first + 3),)), everywhere),
        )
        for first in (0, 4)
    )
    newest = KeyedFile(
        _file("gold/newest", 30, "version.number.5/"), KeyedFileKind.BASE, 0, 0, Version(Generation(3), 7)
    )
    upserts = TableKeys(table=_TOTALS_TABLE, columns=("key",))
    overwrites = TableKeys(table=_NEWEST_TABLE, columns=("at",), mode=TableMode.OVERWRITE)
    positions = (SubtaskSnapshot(position="1"), SubtaskSnapshot(position="2", finished=True))
    return plain_entry(
        checkpoint=CheckpointId(5),
        parent=CheckpointId(4),
        generation=Generation(3),
        nonce="a",
        max_parallelism=KEY_GROUPS,
        vertices=(
            VertexRecord(vertex=_ORDERS, micro_batch=0, subtasks=positions, splits=(_A, _B), coordinator="{}"),
            VertexRecord(vertex=_ROWS, micro_batch=7, subtasks=(rows,), outputs_read=("rejected",)),
            VertexRecord(vertex=_TOTALS, micro_batch=7, subtasks=keyed, table_keys=(upserts,), meanings=(_SUM,)),
            VertexRecord(
                vertex=_SUMS,
                micro_batch=7,
                subtasks=(SubtaskSnapshot(state=(_keyed(f"{OWN}/state/sums", 40, 0, 7),)),),
                meanings=(_SUM,),
            ),
            VertexRecord(
                vertex=_NEWEST,
                micro_batch=7,
                subtasks=(SubtaskSnapshot(ranges=(RangeFiles(_NEWEST_TABLE, (newest,)),)),),
                table_keys=(overwrites,),
            ),
        ),
        tables=(TableRecord(table=_ROWS_TABLE, mode=TableMode.APPEND, parent_version=1, adds=(rows.staged[0].file,)),),
        columns=tuple(
            TableColumns(name, (TableColumn("key", "long"),))
            for name in (_ROWS_TABLE, _TOTALS_TABLE, TableName(f"{OWN}/state/totals"), _NEWEST_TABLE)
        ),
        hooks=(HookState(hook="ledger", state="1"),),
    )


# ------------------------------------------------------------------ the cases


def cases() -> Iterator[Case]:
    """Yield pipelines into which a tick may try to restore the cut, each with the cut."""
    graph, record = pipeline(), cut()
    yield Case("the same pipeline", graph, record)
    yield Case("other key groups", graph, record, f"max_parallelism {KEY_GROUPS}", max_parallelism=4)
    yield from _without_parts(graph, record)
    yield from _inputs(graph, record)
    yield from _sources(graph, record)
    yield from _changes(graph, record)
    yield from _layouts(graph, record)
    yield from _modes(graph, record)
    yield from _tables(graph, record)


def _without_parts(graph: JobGraph, record: CheckpointRecord) -> Iterator[Case]:
    """Leave out a part of the pipeline whose state the cut holds."""
    one_more = Hook(HookName("other"), 100)
    yield Case("no hook", replace(graph, hooks=()), record, "'ledger'", "")
    yield Case("another hook", replace(graph, hooks=(one_more,)), record, "'ledger'", "")
    yield Case("a hook more", replace(graph, hooks=(*graph.hooks, one_more)), record)
    yield Case("a plain source", _with(graph, _ORDERS, coordinated=False), record, "state of source 'orders'", "")
    plain = _tables_of(graph, _TOTALS, lambda tables: tables[:2])
    yield Case("no broadcast input", plain, record, "broadcast state of 'totals'", "")
    no_files = _with_ranges(record, _TOTALS, lambda ranges: (ranges[0], RangeFiles(_BROADCAST, ())))
    yield Case("no broadcast input, and none had rows", plain, no_files)
    without = _less(graph, _NEWEST)
    yield Case(
        "no vertex of an overwrite table",
        without,
        record,
        "state of 'newest', which the pipeline no longer has; put",
        "",
    )
    stateless = _less(graph, _ROWS)
    calm = _calm(record)
    yield Case("no vertex with rows in flight", stateless, record, "which the pipeline no longer has")
    yield Case("no vertex of an append table", stateless, calm, "has table bronze/rows", "")
    yield Case("no source", _less(graph, _ORDERS), calm, "state of 'orders'", "")
    renamed = _renamed(_renamed(graph, _TOTALS, "products"), _SUMS, "more")
    why = "state of 'totals', which the pipeline no longer has, and 'products', 'more' are new in it"
    yield Case("two keyed vertices with other names", renamed, record, why, "")
    half = _was(record, _TOTALS, subtasks=(SubtaskSnapshot(), record.vertices[2].subtasks[1]))
    yield Case("the same, and one subtask had no state", renamed, half, "state of 'totals'", "")
    why = "state of 'sums', which the pipeline no longer has, and 'more' is new in it"
    other = _with(_renamed(graph, _SUMS, "more"), VertexId("more"), changes_of=())
    yield Case("a keyed vertex with another name", other, record, why, "")
    yield Case("more subtasks", _with(graph, _TOTALS, parallelism=4), record)


def _inputs(graph: JobGraph, record: CheckpointRecord) -> Iterator[Case]:
    """Let an input with rows in flight read another output."""
    for what, outputs, then in (("main", (), "the main output"), ("another", ("late",), "the output 'late'")):
        other = _with(graph, _ROWS, outputs_read=outputs)
        yield Case(f"an input reads the {what} output", other, record, f"reads {then} now")
        yield Case(f"an input without rows reads the {what} output", other, _calm(record))
        unknown = _was(record, _ROWS, outputs_read=None)
        yield Case(f"an input reads the {what} output, nobody knows which before", other, unknown)
    first = _with(graph, _ROWS, outputs_read=("rejected", "late"))
    yield Case("a second input reads an output", first, record)


def _sources(graph: JobGraph, record: CheckpointRecord) -> Iterator[Case]:
    """Change the splits of the source."""
    yield Case("a split less", _with(graph, _ORDERS, splits=(_A,), parallelism=1), record, "split 'b'")
    yield Case("a split more", _with(graph, _ORDERS, splits=(SplitId("c"), _B, _A), parallelism=3), record)
    yield Case("parts of other names", _with(graph, _ORDERS, parts=("a", "c")), record, "split 'b' of source 'orders'")
    yield Case("parts of the same names", _with(graph, _ORDERS, parts=("a", "b")), record)


def _changes(graph: JobGraph, record: CheckpointRecord) -> Iterator[Case]:
    """Rename a vertex that takes changes, or the vertex that sends them, or add or rename a column."""
    alone = _renamed(graph, _SUMS, "other")
    yield Case("another vertex takes the changes", alone, record, "state of 'sums'", "'totals' and none of 'other'")
    another = _with(_renamed(graph, _TOTALS, "products"), _SUMS, changes_of=(VertexId("products"),))
    yield Case(
        "it takes the changes of another vertex", another, record, "state of 'totals'", "'sums' and none of 'products'"
    )
    more = _with(graph, _SUMS, meanings=(_SUM, replace(_SUM, column="more")))
    yield Case("a column more of changes", more, record, "without 'more'")
    named = _with(graph, _SUMS, meanings=(replace(_SUM, column="total"),), columns_renamed_from={"total": "sum"})
    yield Case("a renamed column of changes", named, record)
    yield Case("a column more, of no changes", _with(graph, _TOTALS, meanings=more.vertices[3].meanings), record)


def _layouts(graph: JobGraph, record: CheckpointRecord) -> Iterator[Case]:
    """Partition a table by other columns. Its files are staged, added or held."""
    for by in ((), ("hour",), ("day", "hour")):
        other = _one_table(graph, _ROWS, partitioned_by=by)
        yield Case(f"partition_by={by}", other, record, "laid out by day")
        yield Case(f"partition_by={by}, its files are added", other, _without_staged(record), "laid out by day")
        only_staged = record.model_copy(update={"tables": ()})
        yield Case(f"partition_by={by}, its files are staged", other, only_staged, "laid out by day")
        neither = _without_staged(only_staged)
        yield Case(f"partition_by={by}, and it has no files", other, neither)
    yield Case("partitions for held files", _one_table(graph, _NEWEST, partitioned_by=("day",)), record, "by no column")


def _modes(graph: JobGraph, record: CheckpointRecord) -> Iterator[Case]:
    """Declare a table with another mode or with other keys."""
    for vertex, mode, keys, then in (
        (_ROWS, TableMode.OVERWRITE, ("at",), "as an append table, and"),
        (_NEWEST, TableMode.APPEND, (), "as an overwrite table by version at"),
        (_NEWEST, TableMode.OVERWRITE, ("day",), "as an overwrite table by version at"),
    ):
        other = _one_table(graph, vertex, mode=mode, keys=keys)
        yield Case(f"the table of {vertex} as {mode.value} by {keys}", other, record, then)
    yield Case("other keys of an upsert table", _one_table(graph, _TOTALS, keys=("other",)), record)
    appends = _one_table(graph, _TOTALS, mode=TableMode.APPEND, keys=())
    yield Case("an upsert table that appends", appends, record, "as an upsert table by key key")


def _tables(graph: JobGraph, record: CheckpointRecord) -> Iterator[Case]:
    """Rename a table, let another vertex write it, or add one."""
    for vertex, was in ((_ROWS, _ROWS_TABLE), (_TOTALS, _TOTALS_TABLE), (_NEWEST, _NEWEST_TABLE)):
        other = _one_table(graph, vertex, name=TableName("gold/other"))
        why = f"has table {was}, which the pipeline no longer has"
        yield Case(f"another name of {was}", other, record, f"{why}, and gold/other is new in it:", "")
    upserts = graph.vertex(_TOTALS).tables[0]
    moved = _tables_of(_tables_of(graph, _TOTALS, lambda tables: tables[1:]), _SUMS, lambda _: (upserts,))
    why = "as written by 'totals', and now 'sums' writes it: it would show only the keys that are touched"
    yield Case("another writer", moved, record, why, "")
    newest = graph.vertex(_NEWEST).tables[0]
    moved = _tables_of(_tables_of(graph, _NEWEST, lambda _: ()), _SUMS, lambda _: (newest,))
    why = "as written by 'newest', and now 'sums' writes it: it would show only rows that come"
    yield Case("another writer of an overwrite table", moved, record, why, "")
    more = replace(upserts, name=TableName("gold/more"))
    beside = _tables_of(graph, _TOTALS, lambda tables: (*tables, more))
    yield Case("an upsert table beside state", beside, record, "gold/more is new beside it", "")
    half = _was(record, _TOTALS, subtasks=(replace(record.vertices[2].subtasks[0], state=()), SubtaskSnapshot()))
    yield Case("a table beside state that nobody has", beside, half)
    half = _was(record, _TOTALS, subtasks=(SubtaskSnapshot(), record.vertices[2].subtasks[1]))
    yield Case("a table beside state that one subtask has", beside, half, "gold/more is new beside it", "")
    elsewhere = _tables_of(graph, _ROWS, lambda tables: (*tables, more))
    yield Case("an upsert table without state", elsewhere, record)
    appends = replace(more, mode=TableMode.APPEND, keys=())
    yield Case("an append table beside state", _tables_of(graph, _TOTALS, lambda tables: (*tables, appends)), record)


# ------------------------------------------------------------------ how they are changed


def _with(graph: JobGraph, name: VertexId, **changes: Any) -> JobGraph:
    vertices = tuple(replace(each, **changes) if each.id == name else each for each in graph.vertices)
    return replace(graph, vertices=vertices)


def _less(graph: JobGraph, name: VertexId) -> JobGraph:
    edges = tuple(edge for edge in graph.edges if name not in (edge.upstream, edge.downstream))
    return replace(graph, vertices=tuple(each for each in graph.vertices if each.id != name), edges=edges)


def _renamed(graph: JobGraph, name: VertexId, now: str) -> JobGraph:
    """Give a vertex another id without declaring the rename. Vertices that take its changes name the new id."""
    other = VertexId(now)

    def named(each: VertexId) -> VertexId:
        return other if each == name else each

    vertices = (
        replace(each, id=named(each.id), changes_of=tuple(map(named, each.changes_of)), tables=_unstated(each, name))
        for each in graph.vertices
    )
    edges = (EdgeId(named(edge.upstream), named(edge.downstream), edge.input) for edge in graph.edges)
    return replace(graph, vertices=tuple(vertices), edges=tuple(edges))


def _unstated(vertex: Vertex, name: VertexId) -> tuple[Table, ...]:
    return vertex.tables if vertex.id != name else tuple(each for each in vertex.tables if each.mode is TableMode.STATE)


def _tables_of(graph: JobGraph, name: VertexId, change: Callable[[tuple[Table, ...]], tuple[Table, ...]]) -> JobGraph:
    return _with(graph, name, tables=change(graph.vertex(name).tables))


def _one_table(graph: JobGraph, vertex: VertexId, **changes: Any) -> JobGraph:
    return _tables_of(graph, vertex, lambda tables: (replace(tables[0], **changes), *tables[1:]))


def _was(record: CheckpointRecord, name: VertexId, **changes: object) -> CheckpointRecord:
    vertices = (each.model_copy(update=changes) if each.vertex == name else each for each in record.vertices)
    return record.model_copy(update={"vertices": tuple(vertices)})


def _snapshots(
    record: CheckpointRecord, name: VertexId, change: Callable[[SubtaskSnapshot], SubtaskSnapshot]
) -> CheckpointRecord:
    was = next(each for each in record.vertices if each.vertex == name)
    return _was(record, name, subtasks=tuple(map(change, was.subtasks)))


def _calm(record: CheckpointRecord) -> CheckpointRecord:
    """Return the cut without rows in flight."""
    return _snapshots(record, _ROWS, lambda each: replace(each, in_flight=()))


def _without_staged(record: CheckpointRecord) -> CheckpointRecord:
    return _snapshots(record, _ROWS, lambda each: replace(each, staged=()))


def _with_ranges(
    record: CheckpointRecord, name: VertexId, change: Callable[[tuple[RangeFiles, ...]], tuple[RangeFiles, ...]]
) -> CheckpointRecord:
    return _snapshots(record, name, lambda each: replace(each, ranges=change(each.ranges)))


# ------------------------------------------------------------------
# Tests restores. A cut is refused exactly if the pipeline has no place for some part of it (G2, D3, B4). Each test
# restores the cut into a changed pipeline, spreads its files over subtasks, or checks which splits have ended. The
# expected results follow the guides.


FIT: Final = "cuts-fit"
"""A cut is refused exactly if a part of it would be lost. Otherwise each subtask gets its own part of the cut."""
_CASES: Final = tuple(cases())
_SOURCE: Final = VertexId("orders")
_group = st.integers(0, KEY_GROUPS - 1)
_files = st.lists(st.tuples(_group, _group, st.integers(1, 3), st.sets(st.integers(0, 2), max_size=2)), max_size=6)
_SPLITS: Final = tuple(map(SplitId, ("a1", "a2", "b1", "b2")))


@given(case=st.sampled_from(_CASES), allowed=st.booleans())
def test_restore_restore(case, allowed):
    """Restore the cut into a changed pipeline."""
    why = ""
    try:
        check_fits(case.graph, case.record, case.max_parallelism, allow_non_restored_state=allowed)
    except CutDoesNotFitError as error:
        why = str(error)
    due = case.reason(allowed=allowed)
    fits = due in why if due else not why
    expect(fits, FIT, f"{case.what}, allowed {allowed}: {why or 'it fits'}, due is {due or 'that it fits'}")
    if not why:
        _judge_positions(case.graph)


@given(parallelism=st.integers(1, KEY_GROUPS), name=st.sampled_from(["totals", "sums", "newest", "rows"]))
def test_restore_spread(parallelism, name):
    """Spread the files of a vertex over its subtasks: each has those of its key groups, and all broadcast state."""
    record, vertex = cut(), pipeline().vertex(VertexId(name))
    keyed = vertex.kind is VertexKind.KEYED
    vertex = replace(vertex, parallelism=parallelism if keyed else 1)
    live = live_files(vertex, record, KEY_GROUPS)
    expect(len(live) == vertex.parallelism, FIT, f"{name} has {len(live)} subtasks")
    was = next(each for each in record.vertices if each.vertex == name)
    for index, own in enumerate(live):
        groups = {group for group in range(KEY_GROUPS) if group * parallelism // KEY_GROUPS == index}
        state = _paths(snapshot.state for snapshot in was.subtasks) if keyed else {}
        due = {path for path, of in state.items() if groups & of}
        expect({each.file.path for each in own.state} == due, FIT, f"{name} {index} of {parallelism}: {own.state}")
        tables = {each.table: {file.file.path for file in each.files} for each in own.ranges}
        once = len(tables) == len(own.ranges)
        right = once and tables == _ranges(vertex, was, groups)
        expect(right, FIT, f"{name} {index} of {parallelism}: {own.ranges}")


@given(files=_files, parallelism=st.integers(1, KEY_GROUPS))
def test_restore_take_apart(files, parallelism):
    """Some subtasks share files since an earlier restore, and others have written newer ones."""
    made = {
        KeyedFile(
            FileHandle(f"state-{number}", 1, 1, 1),
            KeyedFileKind.DELTA,
            min(one, other),
            max(one, other),
            Version(Generation(generation), number),
        ): owners
        for number, (one, other, generation, owners) in enumerate(files)
    }
    was = tuple(SubtaskSnapshot(state=tuple(each for each, of in made.items() if own in of)) for own in (2, 1, 0))
    entry = VertexRecord(vertex=VertexId("totals"), micro_batch=9, subtasks=was)
    vertex = replace(pipeline().vertex(VertexId("totals")), parallelism=parallelism)
    live = live_files(vertex, cut().model_copy(update={"vertices": (entry,)}), KEY_GROUPS)
    for index, own in enumerate(live):
        groups = {group for group in range(KEY_GROUPS) if group * parallelism // KEY_GROUPS == index}
        of = {each: {*range(each.first_key_group, each.last_key_group + 1)} for each, owners in made.items() if owners}
        held = [each for each, covers in of.items() if groups & covers]
        due = sorted(held, key=lambda each: (each.version.generation, each.version.micro_batch))
        expect([*own.state] == due, FIT, f"subtask {index} of {parallelism} has {own.state}, due are {due}")


@given(writes=st.booleans(), parallelism=st.integers(1, 3))
def test_restore_leave(writes, parallelism):
    """A new vertex begins without files. What a vertex no longer writes is left behind."""
    record, was = cut(), pipeline().vertex(VertexId("totals"))
    new = replace(was, id=VertexId("new"), parallelism=parallelism)
    expect(_bare(live_files(new, record, KEY_GROUPS)) == [0] * parallelism, FIT, "a new vertex has files")
    kept = replace(was, tables=was.tables if writes else was.tables[1:2], parallelism=parallelism)
    found = {entry.table for own in live_files(kept, record, KEY_GROUPS) for entry in own.ranges}
    due = {entry.table for entry in record.vertices[2].subtasks[0].ranges} if writes else set()
    expect(found == due, FIT, f"a vertex that writes {due} has files of {found}")
    newest = pipeline().vertex(VertexId("newest"))
    plain = replace(newest, tables=(*newest.tables, pipeline().vertex(VertexId("rows")).tables[0]))
    (own,) = live_files(plain, record, KEY_GROUPS)
    expect(len(own.ranges) == 1, FIT, f"a vertex with one overwrite table has {own.ranges}")


@given(finished=st.lists(st.booleans(), min_size=4, max_size=4), bounded=st.booleans(), parted=st.booleans())
def test_restore_end(finished, bounded, parted):
    """A split that has ended is not read again.

    A split that appears in a part that has ended is not read either.
    """
    later = SplitId("a3")
    parts = ("a", "b") if parted else ()
    source = Vertex(_SOURCE, VertexKind.SOURCE, 5, splits=(*reversed(_SPLITS), later), bounded=bounded, parts=parts)
    subtasks = tuple(SubtaskSnapshot(position="1", finished=each) for each in finished)
    was = VertexRecord(vertex=_SOURCE, micro_batch=0, subtasks=subtasks, splits=_SPLITS)
    found = ended_splits(JobGraph((source,), ()), cut().model_copy(update={"vertices": (was,)}))
    over = dict(zip(_SPLITS, finished, strict=True))
    due = set()
    for index, split in enumerate(source.splits):
        alike = [each for each in over if not parted or each[0] == split[0]]
        has_an_end = bounded or (parted and split[0] == "a")
        if has_an_end and (over.get(split) or all(over[each] for each in alike)):
            due.add(SubtaskId(_SOURCE, index))
    expect(found == due, FIT, f"{over}, bounded {bounded}, parts {parts}: {found} have ended, due are {due}")


@given(splits=st.permutations([_A, _B, SplitId("c")]), count=st.integers(1, 3))
def test_restore_give_back(splits, count):
    """Rows in flight come back on the channel of their split, or on another one that the new pipeline has."""
    graph, known = pipeline(), tuple(splits[:count])
    source = replace(graph.vertex(_SOURCE), parallelism=count, splits=known)
    vertices = tuple(source if each.id == _SOURCE else each for each in graph.vertices)
    (held,) = in_flight(cut())
    channel = channel_now(replace(graph, vertices=vertices), *held)
    there = channel.edge == held[0].edge and channel.subtask < count
    there = there and (held[1].split not in known or known[channel.subtask] == held[1].split)
    expect(there and held[1].rows == 1, FIT, f"{held[1]} comes back on {channel}, of {known}")


def _bare(live: list[LiveFiles]) -> list[int]:
    """Return the number of file lists for each subtask."""
    return [len(own.state) + len(own.ranges) for own in live]


def _judge_positions(graph: JobGraph) -> None:
    """Raise unless splits of the cut continue at their positions, and each other split begins at its start."""
    known = {"a": "1", "b": "2"}
    for source in graph.sources():
        found = positions(graph, cut())
        due = {SubtaskId(source.id, index): known.get(split) for index, split in enumerate(source.splits)}
        expect(found == due, FIT, f"the splits go on at {found}, due is {due}")


def _paths(lists: Iterable[Iterable[KeyedFile]]) -> dict[str, set[int]]:
    """Return the files of these lists, each with its key groups."""
    return {
        each.file.path: set(range(each.first_key_group, each.last_key_group + 1)) for files in lists for each in files
    }


def _ranges(vertex: Vertex, was: VertexRecord, groups: set[int]) -> dict[str, set[str]]:
    """Return, for each table, the files that a subtask with these key groups has."""
    found: dict[str, set[str]] = {}
    for entry in (each for snapshot in was.subtasks for each in snapshot.ranges):
        table = next(each for each in vertex.tables if each.name == entry.table)
        whole = table.broadcast or vertex.kind is not VertexKind.KEYED
        files = _paths([entry.files]).items()
        found.setdefault(entry.table, set()).update(path for path, of in files if whole or groups & of)
    return found


# ------------------------------------------------------------------
# Tests how key groups are spread over subtasks at another parallelism (D3).
#
# The reference compares ranges with the subtask of each key group.


SPREAD: Final = "spread-over-subtasks"
"""Each key group belongs to one subtask."""
_small = st.integers(0, 9)


@given(parallelism=_small, groups=st.sampled_from([0, 1, 3, 7, 8, 9, KEY_GROUPS_MAX, KEY_GROUPS_MAX + 1]))
def test_spread_spread_key_groups(parallelism, groups):
    """Give each key group to a subtask."""
    due = 1 <= parallelism <= groups <= KEY_GROUPS_MAX
    try:
        ranges = key_group_ranges(parallelism=parallelism, max_parallelism=groups)
        ones = [range_of(subtask=each, parallelism=parallelism, max_parallelism=groups) for each in range(parallelism)]
    except InvalidParallelismError:
        expect(not due, SPREAD, f"{parallelism} subtasks and {groups} key groups are refused")
        return
    expect(due and list(ranges) == ones, SPREAD, f"{parallelism} subtasks, {groups} key groups: {ranges}")
    edges = {group for own in ranges for group in (own.first, own.last)}
    wrong = [
        group
        for group in sorted(edges)
        for index, own in enumerate(ranges)
        if (own.first <= group <= own.last) != (group * parallelism // groups == index)
    ]
    expect(not wrong, SPREAD, f"{parallelism} subtasks, {groups} key groups: {wrong} have another subtask")
    expect(sum(map(len, ranges)) == groups, SPREAD, f"{ranges} have not {groups} key groups")


@given(first=_small, more=_small, other=_small, other_more=_small)
def test_spread_intersect(first, more, other, other_more):
    """Return what two ranges have in common."""
    one, two = _range(first, more), _range(other, other_more)
    common = {*range(first, first + more + 1)} & {*range(other, other + other_more + 1)}
    found = one.intersection(two)
    known = set() if found is None else {*range(found.first, found.last + 1)}
    expect(known == common, SPREAD, f"{one} and {two} have {found} in common")


def _range(first: int, more: int) -> KeyGroupRange:
    return KeyGroupRange(first=first, last=first + more)


def test_some_pipelines_fit_and_some_do_not():
    """All cases have different names."""
    found = [*cases()]
    assert len(found) == len({case.what for case in found})
    assert min(sum(not case.why for case in found), sum(bool(case.why) for case in found)) > 15
