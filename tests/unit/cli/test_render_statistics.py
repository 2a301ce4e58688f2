"""What the command line shows of checkpoints' numbers: vertices, subtasks, the history, and what nobody measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.metadata.record import CheckpointCounts, SubtaskStatistics
from checkpointing.percentiles import Distribution
from jobs.showing.checkpoints import (
    NOT_MEASURED,
    counts_line,
    history_grid,
    render_checkpoints,
    render_timeline,
    subtasks_grid,
    vertices_grid,
)
from jobs.sources.position_words import PositionWords


def measured(record, times, **changes):
    """Return the checkpoint with these task times of its joining vertex's subtasks."""
    (joined,) = record.statistics.vertices
    columns = SubtaskStatistics(
        task_ms=times, sync_ms=tuple(1 for _ in times), rows_in=tuple(range(len(times))), rows_out=(1,) * len(times)
    )
    joined = joined.model_copy(update={"subtasks": columns, "start_delay_ms": 100, "bytes_processed": 2048, **changes})
    subtasks = tuple(SubtaskSnapshot() for _ in times)
    vertices = (record.vertices[0], record.vertices[1].model_copy(update={"subtasks": subtasks}))
    statistics = record.statistics.model_copy(update={"vertices": (joined,)})
    return record.model_copy(update={"vertices": vertices, "statistics": statistics})


def cells(text):
    """Return the cells of a drawn table, row by row."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_what_nobody_measured_is_said_and_never_0(shown, record):
    """An entry of an older version: its subtasks, its start delay and its counts are not measured."""
    text = shown(render_timeline(record(), None, {}, PositionWords({})), width=240)
    assert "generation 2 up to checkpoint 7: checkpoints not measured" in text
    (barriers,) = cells(shown(vertices_grid(record())))
    assert [NOT_MEASURED, "0.80 s", NOT_MEASURED] == barriers[1:4]
    for row in cells(shown(subtasks_grid(record(), every=False), width=240)):
        assert [NOT_MEASURED] * 6 == row[2:8]
    assert [["flights", "EWR", NOT_MEASURED, NOT_MEASURED]] == [
        [row[0], row[1], row[3], row[4]] for row in cells(text) if row[1:2] == ["EWR"]
    ]


def test_each_subtask_has_its_numbers_under_the_vertexs_spread(shown, record):
    """Least, average and most of all subtasks, then each subtask."""
    rows = cells(shown(subtasks_grid(measured(record(), (100, 900, 200)), every=False)))
    assert [
        ["least", "0.10 s"],
        ["average", "0.40 s"],
        ["most", "0.90 s"],
        ["0", "0.10 s"],
        ["1", "0.90 s"],
        ["2", "0.20 s"],
    ] == [row[1:3] for row in rows]


@pytest.mark.parametrize(("every", "left_out"), [(False, True), (True, False)])
def test_of_many_subtasks_the_slowest_are_shown_or_all(shown, record, every, left_out):
    """Of a thousand subtasks it shows the sixteen slowest, and says how to see the others."""
    many = measured(record(), tuple(range(1_000)))
    text = shown(subtasks_grid(many, every=every))
    assert left_out == ("984 faster subtasks left out: --subtasks shows all" in text)
    named = [row[1] for row in cells(text) if row[1].isdigit()]
    assert ([str(n) for n in range(1_000)] if every else [str(n) for n in range(984, 1_000)]) == named


def test_a_list_has_the_spread_of_its_checkpoints_and_what_the_newest_counts(shown, record):
    """Percentiles over the checkpoints that are listed, and how the generation's checkpoints ended."""
    counts = CheckpointCounts(total=9, in_progress=1, completed=6, failed=2, restored=1)
    newest = record(8, 7)
    statistics = newest.statistics.model_copy(update={"counts": counts})
    text = shown(
        render_checkpoints("flights", [newest.model_copy(update={"statistics": statistics}), record()], [], "")
    )
    assert "over 2 checkpoints" in text
    assert "9 triggered, 7 completed, 2 failed, restored from a checkpoint" in text
    assert ["slowest subtask", NOT_MEASURED] in [row[:2] for row in cells(text)]
    assert "over" not in shown(render_checkpoints("flights", [record()], [], ""))


def test_a_history_of_what_was_measured_says_so(shown, record):
    """The slowest subtask of each checkpoint makes a distribution."""
    records = [measured(record(n + 1, n), (n * 100, 50)) for n in range(1, 21)]
    (row,) = [row for row in cells(shown(history_grid(records))) if row[0] == "slowest subtask"]
    assert ["0.10 s", "1.05 s", "2.00 s", "1.00 s", "1.90 s", "2.00 s"] == row[1:]


def test_an_entry_counts_its_own_checkpoint_as_completed(record):
    """It was in progress when the entry was written. Another one may have been, too."""
    counts = CheckpointCounts(total=5, in_progress=2, completed=3)
    one = record()
    told = counts_line(one.model_copy(update={"statistics": one.statistics.model_copy(update={"counts": counts})}))
    assert "5 triggered, 4 completed, 0 failed, 1 more in progress, started without a checkpoint" in told.plain


def test_the_counts_are_those_of_a_generation(record):
    """Without a count the line says so."""
    assert counts_line(record()).plain.endswith("checkpoints not measured")


@given(st.lists(st.one_of(st.none(), st.integers(0, 10_000))))
def test_a_distribution_lies_within_its_numbers(numbers):
    """At least n % of the numbers are not greater than percentile n, and fewer are smaller. None does not count."""
    known = [number for number in numbers if number is not None]
    spread = Distribution.of(numbers)
    if spread is None:
        assert [] == known
        return
    assert (len(known), min(known), max(known)) == (spread.count, spread.minimum, spread.maximum)
    assert min(known) <= spread.average <= max(known)
    for per_cent, value in ((50, spread.p50), (95, spread.p95), (99, spread.p99)):
        assert value in known
        below, reached = sum(n < value for n in known), sum(n <= value for n in known)
        assert 100 * below < per_cent * len(known) <= 100 * reached
