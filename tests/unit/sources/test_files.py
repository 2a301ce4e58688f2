"""Tests polling of folders of real Parquet files, without Spark."""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.committed_positions import CommitsToFile
from jobs.sources.files import file_position
from jobs.sources.files.file_footer import Footer
from jobs.sources.files.file_matching import LEDGER, FileChangedError, FoundFile, matched
from jobs.sources.files.file_position import FilePosition, SeenFile, SliceDetail, advance
from jobs.sources.files.file_source import FileSource
from jobs.sources.folder_look import Why
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import SourceError, read_schema
from jobs.tick.discovery import look_at_input

SCHEMA = StructType().add("n", LongType()).add("word", StringType())
EWR = SplitId("EWR")


def write(path: Path, rows: int, **columns: pa.Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {"n": pa.array(range(rows), pa.int64()), "word": pa.array(["w"] * rows, pa.string())}
    pq.write_table(pa.table(plain | columns), path)


def poll(source: FileSource, position: str | None = None, rows_max: int = 100):
    return source.poll(PollSource(VertexId("flights"), EWR, position, rows_max))


def names(slice_):
    return [part.file.name for part in SliceDetail.model_validate_json(slice_.detail).ranges]


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "EWR" / "002.parquet", 3)
    return tmp_path


@pytest.fixture
def source(root):
    return FileSource(root, SCHEMA)


def test_slices_follow_each_other_without_a_gap(source):
    """The first slice begins at the start. Each slice begins where the last one ends. At the end there is no slice."""
    first = poll(source, rows_max=2)
    second = poll(source, first.end, rows_max=2)
    assert (FilePosition().text(), 2) == (first.start, first.rows)
    assert (first.end, 1) == (second.start, second.rows)
    assert poll(source, second.end) is None


def test_the_same_position_gives_the_same_slice(source, root):
    """A poll can be repeated until a file arrives, because a position has only one written form."""
    write(root / "EWR" / "003.parquet", 2)
    assert poll(source) == poll(FileSource(root, SCHEMA))


@pytest.mark.parametrize("name", [".002.parquet", "_002.parquet", "003.parquet.tmp", "003.parquet.crc", "notes.txt"])
def test_unfinished_files_are_ignored(source, root, name):
    """Files with temporary names, and files of other kinds, are no input."""
    (root / "EWR" / name).write_bytes(b"PAR1 half a file")
    assert ["002.parquet"] == names(poll(source))


def test_a_new_folder_is_a_new_split(source, root):
    """The splits are the present folders, sorted. Temporary folders are left out."""
    assert ("EWR",) == source.splits()
    for name in ("ABQ", "_staging", ".hidden"):
        (root / name).mkdir()
    assert ("ABQ", "EWR") == source.splits()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "New York").mkdir(), r"New York cannot be a split.*rename the folder"),
        (lambda root: write(root / "s.parquet", 1), r"s\.parquet lies beside the folders.*\(one_split=True\)"),
        (lambda root: root.rename(root.parent / "away"), r"cannot be listed \(No such file.*create the folder"),
        (
            lambda root: (root / "EWR/1.parquet").write_bytes((root / "EWR/002.parquet").read_bytes()[:-20]),
            r"1\.parquet cannot be read as Parquet .*temporary name",
        ),
        (
            lambda root: write(root / "EWR/1.parquet", 1, n=pa.array([1.0])),
            r"1\.parquet: column 'n' is double, but the source's schema says bigint.*change the schema",
        ),
        (
            lambda root: write(root / "EWR/1.parquet", 1, word=pa.array([1], pa.int32())),
            r"1\.parquet: column 'word' is int, but the source's schema says string.*change the schema",
        ),
        (
            lambda root: pq.write_table(pa.table({"n": [1]}), root / "EWR/1.parquet"),
            r"1\.parquet has no column 'word' \(it has n\)",
        ),
        (
            lambda root: (root / "EWR" / os.fsdecode(b"\xff.parquet")).touch(),
            r"'\\udcff\.parquet'.* is not UTF-8: rename the file",
        ),
    ],
)
def test_an_input_that_cannot_be_read_is_named_with_the_way_out(source, root, change, said):
    """If the source skipped a folder or file, its rows would be lost silently."""
    change(root)
    with pytest.raises(SourceError, match=said):
        source.splits() and poll(source)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: os.utime(file, ns=(1, 1)),
        lambda file: file.rename(file.with_name("2013.parquet")),
        lambda file: file.unlink(),
    ],
    ids=["touched", "renamed", "deleted"],
)
def test_a_read_file_may_be_touched_renamed_or_deleted(source, root, change):
    """A backup or a copy gives files new times. Before it raises an error, the source compares contents."""
    slice_ = poll(source)
    change(root / "EWR" / "002.parquet")
    assert poll(source, slice_.end) is None
    if (root / "EWR" / "002.parquet").exists():
        source._check_present(EWR, SliceDetail.model_validate_json(slice_.detail).ranges[0])


