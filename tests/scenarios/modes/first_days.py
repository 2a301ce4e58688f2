"""Runs the flights pipeline over the first days of January: some thousand flights and their weather, within seconds."""

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import VertexId
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.pipelines import flights
from jobs.pipelines.flights_data import ORIGINS

DAYS: Final = 3
KEYS: Final = ("origin", "time_hour")
ENRICHMENT: Final = ("temp", "wind_speed", "precip", "visib")

EPOCH_FLIGHTS: Final = 400
EPOCH_WEATHER: Final = 40
"""With this cap the weather keeps pace: it arrives roughly with the flights of the same hours."""

CONFIG: Final = CheckpointConfig(
    every_rows=EPOCH_FLIGHTS, rows_of=("flights",), slice_rows_max=EPOCH_FLIGHTS // 2, retained=50
)
"""So many checkpoints that every cut of a run is retained, and a test can read them all in the end."""

Rows = Counter[tuple[object, ...]]


def lay_out(year: Path, folder: Path) -> None:
    for kind in ("flights", "weather"):
        for origin in ORIGINS:
            first_half = pl.read_parquet(year / kind / origin / "001.parquet")
            few = first_half.filter(pl.date("year", "month", "day") <= date(2013, 1, DAYS))
            (folder / kind / origin).mkdir(parents=True)
            few.write_parquet(folder / kind / origin / "001.parquet", use_pyarrow=True)


def planned(data: Path, config: CheckpointConfig = CONFIG, *, parallelism: int = 2) -> JobPlan:
    whole = plan(flights.build(data), config=config, parallelism=parallelism)
    return replace(whole, rows_per_epoch={VertexId("weather"): EPOCH_WEATHER})


def enriched(flown: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of silver after these flights and this weather have met, without bad and waiting flights."""
    known = weather.select(*KEYS, *ENRICHMENT)
    return (
        flown.filter(pl.col("arr_delay").is_not_null()).join(known, on=KEYS).drop("_split", "_position", strict=False)
    )


def golds(silver: pl.DataFrame) -> dict[str, pl.DataFrame]:
    band = (pl.col("wind_speed") / 5).floor() * 5
    delays = pl.col("arr_delay")
    count, total = pl.len().cast(pl.Int64).alias("flights"), delays.sum().alias("arr_delay_sum")
    by_route = silver.group_by("carrier", "dest").agg(count, total, delays.max().alias("arr_delay_max"))
    by_wind = silver.group_by(band.cast(pl.Int64).alias("wind_band")).agg(count, total)
    return {"gold/delays_by_route": by_route, "gold/delays_by_wind": by_wind}


def exact(data: Path) -> dict[str, Rows]:
    """Return every table that the whole input makes, with each row once. It uses neither Spark nor epochs."""
    flown, weather = (pl.read_parquet(data / kind / "*" / "*.parquet") for kind in ("flights", "weather"))
    silver = enriched(flown, weather)
    tables = {
        "bronze/flights": flown,
        "bronze/weather": weather,
        "quarantine/flights": flown.filter(pl.col("arr_delay").is_null()),
        "silver/flights": silver,
        **golds(silver),
    }
    return {name: multiset(rows) for name, rows in tables.items()}


def multiset(rows: pl.DataFrame) -> Rows:
    own = sorted(name for name in rows.columns if not name.startswith("_"))
    return Counter(rows.select(own).rows())
