"""The log of an output table that cannot be read for a while: the checkpoint is declined, and the job goes on (E3)."""

from functools import partial

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import TickOutcome
from jobs.tick.listener import TickListener
from spec.traces import judge as judge_trace
from tests.scenarios.faults.strikes import HalfWritten
from tests.scenarios.runtime.sequence_job import CONFIG, GOLD, build, read_cut


class Failed(TickListener):
    """Writes down which checkpoints failed."""

    def __init__(self):
        self.heard = []

    def failed(self, checkpoint, reason, message):
        self.heard.append((checkpoint, reason, message))


@pytest.mark.parametrize("times", [1, 2])
def test_a_log_that_can_be_read_again_costs_a_checkpoint_and_nothing_else(tick, tmp_path, undisturbed, times):
    """The message names the table and the cause; the tick catches up, with the tables of an undisturbed run."""
    failed = Failed()
    config = CONFIG.model_copy(update={"tolerable_failures": times})
    report = tick(plan=build(config=config), listener=failed, boundary=partial(HalfWritten(GOLD, times), root=tmp_path))
    assert TickOutcome.CAUGHT_UP is report.outcome, report.message
    assert [CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE] * times == [reason for _, reason, _ in failed.heard]
    for _, _, message in failed.heard:
        assert f"nothing is committed: table {GOLD}: its log cannot be read" in message
        assert "\n" not in message
    assert undisturbed == read_cut(tmp_path)
    with report.trace.open("rb") as lines:
        assert [] == judge_trace(lines).problems


def test_without_a_setting_the_first_failure_ends_the_tick(tick, tmp_path, undisturbed):
    """It names the way out. The next tick, on the repaired log, leaves the tables of an undisturbed run."""
    report = tick(boundary=partial(HalfWritten(GOLD, 1), root=tmp_path))
    reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert (TickOutcome.FAILED, reason) == (report.outcome, report.reason)
    assert f"table {GOLD}: its log cannot be read" in report.message
    assert "--set tolerable_failures=3" in report.message
    assert TickOutcome.CAUGHT_UP is tick().outcome
    assert undisturbed == read_cut(tmp_path)