def test_a_missing_folder_is_named_with_the_ways_out(source, root):
    """With an empty folder in its place, the other splits go on. If the files come back, none is read a second time."""
    end = poll(source).end
    (root / "EWR").rename(root / "_away")
    with pytest.raises(SourceError, match=r"EWR, a folder that was a split of the source, is gone: put it back, or"):
        poll(source, end)
    (root / "EWR").mkdir()
    assert poll(source, end) is None
    (root / "EWR").rmdir()
    (root / "_away").rename(root / "EWR")
    assert poll(source, end) is None


def test_a_read_file_that_changed_is_an_error(source, root):
    """The file's old rows are in the tables already, and would contradict the new contents."""
    end = poll(source).end
    write(root / "EWR" / "002.parquet", 3, n=pa.array([7, 8, 9]))
    with pytest.raises(SourceError, match=r"002\.parquet has been read, and its contents have changed") as refused:
        poll(source, end)
    assert "Put it back as it was (its time does not matter), or remove it" in str(refused.value)
    assert str(refused.value).endswith("tidemark reset PIPELINE flights --split EWR --to 002.parquet:0")


def test_a_partly_read_file_may_not_be_deleted(source, root):
    """The file's unread rows would be lost."""
    end = poll(source, rows_max=1).end
    (root / "EWR" / "002.parquet").unlink()
    with pytest.raises(SourceError, match=r"is gone, with 2 rows not yet consumed.* --to 002\.parquet:3"):
        poll(source, end)


def test_other_forms_of_the_same_type_are_accepted(tmp_path):
    """A dictionary of strings is read as string. A timestamp in INT96, as Spark writes it, is read as timestamp."""
    moments = pa.array([0], pa.timestamp("us"))
    (tmp_path / "EWR").mkdir()
    pq.write_table(
        pa.table({"word": pa.array(["w"]).dictionary_encode(), "at": moments}),
        tmp_path / "EWR" / "001.parquet",
        use_deprecated_int96_timestamps=True,
    )
    schema = StructType().add("word", StringType()).add("at", TimestampType())
    assert 1 == poll(FileSource(tmp_path, schema)).rows


def test_a_file_that_changes_between_poll_and_read_is_an_error(source, root):
    """A slice is lazy. So the source checks the files again before it builds a plan that reads them."""
    slice_ = poll(source)
    write(root / "EWR" / "002.parquet", 9)
    with pytest.raises(SourceError, match=r"002\.parquet was found with other contents than it has now"):
        source.read(None, [slice_])


def test_read_adds_split_and_position(source):
    """`read` returns the schema's columns, and the two that every source adds."""
    assert ["n", "word", "_split", "_position"] == read_schema(source).names


# ------------------------------------------------------------------
# Compares how files are matched with a model. Files are touched, renamed, removed, brought back or copied.
#
# The invariant: along one line of positions, each row of each file is read exactly once.


@dataclass(frozen=True)
class Lying:
    """A file in the folder. Each written file has its own `uid`, whatever its name is."""

    uid: int
    modified_ns: int
    rows: int
    contents: str


@dataclass
class Folder:
    """A split's folder, the position up to which the folder was read, and the rows that were read so far."""

    files: dict[str, Lying] = field(default_factory=dict)
    removed: dict[str, Lying] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    """Files that were touched or renamed once. A file that was both touched and renamed is not recognized."""
    copied: set[int] = field(default_factory=set)
    """Originals and their copies. To copy a file with its time and to remove one of the two is a rename."""
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
        """Read at most this many further rows. Return how many rows were read."""
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
        for _ in range(min(steps, len(self.line))):
            self.position, rows = self.line.pop()
            del self.read[rows:]

    def write(self, name, rows, contents=None):
        self.clock += 1
        self.files[name] = Lying(self.clock, self.clock, rows, contents or f"c{self.clock}")

    def consumed(self):
        """Return the names of files that were read completely and may be removed."""
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


