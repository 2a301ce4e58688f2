"""Tests each mode on real Spark: one of two inputs is slow, and the tick dies at the worst moment."""

from collections import Counter
from itertools import pairwise

import pytest

from checkpointing.channel_items import AlignmentType
from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import TickOutcome
from tests.scenarios.faults.processes import KILLED
from tests.scenarios.modes.cuts import ahead, final, newest, records, rows_in_flight, wrong_with
from tests.scenarios.modes.first_days import EPOCH_FLIGHTS
from tests.scenarios.modes.modes import MODES, Job

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]

COMPLETED = 6
SILVER = "silver/flights"
EXACT = sorted(set(MODES) - {"at_least_once"})


@pytest.fixture
def job(spark, days, tmp_path):
    """Return a function that makes this test's job in a mode."""
    return lambda mode: Job(data=days, root=tmp_path, config=MODES[mode].config, spark=spark)


def recover(job) -> None:
    """Run the tick that recovers after a death.

    Afterwards at least six checkpoints are complete, and each shows one moment.
    """
    report = job.tick()
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert COMPLETED <= len(records(job.root))
    at_least_once = job.config == MODES["at_least_once"].config
    assert [] == wrong_with(job.root, duplicates=at_least_once)


def join(record):
    """Return the statistics of the vertex that joins the inputs."""
    return next(vertex for vertex in record.statistics.vertices if vertex.vertex == "silver_flights")


def test_aligned_mode_holds_the_fast_input_back(job, expected):
    """Exactly once: the flights behind the barrier wait for the weather's barrier. Bytes and times are reported."""
    job = job("aligned")
    assert job.die(MODES["aligned"].due)
    recover(job)
    assert expected == final(job.root)
    waited = [join(record) for record in records(job.root) if join(record).bytes_held]
    assert waited
    assert all(vertex.alignment_ms > 0 for vertex in waited)
    assert {0} == {rows_in_flight(record) for record in records(job.root)}


def test_at_least_once_repeats_the_rows_that_came_after_the_barrier(job, expected):
    """No row is lost. Twice are exactly the flights that silver held beyond its barrier, at most an epoch's."""
    job = job("at_least_once")
    assert job.die(MODES["at_least_once"].due)
    twice = ahead(job.root, newest(job.root))
    assert 0 < twice.total() <= EPOCH_FLIGHTS
    recover(job)
    found = final(job.root)
    surplus = found[SILVER] - expected[SILVER]
    assert Counter() == expected[SILVER] - found[SILVER]
    assert Counter() == twice - surplus
    assert surplus.total() <= EPOCH_FLIGHTS
    assert 2 >= max(found[SILVER].values())
    for table in ("bronze/flights", "bronze/weather", "quarantine/flights"):
        assert expected[table] == found[table]
    assert {(AlignmentType.AT_LEAST_ONCE, 0)} == {(at.alignment, at.bytes_held) for at in map(join, records(job.root))}
    assert any(join(record).alignment_ms > 0 for record in records(job.root))


def test_an_unaligned_barrier_overtakes_rows_and_keeps_them(job, expected):
    """Rows in flight are part of the cut. The snapshot does not wait for the slow input."""
    job = job("unaligned")
    assert job.die(MODES["unaligned"].due)
    assert 0 < rows_in_flight(records(job.root)[-1])
    recover(job)
    assert expected == final(job.root)
    assert {(AlignmentType.UNALIGNED, 0)} == {(at.alignment, at.bytes_held) for at in map(join, records(job.root))}
    assert any(at.aligned_ms < max(barrier.at_ms for barrier in at.barriers) for at in map(join, records(job.root)))


def test_aligned_mode_with_a_timeout_turns_unaligned_when_it_takes_too_long(job, expected):
    """A checkpoint that the slow input would delay turns unaligned. The others stay aligned."""
    job = job("alternating")
    assert job.die(MODES["alternating"].due)
    recover(job)
    assert expected == final(job.root)
    assert {AlignmentType.ALIGNED, AlignmentType.UNALIGNED} == {join(record).alignment for record in records(job.root)}


def test_two_concurrent_checkpoints_build_on_each_other(job, expected):
    """The second barrier starts before the first checkpoint is complete. Both commit, in order."""
    job = job("concurrent")
    assert job.die(MODES["concurrent"].due)
    recover(job)
    assert expected == final(job.root)
    assert 2 == job.pending_at_a_time()
    lives = [record.statistics for record in records(job.root)]
    assert any(later.triggered_ms < earlier.committed_ms for earlier, later in pairwise(lives))


def test_buffering_declines_a_checkpoint_that_would_hold_more_than_the_limit(job, expected):
    """The checkpoint is declined by name, and the job goes on. Nothing is lost."""
    job = job("buffering")
    assert job.die(MODES["buffering"].due)
    recover(job)
    assert expected == final(job.root)
    assert {CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED} == {
        failed.reason for failed in job.aborted()
    }


@pytest.mark.kill
@pytest.mark.parametrize("mode", EXACT)
def test_a_killed_client_of_a_connect_server_is_recovered(spark, connect_url, days, expected, tmp_path, mode):
    """The process really dies. Another process, in another folder, ends with each row exactly once."""
    job = Job(data=days, root=tmp_path, config=MODES[mode].config, connect_url=connect_url)
    assert KILLED == job.be_killed(MODES[mode].due)
    recover(Job(data=days, root=tmp_path, config=MODES[mode].config, spark=spark))
    assert expected == final(tmp_path)
