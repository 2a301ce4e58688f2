"""The real command line, in a process of its own, with real Spark: what a user types is what works."""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jobs.pipelines.flights_data import FLIGHTS_SCHEMA, WEATHER_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = 40
CANCELLED = 4


def lay_out(data: Path) -> None:
    """Write one airport's day: a flight every half an hour, some cancelled, and the weather of every hour."""
    midnight = datetime(2013, 1, 1, tzinfo=UTC)
    flights = [
        {
            "carrier": "UA",
            "dest": "IAH",
            "origin": "EWR",
            "arr_delay": None if n < CANCELLED else n,
            "distance": 1400,
            "time_hour": midnight + timedelta(hours=n // 2),
        }
        for n in range(FLIGHTS)
    ]
    weather = [
        {"origin": "EWR", "time_hour": midnight + timedelta(hours=hour), "wind_speed": float(hour)}
        for hour in range(24)
    ]
    for name, rows, schema in (("flights", flights, FLIGHTS_SCHEMA), ("weather", weather, WEATHER_SCHEMA)):
        folder = data / name / "EWR"
        folder.mkdir(parents=True)
        whole = [{column: row.get(column) for column in schema.names} for row in rows]
        pq.write_table(pa.Table.from_pylist(whole, schema=schema), folder / "001.parquet")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_dg_launch_materializes_the_flights(tmp_path):
    """`dg launch --job` runs a tick on Spark, keeps Dagster's records under .dagster, and writes every table."""
    lay_out(tmp_path / "data")
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    asked = subprocess.run(
        [Path(sys.executable).with_name("dg"), "launch", "--job", "flights_tick", "--target-path", ROOT],
        cwd=tmp_path,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path), "TIDEMARK_SPARK_CORES": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == asked.returncode, asked.stdout + asked.stderr
    rows = {
        table: DeltaTable(str(tmp_path / "warehouse" / table)).to_pyarrow_table().num_rows
        for table in ("bronze/flights", "quarantine/flights", "silver/flights", "gold/delays_by_route")
    }
    good = FLIGHTS - CANCELLED
    assert {
        "bronze/flights": FLIGHTS,
        "quarantine/flights": CANCELLED,
        "silver/flights": good,
        "gold/delays_by_route": 1,
    } == rows
    assert {".dagster", "dagster.yaml", "data", "warehouse"} == {path.name for path in tmp_path.iterdir()}
