"""Tests the flights aligned and unaligned on real Spark: one of two inputs is slow, ticks die, and jobs are rescaled.

`test_rows_on_spark.py` has each mode on a smaller job.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pytest

from checkpointing.event_time import END_OF_TIME
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, SavepointRequested, TickOutcome
from checkpointing.metadata.record import RowKind
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.tick.driver import Inbox
from jobs.tick.listener import MicroBatchRan, TickListener
from tests.scenarios.modes.modes import (
    MODES,
    Job,
    enriched,
    final,
    golds,
    multiset,
    newest,
    records,
    rows_in_flight,
    wrong_with,
)
from tests.scenarios.processes import KILLED

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]

COMPLETED = 6


def recover(job) -> None:
    """Run the tick that recovers after a death.

    Afterwards at least six checkpoints are complete, and the tables at each of their cuts show one moment.
    """
    report = job.tick()
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert COMPLETED <= len(records(job.root))
    assert [] == wrong_with(job.root)


@pytest.mark.kill
@pytest.mark.parametrize("mode", MODES)
def test_a_killed_client_of_a_connect_server_is_recovered(spark, connect_url, days, expected, tmp_path, mode):
    """The process really dies. Another process, in another folder, then finishes with each row exactly once."""
    job = Job(data=days, root=tmp_path, config=MODES[mode].config, connect_url=connect_url)
    assert KILLED == job.be_killed(MODES[mode].due)
    recover(Job(data=days, root=tmp_path, config=MODES[mode].config, spark=spark))
    assert expected == final(tmp_path)


# ------------------------------------------------------------------
# Tests that the rows stay the same although each tick has another parallelism, and finds the warehouse moved.


TWO = TickLimits(until_caught_up=False, checkpoints=2)
KEYED = ("silver_flights", "delays_by_route", "delays_by_wind", "delays_by_day")
WIDTHS = ((2, TWO, TickOutcome.STOPPED), (3, TWO, TickOutcome.STOPPED), (1, TickLimits(), TickOutcome.CAUGHT_UP))
"""For each tick: the number of subtasks of its keyed vertices, its limits, and its expected outcome."""


def moved(tmp_path) -> Iterator[str]:
    """Yield a folder for each tick, after moving the warehouse into it."""
    name = "first"
    (tmp_path / name / "warehouse").mkdir(parents=True)
    yield name
    for other in ("second place", "third"):
        (tmp_path / other).mkdir()
        (tmp_path / name / "warehouse").rename(tmp_path / other / "warehouse")
        name = other
        yield name


@pytest.mark.parametrize("mode", MODES)
def test_two_then_three_then_one_subtask_in_a_warehouse_that_moves(spark, days, expected, tmp_path, monkeypatch, mode):
    """State, upsert ranges and rows in flight get new owners, wherever the files lie. The rows are the same."""
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


# ------------------------------------------------------------------
# Tests that a drain emits the flights that still wait for their weather.


ASKED_AFTER = 2


class Drains(TickListener):
    """Requests a drain after a few checkpoints, at a moment when flights were read that no checkpoint has yet."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._completed = 0
        self._asked = False

    def completed(self, record, notes, versions):
        self._completed += 1

    def progress(self, progress):
        arrived = isinstance(progress, MicroBatchRan) and progress.vertex == "bronze_flights"
        if arrived and self._completed >= ASKED_AFTER and not self._asked:
            self._asked = True
            self._inbox.put(SavepointRequested("mine", SavepointKind.DRAIN))


@pytest.mark.parametrize("mode", MODES)
def test_a_drained_job_has_emitted_waiting_rows_and_goes_on(spark, days, tmp_path, mode):
    """Flights without weather are in silver and gold, with nulls (F4).

    Weather that comes later does not change these rows.
    """
    job, inbox = Job(data=days, root=tmp_path, config=MODES[mode].config, spark=spark), Inbox()
    report = job.tick(listener=Drains(inbox), inbox=inbox)
    assert (TickOutcome.STOPPED, "") == (report.outcome, report.message)
    last = records(job.root)[-1]
    assert (RowKind.CHECKPOINT, True) == (last.kind, last.pinned)
    tables = newest(job.root).tables
    drained = enriched(tables["bronze/flights"], tables["bronze/weather"], END_OF_TIME)
    assert multiset(drained) == multiset(tables["silver/flights"])
    for gold, rows in golds(drained, END_OF_TIME).items():
        assert multiset(rows) == multiset(tables[gold]), gold
    waited = multiset(drained.filter(pl.col("weather_hour").is_null()))
    assert waited, "nothing waited: the drain had nothing to do"
    read = tables["bronze/flights"].height
    assert read < pl.read_parquet(days / "flights" / "*" / "*.parquet").height

    report = replace(job, parallelism=3).tick()
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    silver = pl.read_delta(str(job.root / "silver/flights"))
    assert Counter() == waited - multiset(silver)
    flights = ["carrier", "flight", "origin", "year", "month", "day", "sched_dep_time"]
    assert silver.height == silver.unique(subset=flights).height
    by_route, by_wind, _ = golds(silver, END_OF_TIME).items()
    for gold, rows in (by_route, by_wind):
        assert multiset(rows) == multiset(pl.read_delta(str(job.root / gold))), gold
