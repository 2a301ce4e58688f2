"""Savepoints of a job that no tick runs: taken, kept, disposed of; without Spark."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_checkpoint, release_of
from checkpointing.identifiers import Generation, VertexId
from checkpointing.messages import RowAppended, SavepointKind, SavepointRequested
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import RowKind
from jobs.reading import Cuts
from jobs.tick.at_rest.request_client import NothingRunsError, Taken, stop, take_savepoint
from jobs.tick.at_rest.take_savepoint import dispose, savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.tick.driver import Inbox
from jobs.tick.tick import RuntimeSettings, run_tick
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore, this_process
from jobs.warehouse.refusals import JobHeldError, NeverRunError, SavepointRefusedError
from jobs.warehouse.savepoint_copy import named_files
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.savepoint_job import at, records, run
from tests.scenarios.runtime.sequence_job import CONFIG, JOB, LocalEngine, build, read_cut


def nobody_waits(waiting):
    """Fail: a job at rest is asked for nothing."""
    raise AssertionError(f"waited: {waiting}")


def hold(root):
    """Claim the job as a live tick would, with a lease."""
    stores = JobStores(at(root), cross_freely)
    seen = stores.observe()
    newest = max(row.generation for row in seen.rows)
    claims = [row for row in seen.rows if hasattr(row, "holder")]
    claim = claims[0].model_copy(update={"generation": newest + 1, "nonce": "held", "holder": this_process()})
    assert isinstance(stores.append(claim, seen.version), RowAppended)
    LeaseStore(stores.warehouse).renew(Generation(newest + 1), claim.holder, 60_000)


def test_a_savepoint_at_rest_is_the_newest_cut_under_a_new_id(tmp_path):
    """Its entry names the same state and positions, no tables, and its parent. The job is released again."""
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
    """It is refused before the claim. Both ways out that the message names lead to a savepoint without such rows."""
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


def test_what_a_savepoint_names_outlives_the_retained_checkpoints(tmp_path):
    """Checkpoints go, one by one. Every file that the savepoint names still exists, and so does its entry.

    The checkpoint on which it stands stays too.
    """
    run(tmp_path, 1)
    row = savepoint_at_rest(at(tmp_path))
    run(tmp_path)
    assert row.parent in records(tmp_path)
    assert row == records(tmp_path)[row.checkpoint]
    assert [] == [path for path in named_files(row) if not (tmp_path / path).exists()]


def test_a_job_that_never_ran_or_completed_nothing_has_no_savepoint(tmp_path):
    """The refusal says how to get there, and creates nothing."""
    with pytest.raises(NeverRunError, match=r"numbers has never run in .*start it with 'tidemark run numbers'"):
        take_savepoint(at(tmp_path / "none"), nobody_waits)
    assert not (tmp_path / "none").exists()
    JobStores(at(tmp_path), cross_freely)
    with pytest.raises(SavepointRefusedError, match="completed no checkpoint yet"):
        take_savepoint(at(tmp_path), nobody_waits)
    assert {} == records(tmp_path)


@pytest.mark.parametrize("kind", [SavepointKind.DRAIN, SavepointKind.SUSPEND])
def test_a_stop_of_a_job_at_rest_says_that_nothing_runs(tmp_path, kind):
    """And why it is at rest."""
    run(tmp_path, 1)
    with pytest.raises(NothingRunsError, match=r"no tick of numbers runs in .*the last tick ended normally"):
        stop(at(tmp_path), kind, nobody_waits)


def test_a_disposed_savepoint_is_gone_with_what_only_it_named(tmp_path, undisturbed):
    """Its entry goes at once. The checkpoint on which it stood goes with the next one, and their state files with it.

    Everything that a checkpoint names stays.
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
    """Checkpoint 1 is subsumed; only the savepoint after it and a reader need its state. A clean-up takes it later."""
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
    """The newest entry no longer names files that state tables still show. They can still be read afterwards."""
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
    """No entry comes before the cut of the one before; the cut has every table of the pipeline that died."""
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    with pytest.raises(Dead):
        tick(boundary=Mortal("after:AppendRow"))
    (newest,) = records(tmp_path).values()
    taken = savepoint_at_rest(at(tmp_path))
    assert newest.checkpoint == taken.parent
    cut = JobStores(at(tmp_path), cross_freely).read_cut(newest.checkpoint)
    assert {table.name for table in build().graph.tables()} == set(cut)
    run(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def test_only_savepoints_that_nothing_begins_from_are_disposed_of(tmp_path):
    """The newest checkpoint, an older one and an unknown id are refused by name. Nothing is deleted."""
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


def test_a_held_job_keeps_its_savepoints(tmp_path):
    """While a tick holds the job, a disposal is refused, and the error names the tick."""
    run(tmp_path, 1)
    row = savepoint_at_rest(at(tmp_path))
    hold(tmp_path)
    with pytest.raises(JobHeldError, match=f"process {this_process().pid} on"):
        dispose(at(tmp_path), row.checkpoint)
    assert row.checkpoint in records(tmp_path)
