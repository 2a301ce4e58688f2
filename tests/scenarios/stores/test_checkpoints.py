"""Tests the table `checkpoints`: an append is a true compare-and-swap between processes, even if a reply is lost."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from time import sleep

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.commit.cleanup import CleanUpLook, TableSeen
from checkpointing.commit.fencing import Lease
from checkpointing.commit.manifests import Sizes
from checkpointing.commit.recovery import RecoveryPlan, decide_recovery
from checkpointing.graph import Table, TableMode
from checkpointing.identifiers import CheckpointId, Generation, TableName, job_name
from checkpointing.messages import Publication
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Release, RowKind, TableRecord
from jobs.storage.place import local
from jobs.tick.at_rest.import_entry import import_row
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.tick.effects import MAINTAIN_EVERY
from jobs.tick.rollback_plan import DamagedCheckpointError
from jobs.warehouse import checkpoints
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import (
    GENERATIONS_KEPT,
    SCHEMA,
    Appended,
    CheckpointStore,
    ManifestFiles,
    Refused,
    Unknown,
)
from jobs.warehouse.cleanup import note_look, read_looks
from jobs.warehouse.cuts_table import CutsNotRecordedError, CutStore
from jobs.warehouse.delta_log import CommitMoment
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore, is_alive, this_process
from jobs.warehouse.log_lengths import EVERY_VERSIONS
from jobs.warehouse.requests import STALE_MS, AnswerStatus, RequestFolder, SavepointAnswer
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.processes import Running
from tests.scenarios.runtime.sequence_job import at, build, read_cut, records, run, wanted
from tests.scenarios.stores.conftest import Rows
from tests.unit.commit.large_rows import large_record, numbered


class LostReplyError(Exception):
    """A hook of a commit raises this, as if the commit's reply were lost."""


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
    store = CheckpointStore(warehouse)
    assert (0, ()) == store.observe()
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert Appended(2) == store.append(rows.checkpoint(1), 1)
    expected = (2, (rows.checkpoint(1), rows.claim(1)))
    assert expected == store.observe()
    assert expected == CheckpointStore(warehouse).observe()


def test_the_latest_entries_are_the_observed_ones_after_any_append_or_removal(warehouse, rows, monkeypatch):
    """The store knows its own last append without reading the log. It reads the log for appends of others."""
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
    CheckpointStore(warehouse).append(rows.checkpoint(4), 0)
    (row,) = DeltaTable(str(_folder(warehouse))).to_pyarrow_table().to_pylist()
    assert ("checkpoint", 4, 1, "1/4", 1) == tuple(
        row[name] for name in ("kind", "checkpoint", "generation", "nonce", "version")
    )
    assert "tidemark 0.1.0" == json.loads(row["payload"])["writer"]


def test_an_entry_is_committed_only_after_its_files_are_durable(warehouse, rows):
    """The files are made durable while the entry is written. The commit waits for that, however long it takes."""
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
    """A zombie learns which process took the job. The zombie's entry is not in the table, and never will be."""
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
    """The commit succeeds, and its reply is lost. The store reads back and returns Appended.

    The entry is in the table once.
    """
    store = CheckpointStore(warehouse, hook=_raise_at(CommitMoment.AFTER))
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert (1, (rows.claim(1),)) == store.observe()


def test_an_append_with_a_lost_reply_is_found_below_later_commits(warehouse, rows):
    """The entry is in the table at its version, although the table has newer versions."""
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
    """Nobody can know whether the request is still on its way. A second append settles it."""
    store = CheckpointStore(warehouse, hook=_raise_at(CommitMoment.BEFORE))
    result = store.append(rows.claim(1), 0)
    assert isinstance(result, Unknown)
    assert "LostReplyError: " == result.error
    assert Appended(1) == store.append(rows.claim(1), 0)


def test_a_failed_reading_back_is_unknown_and_never_refused(warehouse, rows):
    """If the warehouse is gone, the outcome of the append stays unknown."""
    store = CheckpointStore(warehouse)
    store.observe()
    shutil.rmtree(warehouse.root)
    result = store.append(rows.claim(1), 0)
    assert isinstance(result, Unknown)
    assert "reading back failed too" in result.error


