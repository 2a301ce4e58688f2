"""A compaction changes no row (S8)."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from checkpointing.commit.compaction import ActiveFile, groups_to_compact, still_possible
from checkpointing.handles import FileHandle
from checkpointing.metadata.record import (
    COMPACTED_FILES_MAX,
    FileCompaction,
)
from spec.machines import judging
from spec.machines.judging import expect

# ------------------------------------------------------------------
# Tests which small files a tick compacts, and which compactions a publication carries out (S8).
#
# The reference knows the rows of each file, and which of them another program has deleted.


KEEPS: Final = "compaction-keeps-rows"
"""A compaction changes no row of a table.

It is carried out only if the table still shows the files as they were read.
"""
GROUPS: Final = "small-files-join"
"""Only small files of one partition are compacted, so that a row is seldom written again.

Files are compacted once as many fit together as the settings require."""

TABLE_OF_COMPACTIONS: Final = "bronze/orders"
_sizes = st.integers(1, 12)


@dataclass(frozen=True)
class _File:
    """A file: its size, its rows, and those rows that another program has since deleted."""

    bytes: int
    rows: frozenset[int]
    deleted: frozenset[int] = frozenset()


_pick = st.integers(0, 20)


class CompactionsMachine(RuleBasedStateMachine):
    """One append table with two partitions, its ticks, and another program that deletes rows and merges files."""

    def __init__(self) -> None:
        """Begin with an empty table."""
        super().__init__()
        self.made = 0
        self.shown: dict[str, _File] = {}
        self.had_many = False
        self.ready: list[tuple[FileCompaction, _File]] = []
        """The compactions that no publication has carried out, each with the file that it wrote."""

    def _add(self, partition: int, file: _File) -> None:
        self.shown[self._path(partition)] = file

    def _path(self, partition: int) -> str:
        self.made += 1
        return f"{TABLE_OF_COMPACTIONS}/_data/1/site={partition}/orders-1-{self.made:032x}.parquet"

    # -------------------------------------------------------------- files come and go

    @rule(partition=st.integers(0, 1), sizes=st.lists(_sizes, min_size=1, max_size=4))
    def append(self, partition: int, sizes: list[int]) -> None:
        """A checkpoint adds files."""
        for size in sizes:
            self._add(partition, _File(size, frozenset({self.made + 1})))

    @precondition(lambda self: self.shown)
    @rule(pick=_pick)
    def delete_rows(self, pick: int) -> None:
        """Another program deletes a row of a file, which gets a deletion vector."""
        path = self._one(pick)
        file = self.shown[path]
        left = sorted(file.rows - file.deleted)
        self.shown[path] = replace(file, deleted=file.deleted | {*left[:1]})

    @precondition(lambda self: self.shown)
    @rule(pick=_pick)
    def merge(self, pick: int) -> None:
        """Another program writes a file again, without the deleted rows."""
        file = self.shown.pop(self._one(pick))
        self._add(2, _File(file.bytes, file.rows - file.deleted))

    def _one(self, pick: int) -> str:
        return [*self.shown][pick % len(self.shown)]

    # -------------------------------------------------------------- compactions

    @rule(files_min=st.integers(2, 4), bytes_max=st.integers(4, 40))
    def compact(self, files_min: int, bytes_max: int) -> None:
        """A tick looks for small files, and writes each group of them into one file."""
        files = [ActiveFile(path, file.bytes) for path, file in self.shown.items() if not file.deleted]
        groups = [*groups_to_compact(files, files_min, bytes_max)]
        self._judge_groups(groups, files_min, bytes_max)
        for group in groups:
            size = sum(self.shown[path].bytes for path in group)
            rows = frozenset().union(*(self.shown[path].rows for path in group))
            into = self._path(_partition(group[0]))
            self.ready.append((FileCompaction(into=FileHandle(into, len(rows), size, 7), of=group), _File(size, rows)))

    @precondition(lambda self: not self.had_many)
    @rule(more=st.integers(-1, 2))
    def compact_many(self, more: int) -> None:
        """Another table has about as many tiny files as one compaction may take. Once is enough."""
        self.had_many = True
        files = [
            ActiveFile(f"{TABLE_OF_COMPACTIONS}/_data/1/site=2/{number}", 1)
            for number in range(COMPACTED_FILES_MAX + more)
        ]
        sizes = [len(group) for group in groups_to_compact(files, 2, 10 * COMPACTED_FILES_MAX)]
        left = len(files) - sum(sizes)
        fits = all(size <= COMPACTED_FILES_MAX for size in sizes) and left < 2
        expect(fits, GROUPS, f"of {len(files)} files, {sizes} are compacted together")

    @precondition(lambda self: self.ready)
    @rule(pick=_pick, again=st.booleans())
    def publish(self, pick: int, again: bool) -> None:
        """A publication carries out a compaction, if it still may. After a crash, it is tried again."""
        compaction, new = self.ready[pick % len(self.ready)]
        before = self._rows()
        marked = {path for path, file in self.shown.items() if file.deleted}
        made = still_possible((compaction,), self.shown.keys(), marked)
        may = all(path in self.shown and path not in marked for path in compaction.of)
        due = (compaction,) if may and compaction.into.path not in self.shown else ()
        expect(made == due, KEEPS, f"{made} of {compaction}, due is {due}: the table shows {self.shown}")
        for each in made:
            self.shown = {path: file for path, file in self.shown.items() if path not in each.of}
            self.shown[each.into.path] = new
        expect(self._rows() == before, KEEPS, f"the table shows {self._rows()}, and showed {before}")
        if not again:
            self.ready.remove((compaction, new))

    def _rows(self) -> list[int]:
        return sorted(row for file in self.shown.values() for row in file.rows - file.deleted)

    # -------------------------------------------------------------- judging

    def _judge_groups(self, groups: Collection[tuple[str, ...]], files_min: int, bytes_max: int) -> None:
        size = {path: file.bytes for path, file in self.shown.items() if not file.deleted}
        grouped = [path for group in groups for path in group]
        expect(len(grouped) == len({*grouped}), GROUPS, f"a file is in two groups: {groups}")
        expect(size.keys() >= {*grouped}, GROUPS, f"{groups} of {sorted(size)}")
        small = {path for path, each in size.items() if 2 * each <= bytes_max}
        expect(small >= {*grouped}, GROUPS, f"{groups} of the small files {sorted(small)}")
        for group in groups:
            expect(len({_partition(path) for path in group}) == 1, GROUPS, f"{group} has files of two partitions")
            sizes = [size[path] for path in group]
            grows = [sizes[at] <= 2 * sum(sizes[:at]) for at in range(1, len(sizes))]
            expect(sizes == sorted(sizes) and all(grows), GROUPS, f"{sizes} are compacted: some are too large")
            fits = sum(sizes) <= bytes_max and len(sizes) <= COMPACTED_FILES_MAX
            expect(fits, GROUPS, f"{sizes} are compacted, and at most {bytes_max} may be")
        for partition in {_partition(path) for path in small}:
            left = sorted(size[path] for path in small - {*grouped} if _partition(path) == partition)
            for at in range(len(left) - files_min + 1):
                run = left[at : at + files_min]
                joins = sum(run) <= bytes_max and all(run[n] <= 2 * sum(run[:n]) for n in range(1, files_min))
                expect(not joins, GROUPS, f"{run} of {left} stay apart, and {files_min} files are enough")


def _partition(path: str) -> int:
    return int(path.partition("site=")[2][0])


def test_a_compaction_changes_no_row():
    """Meanwhile, another program deletes rows and merges files."""
    run_state_machine_as_test(CompactionsMachine, settings=judging.fitting(CompactionsMachine, settings()))
