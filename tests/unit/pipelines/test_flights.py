"""Tests the demo's page and its data."""

import sys

import pandas as pd
import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from jobs.pipelines import flights_data
from jobs.pipelines.flights import build
from jobs.pipelines.flights_data import FLIGHTS_SCHEMA, WEATHER_SCHEMA, DataError, prepare
from jobs.pipelines.flights_report import Accounting, shown_accounting, shown_routes, worst_routes
from jobs.sources.port import SourceError
from orchestration.pictures import as_text


def gold(*rows):
    names = ("carrier", "dest", "flights", "arr_delay_sum")
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(arr_delay_max=pl.lit(1_200)).lazy()


def test_the_worst_routes_have_the_greatest_mean_delay():
    """Rare routes are left out. Routes with equal delays are ordered by name, and at most ten are shown."""
    routes = [
        ("AA", "RARE", 51, 51_000),
        ("EV", "CAE", 100, 4_176),
        ("B6", "SFO", 100, 1_000),
        ("AA", "SFO", 100, 1_000),
    ]
    found = worst_routes(gold(*routes, *(("ZZ", f"D{number}", 100, number) for number in range(10))))
    assert ("EV", "CAE", 100, 41.76, 1_200) == found.row(0)
    assert ["CAE", "SFO", "SFO", "D9"] == found["dest"].to_list()[:4]
    assert ["AA", "B6"] == found["carrier"].to_list()[1:3]
    assert 10 == found.height


def test_routes_are_shown_in_the_given_order():
    """The columns are carrier, destination, flights, mean delay and longest delay."""
    text = as_text(shown_routes(worst_routes(gold(("EV", "CAE", 106, 4_427)))))
    assert "│ EV      │ CAE │     106 │   41.8 min │ 1,200 min │" in text


def test_the_accounting_says_whether_it_holds():
    """Bronze must equal silver + quarantine + late + waiting. Otherwise the text says that this does not hold."""
    holds = as_text(shown_accounting(Accounting(336_776, 326_433, 9_429, 1, 913)))
    assert "bronze 336,776 = silver 326,433 + quarantine 9,429 + late 1 + waiting for weather 913  holds" in holds
    assert "DOES NOT HOLD" in as_text(shown_accounting(Accounting(336_776, 326_433, 9_429, 0, 913)))


def test_without_its_input_the_demo_names_the_command_that_writes_it(tmp_path):
    """The message has the complete command."""
    vertices = [each for each in build(tmp_path).vertices() if each.id == "flights"]
    with pytest.raises(SourceError) as refused:
        vertices[0].source.splits()
    assert f"write it with '{sys.executable} -m jobs.pipelines.flights_data {tmp_path}'" in str(refused.value)


# ------------------------------------------------------------------
# Tests that the demo's input is all of the package's data, typed and in order.


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    prepare(root)
    return root


def both(root):
    return [(root / "flights", FLIGHTS_SCHEMA, "flights.csv.zip"), (root / "weather", WEATHER_SCHEMA, "weather.csv")]


def test_nothing_is_dropped_or_altered(root):
    """The Parquet files hold the package's rows as pandas reads them, with missing values and last digits."""
    for folder, schema, csv in both(root):
        path = flights_data._package_data() / csv
        expected = pd.read_csv(path, parse_dates=["time_hour"], float_precision="round_trip")
        found = ds.dataset(folder).to_table().to_pandas()
        order = ["origin", "time_hour", *(["carrier", "flight"] if "carrier" in schema.names else [])]
        expected, found = (frame.sort_values(order).reset_index(drop=True) for frame in (expected, found))
        pd.testing.assert_frame_equal(expected, found[expected.columns], check_dtype=False, check_exact=True)


def test_a_missing_value_is_null(root):
    """The files have no NaN, which Spark would read as a number."""
    table = ds.dataset(root / "weather").to_table()
    assert 20778 == table["wind_gust"].null_count
    assert 0 == pc.sum(pc.is_nan(table["wind_gust"])).as_py()
    assert 9430 == ds.dataset(root / "flights").to_table()["arr_delay"].null_count


def test_all_files_have_one_schema_and_half_a_month(root):
    """Each airport is a split with 24 files. All files have exactly the same types."""
    for folder, schema, _ in both(root):
        files = sorted(folder.glob("*/*.parquet"))
        assert 72 == len(files)
        assert ["EWR", "JFK", "LGA"] == sorted(path.name for path in folder.iterdir())
        for path in files:
            table = pq.read_table(path)
            assert schema == table.schema
            assert [path.parent.name] == table["origin"].unique().to_pylist()
            half = (int(path.stem) + 1) // 2, int(path.stem) % 2 == 0
            days = zip(table["month"].to_pylist(), table["day"].to_pylist(), strict=True)
            assert {half} == {(month, day > 15) for month, day in days}


def test_rows_are_in_the_order_of_the_schedule(root):
    """Within a file they are ordered by hour, scheduled departure, carrier and flight."""
    order = ["time_hour", "sched_dep_time", "carrier", "flight"]
    table = pq.read_table(root / "flights" / "EWR" / "013.parquet", columns=order)
    rows = [tuple(row[name] for name in order) for row in table.to_pylist()]
    assert sorted(rows) == rows


def test_a_second_preparation_only_fills_gaps(root):
    """Existing files stay untouched, so no source sees a changed file. Only missing files are written."""
    kept, lost = root / "flights" / "EWR" / "001.parquet", root / "weather" / "JFK" / "005.parquet"
    before = kept.stat().st_mtime_ns
    assert 0 == prepare(root).files_written
    lost.unlink()
    assert (1, 336776, 26115) == ((done := prepare(root)).files_written, done.flights_rows, done.weather_rows)
    assert before == kept.stat().st_mtime_ns


def test_a_killed_preparation_leaves_no_half_file(tmp_path, monkeypatch):
    """A file is first written under a name that sources ignore.

    After a crash, sources ignore it, and it is written again.
    """
    monkeypatch.setattr(flights_data.pq, "write_table", lambda _, where: (where.write_bytes(b"PAR1"), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        prepare(tmp_path)
    assert [".001.parquet.tmp"] == [path.name for path in tmp_path.glob("flights/EWR/*")]


def test_a_missing_package_says_what_to_do(tmp_path, monkeypatch):
    """The error is one sentence with the command to type."""
    monkeypatch.setattr(flights_data, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"pip install 'tidemark-spark\[demo\]'"):
        prepare(tmp_path)
