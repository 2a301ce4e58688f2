"""Tests that one process at a time holds a lock of a warehouse."""

import threading
import time

from jobs.storage.place import StoragePlace, locked


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
    """Its object stays, but counts only for a limited time. The new holder deletes its own object."""
    place = StoragePlace(store, "readers/lock")
    place.write(b"somebody who died")
    monkeypatch.setattr("jobs.storage.place._COUNTS_MS", 0)
    with locked(place):
        assert b"somebody who died" != place.read()
    assert not place.exists()
