"""Runs the flights pipeline over the first days of January, kills ticks, and checks what cuts show."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl
from pyspark.sql import SparkSession

from checkpointing.channel_items import StagedSegment
from checkpointing.config import CheckpointConfig
from checkpointing.event_time import BEFORE_TIME
from checkpointing.identifiers import JobName, VertexId, job_name
from checkpointing.job.restoring import in_flight
from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.spec import VertexPlan
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.pipelines import flights
from jobs.pipelines.flights_data import ORIGINS
from jobs.spark.session import SparkConfig
from jobs.tick.engine import Engine, SparkEngine
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse

DAYS: Final = 3
KEYS: Final = ("origin", "time_hour")
ENRICHMENT: Final = ("temp", "wind_speed", "precip", "visib")

EPOCH_FLIGHTS: Final = 400
EPOCH_WEATHER: Final = 40
"""With this cap, the weather is read at about the same pace as the flights of the same hours."""

CONFIG: Final = CheckpointConfig(
    every_rows=EPOCH_FLIGHTS, rows_of=("flights",), slice_rows_max=EPOCH_FLIGHTS // 2, retained=50
)
"""`retained` is so large that every cut of a run is kept, and a test can read all cuts at the end."""

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


def enriched(flown: pl.DataFrame, weather: pl.DataFrame, until_ms: int) -> pl.DataFrame:
    """Return the rows of silver after these flights and this weather were joined, without bad and waiting flights.

    Flights up to the time `until_ms` no longer wait for their weather.
    """
    known = weather.select(*KEYS, *ENRICHMENT, weather_hour="time_hour")
    good = flown.filter(pl.col("arr_delay").is_not_null()).drop("_split", "_position", strict=False)
    met = good.join(known, on=KEYS, how="left")
    return met.filter(pl.col("weather_hour").is_not_null() | (pl.col("time_hour").dt.epoch("ms") <= until_ms))


def golds(silver: pl.DataFrame, until_ms: int) -> dict[str, pl.DataFrame]:
    """Return the tables of gold. The table of days has only the days that end by the time `until_ms`."""
    band = (pl.col("wind_speed") / 5).floor() * 5
    delays = pl.col("arr_delay")
    count, total = pl.len().cast(pl.Int64).alias("flights"), delays.sum().alias("arr_delay_sum")
    by_route = silver.group_by("carrier", "dest").agg(count, total, delays.max().alias("arr_delay_max"))
    by_wind = silver.group_by(band.cast(pl.Int64).alias("wind_band")).agg(count, total)
    day = pl.date("year", "month", "day").cast(pl.Datetime("us")).dt.replace_time_zone(flights.NEW_YORK)
    bounds = (day.alias("window_start"), day.dt.offset_by("1d").alias("window_end"))
    by_day = silver.group_by("origin", *(bound.dt.convert_time_zone("UTC") for bound in bounds)).agg(count, total)
    return {
        "gold/delays_by_route": by_route,
        "gold/delays_by_wind": by_wind,
        "gold/delays_by_day": by_day.filter(pl.col("window_end").dt.epoch("ms") - 1 <= until_ms),
    }


def exact(data: Path) -> dict[str, Rows]:
    """Return every table that the whole input makes, with each row once, computed without Spark and without epochs."""
    flown, weather = (pl.read_parquet(data / kind / "*" / "*.parquet") for kind in ("flights", "weather"))
    ends = (rows.group_by("origin").agg(pl.col("time_hour").max())["time_hour"].min() for rows in (flown, weather))
    marks = (end - delay for end, delay in zip(ends, (timedelta(hours=1), timedelta(days=1)), strict=True))
    until_ms = int(min(marks).timestamp() * 1_000) - 1
    silver = enriched(flown, weather, until_ms)
    tables = {
        "bronze/flights": flown,
        "bronze/weather": weather,
        "quarantine/flights": flown.filter(pl.col("arr_delay").is_null()),
        "silver/flights": silver,
        **golds(silver, until_ms),
        "late/flights": silver.clear(),
        "late/days": silver.clear(),
    }
    return {name: multiset(rows) for name, rows in tables.items()}


def multiset(rows: pl.DataFrame) -> Rows:
    own = sorted(name for name in rows.columns if not name.startswith("_"))
    return Counter(rows.select(own).rows())


# ------------------------------------------------------------------
# For the tests of the modes: an input that is slow, and a tick that dies at a chosen moment.


WEATHER = VertexId("bronze_weather")
LATE = (1, 3)
REST_S = 0.8
"""Longer than a commit takes. No micro-batch runs during a commit either."""
LOOK_AGAIN_S = 0.02

Due = Callable[[str, Path], bool]
"""Takes a boundary's name and the warehouse. Returns True if the tick's process dies there."""


class SlowWeather:
    """An engine that delays the first and the third micro-batch of the weather.

    Each of these micro-batches waits until no other one runs. By then the flights have passed the barrier that the
    weather has not reached, and have gone on as far as they can. So the test does not depend on the speed of the
    machine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._running = 0
        self._rested_since = time.monotonic()

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Path, job: JobName) -> MicroBatchFinished:
        if effect.vertex == WEATHER and effect.micro_batch in LATE:
            self._wait_for_rest()
        with self._lock:
            self._running += 1
        try:
            return self._engine.run(plan, effect, warehouse, job)
        finally:
            with self._lock:
                self._running -= 1
                self._rested_since = time.monotonic()

    def close(self) -> None:
        self._engine.close()

    def _wait_for_rest(self) -> None:
        self._rested_since = time.monotonic()
        while not self._has_rested():
            time.sleep(LOOK_AGAIN_S)

    def _has_rested(self) -> bool:
        return not self._running and time.monotonic() - self._rested_since > REST_S


