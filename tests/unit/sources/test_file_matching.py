"""Compares the matching of files with a model: files are touched, renamed, removed, brought back or copied.

The invariant: along one line of positions, each row of each file is read exactly once.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.files import file_position
from jobs.sources.files.file_footer import Footer
from jobs.sources.files.file_matching import FileChangedError, FoundFile, matched
from jobs.sources.files.file_position import FilePosition, SeenFile, advance


@dataclass(frozen=True)
class Lying:
    """A file in the folder. Each file that was written has its own `uid`, whatever its name is."""

    uid: int
    modified_ns: int
    rows: int
    contents: str


@dataclass
class Folder:
    """A split's folder, the position up to which it was read, and the rows that were read so far."""

    files: dict[str, Lying] = field(default_factory=dict)
    removed: dict[str, Lying] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    """Files that were touched or renamed once. A file that was both is not recognized."""
    copied: set[int] = field(default_factory=set)
    """Originals and their copies. If you copy a file with its time and remove one of the two, this is a rename."""
    position: FilePosition = field(default_factory=FilePosition)
    read: list[tuple[int, int]] = field(default_factory=list)
    line: list[tuple[FilePosition, int]] = field(default_factory=list)
    opened: int = 0
    clock: int = 0

    def found(self):
        return {
            name: FoundFile(name, file.rows * 10, file.modified_ns)
            for name, file in sorted(self.files.items(), key=lambda each: each[0])
        }

    def footer(self, name):
        self.opened += 1
        return Footer(self.files[name].rows, self.files[name].contents, ())

    def poll(self, rows_max=1_000_000):
        """Read at most so many further rows. Return how many were read."""
        found = self.found()
        known = matched(self.position, found, self.footer)
        unseen = (
            SeenFile(
                name=name,
                size=found[name].size,
                modified_ns=found[name].modified_ns,
                rows=self.files[name].rows,
                contents=self.files[name].contents,
            )
            for name in known.unseen
        )
        end, ranges = advance(known.position.remembering(found), unseen, rows_max)
        if not ranges:
            return 0
        for part in ranges:
            assert part.before + part.first == len(self.read)
            self.read += [(self.files[part.file.name].uid, row) for row in range(part.first, part.end)]
        self.line.append((self.position, len(self.read) - sum(part.rows for part in ranges)))
        self.position = FilePosition.parse(end.text())
        return sum(part.rows for part in ranges)

    def go_back(self, steps):
        """Return to an earlier position of the line."""
        for _ in range(min(steps, len(self.line))):
            self.position, rows = self.line.pop()
            del self.read[rows:]

    def write(self, name, rows, contents=None):
        self.clock += 1
        self.files[name] = Lying(self.clock, self.clock, rows, contents or f"c{self.clock}")

    def consumed(self):
        """Return the names of files that were read whole and may be removed."""
        read = set(self.read)
        return [
            name
            for name, file in self.files.items()
            if file.rows and (file.uid, file.rows - 1) in read and file.uid not in self.copied
        ]


def strike(folder, data):
    """Do one thing to the folder, as a user may."""
    what = data.draw(st.sampled_from(["write", "touch", "rename", "remove", "bring back", "copy", "poll", "go back"]))
    free = [n for n in "abcdefghijkl" if n not in folder.files and n not in folder.removed]
    fixed = [name for name, file in folder.files.items() if file.uid not in folder.moved]
    if what == "write" and free:
        folder.write(data.draw(st.sampled_from(free)), data.draw(st.integers(0, 4)))
    elif what == "touch" and fixed:
        name = data.draw(st.sampled_from(fixed))
        folder.clock += 1
        folder.moved.add(folder.files[name].uid)
        folder.files[name] = replace(folder.files[name], modified_ns=folder.clock)
    elif what == "rename" and fixed:
        name = data.draw(st.sampled_from(fixed))
        folder.moved.add(folder.files[name].uid)
        other = data.draw(st.sampled_from([*free, *fixed, name]))
        folder.moved |= {folder.files[other].uid} if other in folder.files else set()
        folder.files[name], folder.files[other] = folder.files.get(other), folder.files[name]
        folder.files = {each: file for each, file in folder.files.items() if file is not None}
    elif what == "remove" and folder.consumed():
        name = data.draw(st.sampled_from(folder.consumed()))
        folder.removed[name] = folder.files.pop(name)
    elif what == "bring back" and folder.removed:
        name = data.draw(st.sampled_from(sorted(folder.removed)))
        folder.files[name] = folder.removed.pop(name)
    elif what == "copy" and free and fixed:
        original = folder.files[data.draw(st.sampled_from(fixed))]
        folder.clock += 1
        folder.moved |= {original.uid, folder.clock}
        folder.copied |= {original.uid, folder.clock}
        folder.files[data.draw(st.sampled_from(free))] = replace(original, uid=folder.clock)
    elif what == "poll":
        folder.poll(data.draw(st.integers(1, 9)))
    elif what == "go back" and not folder.removed:
        folder.go_back(data.draw(st.integers(1, 3)))


@given(data=st.data())
def test_each_row_is_read_exactly_once_whatever_happens_to_the_files(data):
    """Files arrive under any name, are touched, renamed, swapped, removed, brought back and copied.

    Reading also goes back.
    """
    folder = Folder()
    written = {}
    for _ in range(data.draw(st.integers(1, 25))):
        strike(folder, data)
        written |= {file.uid: file.rows for file in (*folder.files.values(), *folder.removed.values())}
    while folder.poll():
        pass
    assert sorted((uid, row) for uid, rows in written.items() for row in range(rows)) == sorted(folder.read)