@pytest.mark.parametrize("change", [{"contents": "other"}, {"rows": 6}])
def test_other_contents_under_a_known_name_are_refused(folder, change):
    """This also holds for contents of the same size."""
    folder.files["4"] = replace(folder.files["4"], modified_ns=99, **change)
    with pytest.raises(FileChangedError) as changed:
        folder.poll()
    assert ("4", "4") == (changed.value.read.name, changed.value.now.name)


def test_a_file_that_a_rename_replaced_is_forgotten(folder):
    """The rows of the forgotten file still count, so the ordinals of the next file come after them."""
    folder.files["3"] = folder.files.pop("5")
    folder.write("6", 6)
    assert 6 == folder.poll()
    assert [("4", 3), ("3", 7), ("6", 12)] == [(file.name, before) for file, before in folder.position.places()]


def test_a_file_without_a_read_row_may_change():
    """Such a file is found again as a new one, as after `tidemark reset --to FILE:0`."""
    folder = Folder()
    for rows in (3, 4):
        folder.write(f"{rows}", rows)
    folder.poll()
    folder.position = folder.position.model_copy(update={"consumed": 0})
    del folder.read[3:]
    folder.write("4", 5, "other")
    assert (5, 8) == (folder.poll(), len(folder.read))


def test_a_position_does_not_grow_with_every_file_ever_read(monkeypatch):
    """Each of 3,000 files is removed after it was read.

    The position remembers only the newest of them, and the ordinals go on.
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
    """The position has some 60 bytes for each file.

    A poll that finds nothing new opens no file, and takes a tenth of a second.
    """
    folder = Folder()
    for number in range(10_000):
        folder.write(f"2013-01-01T{number:06}.parquet", 100)
    assert 1_000_000 == folder.poll(10_000_000)
    assert len(folder.position.text()) < 70 * 10_000
    assert (0, 0) == (folder.poll(), folder.opened)


def test_reading_goes_on_from_a_position_of_format_1():
    """Such a position has no checksums of contents. A touched file counts as the same if size and rows are the same."""
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


# ------------------------------------------------------------------
# Checks the arithmetic of positions in a folder of files against a plain list of rows.


def seen(name: str, rows: int) -> SeenFile:
    return SeenFile(name=name, size=rows * 10 + 4, modified_ns=1, rows=rows)


def unseen(position: FilePosition, files: dict[str, SeenFile]) -> list[SeenFile]:
    known = {file.name for file in position.files}
    return [files[name] for name in sorted(files) if name not in known]


arrivals = st.lists(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 9), max_size=4), min_size=1, max_size=5
)


@given(arrivals=arrivals, rows_max=st.integers(1, 12))
def test_every_row_comes_once_in_any_order_of_arrival(arrivals, rows_max):
    """Files arrive in any order, under any names. The source reads each row once, and ordinals have no gap."""
    files: dict[str, SeenFile] = {}
    position, consumed, ordinals = FilePosition(), [], []
    for arrived in arrivals:
        for name, rows in arrived.items():
            files.setdefault(name, seen(name, rows))
        while True:
            position, ranges = advance(position, unseen(position, files), rows_max)
            position = FilePosition.parse(position.text())
            assert sum(part.rows for part in ranges) <= rows_max
            if not ranges:
                break
            for part in ranges:
                consumed += [(part.file.name, row) for row in range(part.first, part.end)]
                ordinals += [part.before + row for row in range(part.first, part.end)]
    assert sorted((name, row) for name, file in files.items() for row in range(file.rows)) == sorted(consumed)
    assert list(range(len(consumed))) == ordinals


def test_no_more_footers_are_read_than_needed():
    """The source opens at most one unseen file more than the slice needs."""
    taken = []

    def files():
        for name in "abcdef":
            taken.append(name)
            yield seen(name, 2)

    advance(FilePosition(), files(), 4)
    assert ["a", "b"] == taken


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../other.parquet", "/etc/passwd", "a/../b.parquet", "a//b.parquet", "a\0b"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name):
    """An entry of another warehouse brings positions and slices.

    These may not lead to a file outside the split's folder.
    """
    file = {"name": name, "size": 1, "modified_ns": 1, "rows": 1}
    detail = {"ranges": [{"file": file, "first": 0, "end": 1, "before": 0}]}
    for files in ([file], [list(file.values())]):
        with pytest.raises(SourceError, match="must be the path of a file below the split's folder"):
            FilePosition.parse(json.dumps({"files": files, "consumed": 1}))
    with pytest.raises(SourceError, match="must be the path of a file below the split's folder"):
        SliceDetail.parse(json.dumps(detail))


@pytest.mark.parametrize(("first", "end"), [(1, 1), (2, 1), (0, 4)])
def test_a_range_that_its_file_does_not_have_is_refused(first, end):
    """No slice reads rows that do not exist, and no position has read them."""
    file = {"name": "a", "size": 1, "modified_ns": 1, "rows": 3}
    detail = {"ranges": [{"file": file, "first": first, "end": end, "before": 0}]}
    with pytest.raises(SourceError, match="must be rows of the file"):
        SliceDetail.parse(json.dumps(detail))
    with pytest.raises(SourceError, match="must not be more than the last file has"):
        FilePosition.parse(json.dumps({"files": [file], "consumed": 4}))


@pytest.mark.parametrize("text", ["", "{}x", '{"format":3}', "17", '{"files":[{"name":"a"}]}'])
def test_a_foreign_position_is_refused_with_the_way_out(text):
    """A position that no file source wrote is an error. The source does not begin from the start."""
    with pytest.raises(SourceError, match="Give the new source an id of its own"):
        FilePosition.parse(text)


# ------------------------------------------------------------------
# Tests that files are removed only after a completed checkpoint has their rows, and that earlier positions are then
# refused.


@pytest.fixture
def read(tmp_path):
    for name in ("1", "2", "3"):
        write(tmp_path / "in" / "EWR" / f"{name}.parquet", 3)
    return tmp_path / "in"


@pytest.fixture
def deleting(read):
    return FileSource(read, SCHEMA, after_reading="delete")


@pytest.fixture
def archiving(read, tmp_path):
    return FileSource(read, SCHEMA, after_reading="archive", archive=tmp_path / "archive")


def complete(source, position, checkpoint=1):
    source.notify_checkpoint_complete(CheckpointId(checkpoint), {EWR: position})


def files_in(folder):
    return sorted(path.stem for path in folder.iterdir() if not path.name.startswith("_"))


def test_only_whole_files_before_the_completed_position_are_removed(deleting, read):
    """A poll ahead removes no file. A late file with an earlier name is read, and a changed file stays."""
    first = poll(deleting, rows_max=3)
    part = poll(deleting, first.end, rows_max=2)
    assert ["1", "2", "3"] == files_in(read / "EWR")
    complete(deleting, first.end)
    assert ["2", "3"] == files_in(read / "EWR")
    complete(deleting, part.end, 2)
    assert ["2", "3"] == files_in(read / "EWR")
    rest = poll(deleting, part.end, rows_max=1)
    write(read / "EWR" / "0.parquet", 1)
    assert 4 == poll(deleting, rest.end, rows_max=10).rows
    write(read / "EWR" / "2.parquet", 5)
    complete(deleting, rest.end, 3)
    assert ["0", "2", "3"] == files_in(read / "EWR")


def test_keep_removes_nothing_and_is_the_default(read):
    """A source without the setting removes no file."""
    source = FileSource(read, SCHEMA)
    complete(source, poll(source).end)
    assert ["1", "2", "3"] == files_in(read / "EWR")


def test_an_earlier_position_is_refused_by_name(deleting, archiving, read, tmp_path):
    """Otherwise a rollback, or a job that begins at the start, would silently miss the rows of removed files."""
    first = poll(archiving, rows_max=3)
    second = poll(archiving, first.end, rows_max=3)
    complete(archiving, second.end, 7)
    for position in (None, first.end):
        with pytest.raises(SourceError, match=r"after its checkpoint 7, .* bring them back from .*archive and delete"):
            poll(archiving, position, rows_max=3)
    assert poll(archiving, second.end, rows_max=3).rows == 3
    for path in (tmp_path / "archive" / "EWR").iterdir():
        path.rename(read / "EWR" / path.name)
    (read / "EWR" / LEDGER).unlink()
    assert first == poll(archiving, rows_max=3)


def test_a_second_call_changes_nothing(archiving, read, tmp_path):
    """At its start, a tick reports the restored checkpoint again. A crash may have left some of the files."""
    first = poll(archiving, rows_max=3)
    complete(archiving, first.end)
    complete(archiving, first.end)
    assert ["1"] == files_in(tmp_path / "archive" / "EWR")
    assert ["2", "3"] == files_in(read / "EWR")


def test_the_ledger_is_written_before_a_file_is_removed(deleting, read, monkeypatch):
    """So a crash between the two steps may leave a file, but never removes a file that the ledger does not name."""

    def crash(self, **_):
        raise KeyboardInterrupt

    first = poll(deleting, rows_max=3)
    monkeypatch.setattr("pathlib.Path.unlink", crash)
    with pytest.raises(KeyboardInterrupt):
        complete(deleting, first.end)
    assert (read / "EWR" / LEDGER).exists()


def test_an_archive_overwrites_nothing(archiving, read, tmp_path):
    """A file of that name in the archive is another file."""
    write(tmp_path / "archive" / "EWR" / "1.parquet", 9)
    with pytest.raises(SourceError, match=r"1\.parquet has been read, and cannot be archived: there is .* already"):
        complete(archiving, poll(archiving, rows_max=3).end)
    assert "1" in files_in(read / "EWR")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"after_reading": "burn"}, "write one of keep, archive, delete"),
        ({"after_reading": "archive"}, "give both, or neither"),
        ({"archive": "elsewhere"}, "give both, or neither"),
        ({"after_reading": "archive", "archive": "in/old"}, "lies below the source's root"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(read, monkeypatch, given, message):
    """The message says what to write."""
    monkeypatch.chdir(read.parent)
    with pytest.raises(SourceError, match=message):
        FileSource("in", SCHEMA, **given)


# ------------------------------------------------------------------
# Tests that a source of files reports how many files it ignores and which, with the reason and the way out.


ORDERS = VertexId("orders")


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def sentences(root, source=None):
    return [
        said for seen in look_at_input({ORDERS: source or FileSource(root, SCHEMA)}, None) for said in seen.sentences()
    ]


def test_other_suffixes_are_counted_and_named(root):
    """Some files are CSV or JSON lines, others have odd suffixes.

    The message has three names, how many more, and what to do.
    """
    touch(root, "EWR/a.csv", "EWR/b.jsonl", "EWR/c.parq", "EWR/d.PARQUET")
    (said,) = sentences(root)
    names = "(EWR/a.csv, EWR/b.jsonl, EWR/c.parq and 1 more)"
    assert f"source orders passes over 4 files in {root}: 4 whose names do not end in .parquet {names}" in said
    assert "to have them read, write those as Parquet, or rename them; to silence this message, let their names" in said


def test_nested_files_and_files_beside_the_splits_are_named_with_a_way_out(root):
    """The source searches folders inside a split's folder at any depth. It leaves hidden files out."""
    touch(root, "EWR/2024/01/x.parquet", "EWR/2024/_SUCCESS", "EWR/2024/_temporary/y.parquet", "README.txt")
    (said,) = sentences(root)
    assert "passes over 2 files" in said
    assert "1 in folders inside a split's folder (EWR/2024/01/x.parquet)" in said
    assert "1 beside the folders of splits (README.txt)" in said
    assert "move those up into the split's folder and move those into one of the folders" in said