# ------------------------------------------------------------------
# Reads the tables by cut, and checks that the tables of each retained checkpoint show one moment of the job.


JOB = job_name("flights")
TABLES = (
    "bronze/flights",
    "bronze/weather",
    "quarantine/flights",
    "silver/flights",
    "gold/delays_by_route",
    "gold/delays_by_wind",
    "gold/delays_by_day",
    "late/flights",
    "late/days",
)


@dataclass(frozen=True)
class Cut:
    """One checkpoint as a reader sees it: its entry, and every table at its cut."""

    record: CheckpointRecord
    tables: Mapping[str, pl.DataFrame]


def records(root: Path) -> list[CheckpointRecord]:
    _, rows = CheckpointStore(Warehouse(root, ProtocolPaths(JOB))).observe()
    return sorted((row for row in rows if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def cuts(root: Path) -> Iterator[Cut]:
    recorded = CutStore(Warehouse(root, ProtocolPaths(JOB)))
    for record in records(root):
        versions = recorded.read(record.checkpoint)
        if versions is not None:
            tables = {str(table): pl.read_delta(str(root / table), version=versions[table]) for table in TABLES}
            yield Cut(record, tables)


def final(root: Path) -> dict[str, Rows]:
    return {table: multiset(pl.read_delta(str(root / table))) for table in TABLES}


def flying(root: Path, record: CheckpointRecord, upstream: str, downstream: str) -> pl.DataFrame | None:
    """Return the rows that a checkpoint holds in flight between two vertices, or None if there are none."""
    files = [
        file.path
        for channel, segment in in_flight(record)
        if (channel.edge.upstream, channel.edge.downstream) == (VertexId(upstream), VertexId(downstream))
        and isinstance(segment, StagedSegment)
        for file in segment.files
    ]
    return pl.concat([pl.read_parquet(root / path, glob=False) for path in files]) if files else None


def rows_in_flight(record: CheckpointRecord) -> int:
    return sum(segment.rows for _, segment in in_flight(record))


def wrong_with(root: Path) -> list[str]:
    """Return a message for each table at a retained cut that does not fit the other tables there.

    The tables show one moment of the job if silver follows from bronze without the rows that the checkpoint holds in
    flight, and if gold follows from silver.
    """
    return [f"cut {cut.record.checkpoint}: {problem}" for cut in cuts(root) for problem in _wrong(root, cut)]


def newest(root: Path) -> Cut:
    return list(cuts(root))[-1]


def _wrong(root: Path, cut: Cut) -> Iterator[str]:
    tables = cut.tables
    bad = tables["bronze/flights"].filter(pl.col("arr_delay").is_null())
    yield from _differ("quarantine/flights", multiset(bad), multiset(tables["quarantine/flights"]))
    silver = multiset(_silver_of(root, cut))
    yield from _differ("silver/flights", silver, multiset(tables["silver/flights"]))
    for vertex in ("delays_by_route", "delays_by_wind", "delays_by_day"):
        gold, landed = f"gold/{vertex}", _landed(root, cut, "silver_flights", vertex, "silver/flights")
        expected = golds(landed, _watermark_ms(cut, vertex))[gold]
        yield from _differ(gold, multiset(expected), multiset(tables[gold]))
    for late in ("late/flights", "late/days"):
        yield from _differ(late, Counter(), multiset(tables[late]))


def _silver_of(root: Path, cut: Cut) -> pl.DataFrame:
    flown = _landed(root, cut, "bronze_flights", "silver_flights", "bronze/flights")
    weather = _landed(root, cut, "bronze_weather", "silver_flights", "bronze/weather")
    return enriched(flown, weather, _watermark_ms(cut, "silver_flights"))


def _watermark_ms(cut: Cut, vertex: str) -> int:
    (time,) = (each.time for each in cut.record.vertices if each.vertex == vertex)
    return BEFORE_TIME if time is None else time.watermark_ms


def _landed(root: Path, cut: Cut, upstream: str, downstream: str, table: str) -> pl.DataFrame:
    rows = cut.tables[table]
    on_their_way = flying(root, cut.record, upstream, downstream)
    if on_their_way is None:
        return rows
    return rows.filter(~_in(rows, multiset(on_their_way.select(rows.columns))))


def _in(rows: pl.DataFrame, gone: Rows) -> pl.Series:
    left = Counter(gone)
    own = sorted(name for name in rows.columns if not name.startswith("_"))
    marks = []
    for row in rows.select(own).rows():
        marks.append(left[row] > 0)
        left[row] -= left[row] > 0
    return pl.Series(marks, dtype=pl.Boolean)


def _differ(table: str, expected: Rows, there: Rows) -> Iterator[str]:
    missing, surplus = (expected - there).total(), (there - expected).total()
    if missing or surplus:
        yield f"{table} lacks {missing} rows and has {surplus} that belong to another moment"


# ------------------------------------------------------------------
# The modes, the moment at which the job of each mode dies, and the ticks of such a job.


ANY_PUBLICATION = "before:PublishTable:"
HALF_PUBLISHED = "before:PublishTable:silver/flights"
COMMITTED_BEFORE = 2
WAIT_S = 280


def changed(**changes: object) -> CheckpointConfig:
    return CheckpointConfig(**(CONFIG.model_dump() | changes))


def half_published(name: str, root: Path) -> bool:
    """Return True while a checkpoint, the second or a later one, is committed and only some tables show it."""
    return name == HALF_PUBLISHED and len(records(root)) >= COMMITTED_BEFORE


def half_published_in_flight(name: str, root: Path) -> bool:
    """Return True before a publication if the committed checkpoint is at least the second, and holds rows in flight.

    It may be the publication of any table, because silver may have nothing to publish then.
    """
    if not name.startswith(ANY_PUBLICATION):
        return False
    committed = records(root)
    return len(committed) >= COMMITTED_BEFORE and rows_in_flight(committed[-1]) > 0


@dataclass(frozen=True)
class Mode:
    """The configuration of a mode, and the moment at which its job dies."""

    config: CheckpointConfig
    due: Due


MODES: Mapping[str, Mode] = {
    "aligned": Mode(CONFIG, half_published),
    "unaligned": Mode(changed(unaligned=True), half_published_in_flight),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job in a mode: its input, its warehouse, and its Spark."""

    data: Path
    root: Path
    config: CheckpointConfig
    parallelism: int = 2
    spark: SparkSession | None = None
    connect_url: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def tick(self, listener: TickListener | None = None, **how: Any) -> TickReport:
        """Run a tick, and return its report, however the tick ends."""
        engine = SparkEngine(SparkConfig(cores=2, connect_url=self.connect_url), TickListener(), self.spark)
        plan = planned(self.data, self.config, parallelism=self.parallelism)
        settings = RuntimeSettings(warehouse=self.root, **self.settings)
        return run_tick(plan, settings, listener, engine=SlowWeather(engine), **how)

    def be_killed(self, due: Due) -> int | None:
        server = multiprocessing.get_context("forkserver")
        alone = server.Process(target=_tick, args=(replace(self, spark=None), due))
        alone.start()
        alone.join(WAIT_S)
        alone.kill()
        return alone.exitcode


def _tick(job: Job, due: Due) -> None:
    """Run a tick in a process of its own, until it dies by SIGKILL at the first boundary that is due."""

    def die(name: str) -> None:
        if due(name, job.root):
            os.kill(os.getpid(), signal.SIGKILL)

    job.tick(boundary=die)