def test_a_foreign_commit_at_the_version_is_named(warehouse, rows):
    """Somebody writes into `checkpoints` by hand. The refusal names this commit, and the entries stay readable."""
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
        if moment is CommitMoment.BEFORE:  # as Spark does: deletes all that it may, and adds no version
            table = DeltaTable(str(_folder(warehouse)))
            for name in table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=True):
                (_folder(warehouse) / name).unlink()

    store = CheckpointStore(warehouse, hook=vacuum)
    assert Appended(1) == store.append(rows.claim(1), 0)
    assert Appended(2) == store.append(rows.checkpoint(1), 1)
    assert (2, (rows.checkpoint(1), rows.claim(1))) == CheckpointStore(warehouse).observe()


def test_a_new_claim_removes_old_claims_and_releases(warehouse, rows):
    """The table stays short, even if the job ticks every minute for years."""
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
    """An old release never guesses what the entries of a newer release mean."""
    store = CheckpointStore(warehouse)
    store.append(rows.claim(1), 0)
    payload = json.dumps({"kind": "claim", "format": 9, "writer": "tidemark 9.0", "row": {}})
    row = {"version": 2, "kind": "claim", "generation": 2, "nonce": "x", "at_ms": 1, "payload": payload}
    write_deltalake(str(_folder(warehouse)), pa.Table.from_pylist([row], schema=SCHEMA), mode="append")
    with pytest.raises(UnknownFormatError, match=r"install tidemark 9\.0 or newer"):
        store.observe()


def append_many(root, host, count):
    store, won = CheckpointStore(Warehouse(root, ProtocolPaths(job_name("flights")))), []
    for number in range(count):
        version, _ = store.observe()
        result = store.append(Rows.claim(1, f"{host}-{number}"), version)
        won += [result.version] if isinstance(result, Appended) else []
    return won


def test_two_processes_that_keep_appending_lose_and_double_no_entry(warehouse):
    """Real processes race. Each version has one winner, and the entry of each winner is in the table once."""
    both = [Running(append_many, warehouse.root, host, 60) for host in ("alpha", "beta")]
    won = [each.wait().said for each in both]
    versions = sorted(version for each in won for version in each)
    version, found = CheckpointStore(warehouse).observe()
    assert list(range(1, version + 1)) == versions
    assert version == len({row.nonce for row in found}) == len(found)
    assert all(won), "both must have won something, or this was no race"


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


# ------------------------------------------------------------------
# Large entries on real Delta tables: manifests are shared and cleaned up, and a missing manifest is named.


LOW = Sizes(inline=1, recent=1, manifest=3, sparse=2, few=1)
ROWS = {"a": 300, "b": 300}
NONE = [[] for _ in range(100)]


def _manifests(root):
    return {str(path.relative_to(root)) for path in root.rglob("manifests/**/*.zst")}


def _bytes(root):
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def _newest(warehouse, **how):
    row = CheckpointStore(warehouse, **how).observe()[1][0]
    assert isinstance(row, CheckpointRecord)
    return row


def test_a_large_entry_is_read_by_any_store_and_the_next_writes_what_changed(warehouse, rows):
    """3,000 handles are written once. The next entry has 300 new ones, and takes less than a quarter of the bytes."""
    store, lists = CheckpointStore(warehouse), numbered(100, 30)
    store.append(rows.claim(3), 0)
    before = _bytes(warehouse.root)
    first = large_record(lists, NONE)
    assert Appended(2) == store.append(first, 1)
    whole = _bytes(warehouse.root) - before
    read = _newest(warehouse)
    assert (first, 1) == (read.model_copy(update={"held_in": ()}), len(read.held_in))
    changed = [[*own[3:], *new] for own, new in zip(lists, numbered(100, 3, 50_000), strict=True)]
    before += whole
    second = large_record(changed, NONE, 2)
    assert Appended(3) == store.append(second, 2, {CheckpointId(1)})
    assert (_bytes(warehouse.root) - before) * 4 < whole
    read = _newest(warehouse)
    assert (second, 2) == (read.model_copy(update={"held_in": ()}), len(read.held_in))
    assert read == store.latest()[0]
    assert set(read.held_in) == _manifests(warehouse.root)


