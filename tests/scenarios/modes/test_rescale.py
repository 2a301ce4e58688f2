"""Tests another parallelism and another place of the warehouse at each tick: the rows stay the same."""

from collections.abc import Iterator

import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from jobs.launch import launch
from jobs.settings import flags_layer
from tests.scenarios.modes.cuts import final, records, rows_in_flight, wrong_with
from tests.scenarios.modes.modes import MODES, Job

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]

TWO = TickLimits(until_caught_up=False, checkpoints=2)
KEYED = ("silver_flights", "delays_by_route", "delays_by_wind")
WIDTHS = (
    (2, TWO, TickOutcome.STOPPED),
    (3, TWO, TickOutcome.STOPPED),
    (1, TickLimits(), TickOutcome.CAUGHT_UP),
)
"""For each tick: the number of subtasks of its keyed vertices, the moment of its end, and the kind of its end."""


def moved(tmp_path) -> Iterator[str]:
    """Yield, for each tick, a new name of the warehouse, relative to a new current folder."""
    name = "first"
    (tmp_path / name / "warehouse").mkdir(parents=True)
    yield name
    for other in ("second place", "third"):
        (tmp_path / other).mkdir()
        (tmp_path / name / "warehouse").rename(tmp_path / other / "warehouse")
        name = other
        yield name


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_two_then_three_then_one_subtask_in_a_warehouse_that_moves(spark, days, expected, tmp_path, monkeypatch, mode):
    """State, upsert ranges and rows in flight find their new owners, wherever the files lie. The rows are the same."""
    for place, (parallelism, limits, ends) in zip(moved(tmp_path), WIDTHS, strict=True):
        monkeypatch.chdir(tmp_path / place)
        given = {"data": days, "warehouse": "warehouse", "parallelism": parallelism}
        asked = launch("flights", flags_layer(given))
        job = Job(
            data=asked.settings.data,
            root=asked.settings.warehouse,
            config=MODES[mode].config,
            parallelism=asked.settings.parallelism,
            spark=spark,
            settings={"limits": limits},
        )
        report = job.tick()
        assert (ends, "") == (report.outcome, report.message)
        last = records(job.root)[-1]
        assert {parallelism} == {len(was.subtasks) for was in last.vertices if was.vertex in KEYED}
        assert last.checkpoint == max(record.checkpoint for record in report.completed)
        assert (mode == "unaligned" and limits is TWO) == (rows_in_flight(last) > 0)
    assert expected == final(job.root)
    assert [] == wrong_with(job.root)
