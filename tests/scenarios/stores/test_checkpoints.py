"""Tests the table `checkpoints`: an append is a true compare-and-swap between processes, even if a reply is lost."""

import json
import shutil
from pathlib import Path
from time import sleep

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.codec import UnknownFormatError
from checkpointing.metadata.record import Release, RowKind
from jobs.warehouse.checkpoints import (
    SCHEMA,
    Appended,
    CheckpointStore,
    Refused,
    Unknown,
)
from jobs.warehouse.delta_log import CommitMoment
from jobs.warehouse.log_lengths import EVERY_VERSIONS


class LostReplyError(Exception):
    """A store raises this when the reply to a commit did not arrive."""


def _raise_at(moment, times=1):
    left = [times]

    def hook(now):
        if now is moment and left[0]:
            left[0] -= 1
            raise LostReplyError

    return hook


def _checkpoints(rows):
    return [row.checkpoint for row in rows if hasattr(row, "checkpoint")]


def _folder(warehouse) -> Path:
    return warehouse.path(warehouse.paths.checkpoints)


def test_any_store_reads_the_entries_newest_first(warehouse, rows):
    """One process reads the entries that another one appended, the newest version first."""
    store = CheckpointStore(warehouse)
    assert (0, ()) == store.observe()
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert Appended(2) == store.append(rows.checkpoint(1), 1)
    expected = (2, (rows.checkpoint(1), rows.claim(1)))
    assert expected == store.observe()
    assert expected == CheckpointStore(warehouse).observe()


def test_the_latest_entries_are_the_observed_ones_after_any_append_or_removal(warehouse, rows, monkeypatch):
    """The store knows its own last append without reading the log. It reads the appends of others."""
    store = CheckpointStore(warehouse)
    store.append(rows.claim(1), 0)
    store.append(rows.checkpoint(1), 1)
    store.append(rows.checkpoint(2), 2, {CheckpointId(1)})
    with monkeypatch.context() as patched:
        patched.setattr(store, "observe", lambda: pytest.fail("it looked"))
        assert (rows.checkpoint(2), rows.claim(1)) == store.latest()
    other = CheckpointStore(warehouse)
    other.append(rows.claim(2), 3)
    assert (rows.claim(2), rows.checkpoint(2), rows.claim(1)) == store.latest()
    store.append(rows.checkpoint(3, 2), 4, marks={CheckpointId(2): True})
    assert CheckpointStore(warehouse).observe()[1] == store.latest()
    assert store.latest()[2].abandoned


def test_sql_users_can_read_an_entry(warehouse, rows):
    """The table has plain columns beside the payload."""
    CheckpointStore(warehouse).append(rows.checkpoint(4), 0)
    (row,) = DeltaTable(str(_folder(warehouse))).to_pyarrow_table().to_pylist()
    assert ("checkpoint", 4, 1, "1/4", 1) == tuple(
        row[name] for name in ("kind", "checkpoint", "generation", "nonce", "version")
    )
    assert "tidemark 0.1.0" == json.loads(row["payload"])["writer"]


def test_an_entry_is_committed_only_after_its_files_are_durable(warehouse, rows):
    """They are made durable while the entry is written, and the commit waits for that, however long it takes."""
    seen = []

    def make_durable():
        sleep(0.3)
        seen.append(checker.observe()[0])

    store, checker = CheckpointStore(warehouse), CheckpointStore(warehouse)
    assert Appended(1) == store.append(rows.claim(1), 0, make_durable=make_durable)
    assert [0] == seen


def test_if_files_cannot_be_made_durable_nothing_is_committed(warehouse, rows):
    """The error says why, and a second call is safe."""

    def fail():
        raise OSError("the disk is gone")

    store = CheckpointStore(warehouse)
    answer = store.append(rows.claim(1), 0, make_durable=fail)
    assert isinstance(answer, Unknown)
    assert "the disk is gone" in answer.error
    assert (0, ()) == CheckpointStore(warehouse).observe()
    assert Appended(1) == store.append(rows.claim(1), 0)


def test_an_append_at_a_taken_version_is_refused_and_names_the_holder(warehouse, rows):
    """A zombie learns which process took the job. The zombie's entry is not in, and never will be."""
    zombie, successor = CheckpointStore(warehouse), CheckpointStore(warehouse)
    assert Appended(1) == zombie.append(rows.claim(1, "alpha"), 0)
    assert Appended(2) == successor.append(rows.claim(2, "beta"), 1)
    result = zombie.append(rows.checkpoint(1, generation=1), 1)
    assert isinstance(result, Refused)
    assert "process 1 on beta, generation 2" in result.holder
    assert [] == _checkpoints(successor.observe()[1])


