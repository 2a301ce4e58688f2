"""A tick or command sleeps between two looks at the stores, and wakes up after another one has held its job."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from checkpointing.identifiers import Generation, VertexId
from checkpointing.messages import RowUnknown
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import Release
from checkpointing.tick.messages import AppendClaim, AppendEntry, AppendRelease, TickFact
from jobs.tick.at_rest.take_savepoint import dispose, savepoint_at_rest
from jobs.tick.carrier import Carrier
from jobs.warehouse import job_stores
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.savepoint_job import at, records, run
from tests.scenarios.runtime.sequence_job import CONFIG, JOB, build, read_cut

PLAN = build(config=CONFIG.model_copy(update={"retained": 1}))


@pytest.fixture
def overtaken(tick):
    """Return a function that runs a whole tick, the first time it is called: it takes the job over."""
    left = [{"plan": PLAN, "take_over": True}]

    def meanwhile() -> None:
        while left:
            tick(**left.pop())

    return meanwhile


def must_be_the_newest_alone(root: Path) -> None:
    """The newest checkpoint and the one before have their cuts, and no other checkpoint has one."""
    assert 2 == len(records(root))
    assert frozenset(records(root)) == CutStore(at(root)).recorded()


def test_a_tick_that_sleeps_while_it_records_its_cut_takes_no_newer_one_away(tick, tmp_path, overtaken, undisturbed):
    """It knows which checkpoints were retained. Since then others were committed, and its own one was subsumed."""
    committed = []

    def boundary(name: str) -> None:
        committed.extend([name] if name == "after:AppendRow" else [])
        if committed and name == "before:LogCommit:cuts":
            overtaken()

    report = tick(plan=PLAN, boundary=boundary)
    assert "the job was claimed by" in report.message
    must_be_the_newest_alone(tmp_path)
    assert Generation(2) == next(iter(records(tmp_path).values())).generation
    assert undisturbed == read_cut(tmp_path)


def test_a_tick_that_sleeps_in_its_clean_up_takes_no_newer_cut_away(tick, tmp_path, overtaken, monkeypatch):
    """It knows which cuts could be read. Since then the other tick has recorded newer ones."""
    looked = job_stores.readable_cuts

    def asleep(rows, recorded):
        monkeypatch.setattr(job_stores, "readable_cuts", looked)
        overtaken()
        return looked(rows, recorded)

    monkeypatch.setattr(job_stores, "readable_cuts", asleep)
    tick(plan=build({"a": 50, "b": 50}, config=PLAN.config))
    assert Generation(2) == next(iter(records(tmp_path).values())).generation
    must_be_the_newest_alone(tmp_path)


def test_the_end_of_a_savepoint_leaves_what_state_tables_show(tick, tmp_path, monkeypatch):
    """A tick begins as soon as the command has released the job, and dies between its commit and its publication."""
    run(tmp_path, 1, plan=PLAN)
    savepoint = savepoint_at_rest(at(tmp_path))
    append = Carrier._append

    def asleep(carrier: Carrier, effect: AppendClaim | AppendEntry | AppendRelease) -> TickFact:
        done = append(carrier, effect)
        if isinstance(effect, AppendRelease):
            monkeypatch.setattr(Carrier, "_append", append)
            with pytest.raises(Dead):
                tick(plan=PLAN, take_over=True, boundary=Mortal("after:AppendRow"))
        return done

    monkeypatch.setattr(Carrier, "_append", asleep)
    dispose(at(tmp_path), savepoint.checkpoint)
    table = DeltaTable(str(tmp_path / table_of_state(JOB, VertexId("by_key"))))
    assert [] == [uri for uri in table.file_uris() if not Path(uri).exists()]


def test_a_release_whose_reply_was_lost_is_not_appended_again(tick, tmp_path, undisturbed, monkeypatch):
    """The tick looks again, finds its release among the entries, and appends no second one."""
    append, lost = JobStores.append, ["the reply"]

    def appended(stores, row, at_version, **said):
        answer = append(stores, row, at_version, **said)
        return RowUnknown(row.nonce, lost.pop()) if isinstance(row, Release) and lost else answer

    monkeypatch.setattr(JobStores, "append", appended)
    tick(plan=PLAN)
    _, rows = CheckpointStore(at(tmp_path)).observe()
    assert [Generation(1)] == [row.generation for row in rows if isinstance(row, Release)]
    assert not lost
    assert undisturbed == read_cut(tmp_path)
