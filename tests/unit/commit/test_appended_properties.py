"""Every file of an append table is readable under the columns of its table (G2)."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.columns import TableColumn, in_another_order
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
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName, VertexId
from checkpointing.messages import Publication
from checkpointing.metadata.record import (
    CheckpointRecord,
    RowKind,
    TableRecord,
    VertexRecord,
)
from checkpointing.state_evolution import first_refused
from spec.machines import judging
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

COLUMNS_READABLE: Final = "columns-readable"
"""Under each column's name, every file of an append table has that column's values, or none.

No file has values of a column under the name of another one."""

_TABLE, _KEPT = TableName("bronze/kept"), VertexId("kept")
_NAMES: Final = ("a", "b", "c", "d")
_pick = st.integers(0, 20)
_Numbers = Mapping[str, int]


@dataclass(frozen=True)
class _File:
    """A file: a dict from its columns' names to their numbers, and whether the job wrote the file."""

    holds: _Numbers
    ours: bool


@dataclass(frozen=True)
class _Cut:
    """What the table shows: the names of its columns, the reference's numbers of these columns, and its files."""

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
        """Whether there was a rollback, and whether further rollbacks are excluded."""
        self._begun: dict[str, int] = {}
        """Maps a name to the number of the column that began under it."""
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
    def leave_out(self, pick: int, says: bool) -> None:
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
        """Return whether the core refuses the pipeline, or a file has another column under a new name."""
        pairs = due_renames_of_columns(self._graph(), parent).get(_TABLE, ())
        return self._is_taken(pairs, self._now.files) or first_refused(table_changes(self._graph(), parent)) is not None

    def _is_taken(self, pairs: Iterable[tuple[str, str]], files: Collection[int]) -> bool:
        """Return whether the publisher refuses a rename, since a file already has a column of the new name."""
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
        """Commit and publish this many checkpoints."""
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
        """Return the number of a column that begins under this name. No other column of the table has this number.

        After a rollback, a name gets the number that files have under it, or else the number that it had before. But it
        gets a new number if files have that number under another name, or if the column was dropped.
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
        return plain_entry(
            job="model",
            kind=kind,
            checkpoint=CheckpointId(parent + 1),
            parent=parent,
            nonce=str(parent + 1),
            max_parallelism=4,
            tables=tables,
        )


def test_every_file_is_readable_under_the_columns_of_its_table():
    """The pipeline renames, drops and adds columns, others append rows, and users roll back."""
    run_state_machine_as_test(AppendedColumnsMachine, settings=judging.fitting(AppendedColumnsMachine, settings()))