def test_an_entry_that_is_marked_keeps_its_manifests(warehouse, rows):
    store, record = CheckpointStore(warehouse), large_record(numbered(100, 30), NONE)
    store.append(record, 0)
    store.append(rows.claim(4), 1, marks={CheckpointId(1): True})
    marked = CheckpointStore(warehouse).observe()[1][1]
    assert marked == record.model_copy(update={"abandoned": True, "held_in": marked.held_in})
    assert 1 == len(_manifests(warehouse.root))


@pytest.mark.parametrize("how", ["gone", "changed", "cut off"])
def test_an_entry_whose_manifest_is_damaged_is_named(warehouse, rows, how):
    """An error names the damaged manifest if a process needs the entry. A rollback ignores the entry."""
    store = CheckpointStore(warehouse)
    store.append(rows.claim(3), 0)
    store.append(rows.checkpoint(1, 3), 1)
    store.append(large_record(numbered(100, 30), NONE, 2), 2)
    (path,) = _manifests(warehouse.root)
    file = warehouse.path(path)
    content = file.read_bytes()
    file.unlink()
    if how == "changed":
        other = CheckpointStore(warehouse.__class__(warehouse.root / "other", warehouse.paths))
        other.append(large_record(numbered(100, 30, 7), NONE), 0)
        shutil.copy(next((warehouse.root / "other").rglob("*.zst")), file)
    elif how == "cut off":
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableRowError, match=f"checkpoint 2 of job flights cannot be made whole: .*{path}"):
        CheckpointStore(warehouse).observe()
    beyond = CheckpointStore(warehouse, beyond_damage=True)
    assert [1] == [row.checkpoint for row in beyond.observe()[1] if isinstance(row, CheckpointRecord)]
    assert ["the entry of checkpoint 2"] == [each.name for each in beyond.damaged]


def test_a_reader_whose_entry_is_dropped_before_it_reads_the_manifests_reads_again(warehouse, rows, monkeypatch):
    """While somebody reads, the entry is dropped and its manifest deleted. The reader then sees the newest entries."""
    store = CheckpointStore(warehouse)
    store.append(large_record(numbered(100, 30), NONE), 0)
    real = ManifestFiles.read

    def late(self, entries):
        if monkeypatch.undo() is None and len(store.observe()[1]) == 1:
            store.append(rows.checkpoint(2, 3), 1, {CheckpointId(1)})
            for path in _manifests(warehouse.root):
                warehouse.path(path).unlink()
        real(self, entries)

    reader = CheckpointStore(warehouse)
    monkeypatch.setattr(ManifestFiles, "read", late)
    assert (2, (rows.checkpoint(2, 3),)) == reader.observe()


@pytest.fixture
def low(monkeypatch):
    monkeypatch.setattr(checkpoints, "SIZES", LOW)


@pytest.fixture
def root(tmp_path, low):
    """Return a warehouse with three checkpoints of one tick, a savepoint, and one more checkpoint."""
    run(tmp_path / "warehouse", 3, plan=build(ROWS))
    savepoint_at_rest(at(tmp_path / "warehouse"))
    run(tmp_path / "warehouse", 1, plan=build(ROWS))
    return tmp_path / "warehouse"


def test_a_job_whose_entries_have_manifests_ends_with_the_same_tables(root, tmp_path, monkeypatch):
    """Ticks, a savepoint, its copy, a restore of the copy, and a clean-up with no grace lose nothing."""
    warehouse = at(root)
    assert all(row.held_in for row in records(root).values())
    orphan = warehouse.paths.manifest(1, "0" * 64)
    warehouse.path(orphan).write_bytes(b"of a tick that was killed before its entry was in")
    clean_up(warehouse, 0)
    assert {path for row in records(root).values() for path in row.held_in} == _manifests(root)
    saved = next(row.checkpoint for row in records(root).values() if row.is_savepoint)
    copy_savepoint(warehouse, CheckpointId(saved), tmp_path / "copy")
    ((_, copied),) = records(tmp_path / "copy").items()
    assert _manifests(tmp_path / "copy") == set(copied.held_in)
    assert all((tmp_path / "copy" / path).exists() for path in files_of(copied))
    plain = tmp_path / "plain"
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "SIZES", Sizes())
        run(plain, plan=build(ROWS))
    for number, origin in enumerate((f"{root}@{saved}", str(tmp_path / "copy"))):
        restored = tmp_path / f"restored_{number}"
        import_row(wanted(origin, restored, plan=build(ROWS)))
        run(restored, plan=build(ROWS))
        assert read_cut(plain) == read_cut(restored)
    run(root, plan=build(ROWS))
    assert read_cut(plain) == read_cut(root)


