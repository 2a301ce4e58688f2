"""Tests that independent questions go to a store at the same time, and to a folder in order."""

import threading
import time
import zlib

import pytest

from jobs.storage.copy_folder import measured
from jobs.storage.folder import Folder
from jobs.storage.place import LISTED_FROM, StoragePlace, both, in_threads, sizes_of, together


def test_a_folder_answers_in_order_and_in_the_callers_thread(tmp_path):
    """A thread would cost more than the answer."""
    asked = []
    together(Folder(tmp_path), lambda each: asked.append((each, threading.current_thread())), range(5))
    assert [(each, threading.current_thread()) for each in range(5)] == asked


def test_a_store_is_asked_at_the_same_time_and_answers_come_in_order(store):
    """Twenty waits of 50 ms take far less than a second, although the first takes longest."""
    began = time.monotonic()
    answers = together(store, lambda each: (time.sleep(0.05 + 0.05 * (each == 0)), each)[1], range(20))
    assert list(range(20)) == answers
    assert time.monotonic() - began < 0.8
    assert ("a", "b") == both(store, lambda: "a", lambda: "b")


def test_the_first_error_is_raised_and_no_further_call_begins():
    """Calls that have begun end before the error is raised."""
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
    """A missing file has no size. A file of another folder is looked up too."""
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
    """The file may be longer than the buffer, or be read after a longer one."""
    content = bytes(range(251)) * (size // 251 + 1)
    storage.write("longer", content * 2)
    storage.write("file", content[:size])
    measured(StoragePlace(storage, "longer"))
    assert (size, zlib.crc32(content[:size])) == measured(StoragePlace(storage, "file"))
