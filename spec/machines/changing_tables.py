"""Tests changes of a table's columns between two pipelines: what a restore reports, and what the next cut lists.

Its reference goes through the columns one by one. The machine in `changing_columns` covers rollbacks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.columns import columns_at, table_changes
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, Rename, RenameKind, Statistics, VertexRecord
from checkpointing.state_evolution import NOT_WRITTEN, ChangeKind
from checkpointing.state_meaning import ColumnMeaning
from spec.machines.evolving import plain_serves, sql
from spec.machines.judging import expect
from spec.machines.meanings import kept_names, renames_due, renames_undeclared

SAID: Final = "table-changes-said"
"""A restore reports what becomes of each column of a table. It refuses a change that the table's files cannot serve."""
CUT: Final = "cuts-list-columns"
"""A cut lists the columns of each table that declares columns, each with the checkpoint from which it is valid. If a
table's files are written again, the cut keeps the old columns while one of the old files is live."""

TABLE: Final = TableName("gold/totals")
VERTEX: Final = VertexId("totals")
_PARENT: Final = CheckpointId(7)
_names = st.sampled_from(["a", "b", "c", "d"])
_kinds = st.sampled_from(["integer", "long", "long", "double", "decimal(10,2)", "decimal(12,2)", "string"])
_columns = st.dictionaries(_names, _kinds, min_size=1, max_size=3)
_few = st.lists(_names, unique=True, max_size=2)
_modes = st.sampled_from([TableMode.APPEND, TableMode.APPEND, TableMode.UPSERT, TableMode.OVERWRITE, TableMode.STATE])
_rewritten = "renamed, with its values. The table's files are written again once"
_Found = tuple[str, str | None, str | None, str, bool]
"""The column, its old type, its new type, what becomes of it, and whether it is refused."""