def test_a_tick_is_refused_if_a_manifest_of_its_checkpoint_is_gone(root):
    """The message names the manifest, and the command for a rollback to another checkpoint."""
    rows = records(root)
    newest = rows[max(rows)]
    others = {path for number, row in rows.items() if number != newest.checkpoint for path in row.held_in}
    lost = next(path for path in newest.held_in if path not in others)
    (root / lost).unlink()
    with pytest.raises(DamagedCheckpointError, match=f"{lost} cannot be read.*tidemark rollback numbers"):
        run(root, plan=build(ROWS))


# ------------------------------------------------------------------
# Tests that a job has as many files after thousands of checkpoints as after hundreds.


RETAINED = 3
PER_GENERATION = 500


class Life:
    """Completes checkpoints with their entries and cuts. Each checkpoint moves the clock on by ten minutes."""

    def __init__(self, root: Path, paths, rows) -> None:
        self.now_ms = 1_700_000_000_000
        self.warehouse = Warehouse(root, paths, now_ms=lambda: self.now_ms)
        self.checkpoints, self.cuts = CheckpointStore(self.warehouse), CutStore(self.warehouse)
        self.rows, self.number, self.version = rows, 0, 0

    def go_on(self, checkpoints: int, table) -> None:
        """Complete this number of checkpoints. A new generation begins every five hundred, as after a full trace."""
        for _ in range(checkpoints):
            self.now_ms += 600_000
            generation = 1 + self.number // PER_GENERATION
            if self.number % PER_GENERATION == 0:
                self._append(self.rows.claim(generation))
            self.number += 1
            gone = {CheckpointId(self.number - RETAINED)} if self.number > RETAINED else set()
            self._append(self.rows.checkpoint(self.number, generation), gone)
            kept = {CheckpointId(self.number - back) for back in range(RETAINED)}
            self.cuts.record(CheckpointId(self.number), [(table, self.number)], kept)
            if self.number % MAINTAIN_EVERY == 0:
                self._age()
                self.checkpoints.maintain()
                self.cuts.maintain()

    def files(self) -> int:
        return sum(len(names) for _, _, names in os.walk(self.warehouse.root))

    def _append(self, row, gone=()) -> None:
        result = self.checkpoints.append(row, self.version, gone)
        assert isinstance(result, Appended), result
        self.version = result.version

    def _age(self) -> None:
        """Make every file two hours old. A clean-up may then delete files that are kept an hour for readers."""
        for folder, _, names in os.walk(self.warehouse.root):
            for name in names:
                os.utime(os.path.join(folder, name), (self.now_ms / 1000 - 7_200,) * 2)  # noqa: PTH118


@pytest.mark.dear
def test_entries_and_logs_do_not_grow_with_the_number_of_checkpoints(warehouse, rows, silver):
    """After 2,000 checkpoints there are about as many entries, cuts, log entries and files as after 400."""
    life = Life(warehouse.root, warehouse.paths, rows)
    life.go_on(400, silver)
    early = life.files()
    life.go_on(1_600, silver)
    assert life.files() <= early + 10
    assert early < 400
    _, kept = CheckpointStore(life.warehouse).observe()
    assert RETAINED <= len(kept) <= RETAINED + 2 * GENERATIONS_KEPT
    assert RETAINED == len(CutStore(life.warehouse).recorded())


def test_the_observations_of_thousands_of_clean_ups_are_bounded(warehouse, silver):
    """A clean-up follows every checkpoint, for weeks. Its file of observations stays as large as in the first week."""
    now_ms, day_ms, sizes = 1_700_000_000_000, 86_400_000, []
    looks = ()
    for number in range(3_000):
        now_ms += 600_000
        looks = note_look(
            warehouse, looks, CleanUpLook(now_ms, {silver: TableSeen(number, frozenset({number}))}), day_ms
        )
        sizes.append(warehouse.path(warehouse.paths.cleanup_looks).stat().st_size)
    assert looks == read_looks(warehouse)
    assert max(sizes[1_000:]) <= max(sizes[:1_000]) * 1.1
    assert len(looks) < 40


