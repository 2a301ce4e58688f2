"""Tests that a folder and an object store keep the same promises."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.storage.place import StoragePlace
from jobs.storage.port import ChangedError


def test_a_file_is_read_as_it_was_written(storage):
    """The test reads bytes, size and time of a file, a part of it, and a file without bytes."""
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
    """A file that was replaced or deleted meanwhile is not replaced again. Without a tag, the last writer wins."""
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
    """A list has one folder's files and folders, or all files below it. It may take several pages of a store."""
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
    """The copy stays when the first name is deleted. It replaces a file of its name."""
    storage.write("old/a", b"x")
    storage.write("new/b", b"y")
    storage.copy("old/a", "new/b")
    storage.delete("old/a")
    assert b"x" == storage.read("new/b").bytes
    with pytest.raises(FileNotFoundError):
        storage.copy("old/a", "new/c")
