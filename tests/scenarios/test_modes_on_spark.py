"""Each mode of alignment on real Spark, on the worked example's two splits of which one is slow.

`modes/test_modes.py` shows the same on the flights, with deaths at the worst moments; those tests are dear.
"""

from itertools import pairwise

import pytest
from deltalake import DeltaTable

from checkpointing.channel_items import AlignmentType
from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.restoring import in_flight
from checkpointing.messages import NotifyAborted, TickOutcome
from checkpointing.trace import read
from jobs.pipeline.planning import plan
from jobs.pipelines import offsets_100_105
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EXACT = {"fast": (205, 204), "slow": (200, 199)}
"""By split: how many records there are, and the greatest of them."""

BEFORE_BARRIER_1 = sum(offsets_100_105.FIRST_WAVE.values())

KEEPS_ALL = {"retained": 50}


@pytest.fixture
def tick(spark, tmp_path):
    """Return a function that runs the worked example to its end with these changes to its configuration."""

    def run(folder=tmp_path, **changes):
        config = CheckpointConfig(**(offsets_100_105.CONFIG.model_dump() | KEEPS_ALL | changes))
        planned = plan(offsets_100_105.build(folder), config=config)
        report = run_tick(planned, RuntimeSettings(warehouse=folder), spark=spark)
        assert ("", TickOutcome.CAUGHT_UP) == (report.message, report.outcome)
        return report

    return run


def counts(warehouse) -> dict[str, tuple[int, int]]:
    """Return, by split, how many records were counted and the greatest of them."""
    rows = DeltaTable(str(warehouse / "example" / "counts")).to_pyarrow_table().to_pylist()
    return {row["split"]: (row["records"], row["last"]) for row in rows}


def at_the_count(record):
    """Return the statistics of the vertex where the splits meet."""
    return next(vertex for vertex in record.statistics.vertices if vertex.vertex == "counts")


def rows_in_flight(record) -> int:
    """Return how many rows a checkpoint holds in flight."""
    return sum(segment.rows for _, segment in in_flight(record))


def test_unaligned_the_barrier_overtakes_records_and_the_checkpoint_holds_them(tick, tmp_path):
    """Records before barrier 1 are counted or in flight, each once, and a restore would lose none (C5)."""
    first, *_ = tick(unaligned=True).completed
    vertex = at_the_count(first)
    assert AlignmentType.UNALIGNED is vertex.alignment
    assert 0 < rows_in_flight(first)
    assert BEFORE_BARRIER_1 == vertex.rows_in + rows_in_flight(first)
    assert EXACT == counts(tmp_path)


def test_with_a_timeout_an_alignment_that_takes_too_long_turns_unaligned(tick, tmp_path):
    """Checkpoint 1 starts aligned, waits for the slow split, and turns when its time is over (C6)."""
    first, *_ = tick(unaligned=True, alignment_timeout_ms=50).completed
    vertex = at_the_count(first)
    assert AlignmentType.UNALIGNED is vertex.alignment
    assert vertex.aligned_ms - first.statistics.triggered_ms >= 50
    assert 0 < rows_in_flight(first)
    assert EXACT == counts(tmp_path)


def test_buffering_over_the_limit_declines_the_checkpoint_and_the_job_goes_on(tick, tmp_path):
    """More waits behind the fast barrier than the limit allows: checkpoint 1 is declined by name (C2).

    If Spark is quicker than the polls, nothing waits there. Then another job is run; five in a row are never so.
    """
    aborted = []
    for folder in (tmp_path / str(number) for number in range(5)):
        report = tick(folder, max_alignment_bytes=64, tolerable_failures=100)
        assert EXACT == counts(folder)
        entries = read(report.trace.read_bytes().splitlines(keepends=True))
        aborted = [entry.body for entry in entries if isinstance(entry.body, NotifyAborted)]
        if aborted:
            break
    assert {CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED} == {each.reason for each in aborted}
    assert 1 == min(each.checkpoint for each in aborted)


def test_buffering_below_the_limit_completes_aligned(tick, tmp_path):
    """With room for all that waits, checkpoint 1 aligns, and says how many bytes it held (C2, C7).

    As above: if nothing waits, another job is run.
    """
    for folder in (tmp_path / str(number) for number in range(5)):
        first, *_ = tick(folder, max_alignment_bytes=1_000_000).completed
        vertex = at_the_count(first)
        assert (AlignmentType.ALIGNED, 0) == (vertex.alignment, rows_in_flight(first))
        assert EXACT == counts(folder)
        if vertex.bytes_held:
            break
    assert 0 < vertex.bytes_held
    assert 0 < vertex.alignment_ms


def test_two_checkpoints_at_a_time_commit_in_their_order(tick, tmp_path):
    """The next barrier is on its way before the checkpoint before it has committed (E2)."""
    completed = tick(max_concurrent=2, every_rows=50).completed
    lives = [record.statistics for record in completed]
    assert any(later.triggered_ms < earlier.committed_ms for earlier, later in pairwise(lives))
    assert [record.parent for record in completed[1:]] == [record.checkpoint for record in completed[:-1]]
    assert EXACT == counts(tmp_path)