def test_requests_of_a_long_life_are_bounded(warehouse):
    """A thousand processes ask, and die before they read the answers. The next attempt removes their files."""
    folder = RequestFolder(warehouse)
    dead = this_process().model_copy(update={"pid": 2**22 + 1})
    for number in range(1_000):
        name = f"{number:08}-answered"
        answer = SavepointAnswer(
            request=name, status=AnswerStatus.TAKEN, checkpoint=CheckpointId(1), asker=dead, answered_at_ms=1
        )
        path = warehouse.path(warehouse.paths.requests) / f"{name}.answer.json"
        local(path).replace(answer.model_dump_json().encode())
        unfinished = path.with_name(f".{name}.json.{number}.tmp")
        unfinished.touch()
        if number:
            os.utime(unfinished, (warehouse.now_ms() / 1000 - STALE_MS / 1000 - 60,) * 2)
    folder.clean(is_alive)
    assert [".00000000-answered.json.0.tmp"] == os.listdir(warehouse.path(warehouse.paths.requests))  # noqa: PTH208


# ------------------------------------------------------------------
# Tests the table of cuts: it holds each table's version at a checkpoint once, and its size stays bounded.


ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
SILVER, GOLD = TableName("silver/flights"), TableName("gold/routes")


def test_a_cut_is_read_back_by_its_checkpoint(warehouse):
    CutStore(warehouse).record(ONE, [(SILVER, 3), (GOLD, 4)])
    cuts = CutStore(warehouse)
    assert {SILVER: 3, GOLD: 4} == cuts.read(ONE)
    assert cuts.read(TWO) is None
    assert frozenset({ONE}) == cuts.recorded()


def test_recording_again_changes_nothing(warehouse):
    cuts = CutStore(warehouse)
    cuts.record(ONE, [(SILVER, 3)])
    cuts.record(ONE, [(SILVER, 9)])
    CutStore(warehouse).record(ONE, [(SILVER, 9)])
    assert {SILVER: 3} == cuts.read(ONE)
    assert 1 == DeltaTable(str(warehouse.path(warehouse.paths.cuts))).version()


def test_a_later_cut_removes_the_cuts_of_subsumed_checkpoints(warehouse):
    cuts = CutStore(warehouse)
    cuts.record(ONE, [(SILVER, 1)])
    cuts.record(TWO, [(SILVER, 2)])
    cuts.record(THREE, [(SILVER, 3)], retained=[TWO, THREE])
    assert frozenset({TWO, THREE}) == cuts.recorded()
    assert {SILVER: 2} == cuts.read(TWO)


@pytest.mark.parametrize("moment", CommitMoment)
def test_a_lost_reply_or_request_records_once(warehouse, moment):
    """After an error before or after the commit, the store reads the table again."""
    struck = []

    def hook(now):
        if now is moment and not struck:
            struck.append(now)
            raise OSError("lost")

    CutStore(warehouse, hook=hook).record(ONE, [(SILVER, 1)])
    assert 1 == DeltaTable(str(warehouse.path(warehouse.paths.cuts))).to_pyarrow_table().num_rows
    assert [moment] == struck


def test_two_different_cuts_recorded_at_once_are_both_kept(warehouse):
    """If a rival commits in between, the store reads the table again, and commits its own cut."""
    rival = CutStore(warehouse)
    cuts = CutStore(warehouse, hook=lambda now: now is CommitMoment.BEFORE and rival.record(ONE, [(SILVER, 1)]))
    cuts.record(TWO, [(SILVER, 2)])
    assert ({SILVER: 1}, {SILVER: 2}) == (cuts.read(ONE), cuts.read(TWO))


def test_a_log_that_always_fails_is_a_clear_error(warehouse):
    def hook(now):
        if now is CommitMoment.BEFORE:
            raise OSError("disk full")

    with pytest.raises(CutsNotRecordedError, match="checkpoint 1 could not be recorded: disk full"):
        CutStore(warehouse, hook=hook).record(ONE, [(SILVER, 1)])


