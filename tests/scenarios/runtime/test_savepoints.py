"""A savepoint's self-contained copy can be read as tables. Whatever strikes, it is made whole or not at all."""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.commit.fencing import newest_checkpoint, release_of
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.messages import RowAppended, SavepointKind, SavepointRequested, TickOutcome
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import RowKind
from jobs.cli.errors import ExitCode
from jobs.pipeline import Pipeline, count
from jobs.pipeline.planning import plan
from jobs.reading import Cuts
from jobs.showing.plans import rows_again
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import NoSuchPositionError
from jobs.sources.position_words import PositionWords
from jobs.tick.at_rest.import_entry import OwnRow, find_origin, import_row, restorable
from jobs.tick.at_rest.request_client import NothingRunsError, Taken, stop, take_savepoint
from jobs.tick.at_rest.source_reset import Reset, preview_reset, reset
from jobs.tick.at_rest.take_savepoint import dispose, savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.tick.driver import Inbox
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.tick.tick import RuntimeSettings, run_tick
from jobs.warehouse import output_tables
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore, this_process
from jobs.warehouse.output_tables import TableNotCopyableError
from jobs.warehouse.refusals import NeverRunError, SavepointRefusedError
from jobs.warehouse.savepoint_copy import (
    FileNotCopiedError,
    SavepointNotCopiedError,
    copy_savepoint,
    named_files,
    read_manifest,
)
from tests.scenarios.processes import Dead, Mortal, killed
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    JOB,
    KEEPS_ALL,
    ROWS,
    LocalEngine,
    at,
    build,
    contents,
    dies_copying,
    dies_importing,
    laid_out,
    newest,
    read_cut,
    records,
    run,
    tick,
    wanted,
)


@pytest.fixture
def root(tmp_path):
    run(tmp_path / "warehouse", 2)
    return tmp_path / "warehouse"


@pytest.fixture
def saved_root(root):
    savepoint_at_rest(at(root))
    return root


def newest_id(root):
    return CheckpointId(max(records(root)))


