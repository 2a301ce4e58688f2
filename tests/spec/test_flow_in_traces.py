"""Plants bugs of the flow in the core while a real tick runs. The tick's trace must show them."""

import pytest

from checkpointing.config import CheckpointConfig
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from spec.bugs.plant import bugs, planted
from spec.traces import judge
from tests.scenarios.runtime.sequence_job import LocalEngine, build

ROWS = {"a": 400, "b": 130}
BY_ROWS = CheckpointConfig(every_rows=100, slice_rows_max=50, micro_batch_rows_max=100, retained=2)
BY_TIME = CheckpointConfig(interval_ms=30, slice_rows_max=5, micro_batch_rows_max=10, retained=2)
WITH_PAUSE = BY_TIME.model_copy(update={"min_pause_ms": 30})
FOUND = (
    ("a slice of several rows counts as one row", BY_ROWS),
    ("a slice may have one row too many", BY_TIME),
)


def broken(folder, config):
    """Return the rules that the trace of a real tick breaks."""
    settings = RuntimeSettings(warehouse=folder / "warehouse")
    trace = run_tick(build(ROWS, config=config), settings, engine=LocalEngine()).trace
    problems = judge(trace.read_bytes().splitlines(keepends=True)).problems
    return {problem.partition(":")[0] for problem in problems}


@pytest.mark.parametrize(("bug", "config"), FOUND)
def test_a_bug_of_the_flow_is_found_in_a_real_trace(bug, config, tmp_path):
    """The planted bug also answers when the trace is replayed, so only the rules can find it."""
    with planted(bugs()[bug]):
        assert bugs()[bug].rule in broken(tmp_path, config)


@pytest.mark.parametrize("config", [BY_ROWS, BY_TIME, WITH_PAUSE])
def test_a_real_tick_keeps_every_rule_of_the_flow(config, tmp_path):
    """The tick has rows, an interval, and a pause between checkpoints."""
    assert set() == broken(tmp_path, config)
