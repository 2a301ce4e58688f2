"""Tests each mode on real Spark: one of two inputs is slow, and the tick dies at the worst moment."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from checkpointing.channel_items import AlignmentType
from checkpointing.event_time import END_OF_TIME
from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, SavepointRequested, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import RowKind
from jobs.launch import launch
from jobs.settings import flags_layer
from jobs.spark.session import SparkConfig
from jobs.tick.at_rest.import_entry import ForeignRow, Import, find_origin, import_row
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.driver import Inbox
from jobs.tick.engine import SparkEngine
from jobs.tick.listener import MicroBatchRan, TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.modes.modes import (
    CONFIG,
    EPOCH_FLIGHTS,
    JOB,
    MODES,
    Fate,
    Job,
    SlowWeather,
    ahead,
    changed,
    enriched,
    final,
    golds,
    multiset,
    newest,
    planned,
    records,
    rows_in_flight,
    wrong_with,
)
from tests.scenarios.processes import KILLED

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]

COMPLETED = 6
SILVER = "silver/flights"
EXACT = sorted(set(MODES) - {"at_least_once"})


@pytest.fixture
def job(spark, days, tmp_path):
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


# ------------------------------------------------------------------
# Tests another parallelism and another place of the warehouse at each tick: the rows stay the same.


TWO = TickLimits(until_caught_up=False, checkpoints=2)
KEYED = ("silver_flights", "delays_by_route", "delays_by_wind", "delays_by_day")
WIDTHS = ((2, TWO, TickOutcome.STOPPED), (3, TWO, TickOutcome.STOPPED), (1, TickLimits(), TickOutcome.CAUGHT_UP))
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


# ------------------------------------------------------------------
# Tests on real Spark that the flights go back to a cut with rows in flight, at another parallelism (K2).


@pytest.mark.parametrize("config", [CONFIG, changed(unaligned=True)], ids=["aligned", "unaligned"])
def test_a_job_that_is_rolled_back_after_a_rescale_ends_exactly(spark, days, expected, tmp_path, config):
    """The job takes three checkpoints with two subtasks and two with three. It goes back to the second one.

    Then it goes on with one subtask, and every table ends as in an undisturbed job.
    """

    def fly(parallelism, checkpoints=None):
        settings = RuntimeSettings(warehouse=tmp_path, limits=TickLimits(checkpoints=checkpoints))
        return run_tick(planned(days, config, parallelism=parallelism), settings, spark=spark)

    fly(2, 3)
    fly(3, 2)
    target = sorted(record.checkpoint for record in records(tmp_path))[1]
    done = roll_back(Warehouse(tmp_path, ProtocolPaths(JOB)), target)
    assert target == done.record.parent
    assert "" == fly(1).message
    assert expected == final(tmp_path)
    assert [] == wrong_with(tmp_path)


# ------------------------------------------------------------------
# Tests savepoints of the flights on real Spark: in a running job, at a stop, and as the origin of a fork.


ASKED_AFTER = 2
UNALIGNED = changed(unaligned=True)


class Asks(TickListener):
    """Requests one savepoint, after a few checkpoints, when flights have come that no checkpoint holds."""

    def __init__(self, inbox: Inbox, kind: SavepointKind) -> None:
        self._inbox = inbox
        self._kind = kind
        self._completed = 0
        self._asked = False

    def completed(self, record, notes, versions):
        self._completed += 1

    def progress(self, progress):
        arrived = isinstance(progress, MicroBatchRan) and progress.vertex == "bronze_flights"
        if arrived and self._completed >= ASKED_AFTER and not self._asked:
            self._asked = True
            self._inbox.put(SavepointRequested("mine", self._kind))


@dataclass(frozen=True)
class Flights:
    """The flights of a few days in a warehouse of their own."""

    spark: Any
    data: Path
    root: Path
    config: Any = CONFIG
    settings: dict[str, Any] = field(default_factory=dict)

    def tick(self, ask: SavepointKind | None = None, *, parallelism: int = 2):
        inbox = Inbox()
        listener = TickListener() if ask is None else Asks(inbox, ask)
        engine = SlowWeather(SparkEngine(SparkConfig(cores=2), TickListener(), self.spark), Fate(self.root))
        plan = planned(self.data, self.config, parallelism=parallelism)
        return run_tick(plan, RuntimeSettings(warehouse=self.root), listener, engine=engine, inbox=inbox)

    def warehouse(self) -> Warehouse:
        return Warehouse(self.root, ProtocolPaths(JOB))

    def import_from(self, text: str, *, claim: bool = False) -> None:
        origin = find_origin(text, self.root, JOB)
        assert isinstance(origin, ForeignRow)
        import_row(Import(origin=origin, root=self.root, plan=planned(self.data, self.config), claim=claim))


@pytest.mark.parametrize("config", [CONFIG, UNALIGNED], ids=["aligned", "unaligned"])
def test_a_drained_job_has_emitted_waiting_rows_and_goes_on(spark, days, tmp_path, config):
    """Flights without weather are in silver and gold, with nulls (F4).

    Weather that comes later does not change them.
    """
    job = Flights(spark, days, tmp_path / "warehouse", config)
    report = job.tick(SavepointKind.DRAIN)
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

    report = job.tick(parallelism=3)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    silver = pl.read_delta(str(job.root / "silver/flights"))
    assert Counter() == waited - multiset(silver)
    flights = ["carrier", "flight", "origin", "year", "month", "day", "sched_dep_time"]
    assert silver.height == silver.unique(subset=flights).height
    by_route, by_wind, _ = golds(silver, END_OF_TIME).items()
    for gold, rows in (by_route, by_wind):
        assert multiset(rows) == multiset(pl.read_delta(str(job.root / gold))), gold


def test_a_suspended_job_keeps_waiting_rows_and_goes_on_as_if_undisturbed(spark, days, expected, tmp_path):
    """The savepoint of the stop is the newest cut (F4). From it, with another parallelism, every row comes once."""
    job = Flights(spark, days, tmp_path / "warehouse")
    report = job.tick(SavepointKind.SUSPEND)
    assert (TickOutcome.STOPPED, "") == (report.outcome, report.message)
    last = records(job.root)[-1]
    assert (RowKind.CHECKPOINT, True, last.checkpoint) == (last.kind, last.pinned, newest(job.root).record.checkpoint)
    assert final(job.root) != expected
    assert TickOutcome.CAUGHT_UP is job.tick(parallelism=3).outcome
    assert expected == final(job.root)
    assert [] == wrong_with(job.root)


@pytest.mark.parametrize("config", [CONFIG, UNALIGNED], ids=["aligned", "unaligned"])
def test_a_savepoint_changes_nothing_and_other_warehouses_can_begin_from_it(spark, days, expected, tmp_path, config):
    """The job goes on exactly. Forks of the entry and of its copy, one of them claimed, also end exactly (G1, G3)."""
    job = Flights(spark, days, tmp_path / "warehouse", config)
    assert TickOutcome.CAUGHT_UP is job.tick(SavepointKind.PLAIN).outcome
    assert expected == final(job.root)
    assert [] == wrong_with(job.root)
    (plain,) = (record for record in records(job.root) if record.kind is RowKind.SAVEPOINT)
    assert any(table.adds for table in plain.tables), "it holds nothing that was not published"

    copy_savepoint(job.warehouse(), plain.checkpoint, tmp_path / "copy")
    forked = Flights(spark, days, tmp_path / "forked", config)
    forked.import_from(f"{job.root}@{plain.checkpoint}")
    shutil.rmtree(job.root)
    assert TickOutcome.CAUGHT_UP is forked.tick(parallelism=3).outcome
    assert expected == final(forked.root)
    assert [] == wrong_with(forked.root)

    claimed = Flights(spark, days, tmp_path / "claimed", config)
    claimed.import_from(str(tmp_path / "copy"), claim=True)
    assert not (tmp_path / "copy").exists()
    assert TickOutcome.CAUGHT_UP is claimed.tick().outcome
    assert expected == final(claimed.root)