def test_a_link_without_a_target_is_named(root):
    """The link has the right suffix, but leads to no file."""
    (root / "EWR" / "2.parquet").symlink_to(root / "gone.parquet")
    assert {Why.NO_FILE: ["EWR/2.parquet"]} == FileSource(root, SCHEMA).look().passed_over


@pytest.mark.parametrize(
    "name", ["EWR/_SUCCESS", "EWR/.x.crc", "EWR/_x.parquet", "EWR/x.parquet.tmp", "EWR/x._COPYING_", "_tmp/x.csv"]
)
def test_files_hidden_by_convention_are_ignored_silently(root, name):
    """Spark ignores such files, too."""
    touch(root, name)
    assert (1, {}) == ((found := FileSource(root, SCHEMA).look()).files, found.passed_over)
    assert [] == sentences(root)


def test_a_source_that_has_never_found_a_file_says_where_it_looks(root):
    """A wrapped source, whose positions are committed outside, reports the same."""
    (root / "EWR" / "002.parquet").rename(root / "EWR" / "2.csv")
    said = sentences(root)
    assert said == sentences(root, CommitsToFile(FileSource(root, SCHEMA), root / "_positions.json"))
    assert (
        f"source orders has found no file under {root}: it reads {root}/SPLIT/*.parquet, "
        "and none of the 1 folders there has such a file; put the input there, or name the right folder (--data)"
    ) == said[0]
    assert "passes over 1 file in" in said[1]


def test_a_source_without_a_folder_reports_nothing(root):
    """A source of numbers reads no files."""
    assert [] == sentences(root, SequenceSource({"a": 1}))
