"""A reader that follows cuts gets each row once, whatever is appended, compacted and rolled back upstream (A10)."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.delta.delta_history import CommittedVersion, DataFile, taken_back

Files = dict[str, frozenset[int]]
"""The rows in each file of a table."""


@dataclass(slots=True)
class Log:
    """A table's log, and the table's files after each version."""

    commits: list[CommittedVersion] = field(default_factory=list)
    states: list[Files] = field(default_factory=lambda: [{}])
    goes_back_to: list[int] = field(default_factory=lambda: [0])
    """The versions to which a rollback may go, since no rollback has abandoned them."""
    rows_in: Files = field(default_factory=dict)
    made: int = 0

    def commit(self, now: Files, merged: frozenset[str] = frozenset(), into: frozenset[str] = frozenset()) -> None:
        was, version = self.states[-1], len(self.commits)
        adds, removes = (sorted(one.keys() - other.keys()) for one, other in ((now, was), (was, now)))
        changed = [
            [DataFile(each, 1, 1, {}) for each in paths if each not in merged | into] for paths in (adds, removes)
        ]
        self.commits.append(CommittedVersion(version, "WRITE", 0, *map(tuple, changed), (), None, merged, into))
        self.states.append(now)
        self.rows_in |= now

    def file(self, rows: frozenset[int]) -> Files:
        self.made += 1
        return {f"f{self.made}": rows}

    def append(self, compacts: bool, draw: st.DataObject) -> None:
        """Append one to three files. The same version may compact older files into one or two."""
        now, was = dict(self.states[-1]), self.states[-1]
        for _ in range(draw.draw(st.integers(1, 3))):
            now |= self.file(frozenset({self.made}))
        merged, into = frozenset[str](), Files()
        if compacts and was:
            some = st.sets(st.sampled_from(sorted(was)), min_size=1)
            merged = frozenset(draw.draw(st.just(was.keys()) | some))
            rows = sorted(frozenset[int]().union(*(was[each] for each in merged)))
            cut = draw.draw(st.integers(0, len(rows) - 1))
            for part in filter(None, (rows[:cut], rows[cut:])):
                into |= self.file(frozenset(part))
            now = {path: held for path, held in now.items() if path not in merged} | into
        self.commit(now, merged, frozenset(into))
        self.goes_back_to.append(len(self.commits))

    def roll_back(self, least: int, draw: st.DataObject) -> None:
        """Go back to the table's files at an older version. Later rollbacks may go back to the same version."""
        target = draw.draw(st.sampled_from([each for each in self.goes_back_to if each >= least] or self.goes_back_to))
        self.commit(self.states[target])
        self.goes_back_to = [each for each in self.goes_back_to if each <= target] + [len(self.commits)]

    def lose_a_file(self, draw: st.DataObject) -> None:
        """Let another program delete a file."""
        now = dict(self.states[-1])
        now.pop(draw.draw(st.sampled_from(sorted(now))))
        self.commit(now)
        self.goes_back_to.append(len(self.commits))

    def grow(self, least: int, draw: st.DataObject, kinds: str) -> None:
        for kind in draw.draw(st.lists(st.sampled_from(kinds), max_size=8)):
            if kind == "delete" and self.states[-1]:
                self.lose_a_file(draw)
            elif kind == "back":
                self.roll_back(least, draw)
            else:
                self.append(kind == "compact", draw)

    def read(self, since: int, first: int, last: int) -> list[int] | None:
        """Return the rows that a reader gets from these versions, or None if it refuses one of them."""
        passed = taken_back(self.commits[since:last])
        rows = list[int]()
        for commit in self.commits[first:last]:
            if any((commit.version, file.path) not in passed.removes for file in commit.removes):
                return None
            rows += (
                row
                for file in commit.adds
                if (commit.version, file.path) not in passed.adds
                for row in self.rows_in[file.path]
            )
        return rows

    def rows_at(self, version: int) -> frozenset[int]:
        return frozenset[int]().union(*self.states[version].values())


OWN = ("append", "compact", "compact", "back", "back")


@given(st.data())
def test_each_row_comes_once_from_cut_to_cut(draw):
    """The reader stops on the way, the upstream job goes on, and the reader goes on to a newer cut."""
    log = Log()
    log.grow(0, draw, OWN)
    since = len(log.commits)
    least = draw.draw(st.sampled_from([0, since, since]))
    log.grow(least, draw, OWN)
    cut = len(log.commits)
    stop = draw.draw(st.integers(since, cut))
    before = log.read(since, since, cut)
    log.grow(cut, draw, OWN)
    newest = len(log.commits)
    if before is None:
        assert least < since
    else:
        assert sorted(before) == sorted(log.rows_at(cut) - log.rows_at(since))
        passed = taken_back(log.commits[since:cut])
        on_the_way = [
            row
            for commit in log.commits[since:stop]
            for file in commit.adds
            if (commit.version, file.path) not in passed.adds
            for row in log.rows_in[file.path]
        ]
        rest = log.read(since, stop, newest)
        assert rest is not None
        assert sorted(on_the_way + rest) == sorted(log.rows_at(newest) - log.rows_at(since))


@given(st.data())
def test_what_others_delete_is_refused_or_was_never_read(draw):
    log = Log()
    log.grow(0, draw, OWN)
    since = len(log.commits)
    log.grow(0, draw, (*OWN, "delete"))
    rows = log.read(since, since, len(log.commits))
    now, before = log.rows_at(len(log.commits)), log.rows_at(since)
    if rows is None:
        assert any(each.removes for each in log.commits[since:])
    else:
        assert before <= now
        assert sorted(rows) == sorted(now - before)