def test_an_append_never_rebases_on_a_commit_that_came_in_between(warehouse, rows):
    """Another process commits between this store's look and its commit.

    The store refuses, although the rows do not conflict.
    """
    rival = CheckpointStore(warehouse)
    store = CheckpointStore(
        warehouse,
        hook=lambda moment: (moment is CommitMoment.BEFORE) and rival.append(rows.claim(2, "beta"), rival.observe()[0]),
    )
    result = store.append(rows.claim(1, "alpha"), 0)
    assert isinstance(result, Refused)
    assert "beta" in result.holder
    assert (1, (rows.claim(2, "beta"),)) == rival.observe()


def test_a_reply_lost_after_the_commit_is_found_by_its_nonce(warehouse, rows):
    """The commit is in, and the reply is lost. Reading back returns Appended, and the entry is in once."""
    store = CheckpointStore(warehouse, hook=_raise_at(CommitMoment.AFTER))
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert (1, (rows.claim(1),)) == store.observe()


def test_an_append_with_a_lost_reply_is_found_below_later_commits(warehouse, rows):
    """Our entry is in at its version, although the table has newer versions."""
    rival = CheckpointStore(warehouse)

    def hook(moment):
        if moment is CommitMoment.AFTER:
            assert Appended(2) == rival.append(rows.claim(2, "beta"), 1)
            raise LostReplyError

    assert Appended(1) == CheckpointStore(warehouse, hook=hook).append(rows.claim(1), 0)


def test_an_append_with_a_lost_reply_is_found_although_the_entry_was_subsumed(warehouse, rows):
    """The entry was in the table, so the append counts as done even after the entry was removed."""
    rival = CheckpointStore(warehouse)

    def hook(moment):
        if moment is CommitMoment.AFTER:
            assert Appended(2) == rival.append(rows.checkpoint(2), 1, [CheckpointId(1)])
            raise LostReplyError

    assert Appended(1) == CheckpointStore(warehouse, hook=hook).append(rows.checkpoint(1), 0)


def test_a_failed_commit_with_a_free_version_is_unknown_and_may_be_repeated(warehouse, rows):
    """Nobody can know whether a request is still on its way. Asking again settles it."""
    store = CheckpointStore(warehouse, hook=_raise_at(CommitMoment.BEFORE))
    result = store.append(rows.claim(1), 0)
    assert isinstance(result, Unknown)
    assert "LostReplyError: " == result.error
    assert Appended(1) == store.append(rows.claim(1), 0)


def test_asking_again_for_an_appended_entry_finds_it_and_adds_nothing(warehouse, rows):
    """A caller that lost the answer may repeat its question."""
    store = CheckpointStore(warehouse)
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert Appended(1) == CheckpointStore(warehouse).append(rows.claim(1), 0)
    assert 1 == store.observe()[0]


def test_a_failed_reading_back_is_unknown_and_never_refused(warehouse, rows):
    """If the warehouse is gone, the outcome stays open."""
    store = CheckpointStore(warehouse)
    store.observe()
    shutil.rmtree(warehouse.root)
    result = store.append(rows.claim(1), 0)
    assert isinstance(result, Unknown)
    assert "reading back failed too" in result.error


def test_a_foreign_commit_at_the_version_is_named(warehouse, rows):
    """Somebody writes into `checkpoints` by hand. The refusal names that commit, and the entries stay readable."""
    store = CheckpointStore(warehouse)
    store.append(rows.claim(1), 0)
    empty = pa.Table.from_pylist([], schema=SCHEMA)
    write_deltalake(str(_folder(warehouse)), empty, mode="append")
    moved = DeltaTable(str(_folder(warehouse))).version()
    assert 2 == moved
    result = store.append(rows.checkpoint(1), 1)
    assert isinstance(result, Refused)
    assert "a foreign commit to `checkpoints`, WRITE at version 2" in result.holder
    assert Appended(3) == store.append(rows.checkpoint(1), moved)


def test_subsumed_entries_go_in_the_same_commit_and_savepoints_stay(warehouse, rows):
    """One version adds the new entry and removes the old one, so no reader sees both or neither."""
    store = CheckpointStore(warehouse)
    store.append(rows.checkpoint(1), 0)
    store.append(rows.checkpoint(2, kind=RowKind.SAVEPOINT), 1)
    assert Appended(3) == store.append(rows.checkpoint(3), 2, [CheckpointId(1), CheckpointId(2)])
    assert [3, 2] == _checkpoints(store.observe()[1])
    table = DeltaTable(str(_folder(warehouse)), version=2)
    assert 2 == table.to_pyarrow_table().num_rows


def test_entries_survive_a_foreign_optimize_and_can_still_be_removed_singly(warehouse, rows):
    """Somebody compacts the entries into one file. When one entry is subsumed, the store separates them again."""
    store = CheckpointStore(warehouse)
    for number in range(1, 5):
        store.append(rows.checkpoint(number), number - 1)
    DeltaTable(str(_folder(warehouse))).optimize.compact()
    version, seen = store.observe()
    assert (5, [4, 3, 2, 1]) == (version, _checkpoints(seen))
    assert Appended(6) == store.append(rows.checkpoint(5), 5, [CheckpointId(1), CheckpointId(3)])
    assert [5, 4, 2] == _checkpoints(CheckpointStore(warehouse).observe()[1])


