"""Plants bugs in the core while a real tick runs. The tick's trace must break the rule that each bug names."""

from contextlib import nullcontext

import pytest

from checkpointing.config import CheckpointConfig
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from spec.bugs.plant import bugs, planted
from spec.traces import judge
from tests.scenarios.runtime.sequence_job import LocalEngine, build

ROWS = {"a": 300, "b": 130}
ALIGNED = CheckpointConfig(every_rows=100, slice_rows_max=50, micro_batch_rows_max=100, retained=2)
UNALIGNED = CheckpointConfig(interval_ms=30, slice_rows_max=5, micro_batch_rows_max=10, retained=2, unaligned=True)
FOUND = (
    ("a completion passes over slices in flight", UNALIGNED),
    ("the last table is not checked", ALIGNED),
    ("a file that leaves a table is not said", ALIGNED),
    ("the last table is not published", ALIGNED),
    ("a barrier takes the position of its first split for all splits of a source", ALIGNED),
)


def broken(folder, config, bug=None):
    """Return the rules that the trace of a real tick breaks, and the trace."""
    with planted(bugs()[bug]) if bug is not None else nullcontext():
        settings = RuntimeSettings(warehouse=folder / "warehouse")
        trace = run_tick(build(ROWS, config=config), settings, engine=LocalEngine()).trace.read_bytes()
        problems = judge(trace.splitlines(keepends=True)).problems
    return {problem.partition(":")[0] for problem in problems}, trace


@pytest.mark.parametrize(("bug", "config"), FOUND)
def test_a_bug_is_found_in_the_trace_of_a_real_tick(bug, config, tmp_path):
    """The planted bug also answers when the trace is replayed, so only the rules can find it."""
    found, _ = broken(tmp_path, config, bug)
    assert bugs()[bug].rule in found


@pytest.mark.parametrize("config", [ALIGNED, UNALIGNED])
def test_a_real_tick_without_a_bug_breaks_nothing(config, tmp_path):
    """The tick runs in unaligned mode, with slices in flight, so that the rules about them judge something."""
    found, trace = broken(tmp_path, config)
    assert set() == found
    assert (b'"in_flight":[{' in trace) is config.unaligned
