"""A holder on another host that shows no lease is given the time of one before a tick takes its place."""

import pytest

from checkpointing.commit.fencing import LEASE_OF_THE_UNSEEN_MS
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import RowAppended
from checkpointing.metadata.record import Claim, Holder
from jobs.cli import run as run_command
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.tick.tick import run_tick
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore
from tests.scenarios.runtime.savepoint_job import at, run
from tests.scenarios.runtime.sequence_job import LocalEngine

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
FAR = Holder(host="far.example", pid=77, started="then")


@pytest.fixture
def typed(capsys, monkeypatch):
    """Return what a command line says: exit code and everything that it printed; its ticks run without Spark."""
    monkeypatch.setattr(run_command, "run_tick", lambda *told: run_tick(*told, engine=LocalEngine()))

    def type_in(*words):
        code = execute([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return type_in


@pytest.fixture
def held(tmp_path):
    """Return a warehouse that a process elsewhere claimed long ago; its lease is gone."""
    root = tmp_path / "warehouse"
    run(root, 1)
    stores = JobStores(at(root), cross_freely)
    seen = stores.observe()
    generation = max(row.generation for row in seen.rows) + 1
    claim = Claim(
        generation=generation,
        holder=FAR,
        first_id=CheckpointId(50),
        last_id=CheckpointId(60),
        at_ms=1,
        nonce="far",
    )
    assert isinstance(stores.append(claim, seen.version), RowAppended)
    return root


def test_it_is_named_left_alone_and_replaced_when_its_time_is_over(held, typed):
    """The first start gives it a lease, the second sees that lease run, and one after its end takes the job."""
    code, said = typed("run", PIPELINE, "--warehouse", held)
    assert ExitCode.HELD is code
    assert "process 77 on far.example" in said
    assert "has no lease; if it renews none within 30 s from now" in said
    assert "--take-over" in said
    given = LeaseStore(at(held)).read()
    assert (FAR, LEASE_OF_THE_UNSEEN_MS) == (given.holder, given.expires_ms - given.renewed_at_ms)
    code, said = typed("run", PIPELINE, "--warehouse", held)
    assert ExitCode.HELD is code
    assert "its lease runs for another" in said
    LeaseStore(at(held)).renew(given.generation, FAR, -1)
    code, said = typed("run", PIPELINE, "--warehouse", held)
    assert ExitCode.DONE is code
    assert "the lease of process 77 on far.example has run out" in said


def test_a_holder_that_lives_renews_the_lease_that_it_was_given(held, typed):
    """The holder renews the lease that it was given. As long as it does, it is left alone."""
    typed("run", PIPELINE, "--warehouse", held)
    given = LeaseStore(at(held)).read()
    assert LeaseStore(at(held)).renew(given.generation, FAR, 90_000)
    code, said = typed("run", PIPELINE, "--warehouse", held)
    assert ExitCode.HELD is code
    assert "its lease runs for another 90 s" in said or "another 89 s" in said


def test_take_over_does_not_wait(held, typed):
    """The user knows better."""
    code, said = typed("run", PIPELINE, "--warehouse", held, "--take-over")
    assert ExitCode.DONE is code
    assert "taken over from process 77 on far.example" in said