def there(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_is_a_warehouse_that_anyone_can_read(saved_root, tmp_path):
    """Any reader sees the cut in its tables.

    The copy's only entry names only files in the copy. A manifest says where the copy comes from.
    """
    to = tmp_path / "copy"
    made = copy_savepoint(at(saved_root), newest_id(saved_root), to)
    assert read_cut(saved_root) == read_cut(to)
    assert 200 == pl.read_delta(str(to / BRONZE)).height
    [row] = records(to).values()
    assert [] == [path for path in named_files(row) if not (to / path).exists()]
    assert (newest_id(saved_root), True) == (row.checkpoint, row.pinned)
    assert made == read_manifest(at(to))
    assert (len(named_files(row)), newest_id(saved_root)) == (made.files, made.savepoint)
    assert ["copy", "warehouse"] == there(tmp_path)


def test_a_savepoint_can_be_copied_long_after(tmp_path):
    """The copy shows the savepoint's tables, though newer cuts are published.

    The entry of the savepoint's parent stays as long as the savepoint.
    """
    root = tmp_path / "warehouse"
    run(root, 1)
    row, expected = savepoint_at_rest(at(root)), read_cut(root)
    run(root)
    assert {row.parent, row.checkpoint} < records(root).keys()
    assert row == records(root)[row.checkpoint]
    copy_savepoint(at(root), row.checkpoint, tmp_path / "copy")
    assert expected == read_cut(tmp_path / "copy")


def test_what_others_appended_is_part_of_the_table(saved_root, tmp_path):
    """Rows of another writer, and the files that it compacted, are copied with statistics and a checksum."""
    rows = pl.DataFrame({"split": ["x"], "n": [1], "key": [1], "value": [1], "_split": ["x"], "_position": [1]})
    write_deltalake(str(saved_root / BRONZE), rows.to_arrow(), mode="append")
    DeltaTable(str(saved_root / BRONZE)).optimize.compact()
    run(saved_root, 1)
    copy_savepoint(at(saved_root), newest_id(saved_root), tmp_path / "copy")
    assert 301 == pl.read_delta(str(tmp_path / "copy" / BRONZE)).height
    assert read_cut(saved_root) == read_cut(tmp_path / "copy")
    [row] = records(tmp_path / "copy").values()
    adds = next(table.adds for table in row.tables if table.table == BRONZE)
    assert all(file.crc32 >= 0 and '"minValues"' in file.stats for file in adds)


@pytest.mark.parametrize("name", ["full", "inside", "file"])
def test_a_folder_in_use_is_refused(saved_root, tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note").touch()
    (tmp_path / "file").touch()
    to = {"full": tmp_path / "full", "inside": saved_root / "bronze/copy", "file": tmp_path / "file"}[name]
    with pytest.raises(SavepointNotCopiedError, match=r"is not empty|lies in the warehouse"):
        copy_savepoint(at(saved_root), newest_id(saved_root), to)
    assert ["file", "full", "warehouse"] == there(tmp_path)


def spoil_missing(path):
    path.unlink()


def spoil_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def spoil_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(spoil_missing, "is missing"), (spoil_short, "bytes instead of"), (spoil_bit, "is damaged: its checksum")],
)
def test_a_file_that_is_not_what_the_row_says_is_refused_by_name(saved_root, tmp_path, spoil, said):
    """A file is missing, too short, or has a flipped bit. The error names it, and nothing of the copy is left."""
    row = records(saved_root)[newest_id(saved_root)]
    path = min(named_files(row))
    spoil(saved_root / path)
    with pytest.raises(FileNotCopiedError, match=rf"file {path} in .* {said}"):
        copy_savepoint(at(saved_root), newest_id(saved_root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


def test_deletion_vectors_are_refused_by_table(saved_root, tmp_path, monkeypatch):
    """A copy of the files would bring deleted rows back, so the error names the table and the way out."""
    monkeypatch.setattr(
        output_tables, "paths_with_deletion_vectors", lambda table: frozenset(table.file_uris()) | {"x", *paths(table)}
    )
    with pytest.raises(TableNotCopyableError, match=r"table bronze/numbers has deletion vectors on 2 files.*PURGE"):
        copy_savepoint(at(saved_root), newest_id(saved_root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


def paths(table):
    return [uri.rpartition("/numbers/")[2] for uri in table.file_uris()]


def test_a_full_disk_leaves_nothing(saved_root, tmp_path, monkeypatch):
    """The message names the error. The folder does not exist, and nothing lies beside it."""
    left = [3]

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SavepointNotCopiedError, match=r"No space left on device.*nothing of the copy is left"):
        copy_savepoint(at(saved_root), newest_id(saved_root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


def test_a_disk_without_room_is_refused_before_anything_is_written(saved_root, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("jobs.storage.copy_folder.shutil.disk_usage", lambda path: usage)
    with pytest.raises(SavepointNotCopiedError, match=r"files are \d+ bytes, and .* has room for 10"):
        copy_savepoint(at(saved_root), newest_id(saved_root), tmp_path / "copy")
    assert ["warehouse"] == there(tmp_path)


@pytest.mark.kill
@pytest.mark.parametrize("after", [1, 6])
def test_a_killed_copy_is_not_there_and_the_next_one_sweeps_up(saved_root, tmp_path, after):
    """After SIGKILL while copying, no folder has the copy's name. A second copy makes it, and deletes the leftovers."""
    killed(dies_copying, saved_root, newest_id(saved_root), tmp_path / "copy", after)
    assert not (tmp_path / "copy").exists()
    assert 2 == len(there(tmp_path))
    copy_savepoint(at(saved_root), newest_id(saved_root), tmp_path / "copy")
    assert ["copy", "warehouse"] == there(tmp_path)
    assert read_cut(saved_root) == read_cut(tmp_path / "copy")


def test_a_row_that_is_not_there_is_refused_with_those_that_are(saved_root, tmp_path):
    ids = ", ".join(str(each) for each in sorted(records(saved_root)))
    with pytest.raises(SavepointNotCopiedError, match=f"numbers has no savepoint 99: there are {ids}"):
        copy_savepoint(at(saved_root), CheckpointId(99), tmp_path / "copy")


# ------------------------------------------------------------------
# Savepoints of a job at rest are taken, kept and disposed of, without Spark.


def nobody_waits(waiting):
    raise AssertionError(f"waited: {waiting}")


def hold(root):
    stores = JobStores(at(root), cross_freely)
    seen = stores.observe()
    newest = max(row.generation for row in seen.rows)
    claims = [row for row in seen.rows if hasattr(row, "holder")]
    claim = claims[0].model_copy(update={"generation": newest + 1, "nonce": "held", "holder": this_process()})
    assert isinstance(stores.entries.append(claim, seen.version), RowAppended)
    LeaseStore(stores.warehouse).renew(Generation(newest + 1), claim.holder, 60_000)


def test_a_savepoint_at_rest_is_the_newest_cut_under_a_new_id(tmp_path):
    """The savepoint's entry names the checkpoint's state and positions, its parent, and no tables.

    The job is released again.
    """
    run(tmp_path, 1)
    newest = newest_checkpoint(tuple(records(tmp_path).values()))
    taken = take_savepoint(at(tmp_path), nobody_waits)
    row = records(tmp_path)[taken.record.checkpoint]
    assert Taken(row, None) == taken
    assert (RowKind.SAVEPOINT, newest.checkpoint, ()) == (row.kind, row.parent, row.tables)
    assert row.checkpoint > newest.checkpoint
    assert [v.subtasks[0].position for v in newest.vertices] == [v.subtasks[0].position for v in row.vertices]
    assert [v.subtasks[0].state for v in newest.vertices] == [v.subtasks[0].state for v in row.vertices]
    rows = JobStores(at(tmp_path), cross_freely).observe().rows
    assert row.checkpoint + 1 == release_of(rows, row.generation).next_id


def test_a_checkpoint_with_rows_in_flight_makes_no_savepoint(tmp_path):
    """The command is refused before the claim. Both ways out in its message lead to a savepoint without such rows."""
    config = CONFIG.model_copy(update={"unaligned": True, "micro_batch_rows_max": 50})
    run(tmp_path, 1, plan=build(config=config))
    (cut,), version = records(tmp_path).values(), JobStores(at(tmp_path), cross_freely).observe().version
    assert cut.has_rows_in_flight
    with pytest.raises(SavepointRefusedError, match="checkpoint 1 of numbers is unaligned and holds rows in flight"):
        take_savepoint(at(tmp_path), nobody_waits)
    assert version == JobStores(at(tmp_path), cross_freely).observe().version
    inbox = Inbox()
    inbox.put(SavepointRequested("now", SavepointKind.PLAIN))
    run_tick(build(config=config), RuntimeSettings(warehouse=tmp_path), engine=LocalEngine(), inbox=inbox)
    taken = take_savepoint(at(tmp_path), nobody_waits).record
    savepoints = [row for row in records(tmp_path).values() if row.kind is RowKind.SAVEPOINT]
    assert 2 == len(savepoints)
    assert taken in savepoints
    assert not any(row.has_rows_in_flight for row in savepoints)


def test_a_savepoint_changes_nothing_for_the_ticks_that_follow(tmp_path, undisturbed):
    """The next tick begins from the newest checkpoint, not from the savepoint, and ends as if there were none."""
    run(tmp_path, 1)
    savepoint_at_rest(at(tmp_path))
    report = run(tmp_path)
    savepoint = next(row for row in records(tmp_path).values() if row.kind is RowKind.SAVEPOINT)
    assert undisturbed == read_cut(tmp_path)
    assert report.completed[0].parent == savepoint.parent
    assert report.completed[0].checkpoint > savepoint.checkpoint


def test_a_job_that_never_ran_or_completed_nothing_has_no_savepoint(tmp_path):
    with pytest.raises(NeverRunError, match=r"numbers has never run in .*start it with 'tidemark run numbers'"):
        take_savepoint(at(tmp_path / "none"), nobody_waits)
    assert not (tmp_path / "none").exists()
    JobStores(at(tmp_path), cross_freely)
    with pytest.raises(SavepointRefusedError, match="completed no checkpoint yet"):
        take_savepoint(at(tmp_path), nobody_waits)
    assert {} == records(tmp_path)


@pytest.mark.parametrize("kind", [SavepointKind.DRAIN, SavepointKind.SUSPEND])
def test_a_stop_of_a_job_at_rest_says_that_nothing_runs(tmp_path, kind):
    run(tmp_path, 1)
    with pytest.raises(NothingRunsError, match=r"no tick of numbers runs in .*the last tick ended normally"):
        stop(at(tmp_path), kind, nobody_waits)


def test_a_disposed_savepoint_is_gone_with_what_only_it_named(tmp_path, undisturbed):
    """Its entry is deleted at once. Its parent and the state files of both are deleted with the next checkpoint.

    Every file that a checkpoint names stays.
    """
    run(tmp_path, 1)
    row = savepoint_at_rest(at(tmp_path))
    run(tmp_path, 1)
    assert 0 == dispose(at(tmp_path), row.checkpoint)
    assert row.checkpoint not in records(tmp_path)
    assert row.parent in records(tmp_path)
    run(tmp_path)
    assert row.parent not in records(tmp_path)
    kept = {path for each in records(tmp_path).values() for path in named_files(each)}
    only = {path for path in named_files(row) if path.startswith("_tidemark/")} - kept
    assert 2 == len(only)
    assert [] == [path for path in only if (tmp_path / path).exists()]
    assert [] == [path for path in kept if not (tmp_path / path).exists()]
    assert undisturbed == read_cut(tmp_path)


def test_state_that_a_reader_has_reserved_outlives_the_savepoint_that_kept_it(tmp_path):
    """Checkpoint 1 is subsumed. Only its savepoint and a reader need its state. A clean-up deletes the state later."""
    run(tmp_path, 1)
    row = savepoint_at_rest(at(tmp_path))
    with Cuts(tmp_path, JOB).reserved() as cut:
        before = sorted(cut.state("by_key").polars().collect().rows())
        run(tmp_path, 1)
        assert 0 == dispose(at(tmp_path), row.checkpoint)
        run(tmp_path)
        assert row.parent not in records(tmp_path)
        assert before == sorted(cut.state("by_key").polars().collect().rows())
    assert clean_up(at(tmp_path), 0).deleted.files


def test_what_a_dead_tick_committed_is_published_before_a_savepoint_goes(tmp_path, tick, undisturbed, monkeypatch):
    """The newest entry no longer names files that state tables still show. These files can still be read afterwards."""
    planned = build(config=CONFIG.model_copy(update={"retained": 1}))
    run(tmp_path, 1, plan=planned)
    savepoint = savepoint_at_rest(at(tmp_path))
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    with pytest.raises(Dead):
        tick(plan=planned, boundary=Mortal("after:AppendRow"))
    newest = newest_checkpoint(tuple(records(tmp_path).values()))
    assert newest.checkpoint not in CutStore(at(tmp_path)).recorded()
    dispose(at(tmp_path), savepoint.checkpoint)
    table = DeltaTable(str(tmp_path / table_of_state(JOB, VertexId("by_key"))))
    assert [] == [uri for uri in table.file_uris() if not Path(uri).exists()]
    assert {newest.parent, newest.checkpoint} == set(records(tmp_path))
    assert newest.checkpoint in CutStore(at(tmp_path)).recorded()
    run(tmp_path, plan=planned)
    assert undisturbed == read_cut(tmp_path)


def test_a_savepoint_of_a_checkpoint_that_a_dead_tick_committed_publishes_that_first(
    tick, tmp_path, undisturbed, monkeypatch
):
    """A cut is recorded before the next entry.

    The cut has every table of the pipeline whose tick died.
    """
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    with pytest.raises(Dead):
        tick(boundary=Mortal("after:AppendRow"))
    (newest,) = records(tmp_path).values()
    taken = savepoint_at_rest(at(tmp_path))
    assert newest.checkpoint == taken.parent
    cut = JobStores(at(tmp_path), cross_freely).cuts.read(newest.checkpoint)
    assert {table.name for table in build().graph.tables()} == set(cut)
    run(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def test_only_savepoints_that_nothing_begins_from_are_disposed_of(tmp_path):
    """To dispose of the newest checkpoint, an older one or an unknown id fails. The error names the id.

    Nothing is deleted.
    """
    run(tmp_path, 2)
    row = savepoint_at_rest(at(tmp_path))
    older, newest = sorted(each for each in records(tmp_path) if each != row.checkpoint)
    for number, said in (
        (newest, "is what the next tick of numbers begins from"),
        (older, f"is a checkpoint, which is deleted.*its savepoints are {row.checkpoint}"),
        (99, f"has no savepoint 99: its savepoints are {row.checkpoint}"),
    ):
        with pytest.raises(SavepointRefusedError, match=said):
            dispose(at(tmp_path), number)
    assert {older, newest, row.checkpoint} == set(records(tmp_path))


# ------------------------------------------------------------------
# The commands around savepoints, as a user types them, on real Delta tables without Spark.


PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"


def test_a_savepoint_at_rest_is_told_with_its_files_and_how_to_drop_it(root, typed):
    """The command shows the id, the cut from which it was made, its size, and the command that disposes of it."""
    code, out, _ = typed("savepoint", "numbers", "--warehouse", root)
    number = max(records(root))
    assert ExitCode.DONE is code
    assert f"savepoint {number} of numbers: made of checkpoint 2, since no tick runs" in out
    assert f"which stay until 'tidemark savepoint numbers --dispose {number}'" in out


def test_a_savepoint_with_a_copy_tells_where_and_how_to_restore_it(root, typed, tmp_path):
    code, out, _ = typed("savepoint", "numbers", "--to", tmp_path / "copy", "--warehouse", root)
    assert ExitCode.DONE is code
    sizes = [file.stat().st_size for file in (tmp_path / "copy").rglob("_data/*/*.parquet")]
    assert 6 == len(sizes)
    assert f"copied whole to {tmp_path / 'copy'}: 6 files, {sum(sizes) / 1024:.1f} KiB; " in out
    assert f"tidemark run numbers --from {tmp_path / 'copy'} --warehouse EMPTY_FOLDER" in out
    assert read_cut(root) == read_cut(tmp_path / "copy")


def test_a_folder_in_use_is_refused_before_a_savepoint_is_taken(root, typed, tmp_path):
    before = set(records(root))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    code, _, err = typed("savepoint", "numbers", "--to", tmp_path / "full", "--warehouse", root)
    assert (ExitCode.FAILED, before) == (code, set(records(root)))
    assert "is not empty: name a folder that does not exist yet" in err


def test_disposing_is_told_and_a_held_job_keeps_its_savepoint(root, typed):
    """While a tick holds the job, the command is refused, and its message has the way out."""
    number = savepoint_at_rest(at(root)).checkpoint
    code, out, _ = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert (ExitCode.DONE, f"savepoint {number} of numbers is gone\n") == (code, out)
    number = savepoint_at_rest(at(root)).checkpoint
    hold(root)
    code, _, err = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert ExitCode.HELD is code
    assert f", and disposing of savepoint {number} needs a job that no tick holds" in err
    assert "'tidemark stop numbers --suspend' ends its tick; nothing was changed" in err


def test_lists_know_savepoints(root, typed):
    number = savepoint_at_rest(at(root)).checkpoint
    _, out, _ = typed("checkpoints", "list", "numbers", "--warehouse", root)
    assert "numbers: 2 checkpoints retained, 1 savepoint" in out
    assert "none; after 2" in out
    _, out, _ = typed("checkpoints", "show", "numbers", number, "--warehouse", root)
    assert f"savepoint {number} of numbers, builds on 2" in out
    assert "publishes nothing" in out
    _, out, _ = typed("cut", "numbers", "--warehouse", root)
    assert "cut 2 of numbers" in out
    code, _, err = typed("cut", "numbers", number, "--warehouse", root)
    assert ExitCode.NOT_THERE is code
    assert f"savepoint {number} of numbers publishes nothing, so it has no cut" in err
    assert "checkpoint 2, after which it was taken" in err


def test_a_dry_run_tells_the_plan_and_changes_nothing(root, typed, tmp_path):
    """The plan has splits, old and new key groups of state, and tables. The other warehouse is not even created."""
    number = savepoint_at_rest(at(root)).checkpoint
    fork = tmp_path / "fork"
    words = ("run", PIPELINE, "--from", f"{root}@{number}", "--warehouse", fork, "--parallelism", 3, "--dry-run")
    code, out, err = typed(*words)
    assert (ExitCode.DONE, "") == (code, err)
    assert f"restore plan numbers: savepoint {number} of {root} into {fork}, 6 files copied; nothing was changed" in out
    assert "2: 0-63, 64-127" in out
    assert "3: 0-42, 43-85, 86-127" in out
    assert "bronze/numbers" in out
    assert not fork.exists()


def test_a_dry_run_of_the_newest_row_shows_versions(root, typed):
    """The plan says that the tables stay as they are. Nothing is copied or changed."""
    before = json.dumps(sorted(str(path) for path in root.rglob("*")))
    code, out, _ = typed("run", PIPELINE, "--warehouse", root, "--dry-run")
    assert ExitCode.DONE is code
    assert "checkpoint 2, the newest in" in out
    assert "as they are" in out
    assert before == json.dumps(sorted(str(path) for path in root.rglob("*")))


def test_the_newest_own_row_goes_on_as_always_and_says_so(root, typed, undisturbed):
    """`--from` is no error if it names the entry from which the tick begins anyway."""
    code, out, _ = typed("run", PIPELINE, "--from", 2, "--warehouse", root)
    assert ExitCode.DONE is code
    assert "checkpoint 2 is the newest of numbers in" in out
    assert undisturbed == read_cut(root)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--from", "1"),
            f"takes the tables back to checkpoint 1 in place (--dry-run shows how), 'tidemark run {PIPELINE} --from ",
        ),
        (("--from", "2", "--claim"), "--claim: 2 is numbers's own in"),
        (("--from", "nowhere"), "nowhere is no such folder"),
        (("--from", "77"), "there is no checkpoint or savepoint 77"),
        (("--claim",), "--claim: name the savepoint too, with --from DIR or --from DIR@N"),
        (("--no-claim",), "--no-claim: name the savepoint too, with --from DIR or --from DIR@N"),
    ],
)
def test_a_wrong_from_says_what_to_type(root, typed, words, said):
    before = pl.read_delta(str(root / BRONZE)).height
    code, _, err = typed("run", PIPELINE, *words, "--warehouse", root)
    assert code in (ExitCode.FAILED, ExitCode.USAGE, ExitCode.NOT_THERE)
    assert said in err
    assert before == pl.read_delta(str(root / BRONZE)).height


def test_what_does_not_fit_is_said_before_anything_runs(root, typed, tmp_path):
    """The error names a missing operator and both ways out. With the flag, the tick names what it leaves behind."""
    other = "tests.scenarios.runtime.sequence_job:without_aggregate"
    fork = tmp_path / "fork"
    code, _, err = typed("run", other, "--from", f"{root}@2", "--warehouse", fork)
    assert ExitCode.FAILED is code
    assert "checkpoint 2 holds state of 'by_key', which the pipeline no longer has; put it back under that id" in err
    assert "--allow-non-restored-state; nothing was changed" in err
    assert not fork.exists()
    code, out, err = typed("run", other, "--from", f"{root}@2", "--warehouse", fork, "--allow-non-restored-state")
    assert ExitCode.DONE is code, err
    assert "left behind: the state of by_key, which the pipeline no longer has" in out
    assert "left behind: table gold/by_key" in out
    assert 300 == pl.read_delta(str(fork / BRONZE)).height


# ------------------------------------------------------------------
# An entry of another warehouse is restored into an empty one exactly once, whatever strikes, or is refused before any
# change.


@pytest.fixture
def copy(root, tmp_path):
    row = savepoint_at_rest(at(root))
    copy_savepoint(at(root), row.checkpoint, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_fork_ends_as_if_it_had_never_been_one(root, copy, tmp_path, undisturbed):
    """The copy's rows are published under a new id, and the rest is read once. The original does not change."""
    before = read_cut(root)
    fork = tmp_path / "fork"
    row = import_row(wanted(str(copy), fork))
    report = run(fork)
    assert TickOutcome.CAUGHT_UP is report.outcome
    assert undisturbed == read_cut(fork)
    assert row.checkpoint == report.completed[0].checkpoint
    assert before == read_cut(root)
    assert read_cut(copy) == before


def test_a_restored_row_is_above_every_id_and_generation_of_its_origin(root, copy, tmp_path):
    """Neither ids nor names of staged files are used twice, by either warehouse."""
    used = JobStores(at(root), cross_freely).observe().rows
    row = import_row(wanted(str(copy), tmp_path / "fork"))
    assert row.generation > max(each.generation for each in used)
    assert row.checkpoint > max(each.checkpoint for each in records(root).values())
    assert (RowKind.CHECKPOINT, 0, False) == (row.kind, row.parent, row.pinned)


def test_any_row_of_a_live_warehouse_can_be_restored(root, tmp_path, undisturbed):
    """DIR@N restores an older checkpoint. The tables are as they were then, and go on from there."""
    older = min(records(root))
    fork = tmp_path / "fork"
    row = import_row(wanted(f"{root}@{older}", fork))
    assert sum(len(table.adds) for table in row.tables if table.table == BRONZE) == 1
    assert 2 == len(run(fork).completed[1:])
    assert undisturbed == read_cut(fork)


def test_a_fork_of_the_newest_row_that_was_never_published(root, tmp_path, undisturbed):
    """After a crash between the commit point and the publication, the restored job publishes the entry's files."""
    with pytest.raises(Dead):
        run_dying(root, "before:PublishTable:bronze/numbers")
    fork = tmp_path / "fork"
    assert 300 == sum(file.rows for file in adds(import_row(wanted(str(root), fork))))
    run(fork)
    assert undisturbed == read_cut(fork)


def run_dying(root, boundary):
    from jobs.tick.tick import run_tick
    from jobs.tick.tick_settings import RuntimeSettings
    from tests.scenarios.runtime.sequence_job import LocalEngine, build

    report = run_tick(build(), RuntimeSettings(warehouse=root), engine=LocalEngine(), boundary=Mortal(boundary))
    raise Dead(report.message)


def adds(row):
    return [file for table in row.tables if table.table == BRONZE for file in table.adds]


def test_claiming_uses_the_copy_up(copy, tmp_path, undisturbed):
    """With --claim the copy's folder is deleted after the commit, and the restored job needs no file in it."""
    fork = tmp_path / "fork"
    import_row(wanted(str(copy), fork, claim=True))
    assert ["fork", "warehouse"] == sorted(path.name for path in tmp_path.iterdir())
    run(fork)
    assert undisturbed == read_cut(fork)


def test_a_warehouse_in_use_is_never_claimed(root, tmp_path):
    with pytest.raises(SavepointRefusedError, match=r"--claim would delete .* a warehouse in use"):
        import_row(wanted(str(root), tmp_path / "fork", claim=True))
    assert not (tmp_path / "fork").exists()
    assert {} != records(root)


def test_a_copy_that_a_tick_has_gone_on_in_is_never_claimed(copy, tmp_path, undisturbed):
    """After a tick in the copy's folder, the copy is a warehouse in use. The tick goes on from the savepoint there."""
    run(copy)
    assert undisturbed == read_cut(copy)
    with pytest.raises(SavepointRefusedError, match="no copy of one savepoint"):
        import_row(wanted(str(copy), tmp_path / "fork", claim=True))


def test_a_warehouse_with_checkpoints_takes_no_other_history(root, copy):
    """The refusal names both ways out, and nothing is changed."""
    before = JobStores(at(root), cross_freely).observe().version
    with pytest.raises(SavepointRefusedError, match=r"already holds numbers up to checkpoint 2.*--warehouse OTHER"):
        import_row(wanted(str(copy), root))
    assert before == JobStores(at(root), cross_freely).observe().version


def test_a_table_that_is_there_already_is_refused(copy, tmp_path):
    """A warehouse is not empty if it has a table of that name with rows, even if the job has no entries."""
    fork = tmp_path / "fork"
    pl.DataFrame({"split": ["x"]}).write_delta(str(fork / BRONZE))
    with pytest.raises(SavepointRefusedError, match=r"table bronze/numbers is already in .* and holds rows"):
        restorable(wanted(str(copy), fork))


def test_a_damaged_copy_is_refused_and_the_warehouse_starts_as_if_nothing_had_been(copy, tmp_path, undisturbed):
    """The copying finds a flipped bit, and no entry is appended. A tick without --from starts fresh."""
    [row] = records(copy).values()
    path = copy / max(named_files(row))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    fork = tmp_path / "fork"
    with pytest.raises(FileNotCopiedError, match="is damaged"):
        import_row(wanted(str(copy), fork))
    assert {} == records(fork)
    run(fork)
    assert undisturbed == read_cut(fork)


@pytest.mark.kill
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("boundary", ["after:Claim", "before:CopyFiles", "after:CopyFiles", "before:AppendImported"])
def test_a_restore_killed_before_its_row_can_begin_again_or_start_fresh(copy, tmp_path, undisturbed, boundary, again):
    """After SIGKILL before the commit point, --from works again.

    Without --from, the copied files are deleted and the job starts fresh.
    """
    fork = tmp_path / "fork"
    killed(dies_importing, str(copy), fork, boundary)
    assert {} == records(fork)
    if again:
        row = import_row(wanted(str(copy), fork))
        assert 200 == sum(file.rows for file in adds(row))
    run(fork)
    assert undisturbed == read_cut(fork)


@pytest.mark.kill
@pytest.mark.parametrize("claim", [False, True])
@pytest.mark.parametrize("boundary", ["after:AppendImported", "before:Release"])
def test_a_restore_killed_after_its_row_is_one(copy, tmp_path, undisturbed, boundary, claim):
    """After SIGKILL behind the commit point, the next tick publishes the entry and goes on. The copy stays whole."""
    fork = tmp_path / "fork"
    killed(dies_importing, str(copy), fork, boundary, claim=claim)
    assert 1 == len(records(fork))
    run(fork)
    assert undisturbed == read_cut(fork)
    with pytest.raises(SavepointRefusedError, match="already holds numbers"):
        import_row(wanted(str(copy), fork))
    assert 200 == pl.read_delta(str(copy / BRONZE)).height


def test_a_fresh_start_leaves_no_file_of_a_restore_behind(copy, tmp_path):
    """Files that were copied and never committed are ordinary leftovers."""
    fork = tmp_path / "fork"
    with pytest.raises(Dead):
        import_row(wanted(str(copy), fork), boundary=Mortal("after:CopyFiles"))
    [row] = records(copy).values()
    assert all((fork / path).exists() for path in named_files(row))
    run(fork, take_over=True)
    assert not any((fork / path).exists() for path in named_files(row))


def renamed(**how):
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=7)).table(BRONZE, id="bronze")
    if "vertex" in how:
        numbers.key_by("key").aggregate(how["vertex"], rows=count()).upsert("gold/other")
    return plan(pipeline)


def test_tables_that_the_pipeline_no_longer_has_are_named(copy, tmp_path):
    """A restore without such tables is refused. With the flag they are left behind, and the rest is restored."""
    with pytest.raises(SavepointRefusedError, match=r"holds table gold/by_key.*--allow-non-restored-state"):
        restorable(wanted(str(copy), tmp_path / "fork", plan=renamed()))
    row = restorable(wanted(str(copy), tmp_path / "fork", plan=renamed(), allow_non_restored_state=True)).record
    assert [BRONZE] == [table.table for table in row.tables]
    assert ["numbers", "bronze"] == [vertex.vertex for vertex in row.vertices]


def test_what_from_means(root, copy, tmp_path):
    """A number, or this warehouse's folder, names one of the job's own entries.

    Another folder, with or without @N, names an entry of another warehouse.
    """
    newest = max(number for number, row in records(root).items() if row.kind is RowKind.CHECKPOINT)
    for text in (str(newest), str(root), f"{root}@{newest}", f"{root}/."):
        assert OwnRow(records(root)[newest], is_newest=True) == find_origin(text, root, JOB)
    assert not find_origin("1", root, JOB).is_newest
    assert find_origin(str(copy), root, JOB).is_copy
    assert not find_origin(f"{root}@1", tmp_path / "fork", JOB).is_copy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("99", r"there is no checkpoint or savepoint 99 in .*; there are: 1 \(checkpoint\), 2 \(checkpoint\)"),
        ("nowhere", "nowhere is no such folder; make one with 'tidemark savepoint numbers --to DIR'"),
        ("nowhere@3", "nowhere is no such folder"),
        (".", "no savepoint and no warehouse of numbers"),
    ],
)
def test_a_from_that_leads_nowhere_says_what_is_there(root, tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SavepointRefusedError, match=said):
        find_origin(text, root, JOB)


# ------------------------------------------------------------------
# A reset moves one source to another position. Tables and state stay. A wrong reset is refused with an error that names
# the mistake. A reset that dies has no effect or is finished.


SOURCES = KEEPS_ALL.sources
WORDS = PositionWords(SOURCES)


def positions(root):
    vertex = next(vertex for vertex in newest(root).vertices if vertex.splits)
    return dict(zip(vertex.splits, (subtask.position for subtask in vertex.subtasks), strict=True))


def test_a_source_is_read_again_from_its_start(tmp_path):
    """Tables stay as they are. The next tick appends every row again, as the command said."""
    laid_out(tmp_path, 2)
    before, shown = newest(tmp_path), contents(tmp_path)
    plan, row = reset(at(tmp_path), SOURCES, Reset("numbers", "start"))
    assert (RowKind.RESET, before.checkpoint, ()) == (row.kind, row.parent, row.tables)
    assert ({"a": None, "b": None}, shown) == (positions(tmp_path), contents(tmp_path))
    assert shown == read_cut(tmp_path)
    again = sum(rows_again(plan.splits, WORDS))
    tick(tmp_path)
    assert 300 + again == pl.read_delta(str(tmp_path / BRONZE)).height
    assert 300 + again == sum(row[1] for row in read_cut(tmp_path)["gold/by_key"])


def test_one_split_goes_to_its_end_and_the_other_stays(tmp_path):
    laid_out(tmp_path, 1)
    stood = positions(tmp_path)
    plan, _ = reset(at(tmp_path), SOURCES, Reset("numbers", "end", "b"))
    assert {"a": stood["a"], "b": "150"} == positions(tmp_path)
    skipped = -sum(rows_again(plan.splits, WORDS))
    tick(tmp_path)
    assert 300 - skipped == pl.read_delta(str(tmp_path / BRONZE)).height


def test_a_dry_run_changes_nothing(tmp_path):
    """The dry run shows the splits that move, and the number of rows between old and new position."""
    laid_out(tmp_path, 1)
    before = JobStores(at(tmp_path), cross_freely).observe()
    stood = positions(tmp_path)
    plan = preview_reset(at(tmp_path), SOURCES, Reset("numbers", "7", "a"))
    assert [("a", stood["a"], "7")] == [(split.split, split.now, split.then) for split in plan.splits]
    assert [int(stood["a"]) - 7] == rows_again(plan.splits, WORDS)
    after = JobStores(at(tmp_path), cross_freely).observe()
    assert (before.version, before.rows) == (after.version, after.rows)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (Reset("nunbers", "start"), RollbackRefusedError, "reads no source 'nunbers': did you mean 'numbers'"),
        (Reset("numbers", "start", "c"), RollbackRefusedError, "has read no split 'c': there are a, b"),
        (Reset("numbers", "../x"), NoSuchPositionError, "'../x' is not a position in split a.*a number from 0 to 150"),
        (Reset("numbers", "151"), NoSuchPositionError, "'151' is not a position in split a.*a number from 0 to 150"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(tmp_path, asked, error, said):
    """The error lists the existing sources, splits or positions. No entry is appended."""
    laid_out(tmp_path, 1)
    before = set(records(tmp_path))
    with pytest.raises(error, match=said):
        reset(at(tmp_path), SOURCES, asked)
    assert before == set(records(tmp_path))


def test_a_job_that_has_nothing_yet_is_refused(tmp_path):
    JobStores(at(tmp_path / "new"), cross_freely)
    with pytest.raises(SavepointRefusedError, match="completed no checkpoint yet"):
        reset(at(tmp_path / "new"), SOURCES, Reset("numbers", "start"))


def test_what_a_dead_tick_has_left_goes_with_the_reset(tmp_path):
    """The reset deletes the dead tick's leftovers.

    Its entry has a newer generation, after which a leftover would look like a used file.
    """
    laid_out(tmp_path, 1)
    stood, shown = newest(tmp_path), contents(tmp_path)
    counter = next(vertex.micro_batch for vertex in stood.vertices if vertex.vertex == "bronze")
    left = tmp_path / BRONZE / "_data" / str(stood.generation) / f"bronze-{counter + 1}-{uuid4().hex}.parquet"
    left.write_bytes(b"left behind")
    reset(at(tmp_path), SOURCES, Reset("numbers", "start"))
    assert (False, shown) == (left.exists(), contents(tmp_path))


@pytest.mark.kill
@pytest.mark.parametrize(
    "boundary", ["after:Claim", "before:AppendRow", "after:AppendRow", "before:RollForwardCut", "before:Release"]
)
def test_a_death_on_the_way_is_made_up_for(tmp_path, monkeypatch, boundary):
    """Before the reset's entry, nothing has changed. After it, the next tick begins from this entry."""
    laid_out(tmp_path, 1)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    before = newest(tmp_path)
    with suppress(Dead):
        reset(at(tmp_path), SOURCES, Reset("numbers", "end"), boundary=Mortal(boundary))
    happened = newest(tmp_path) != before
    assert happened is (boundary not in ("after:Claim", "before:AppendRow"))
    rows = pl.read_delta(str(tmp_path / BRONZE)).height
    tick(tmp_path)
    assert (rows if happened else 300) == pl.read_delta(str(tmp_path / BRONZE)).height
