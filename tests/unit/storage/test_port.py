"""Tests that a folder and an object store keep the same promises."""

import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.storage.copy_folder import measured
from jobs.storage.folder import Folder
from jobs.storage.parquet import FileScan, Numbering, ScanError
from jobs.storage.place import LISTED_FROM, StoragePlace, both, in_threads, locked, sizes_of, together
from jobs.storage.port import ChangedError


def test_a_file_is_read_as_it_was_written(storage):
    """A read returns bytes, size and time of a file, or a part of the file. A file may be empty."""
    before_ms = time.time() * 1000
    storage.write("a/b/c.json", b"0123456789")
    found = storage.read("a/b/c.json")
    assert (b"0123456789", 10) == (found.bytes, found.size)
    assert before_ms - 2_000 < found.changed_ms < time.time() * 1000 + 2_000
    assert (b"012", 10) == (storage.read("a/b/c.json", most=3).bytes, storage.read("a/b/c.json", most=3).size)
    assert (b"", 10) == (storage.read("a/b/c.json", most=0).bytes, storage.read("a/b/c.json", most=0).size)
    assert b"789" == storage.read("a/b/c.json", start=7, most=100).bytes
    storage.write("empty", b"")
    assert b"" == storage.read("empty").bytes
    assert b"0123456789" == b"".join(StoragePlace(storage, "a/b/c.json").chunks())


def test_a_missing_file_has_its_own_answers(storage):
    """Reading raises FileNotFoundError, the list of a missing folder is empty, and deleting does nothing."""
    storage.write("a/b", b"x")
    for name in ("a/c", "c", "a"):
        with pytest.raises(OSError):  # noqa: PT011 - reading a folder is another error
            storage.read(name)
    with pytest.raises(FileNotFoundError):
        storage.read("nowhere/at/all", most=0)
    assert [] == list(storage.list("nowhere"))
    storage.delete("nowhere/at/all")
    assert StoragePlace(storage, "a/b").exists()
    assert not StoragePlace(storage, "a/c").exists()
    assert StoragePlace(storage, "nowhere").size() is None


def test_exactly_one_of_several_writers_succeeds(storage):
    """Eight threads write each of ten names at the same moment. The file has the winner's bytes."""

    def wrote(job):
        name, writer = job
        try:
            storage.write(f"race/{name}", str(writer).encode())
        except FileExistsError:
            return None
        return name, str(writer).encode()

    with ThreadPoolExecutor(8) as pool:
        won = [each for each in pool.map(wrote, [(name, writer) for name in range(10) for writer in range(8)]) if each]
    assert list(range(10)) == sorted(name for name, _ in won)
    assert dict(won) == {name: storage.read(f"race/{name}").bytes for name in range(10)}


def test_a_file_is_replaced_only_if_it_is_as_it_was_read(storage):
    """A file that was replaced or deleted since it was read is not replaced. Without a tag, the last writer wins."""
    storage.replace("lease", b"1")
    tag = storage.read("lease").tag
    storage.replace("lease", b"22", unchanged=tag)
    with pytest.raises(ChangedError):
        storage.replace("lease", b"3", unchanged=tag)
    assert b"22" == storage.read("lease").bytes
    tag = storage.read("lease", most=0).tag
    storage.delete("lease")
    with pytest.raises(ChangedError):
        storage.replace("lease", b"4", unchanged=tag)
    assert not StoragePlace(storage, "lease").exists()
    storage.replace("lease", b"5", durable=False)
    storage.replace("lease", b"6")
    assert b"6" == storage.read("lease").bytes


def test_lists_have_files_and_folders(storage):
    """A list has one folder's files and folders, or all files below the folder.

    A store may need several pages for it.
    """
    names = {f"t/_data/{generation}/{file}.parquet" for generation in (1, 2) for file in range(3)}
    for name in (*names, "t/_delta_log/0.json", "tt/other"):
        storage.write(name, b"four", durable=False)
    assert {("_data", True), ("_delta_log", True)} == {(each.name, each.is_folder) for each in storage.list("t")}
    assert {("0.json", False)} == {(each.name, each.is_folder) for each in storage.list("t/_delta_log")}
    assert {"t", "tt"} == {each.name for each in storage.list("")}
    deep = list(storage.list("t/_data", deep=True))
    assert names == {f"t/_data/{each.name}" for each in deep}
    assert {4} == {each.size for each in deep}
    assert all(abs(each.changed_ms / 1000 - time.time()) < 60 for each in deep)
    assert [StoragePlace(storage, "t/_data/1"), StoragePlace(storage, "t/_data/2")] == StoragePlace(
        storage, "t/_data"
    ).folders()
    assert 8 == len(list(storage.list("", deep=True)))


def test_a_copy_is_another_name(storage):
    """The copy stays when the first file is deleted. It replaces an existing file of its name."""
    storage.write("old/a", b"x")
    storage.write("new/b", b"y")
    storage.copy("old/a", "new/b")
    storage.delete("old/a")
    assert b"x" == storage.read("new/b").bytes
    with pytest.raises(FileNotFoundError):
        storage.copy("old/a", "new/c")


# ------------------------------------------------------------------
# Tests that only one process at a time holds a lock of a warehouse.


