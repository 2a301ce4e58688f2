"""The core replays the trace of a real tick. A trace with a line dropped, swapped or changed is rejected."""

import random
import re
from contextlib import nullcontext

import pytest

from checkpointing.config import CheckpointConfig
from checkpointing.trace import FORMAT
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from spec.bugs.plant import bugs, planted
from spec.traces import judge, main
from tests.scenarios.runtime.sequence_job import LocalEngine, build

SAMPLED = 12


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Return the trace of a job's second tick on real Delta tables. The tick restores, then reads more rows."""
    root = tmp_path_factory.mktemp("traced")
    for rows in (150, 500):
        settings = RuntimeSettings(warehouse=root / "warehouse")
        report = run_tick(build({"a": rows, "b": rows}), settings, engine=LocalEngine())
    return report.trace


@pytest.fixture(scope="module")
def lines(trace):
    return trace.read_bytes().splitlines(keepends=True)


def renumbered(lines):
    return [re.sub(rb'"number":\d+', b'"number":%d' % number, line, count=1) for number, line in enumerate(lines, 1)]


def some_places(lines, last):
    return random.Random(4).sample(range(1, last), min(SAMPLED, last - 1))  # noqa: S311 - the same lines every time


def is_time(line):
    return b'"is":"TimeAdvanced"' in line


def tells_nothing(line):
    return is_time(line) or b'"is":"FilesCompacted","body":{}' in line


def test_a_real_trace_is_found_good(trace, capsys):
    """The core gives the same effects again, and the events break no invariant."""
    assert main([str(trace)]) == 0
    out = capsys.readouterr().out
    assert "1 passed, 0 failed" in out
    assert "0 checkpoints" not in out


def test_a_dropped_line_is_found(lines):
    """The line numbers show a gap, whichever line is missing."""
    for place in some_places(lines, len(lines) - 1):
        assert judge([*lines[:place], *lines[place + 1 :]]).problems, lines[place]


def test_a_dropped_line_is_found_after_renumbering(lines):
    """The other lines are numbered anew.

    Then the core gets fewer facts, or answers more effects, than the trace has.
    """
    for place in some_places(lines, len(lines) - 1):
        if not tells_nothing(lines[place]):
            assert judge(renumbered([*lines[:place], *lines[place + 1 :]])).problems, lines[place]


def test_swapped_lines_are_found(lines):
    """Two neighbouring lines are in the wrong order. Their numbers show it."""
    for place in some_places(lines, len(lines) - 1):
        one, other = lines[place : place + 2]
        assert judge([*lines[:place], other, one, *lines[place + 2 :]]).problems, (one, other)


def test_a_changed_fact_is_found(lines):
    """A line names another version of a table. The cut in a later line has the real version."""
    place = next(index for index, line in enumerate(lines) if b'"is":"TablePublished"' in line)
    changed = re.sub(rb'"version":(\d+)', rb'"version":9\1', lines[place], count=1)
    assert judge([*lines[:place], changed, *lines[place + 1 :]]).problems


def test_an_answer_that_nobody_waits_for_is_found(lines):
    """A fact comes twice, which no driver would do. The core raises an error, and the verdict names the line."""
    place = next(index for index, line in enumerate(lines) if b'"is":"RowAppended"' in line)
    (problem, *_) = judge(renumbered([*lines[: place + 1], lines[place], *lines[place + 1 :]])).problems
    assert problem.startswith("line ")


def test_a_trace_that_a_kill_cut_off_is_judged_up_to_its_end(lines):
    """The existing lines are right. The verdict mentions the missing end, which is no failure."""
    place = next(index for index, line in enumerate(lines) if b'"is":"RowAppended"' in line)
    verdict = judge([*lines[:place], lines[place][:-20]])
    assert [] == verdict.problems
    assert not verdict.ended
    assert "cut off" in str(verdict)


def test_a_trace_of_an_older_format_is_refused_by_name(lines, tmp_path, capsys):
    """Its entries have another format than this core's.

    The verdict reports this, instead of listing what does not fit.
    """
    older = tmp_path / "1.ndjson"
    older.write_bytes(
        b"".join(line.replace(b'{"format":%d' % FORMAT, b'{"format":%d' % (FORMAT - 1), 1) for line in lines)
    )
    assert main([str(older)]) == 1
    assert f"  line 1: written in format {FORMAT - 1} by an older Tidemark" in capsys.readouterr().out


def test_a_file_that_is_no_trace_is_named(tmp_path, capsys):
    """A missing file and a file of another kind fail, and are named. The other files are judged nevertheless."""
    other = tmp_path / "other.ndjson"
    other.write_bytes(b'{"a": 1}\n')
    assert main([str(tmp_path / "missing.ndjson"), str(other)]) == 1
    out = capsys.readouterr().out
    assert "missing.ndjson cannot be read" in out
    assert "other.ndjson" in out
    assert "line 1: no entry that this version knows" in out
    assert "0 passed, 2 failed" in out


# ------------------------------------------------------------------
# Plants bugs in the core while a real tick runs. The tick's trace must break the rule that each bug names.


ROWS = {"a": 300, "b": 130}
BY_ROWS = CheckpointConfig(every_rows=100, slice_rows_max=50, micro_batch_rows_max=100, retained=2)
UNALIGNED = CheckpointConfig(interval_ms=30, slice_rows_max=5, micro_batch_rows_max=10, retained=2, unaligned=True)
BY_TIME = UNALIGNED.model_copy(update={"unaligned": False})
WITH_PAUSE = BY_TIME.model_copy(update={"min_pause_ms": 30})
FOUND = (
    ("a completion passes over slices in flight", UNALIGNED),
    ("the last table is not checked", BY_ROWS),
    ("a file that leaves a table is not said", BY_ROWS),
    ("the last table is not published", BY_ROWS),
    ("a barrier takes the position of its first split for all splits of a source", BY_ROWS),
    ("a slice of several rows counts as one row", BY_ROWS),
    ("a slice may have one row too many", BY_TIME),
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
    """The planted bug is also in the core that replays the trace, so only the rules can find it."""
    found, _ = broken(tmp_path, config, bug)
    assert bugs()[bug].rule in found


@pytest.mark.parametrize("config", [BY_ROWS, UNALIGNED, BY_TIME, WITH_PAUSE])
def test_a_real_tick_without_a_bug_breaks_nothing(config, tmp_path):
    """The tick runs in unaligned mode, with slices in flight, so that the rules about them judge something."""
    found, trace = broken(tmp_path, config)
    assert set() == found
    assert (b'"in_flight":[{' in trace) is config.unaligned