@pytest.fixture
def folder():
    """Return a folder with files of 3, 4 and 5 rows, all read."""
    folder = Folder()
    for rows in (3, 4, 5):
        folder.write(f"{rows}", rows)
    folder.poll()
    return folder


def test_no_file_is_opened_while_nothing_changes(folder):
    """Sizes and times are enough."""
    assert (0, 0) == (folder.poll(), folder.opened)


def test_a_touched_file_is_opened_until_the_position_knows_its_new_time(folder):
    """The next slice records the time."""
    folder.files["4"] = replace(folder.files["4"], modified_ns=99)
    assert (0, 1) == (folder.poll(), folder.opened)
    folder.write("6", 6)
    folder.poll()
    opened = folder.opened
    assert (0, opened) == (folder.poll(), folder.opened)


@pytest.mark.parametrize("change", [{"contents": "other"}, {"rows": 6}])
def test_other_contents_under_a_known_name_are_refused(folder, change):
    """This holds for contents of the same size too."""
    folder.files["4"] = replace(folder.files["4"], modified_ns=99, **change)
    with pytest.raises(FileChangedError) as changed:
        folder.poll()
    assert ("4", "4") == (changed.value.read.name, changed.value.now.name)


def test_a_file_without_a_read_row_may_change():
    """It is found anew, as after `tidemark reset --to FILE:0`."""
    folder = Folder()
    for rows in (3, 4):
        folder.write(f"{rows}", rows)
    folder.poll()
    folder.position = folder.position.model_copy(update={"consumed": 0})
    del folder.read[3:]
    folder.write("4", 5, "other")
    assert (5, 8) == (folder.poll(), len(folder.read))


def test_a_partly_read_file_that_was_renamed_is_read_on():
    """No row of it is lost or read again."""
    folder = Folder()
    folder.write("a", 5)
    folder.poll(2)
    folder.files["b"] = folder.files.pop("a")
    assert (3, [(1, row) for row in range(5)]) == (folder.poll(), folder.read)


def test_a_file_that_a_rename_replaced_is_forgotten(folder):
    """Its rows still count, so the ordinals of the next file come after them."""
    folder.files["3"] = folder.files.pop("5")
    folder.write("6", 6)
    assert 6 == folder.poll()
    assert [("4", 3), ("3", 7), ("6", 12)] == [(file.name, before) for file, before in folder.position.places()]


def test_a_copy_beside_its_original_is_a_file_of_its_own(folder):
    """Name, size, time and contents may be the same."""
    folder.files["copy"] = replace(folder.files["4"], uid=99)
    assert 4 == folder.poll()


def test_a_position_does_not_grow_with_every_file_ever_read(monkeypatch):
    """Each of 3,000 files is removed after it was read.

    The position remembers the newest of them, and ordinals go on.
    """
    monkeypatch.setattr(file_position, "GONE_KEPT", 10)
    folder, longest = Folder(), 0
    for number in range(3_000):
        folder.files = {}
        folder.write(f"{number:06}.parquet", 1)
        assert 1 == folder.poll()
        folder.line.clear()
        longest = max(longest, len(folder.position.text()))
    assert 3_000 == len(folder.read) == folder.position.before + folder.position.consumed
    assert longest < 1_000
    last, before = list(folder.position.places())[-1]
    assert ("002999.parquet", 2_999) == (last.name, before)


def test_a_file_that_comes_back_is_not_read_again_while_it_is_remembered(monkeypatch):
    """Of the removed files, the position keeps those that were discovered last."""
    monkeypatch.setattr(file_position, "GONE_KEPT", 2)
    folder = Folder()
    for name in "abcd":
        folder.write(name, 1)
    folder.poll()
    gone = {name: folder.files.pop(name) for name in "abc"}
    folder.write("e", 1)
    folder.poll()
    folder.files |= {name: gone[name] for name in "bc"}
    assert 0 == folder.poll()
    folder.files["a"] = gone["a"]
    assert 1 == folder.poll()


def test_a_position_of_ten_thousand_files_is_small_and_quick():
    """It takes some 60 bytes a file. It takes a tenth of a second to find that nothing is new."""
    folder = Folder()
    for number in range(10_000):
        folder.write(f"2013-01-01T{number:06}.parquet", 100)
    assert 1_000_000 == folder.poll(10_000_000)
    assert len(folder.position.text()) < 70 * 10_000
    assert (0, 0) == (folder.poll(), folder.opened)


def test_reading_goes_on_from_a_position_of_format_1():
    """It has no contents of its files. A touched file counts as the same if size and rows are the same."""
    file = '{"name":"a","size":30,"modified_ns":1,"rows":3}'
    position = FilePosition.parse(f'{{"format":1,"files":[{file}],"consumed":3,"before":0}}')
    folder = Folder(position=position)
    folder.write("a", 3)
    assert 0 == folder.poll()
    folder.files["a"] = replace(folder.files["a"], modified_ns=5)
    assert 0 == folder.poll()
    folder.write("b", 1)
    folder.read = [(1, 0), (1, 1), (1, 2)]
    assert 1 == folder.poll()
    assert '"format":2' in folder.position.text()
    folder.files["a"] = replace(folder.files["a"], rows=4)
    with pytest.raises(FileChangedError):
        folder.poll()