def test_only_one_holder_at_a_time(storage):
    """Four threads hold the lock one after the other."""
    place, inside, most = StoragePlace(storage, "readers/lock"), [], []

    def hold():
        with locked(place):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [1, 1, 1, 1] == most


def test_the_lock_of_a_dead_holder_in_a_store_expires(store, monkeypatch):
    """A dead holder's object stays, but counts only for a limited time. A living holder deletes its own object."""
    place = StoragePlace(store, "readers/lock")
    place.write(b"somebody who died")
    monkeypatch.setattr("jobs.storage.place._COUNTS_MS", 0)
    with locked(place):
        assert b"somebody who died" != place.read()
    assert not place.exists()


# ------------------------------------------------------------------
# Tests that independent requests go to a store at the same time, and to a folder one after the other.


def test_a_folder_answers_in_order_and_in_the_callers_thread(tmp_path):
    asked = []
    together(Folder(tmp_path), lambda each: asked.append((each, threading.current_thread())), range(5))
    assert [(each, threading.current_thread()) for each in range(5)] == asked


def test_a_store_is_asked_at_the_same_time_and_answers_come_in_order(store):
    """Twenty requests of 50 ms take far less than a second in all. The first one takes longest."""
    began = time.monotonic()
    answers = together(store, lambda each: (time.sleep(0.05 + 0.05 * (each == 0)), each)[1], range(20))
    assert list(range(20)) == answers
    assert time.monotonic() - began < 0.8
    assert ("a", "b") == both(store, lambda: "a", lambda: "b")


def test_the_first_error_is_raised_and_no_further_call_begins():
    begun, ended = [], []

    def call(each):
        begun.append(each)
        time.sleep(0.05)
        if each == 1:
            raise ValueError(each)
        ended.append(each)

    with pytest.raises(ValueError, match="1"):
        list(in_threads(2, call, range(50)))
    assert len(begun) == len(ended) + 1
    assert len(begun) < 50


@pytest.mark.parametrize("files", [LISTED_FROM - 1, LISTED_FROM])
def test_few_files_are_looked_up_and_many_are_listed(storage, files):
    """A missing file has no size. A file of another folder is looked up, too."""
    for number in range(files):
        storage.write(f"data/{number}", b"x" * number)
    storage.write("else/where", b"12")
    names = [f"data/{number}" for number in range(files)]
    found = sizes_of(storage, [*names, "data/none", "else/where", "else/none"])
    assert {name: number for number, name in enumerate(names)} | {
        "data/none": None,
        "else/where": 2,
        "else/none": None,
    } == found


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 1_000_000])
def test_size_and_checksum_are_those_of_the_whole_file(storage, size):
    """The file may be longer than the buffer, or be read after a longer file."""
    content = bytes(range(251)) * (size // 251 + 1)
    storage.write("longer", content * 2)
    storage.write("file", content[:size])
    measured(StoragePlace(storage, "longer"))
    assert (size, zlib.crc32(content[:size])) == measured(StoragePlace(storage, "file"))


# ------------------------------------------------------------------
# Tests that exactly the asked part of a Parquet file is read, whatever the file's row groups are.


STORED = pa.schema([("k", pa.int64()), ("v", pa.string())])
NUMBERED = pa.schema([("v", pa.string()), ("_position", pa.int64()), ("k", pa.int64()), ("_split", pa.string())])


def stored(folder, rows, group_rows):
    table = pa.table([range(rows), [f"value {number}" for number in range(rows)]], schema=STORED)
    pq.write_table(table, folder / "a.parquet", row_group_size=group_rows)


def scan(folder, first, end, numbering=None):
    return FileScan(root=str(folder), name="a.parquet", first=first, end=end, bytes=1, numbering=numbering)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_exactly_the_asked_rows_come_in_order_with_their_positions(tmp_path_factory, data):
    """The positions count from the position of row 0, wherever the scan begins."""
    folder = tmp_path_factory.mktemp("scanned")
    rows = data.draw(st.integers(1, 60))
    first = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(first + 1, rows))
    stored(folder, rows, data.draw(st.integers(1, rows)))
    batches = scan(folder, first, end, Numbering("_split", "EWR", "_position", 1_000)).batches(NUMBERED)
    found = pa.Table.from_batches(batches, NUMBERED).to_pylist()
    assert found == [
        {"v": f"value {number}", "_position": 1_000 + number, "k": number, "_split": "EWR"}
        for number in range(first, end)
    ]


def test_only_the_asked_columns_come_widened_and_a_missing_one_is_null(tmp_path):
    """Spark also reads a file of an older schema in this way."""
    pq.write_table(pa.table({"k": pa.array([1], pa.int32()), "other": ["x"]}), tmp_path / "a.parquet")
    wanted = pa.schema([("k", pa.int64()), ("new", pa.decimal128(9, 2))])
    (batch,) = scan(tmp_path, 0, 1).batches(wanted)
    assert batch.schema == wanted
    assert batch.to_pylist() == [{"k": 1, "new": None}]


@pytest.mark.parametrize("case", ["missing", "damaged", "shorter"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, case):
    if case == "damaged":
        (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    if case == "shorter":
        stored(tmp_path, 3, 2)
    with pytest.raises(ScanError, match=r"a\.parquet cannot be read .*: put it back as it was"):
        list(scan(tmp_path, 0, 4).batches(STORED))
