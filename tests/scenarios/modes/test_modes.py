"""Each mode on real Spark: two inputs of which one is slow, a death at its worst moment, and the exact result."""

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
    """Return a maker of this test's job, in a mode."""
    return lambda mode: Job(data=days, root=tmp_path, config=MODES[mode].config, spark=spark)


def recover(job) -> None:
    """Run the tick that makes up for a death; at least six checkpoints are complete after it, each of one moment."""
    report = job.tick()
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert COMPLETED <= len(records(job.root))
    at_least_once = job.config == MODES["at_least_once"].config
    assert [] == wrong_with(job.root, duplicates=at_least_once)


def join(record):
    """Return the statistics of the vertex where the inputs meet."""
    return next(vertex for vertex in record.statistics.vertices if vertex.vertex == "silver_flights")


def test_aligned_holds_the_fast_input_back(job, expected):
    """Exactly once: the flights behind the barrier wait for the weather's, in bytes and in time."""
    job = job("aligned")
    assert job.die(MODES["aligned"].due)
    recover(job)
    assert expected == final(job.root)
    waited = [join(record) for record in records(job.root) if join(record).bytes_held]
    assert waited
    assert all(vertex.alignment_ms > 0 for vertex in waited)
    assert {0} == {rows_in_flight(record) for record in records(job.root)}


def test_at_least_once_counts_what_came_after_the_barrier_twice(job, expected):
    """None is lost; exactly the flights that silver held beyond its barrier are there twice, an epoch's at most."""
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


def test_unaligned_lets_the_barrier_overtake_and_keeps_what_it_passed(job, expected):
    """Rows in flight are part of the cut; the snapshot does not wait for the slow input."""
    job = job("unaligned")
    assert job.die(MODES["unaligned"].due)
    assert 0 < rows_in_flight(records(job.root)[-1])
    recover(job)
    assert expected == final(job.root)
    assert {(AlignmentType.UNALIGNED, 0)} == {(at.alignment, at.bytes_held) for at in map(join, records(job.root))}
    assert any(at.aligned_ms < max(barrier.at_ms for barrier in at.barriers) for at in map(join, records(job.root)))


def test_aligned_with_a_timeout_turns_when_it_takes_too_long(job, expected):
    """A checkpoint that the slow input would have held up turns unaligned, the others stay aligned."""
    job = job("alternating")
    assert job.die(MODES["alternating"].due)
    recover(job)
    assert expected == final(job.root)
    assert {AlignmentType.ALIGNED, AlignmentType.UNALIGNED} == {join(record).alignment for record in records(job.root)}


def test_two_checkpoints_at_a_time_build_on_each_other(job, expected):
    """The next barrier is on its way before the one before is through; both commit, in their order."""
    job = job("concurrent")
    assert job.die(MODES["concurrent"].due)
    recover(job)
    assert expected == final(job.root)
    assert 2 == job.pending_at_a_time()
    lives = [record.statistics for record in records(job.root)]
    assert any(later.triggered_ms < earlier.committed_ms for earlier, later in pairwise(lives))


def test_buffering_declines_what_would_hold_more_than_the_limit(job, expected):
    """Over the limit the checkpoint is declined, by name, and the job goes on; nothing of it is lost."""
    job = job("buffering")
    assert job.die(MODES["buffering"].due)
    recover(job)
    assert expected == final(job.root)
    assert {CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED} == {
        failed.reason for failed in job.aborted()
    }


@pytest.mark.kill
@pytest.mark.parametrize("mode", EXACT)
def test_a_client_of_a_warm_spark_killed_for_good_is_made_up_for(spark, connect_url, days, expected, tmp_path, mode):
    """The process really dies; another one, elsewhere, ends with each row exactly once."""
    job = Job(data=days, root=tmp_path, config=MODES[mode].config, connect_url=connect_url)
    assert KILLED == job.be_killed(MODES[mode].due)
    recover(Job(data=days, root=tmp_path, config=MODES[mode].config, spark=spark))
    assert expected == final(tmp_path)