def test_a_vacuum_without_retention_removes_no_entry(warehouse, rows):
    """A user's VACUUM without retention removes no entry, neither an active one nor one that is being written."""

    def vacuum(moment):
        if moment is CommitMoment.BEFORE:  # as Spark does it: it deletes all that it may, and adds no version
            table = DeltaTable(str(_folder(warehouse)))
            for name in table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=True):
                (_folder(warehouse) / name).unlink()

    store = CheckpointStore(warehouse, hook=vacuum)
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert Appended(2) == store.append(rows.checkpoint(1), 1)
    assert (2, (rows.checkpoint(1), rows.claim(1))) == CheckpointStore(warehouse).observe()


def test_a_new_claim_removes_old_claims_and_releases(warehouse, rows):
    """A job that ticks every minute for years keeps a short table."""
    store = CheckpointStore(warehouse)
    version = 0
    for generation in range(1, 31):
        version = store.append(rows.claim(generation), version).version
        release = Release(
            generation=Generation(generation), next_id=CheckpointId(1), at_ms=1, nonce=f"release-{generation}"
        )
        version = store.append(release, version).version
    kept = [row.generation for row in store.observe()[1]]
    assert sorted({*range(11, 31)}) == sorted(set(kept))
    assert 40 == len(kept)


def test_an_entry_of_a_newer_format_stops_the_observer_by_name(warehouse, rows):
    """An old release never guesses at the entries of a newer one."""
    store = CheckpointStore(warehouse)
    store.append(rows.claim(1), 0)
    payload = json.dumps({"kind": "claim", "format": 9, "writer": "tidemark 9.0", "row": {}})
    row = {"version": 2, "kind": "claim", "generation": 2, "nonce": "x", "at_ms": 1, "payload": payload}
    write_deltalake(str(_folder(warehouse)), pa.Table.from_pylist([row], schema=SCHEMA), mode="append")
    with pytest.raises(UnknownFormatError, match=r"install tidemark 9\.0 or newer"):
        store.observe()


def test_exactly_one_of_two_appends_at_one_version_wins(racers, warehouse):
    """Real processes race for the commit point, twenty times."""
    alpha, beta = racers(2)
    for turn in range(20):
        version = CheckpointStore(warehouse).observe()[0]
        alpha.tell("append_once", f"alpha-{turn}", version)
        beta.tell("append_once", f"beta-{turn}", version)
        assert ["Appended", "Refused"] == sorted([alpha.answer(), beta.answer()])
        assert version + 1 == CheckpointStore(warehouse).observe()[0]


def test_two_processes_that_keep_appending_lose_and_double_no_entry(racers, warehouse):
    """Each version has one winner, and the entry of each winner is in once."""
    both = racers(2)
    for racer, name in zip(both, ("alpha", "beta"), strict=True):
        racer.tell("append_many", name, 60)
    won = [racer.answer() for racer in both]
    versions = sorted(version for each in won for version in each)
    version, found = CheckpointStore(warehouse).observe()
    assert list(range(1, version + 1)) == versions
    assert version == len({row.nonce for row in found}) == len(found)
    assert all(won), "both must have won something, or this was no race"


@pytest.mark.kill
def test_a_process_killed_around_the_commit_leaves_its_whole_entry_or_nothing(racers, warehouse, rows):
    """SIGKILL strikes before and after the commit. The next process continues from the table as it is."""
    store = CheckpointStore(warehouse)
    for racer, moment, expected in zip(racers(2), ("before", "after"), (0, 1), strict=True):
        version, found = store.observe()
        racer.tell("append_and_die", moment, version)
        assert -9 == racer.end()
        after, left = store.observe()
        assert (expected, expected) == (after - version, len(left) - len(found))
    assert Appended(after + 1) == store.append(rows.claim(8), after)


def test_the_log_stays_short_while_readers_and_the_writer_go_on(warehouse, rows):
    """Maintenance runs every few appends.

    The log stays bounded, and stores that were opened before still read and append.
    """
    sleeper = CheckpointStore(warehouse)
    sleeper.observe()
    store = CheckpointStore(warehouse)
    kept: list[int] = []
    for number in range(1, 3 * EVERY_VERSIONS + 10):
        assert Appended(number) == store.append(rows.checkpoint(number), number - 1, kept[:-2])
        kept = [*kept[-2:], number]
        if number % 10 == 0:
            store.maintain()
    log = [path for path in (_folder(warehouse) / "_delta_log").iterdir() if path.suffix == ".json"]
    assert len(log) <= 2 * EVERY_VERSIONS + 12
    assert kept[::-1] == _checkpoints(sleeper.observe()[1])
    assert isinstance(sleeper.append(rows.checkpoint(999), number), Appended)
    assert 3 == len(_checkpoints(store.observe()[1])) - 1