def test_a_cut_with_an_impossible_time_is_refused_by_name(warehouse):
    """A starting tick reads the times of all cuts.

    If a time is wrong, an error names it and the folder to restore, and the tick does not end in a traceback.
    """
    CutStore(replace(warehouse, now_ms=lambda: -1)).record(ONE, [(SILVER, 1)])
    with pytest.raises(UnreadableRowError, match=r"-1 is no checkpoint, no version and no time\. Restore the folder"):
        CutStore(warehouse).all()


# ------------------------------------------------------------------
# Tests that recording a cut does not drop the older cut of an entry whose own cut is lost.


ONE_OF_NEEDED_CUTS, STOP, BACK, NEXT = (CheckpointId(number) for number in (1, 2, 3, 4))


@pytest.fixture
def stores(warehouse, silver, schema):
    stores = JobStores(warehouse, cross_freely)
    stores.tables.ensure([Table(silver, TableMode.APPEND)], {silver: schema})
    return stores


def test_a_savepoint_whose_cut_was_lost_keeps_the_cut_before_it(stores, rows, tables, silver):
    """The cut of a stop's savepoint was lost, and a user rolled back. Later the entry before it is subsumed.

    The savepoint's tables follow from the cut of that older entry, so a rollback to the savepoint needs this cut.
    """

    def commits(number, cut=True, **changes):
        entry = rows.checkpoint(number, pinned=number == STOP)
        entry = entry.model_copy(update={"parent": min(entry.parent, ONE_OF_NEEDED_CUTS)})
        stores.entries.append(entry, number - 1, **changes)
        publication = Publication(silver, TableMode.APPEND, adds=(tables.stage(silver, {f"k{number}": number}),))
        version = stores.publish(publication, number).version
        if cut:
            stores.cuts.record(number, [(silver, version)])

    commits(ONE_OF_NEEDED_CUTS)
    commits(STOP, cut=False)
    commits(BACK, marks={STOP: True})
    commits(NEXT, subsumed=[ONE_OF_NEEDED_CUTS, BACK])
    assert {ONE_OF_NEEDED_CUTS, NEXT} == set(stores.cuts.all())


# ------------------------------------------------------------------
# Tests that one call reads everything that recovery needs to decide.


def _observe(warehouse):
    return JobStores(warehouse, cross_freely).observe()


def test_a_job_that_never_ran_is_seen_as_empty(warehouse):
    """The first tick sees no entries and no holder."""
    seen = _observe(warehouse)
    assert (0, (), frozenset()) == (seen.version, seen.rows, seen.cuts)
    assert (None, None) == (seen.holder.alive, seen.holder.lease)


def test_a_committed_but_unpublished_entry_is_seen_and_rolled_forward(warehouse, tables, silver, schema, rows):
    tables.output.ensure(silver, schema, TableMode.APPEND)
    file = tables.stage(silver, {"a": 1})
    record = TableRecord(table=silver, mode=TableMode.APPEND, adds=(file,), parent_version=0)
    claim = rows.claim(1).model_copy(update={"holder": this_process()})
    row = rows.checkpoint(1, tables=(record,))
    store = CheckpointStore(warehouse)
    store.append(claim, 0)
    store.append(row, 1)
    LeaseStore(warehouse).renew(Generation(1), claim.holder, lease_ms=60_000)
    seen = _observe(warehouse)
    assert (2, (row, claim), True) == (seen.version, seen.rows, seen.holder.alive)
    assert isinstance(seen.holder.lease, Lease)
    plan = decide_recovery(seen, take_over=True)
    assert isinstance(plan, RecoveryPlan)
    assert row == plan.roll_forward
    tables.publisher.publish(Publication(silver, TableMode.APPEND, adds=(file,)), CheckpointId(1))
    CutStore(warehouse).record(CheckpointId(1), [(silver, 1)])
    seen = _observe(warehouse)
    plan = decide_recovery(seen, take_over=True)
    assert isinstance(plan, RecoveryPlan)
    assert (None, row) == (plan.roll_forward, plan.restore)
