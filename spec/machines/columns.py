"""The machine of an append table's columns: the pipeline changes them, others append rows, and the job is rolled back.

The reference gives each column a number, which it keeps under all its names. Each file of the table remembers which
column its values belong to, by the name under which it holds them. If a rollback takes a new column back and it comes
again, it is the same column, also for rows that others wrote meanwhile. After a drop, it is another one. The core
decides what an entry lists and what its publication changes. The model carries a publication out as its contract says.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns, in_another_order
from checkpointing.commit.columns import (
    columns_at,
    columns_of,
    due_renames_of_columns,
    leaving_back,
    listed,
    renamed_back,
    table_changes,
    unclear_back,
)
from checkpointing.commit.net_files import net_tables
from checkpointing.commit.recovery import publications
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName, VertexId
from checkpointing.messages import Publication
from checkpointing.metadata.record import (
    CheckpointRecord,
    Rename,
    RenameKind,
    RowKind,
    Statistics,
    TableRecord,
    VertexRecord,
)
from checkpointing.state_evolution import NOT_WRITTEN, ChangeKind, first_refused
from checkpointing.state_meaning import ColumnMeaning
from spec.machines.judging import expect
from spec.machines.state_changes import kept_names, plain_serves, renames_due, renames_undeclared, sql

COLUMNS_READABLE: Final = "columns-readable"
"""Under each name, every file of an append table has values of the column that has this name, or none. It holds no
value of a column of the table under another name."""

_TABLE, _KEPT = TableName("bronze/kept"), VertexId("kept")
_NAMES: Final = ("a", "b", "c", "d")
_pick = st.integers(0, 20)
_Numbers = Mapping[str, int]


@dataclass(frozen=True)
class _File:
    """A file: the columns that it holds, by name, and whether the job wrote it."""

    holds: _Numbers
    ours: bool


@dataclass(frozen=True)
class _Cut:
    """What the table shows, and what the reference knows of its columns: their numbers by name."""

    names: tuple[str, ...]
    numbers: _Numbers
    files: frozenset[int]


class AppendedColumnsMachine(RuleBasedStateMachine):
    """One append table, the pipeline that writes it, and the cuts to which a user may go back."""

    def __init__(self) -> None:
        """Begin with a table of one column and one file."""
        super().__init__()
        self._new = count(1)
        self._files: dict[int, _File] = {}
        self._declared: list[str] = ["a"]
        self._renamed: dict[str, str] = {}
        self._drops: tuple[str, ...] = ()
        self._in_order = False
        self._entries: list[CheckpointRecord] = []
        self._cuts: dict[CheckpointId, _Cut] = {}
        self._pending: tuple[CheckpointRecord, _Numbers, _File] | None = None
        self._went_back = self._dropped = False
        """Whether there was a rollback, and whether there may be none any more."""
        self._begun: dict[str, int] = {}
        """The number of a column that begins under this name."""
        self._gone: set[int] = set()
        """The numbers of columns that were dropped."""
        self._now = _Cut(("a",), {}, frozenset())
        self._now = replace(self._now, numbers={"a": self._number("a", ())})
        self.commit()
        self.publish()

    # -------------------------------------------------------------- the pipeline

    @rule(name=st.sampled_from(_NAMES))
    def declare(self, name: str) -> None:
        """The pipeline writes a column more."""
        if name not in self._declared:
            self._declares([*self._declared, name])

    @rule(old=_pick, new=st.sampled_from(_NAMES))
    def rename(self, old: int, new: str) -> None:
        """The pipeline gives a column another name, and says so."""
        was = self._declared[old % len(self._declared)]
        if new not in self._declared:
            self._declares([new if name == was else name for name in self._declared], {new: was})

    @precondition(lambda self: len(self._declared) > 1)
    @rule(pick=_pick, says=st.booleans())
    def leave_out(self, pick: int, says: bool) -> None:  # noqa: FBT001
        """The pipeline does not write a column any more. It may say that the table loses it."""
        gone = self._declared[pick % len(self._declared)]
        self._declares([name for name in self._declared if name != gone], drops=(gone,) if says else ())

    @rule()
    def reorder(self) -> None:
        """The pipeline gives its columns another order."""
        self._declares([*reversed(self._declared)], in_order=True)

    def _declares(
        self,
        declared: list[str],
        renamed: Mapping[str, str] | None = None,
        *,
        drops: tuple[str, ...] = (),
        in_order: bool = False,
    ) -> None:
        """Change the pipeline, unless the core refuses to go on with it."""
        before = self._declared, self._renamed, self._drops, self._in_order
        self._declared, self._renamed, self._drops, self._in_order = declared, dict(renamed or {}), drops, in_order
        if self._is_refused(self._entries[-1]):
            self._declared, self._renamed, self._drops, self._in_order = before

    def _is_refused(self, parent: CheckpointRecord) -> bool:
        """Return whether the core refuses the pipeline, or a file has another column of a new name."""
        pairs = due_renames_of_columns(self._graph(), parent).get(_TABLE, ())
        return self._is_taken(pairs, self._now.files) or first_refused(table_changes(self._graph(), parent)) is not None

    def _is_taken(self, pairs: Iterable[tuple[str, str]], files: Collection[int]) -> bool:
        """Return whether a file has a column of a new name, beside the old one or unseen. The publisher refuses it."""
        held = [self._files[each].holds.keys() for each in files]
        return any(
            new in holds and (old in holds or new not in self._now.names) for holds in held for new, old in pairs
        )

    def _graph(self) -> JobGraph:
        columns = tuple(TableColumn(name, "long") for name in self._declared)
        table = Table(_TABLE, TableMode.APPEND, columns=columns, drops=self._drops, in_order=self._in_order)
        vertex = Vertex(_KEPT, VertexKind.STATELESS, 1, (table,), columns_renamed_from=self._renamed)
        return JobGraph((vertex,), ())

    # -------------------------------------------------------------- checkpoints

    @precondition(lambda self: self._pending is None)
    @rule()
    def commit(self) -> None:
        """Commit a checkpoint that adds a file. It is published later."""
        parent = self._entries[-1] if self._entries else None
        if parent is not None and self._is_refused(parent):
            return
        graph = self._graph()
        vertices = {_KEPT: VertexRecord(vertex=_KEPT, micro_batch=0, subtasks=(SubtaskSnapshot(),))}
        columns = columns_at(graph, vertices, parent)
        tables = net_tables(graph, vertices, parent, {}, columns) or (self._record(),)
        entry = self._entry(RowKind.CHECKPOINT, tables).model_copy(update={"columns": columns})
        self._entries.append(entry)
        numbers = self._numbers_next()
        self._pending = entry, numbers, _File({name: numbers[name] for name in self._declared}, ours=True)

    @precondition(lambda self: self._pending is not None)
    @rule()
    def publish(self) -> None:
        """Publish what is committed, or roll it forward after a crash."""
        if self._pending is None:
            return
        entry, numbers, file = self._pending
        (publication,) = publications(entry)
        self._pending = None
        added = next(self._new)
        self._files[added] = file
        self._show(entry, publication, numbers, self._now.files | {added})

    @precondition(lambda self: self._pending is None and not self._went_back)
    @rule(pick=_pick, name=st.sampled_from(_NAMES))
    def drop_and_declare(self, pick: int, name: str) -> None:
        """Drop a column. Two checkpoints later, declare a column of any name. This run has no rollbacks.

        The core refuses the name of the dropped column.
        """
        if len(self._declared) > 1:
            self._dropped = True
            self.leave_out(pick, says=True)
            self._checkpoints(2)
            self.declare(name)
            self._checkpoints(1)

    def _checkpoints(self, times: int) -> None:
        """Commit and publish so many checkpoints."""
        for _ in range(times):
            self.commit()
            self.publish()

    def _numbers_next(self) -> _Numbers:
        """Return the reference's columns after the next checkpoint."""
        numbers = dict(self._now.numbers)
        for new, old in self._renamed.items():
            if old in numbers and new not in numbers and old not in self._declared:
                numbers[new] = numbers.pop(old)
        for name in [name for name in self._drops if name in numbers and name not in self._declared]:
            gone = numbers.pop(name)
            self._begun = {first: number for first, number in self._begun.items() if number != gone}
            self._gone.add(gone)
        taken = tuple(numbers.values())
        return numbers | {name: self._number(name, taken) for name in self._declared if name not in numbers}

    def _number(self, name: str, taken: Collection[int]) -> int:
        """Return the number of a column that begins under this name. No other column of the table has it.

        After a rollback, a name begins again with the number that files have under it, or else with the number that it
        had. But it is another column if files have this number under another name, or if it was dropped.
        """
        files = [self._files[each].holds for each in self._now.files]
        under = {holds[name] for holds in files if name in holds and holds[name] not in self._gone}
        known = min(under) if len(under) == 1 else self._begun.get(name)
        has_moved = any(number == known and other != name for holds in files for other, number in holds.items())
        if known is None or known in taken or has_moved:
            self._begun[name] = known = next(self._new)
        return known

    # -------------------------------------------------------------- others

    @rule()
    def append(self) -> None:
        """Another program appends a file with all columns of the table."""
        added = next(self._new)
        self._files[added] = _File(dict(self._now.numbers), ours=False)
        self._now = replace(self._now, files=self._now.files | {added})

    # -------------------------------------------------------------- rollbacks

    @precondition(lambda self: self._pending is None and len(self._cuts) > 1 and not self._dropped)
    @rule(pick=_pick)
    def roll_back(self, pick: int) -> None:
        """Go back to an older cut. Files of others stay."""
        self._went_back = True
        entry = self._entries[pick % len(self._entries)]
        then, name = self._cuts[entry.checkpoint], _TABLE
        shown, target = columns_of(self._entries[-1])[name], columns_of(entry)[name]
        renamed = renamed_back(shown, target, None, name)
        held = {each for file in self._foreign() for each in self._files[file].holds}
        if self._foreign() and unclear_back(shown, target, renamed, listed(self._entries[-1])[name], held) is not None:
            return  # the product refuses it, since nobody can tell under which name others have a column
        if self._is_taken(renamed, self._foreign()):
            return
        record = self._record().model_copy(
            update={
                "leaving": leaving_back(shown, target, None, name),
                "renamed": renamed,
                "in_order": in_another_order(shown, target),
            }
        )
        back = self._entry(RowKind.ROLLBACK, (record,)).model_copy(update={"columns": entry.columns})
        self._entries.append(back)
        own = {each for each in then.files if self._files[each].ours}
        (publication,) = publications(back)
        self._show(back, publication, then.numbers, frozenset(own | self._foreign()))
        self._declared, self._renamed, self._drops, self._in_order = [*then.names], {}, (), False

    @precondition(lambda self: self._pending is None and len(self._entries) == 1)
    @rule(name=st.sampled_from(_NAMES[1:]))
    def take_another_way(self, name: str) -> None:
        """Rename column A to B, and roll back. Then drop A and write a new column B. Then roll back to the rename.

        This run has no further rollbacks.
        """
        self.append()
        self._declares([name], {name: self._declared[0]})
        self._checkpoints(2)
        self.roll_back(0)
        self._declares([name], drops=(self._declared[0],))
        self._checkpoints(1)
        self.roll_back(1)
        self._dropped = True

    @precondition(lambda self: self._pending is None and len(self._entries) == 1)
    @rule(names=st.permutations(_NAMES[1:]))
    def leave_a_name_behind(self, names: list[str]) -> None:
        """Write a new column and rename it. Roll back to before the column, and then to its first name."""
        self.declare(names[0])
        self._checkpoints(1)
        self._rename(names[0], names[1])
        self.append()
        self.roll_back(0)
        self.roll_back(1)

    @precondition(lambda self: self._pending is None and len(self._entries) == 1)
    @rule(names=st.permutations(_NAMES[1:]))
    def drop_two_columns(self, names: list[str]) -> None:
        """Write two new columns, swap their names, and drop both. Then roll back to before the swap.

        This run has no further rollbacks.
        """
        first, second, between = names
        if not {*self._declared} - {*names}:
            return  # the table needs a column that stays
        self.declare(first)
        self.declare(second)
        self._checkpoints(1)
        for old, new in ((first, between), (second, first), (between, second)):
            self._rename(old, new)
        self.append()
        self._declares([name for name in self._declared if name not in names], drops=(first, second))
        self._checkpoints(1)
        self.roll_back(1)
        self._dropped = True

    def _rename(self, old: str, new: str) -> None:
        """Publish a checkpoint of a pipeline that renames a column."""
        self._declares([new if name == old else name for name in self._declared], {new: old})
        self._checkpoints(1)

    def _foreign(self) -> frozenset[int]:
        return frozenset(each for each in self._now.files if not self._files[each].ours)

    # -------------------------------------------------------------- the table

    def _show(
        self, entry: CheckpointRecord, publication: Publication, numbers: _Numbers, files: frozenset[int]
    ) -> None:
        """Let the table show an entry: its columns, and these files under their new names."""
        said = [column.name for column in publication.columns]
        kept = [name for name in self._now.names if name not in publication.leaving and name not in said]
        self._now = _Cut((*said, *kept), numbers, frozenset(self._again(files, publication)))
        self._cuts[entry.checkpoint] = self._now
        self._must_be_readable()

    def _again(self, files: frozenset[int], publication: Publication) -> Iterator[int]:
        said = {column.name for column in publication.columns}
        for each in files:
            holds = dict(self._files[each].holds)
            for new, old in publication.renamed:
                is_of_cut = each not in self._now.files and old in said
                if not is_of_cut and old in holds and new not in holds:
                    holds[new] = holds.pop(old)
            if holds == self._files[each].holds:
                yield each
            else:
                again = next(self._new)
                self._files[again] = replace(self._files[each], holds=holds)
                yield again

    def _must_be_readable(self) -> None:
        names, numbers = self._now.names, self._now.numbers
        expect({*names} == {*numbers}, COLUMNS_READABLE, f"the table shows {names}, due are {sorted(numbers)}")
        for each in self._now.files:
            holds = self._files[each].holds
            for name, number in numbers.items():
                under = [held for held, own in holds.items() if own == number]
                expect(
                    holds.get(name, number) == number and under in ([], [name]),
                    COLUMNS_READABLE,
                    f"column {name} is {number}, and a file holds {holds}",
                )

    def _record(self) -> TableRecord:
        return TableRecord(table=_TABLE, mode=TableMode.APPEND, parent_version=0)

    def _entry(self, kind: RowKind, tables: tuple[TableRecord, ...]) -> CheckpointRecord:
        parent = self._entries[-1].checkpoint if self._entries else NO_CHECKPOINT
        return CheckpointRecord(
            job="model",
            kind=kind,
            checkpoint=CheckpointId(parent + 1),
            parent=parent,
            generation=Generation(1),
            nonce=str(parent + 1),
            max_parallelism=4,
            vertices=(),
            tables=tables,
            statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
        )


# ------------------------------------------------------------------
# Tests changes of a table's columns between two pipelines: what a restore reports, and what the next cut lists.
#
# Its reference goes through the columns one by one. The machine of an append table's columns covers rollbacks.


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