@dataclass
class _Pair:
    """A table as an entry lists it, and as the pipeline declares it."""

    mode: TableMode
    was: dict[str, str]
    now: dict[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    in_order: bool = False
    outside: bool = False
    partitioned: tuple[str, ...] = ()
    of_cut: Mapping[str, str] = field(default_factory=dict)
    """Maps new to old column names, as the cut's pipeline declared them for this vertex."""
    of_others: Mapping[str, str] = field(default_factory=dict)
    """Renames that another vertex declared. They change nothing for this table."""

    @property
    def appends(self) -> bool:
        return self.mode is TableMode.APPEND

    @property
    def keep(self) -> dict[str, str]:
        return kept_names(self.now, self.was, self.renamed)

    @property
    def leaving(self) -> list[str]:
        """The columns that the pipeline takes out of a table that keeps its files."""
        return [name for name in self.was if name in self.drops and name not in self.now]


_pairs = st.builds(
    _Pair,
    mode=_modes,
    was=_columns,
    now=_columns,
    renamed=st.dictionaries(_names, _names, max_size=2),
    dropped=_few.map(lambda names: tuple(name.upper() for name in names)),
    drops=_few.map(tuple),
    in_order=st.booleans(),
    outside=st.sampled_from([False, False, True]),
    partitioned=st.lists(_names, max_size=1).map(tuple),
    of_cut=st.dictionaries(_names, _names, max_size=2),
    of_others=st.dictionaries(_names, _names, min_size=1, max_size=4),
)


class ChangingTablesMachine(RuleBasedStateMachine):
    """Draws one table after the other, as an entry lists it and as a pipeline declares it."""

    @rule(
        pair=_pairs,
        stays=st.lists(st.booleans(), min_size=3, max_size=3),
        listed=st.sampled_from([True, True, True, False]),
        means=st.sampled_from([None, None, "process", "max"]),
    )
    def restore(self, pair: _Pair, stays: list[bool], listed: bool, means: str | None) -> None:  # noqa: FBT001
        """Another pipeline is restored from a cut."""
        for same, name in zip(stays, [*pair.now], strict=False):
            pair.now[name] = pair.was.get(name, pair.now[name]) if same else pair.now[name]
        made = table_changes(_graph(pair, means), _cut(pair, listed=listed))
        due = sorted(_with_hints(pair, [*_due(pair)], means), key=str)
        if not listed or pair.mode is TableMode.STATE:
            due = []
        found = sorted(((each.column, each.was, each.now, each.becomes, bool(each.refused)) for each in made), key=str)
        expect(found == due, SAID, f"{found}, due are {due}: {pair}")
        of = {(each.kind, each.thing) for each in made}
        expect(of <= {(ChangeKind.TABLE_SCHEMA, f"table {TABLE}")}, SAID, of)

    @rule(
        pair=_pairs,
        since=st.lists(st.integers(0, 6), min_size=4, max_size=4),
        live=st.sampled_from(["old", "new", "both", "none"]),
        known=st.sampled_from(["listed", "listed", "listed", "not listed", "no parent", "other vertex"]),
    )
    def commit(self, pair: _Pair, since: list[int], live: str, known: str) -> None:
        """The pipeline's next checkpoint commits."""
        if pair.mode.keeps_files and pair.mode is not TableMode.OVERWRITE:
            pair.mode = TableMode.UPSERT
        pair.drops = ()
        after = dict(zip(("a", "b", "c", "d"), since, strict=True))
        parent = _cut(pair, listed=known != "not listed", after=after, vertex="other" if known[:2] == "ot" else VERTEX)
        files = {"old": ("f",), "new": ("g",), "both": ("g", "f"), "none": ()}[live]
        bare = Table(TableName("gold/bare"), TableMode.UPSERT)
        made = columns_at(
            _graph(pair, None, bare), {VERTEX: _vertex(VERTEX, files)}, None if known == "no parent" else parent
        )
        due = _next(pair, after, "f" in files and known == "listed", lists=known in ("listed", "other vertex"))
        said = [(each.name, each.type, each.after) for table in made for each in table.columns]
        expect(len(made) == 1 and said == due, CUT, f"{made}, due are {due}: {pair}, {live}, {known}")


# ------------------------------------------------------------------ the reference


def _due(pair: _Pair) -> Iterator[_Found]:
    """Yield what a restore must report about the columns, without hints."""
    names, keep = [*pair.now], pair.keep
    if pair.mode is TableMode.OVERWRITE:
        yield from ((new, old, new, "", True) for new, old in keep.items())
    else:
        for new, old, becomes, refused in renames_due(
            names, [*pair.was], pair.renamed, _rewritten if pair.appends else ""
        ):
            yield new, old, new, becomes, bool(refused)
        undeclared = renames_undeclared(names, pair.was, pair.renamed, pair.of_cut)
        yield from ((old, new, old, "", True) for old, new, _, _ in undeclared)
    if pair.appends:
        yield from _of_files(pair)
    left = dict(pair.was)
    for name, kind in pair.now.items():
        was = left.pop(keep.get(name, name), None)
        if was is None:
            yield name, None, sql(kind), f"holds only what comes after checkpoint {_PARENT}", False
        elif was != kind:
            wider, read = plain_serves(was, kind)
            serves = {TableMode.APPEND: read, TableMode.UPSERT: wider}.get(pair.mode, False)
            becomes = "widened. The files keep the narrower type, and readers convert it" if pair.appends else "widened"
            yield name, sql(was), sql(kind), becomes, not serves or name in pair.partitioned
    for name, kind in left.items():
        if pair.mode.keeps_files and name not in pair.leaving:
            stays = f". change_columns(drop=[{name!r}]) takes it out of the table" if pair.appends else ""
            yield name, sql(kind), NOT_WRITTEN, f"stays, null in new rows{stays}", False
        else:
            unseen = "dropped. Readers no longer see it, and its name cannot be used again in this table"
            yield name, sql(kind), None, unseen if pair.appends else "dropped", False


def _of_files(pair: _Pair) -> Iterator[_Found]:
    """Yield what a restore reports only about an append table: names in its files, drops, its sink, and its order."""
    keep = pair.keep
    for name, kind in pair.now.items():
        if name not in pair.was and name.upper() in pair.dropped:
            yield name, keep.get(name, "gone"), sql(kind), "", True
    unknown = [name for name in pair.drops if name not in pair.was and name.upper() not in pair.dropped]
    if unknown and [name for name in pair.was if name not in pair.now and name not in pair.drops]:
        yield unknown[0], "unknown", "dropped", "", True
    if pair.outside:
        yield from ((new, old, new, "", True) for new, old in keep.items())
    now = {old: new for new, old in keep.items()}
    stay = [now.get(name, name) for name in pair.was if name not in pair.leaving]
    whole = [*stay, *(name for name in pair.now if name not in stay)]
    if pair.in_order:
        ordered = [*(name for name in pair.now if name in whole), *(name for name in whole if name not in pair.now)]
        if [name for name in ordered if name in stay] != stay:
            yield "order", ", ".join(pair.was), ", ".join(ordered), "reordered", False


def _with_hints(pair: _Pair, due: list[_Found], means: str | None) -> Iterator[_Found]:
    """Yield the changes with hints. A dropped column may be a new column of the same type under another name."""
    new = [(name, now) for name, was, now, _, _ in due if was is None]
    for name, was, now, becomes, refused in due:
        same = [other for other, kind in new if kind == was]
        said = f"{{{same[0]!r}: {name!r}}}" if same else ""
        of_vertex = means is not None or pair.mode is TableMode.UPSERT
        how = f"columns_renamed_from={said}" if of_vertex else f"change_columns(renamed_from={said})"
        may_be = pair.mode is not TableMode.OVERWRITE and means != "max"
        hint = f"; if it has a new name, say {how}" if same and may_be and now in (None, NOT_WRITTEN) else ""
        yield name, was, now, becomes + hint, refused


def _next(pair: _Pair, after: Mapping[str, int], is_live: bool, *, lists: bool) -> list[tuple[str, str, int]]:  # noqa: FBT001
    """Return the columns at the next cut: name, type, and the checkpoint from which each is valid."""
    if not lists:
        return [(name, kind, 0) for name, kind in pair.now.items()]
    was = [(name, kind, after[name]) for name, kind in pair.was.items()]
    if pair.mode is TableMode.OVERWRITE:
        kept = [(name, pair.now.get(name, kind), since) for name, kind, since in was]
        new = [(name, kind, int(_PARENT)) for name, kind in pair.now.items() if name not in pair.was]
        places = [*pair.now]
        both = sorted([*kept, *new], key=lambda each: places.index(each[0]) if each[0] in places else len(places))
        return both if pair.in_order else [*kept, *new]
    keep = pair.keep
    now = []
    for name, kind in pair.now.items():
        old = keep.get(name, name)
        now.append((name, kind, after[old] if old in pair.was else int(_PARENT)))
    is_other = {each[:2] for each in was} != {each[:2] for each in now}
    return was if is_other and is_live else now


# ------------------------------------------------------------------ entries and graphs


def _graph(pair: _Pair, means: str | None, *others: Table) -> JobGraph:
    table = Table(
        TABLE,
        pair.mode,
        columns=tuple(TableColumn(name, kind) for name, kind in pair.now.items()),
        outside=pair.outside,
        partitioned_by=pair.partitioned,
        drops=pair.drops,
        in_order=pair.in_order,
    )
    meanings = (ColumnMeaning(column="a", function=means),) if means is not None else ()
    vertex = Vertex(
        VERTEX,
        VertexKind.KEYED,
        1,
        tables=(*others, table),
        meanings=meanings,
        columns_renamed_from=pair.renamed,
    )
    return JobGraph((vertex,), ())


def _cut(
    pair: _Pair, *, listed: bool, after: Mapping[str, int] | None = None, vertex: str = VERTEX
) -> CheckpointRecord:
    since = after or {}
    columns = tuple(TableColumn(name, kind, CheckpointId(since.get(name, 0))) for name, kind in pair.was.items())
    return CheckpointRecord(
        job="small",
        checkpoint=_PARENT,
        parent=CheckpointId(6),
        generation=Generation(1),
        nonce="n",
        max_parallelism=8,
        vertices=(_vertex(VertexId(vertex), ("f",)),),
        tables=(),
        columns=(TableColumns(TABLE, columns, pair.dropped),) if listed else (),
        renames=(*_renames(pair.of_cut, VERTEX), *_renames(pair.of_others, "other")),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
    )


def _vertex(name: VertexId, paths: tuple[str, ...]) -> VertexRecord:
    files = tuple(
        KeyedFile(FileHandle(path, 1, 1, 1), KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1)) for path in paths
    )
    subtask = SubtaskSnapshot(state=files, ranges=(RangeFiles(TABLE, files),))
    return VertexRecord(vertex=name, micro_batch=1, subtasks=(subtask,))


def _renames(names: Mapping[str, str], vertex: str) -> Iterator[Rename]:
    return (Rename(kind=RenameKind.COLUMN, was=was, now=now, vertex=vertex) for now, was in names.items())
