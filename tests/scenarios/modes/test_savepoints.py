"""Tests savepoints of the flights on real Spark: in a running job, at a stop, and as the origin of a fork."""

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from checkpointing.messages import SavepointKind, SavepointRequested, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import RowKind
from jobs.spark.session import SparkConfig
from jobs.tick.at_rest.import_entry import ForeignRow, Import, find_origin, import_row
from jobs.tick.driver import Inbox
from jobs.tick.engine import SparkEngine
from jobs.tick.listener import MicroBatchRan, TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.modes.cuts import JOB, final, newest, records, wrong_with
from tests.scenarios.modes.first_days import CONFIG, ENRICHMENT, KEYS, golds, multiset, planned
from tests.scenarios.modes.modes import changed
from tests.scenarios.modes.slow_weather import Fate, SlowWeather

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]

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
        """Run a tick to its end. Its weather is slow at first."""
        inbox = Inbox()
        listener = TickListener() if ask is None else Asks(inbox, ask)
        engine = SlowWeather(SparkEngine(SparkConfig(cores=2), TickListener(), self.spark), Fate(self.root))
        plan = planned(self.data, self.config, parallelism=parallelism)
        return run_tick(plan, RuntimeSettings(warehouse=self.root), listener, engine=engine, inbox=inbox)

    def warehouse(self) -> Warehouse:
        return Warehouse(self.root, ProtocolPaths(JOB))

    def import_from(self, text: str, *, claim: bool = False) -> None:
        """Restore an entry of another warehouse into this one."""
        origin = find_origin(text, self.root, JOB)
        assert isinstance(origin, ForeignRow)
        import_row(Import(origin=origin, root=self.root, plan=planned(self.data, self.config), claim=claim))


def released(flown: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    """Return silver's rows after the input has ended: every good flight. Flights without weather have nulls."""
    known = weather.select(*KEYS, *ENRICHMENT)
    good = flown.filter(pl.col("arr_delay").is_not_null()).drop("_split", "_position", strict=False)
    return good.join(known, on=KEYS, how="left")


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
    drained = released(tables["bronze/flights"], tables["bronze/weather"])
    assert multiset(drained) == multiset(tables["silver/flights"])
    for gold, rows in golds(drained).items():
        assert multiset(rows) == multiset(tables[gold]), gold
    waited = multiset(drained.filter(pl.col("temp").is_null() & pl.col("wind_speed").is_null()))
    assert waited, "nothing waited: the drain had nothing to do"
    read = tables["bronze/flights"].height
    assert read < pl.read_parquet(days / "flights" / "*" / "*.parquet").height

    report = job.tick(parallelism=3)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    silver = pl.read_delta(str(job.root / "silver/flights"))
    assert Counter() == waited - multiset(silver)
    flights = ["carrier", "flight", "origin", "year", "month", "day", "sched_dep_time"]
    assert silver.height == silver.unique(subset=flights).height
    for gold, rows in golds(silver).items():
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
