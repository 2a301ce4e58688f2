"""The demo: joins New York's flights of 2013 with the weather, from bronze through silver to gold.

Cancelled and diverted flights have no `arr_delay`. They stay in bronze and go to quarantine, not to silver. A flight
goes to silver with the weather of its airport and hour. If that weather has not arrived after a day, the flight goes to
silver without it.
"""

import sys
from pathlib import Path

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import SplitId
from jobs.engine_paths import typed
from jobs.pipeline import Pipeline, count, max_of, sum_of
from jobs.pipeline.joins import join
from jobs.pipeline.windows import tumbling
from jobs.pipelines.flights_data import FLIGHTS_SCHEMA, WEATHER_SCHEMA
from jobs.pipelines.flights_report import report
from jobs.quality.expectation import Expectation
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError
from jobs.storage.address import Root

CONFIG = CheckpointConfig(every_rows=12_000, rows_of=("flights",), slice_rows_max=4_000, retained=3)
"""A checkpoint every 12,000 flights: 29 of them cover the year."""

NEW_YORK = "America/New_York"
"""The time zone of the airports. Their days begin and end by its clock."""

FLIGHTS = from_arrow_schema(FLIGHTS_SCHEMA, prefer_timestamp_ntz=True)
WEATHER = from_arrow_schema(WEATHER_SCHEMA, prefer_timestamp_ntz=True)


class DemoFiles(FileSource):
    """The demo's files. If files are missing, the error says how to write them."""

    def splits(self) -> tuple[SplitId, ...]:
        """Return the airports; raise SourceError with the command that writes the input."""
        root = self.root
        if isinstance(root, Path) and not root.is_dir():
            data = root.parent
            write = f"{typed(sys.executable)} -m jobs.pipelines.flights_data {typed(data)}"
            raise SourceError(f"the demo's input is not in {data}: write it with '{write}', or name it with --data")
        return super().splits()


def build(data: Root) -> Pipeline:
    """Return the pipeline over the input that `jobs.pipelines.flights_data` wrote under `data`."""
    pipeline = Pipeline("flights", config=CONFIG, parallelism=2).report(report)
    flights = (
        pipeline.source("flights", DemoFiles(data / "flights", FLIGHTS))
        .event_time("time_hour", delay="1h", hold_back="7d")
        .table("bronze/flights", id="bronze_flights")
        .check_rows(
            Expectation("expect_column_values_to_not_be_null", {"column": "arr_delay"}), quarantine="quarantine/flights"
        )
    )
    weather = (
        pipeline.source("weather", DemoFiles(data / "weather", WEATHER))
        .event_time("time_hour", delay="1d", hold_back="7d")
        .table("bronze/weather", id="bronze_weather")
        .select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
        .rename({"time_hour": "weather_hour"})
    )
    silver = (
        join(
            flights.drop(SPLIT_COLUMN, POSITION_COLUMN).key_by("origin"),
            weather.key_by("origin"),
            "silver_flights",
            how="left",
            within=("0s", "0s"),
            late="late/flights",
        )
        .table("silver/flights")
        .expect(
            Expectation("expect_column_values_to_be_between", {"column": "distance", "min_value": 0}),
            Expectation("expect_column_values_to_not_be_null", {"column": "arr_delay"}),
            Expectation("expect_column_values_to_be_in_set", {"column": "origin", "value_set": ["EWR", "JFK", "LGA"]}),
            suite="silver_flights",
        )
    )
    (
        silver.key_by("carrier", "dest")
        .aggregate(
            "delays_by_route", flights=count(), arr_delay_sum=sum_of("arr_delay"), arr_delay_max=max_of("arr_delay")
        )
        .upsert("gold/delays_by_route")
        .describe_table(
            "how late flights from New York arrive, for each carrier and airport",
            columns={"arr_delay_sum": "in minutes; early flights count below zero", "arr_delay_max": "in minutes"},
        )
    )
    (
        silver.with_column("wind_band", "floor(wind_speed / 5) * 5", LongType())
        .key_by("wind_band")
        .aggregate("delays_by_wind", flights=count(), arr_delay_sum=sum_of("arr_delay"))
        .upsert("gold/delays_by_wind")
    )
    (
        silver.key_by("origin")
        .window(tumbling("1d", tz=NEW_YORK))
        .aggregate("delays_by_day", flights=count(), arr_delay_sum=sum_of("arr_delay"), late="late/days")
        .table("gold/delays_by_day")
        .partitions("1d", start="2013-01-01", tz=NEW_YORK)
    )
    return pipeline
