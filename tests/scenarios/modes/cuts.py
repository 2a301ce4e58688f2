"""Reads the tables by cut, and checks that at each retained checkpoint they show one moment of the job."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from checkpointing.channel_items import StagedSegment
from checkpointing.identifiers import VertexId, job_name
from checkpointing.job.restoring import in_flight
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.modes.first_days import Rows, enriched, golds, multiset

JOB = job_name("flights")
TABLES = (
    "bronze/flights",
    "bronze/weather",
    "quarantine/flights",
    "silver/flights",
    "gold/delays_by_route",
    "gold/delays_by_wind",
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


def wrong_with(root: Path, *, duplicates: bool = False) -> list[str]:
    """Return each difference between the tables at a retained cut.

    The tables show one moment if silver follows from bronze, without the rows that the checkpoint holds in flight, and
    if gold follows from silver. With `duplicates`, silver may hold rows more often, as at least once allows. It may
    never hold fewer rows.
    """
    return [
        f"cut {cut.record.checkpoint}: {problem}" for cut in cuts(root) for problem in _wrong(root, cut, duplicates)
    ]


def ahead(root: Path, cut: Cut) -> Rows:
    """Return the rows of silver whose flights are not in bronze at that cut. The job will read them once more."""
    return multiset(cut.tables["silver/flights"]) - multiset(_silver_of(root, cut))


def newest(root: Path) -> Cut:
    return list(cuts(root))[-1]


def _wrong(root: Path, cut: Cut, duplicates: bool) -> Iterator[str]:
    tables = cut.tables
    bad = tables["bronze/flights"].filter(pl.col("arr_delay").is_null())
    yield from _differ("quarantine/flights", multiset(bad), multiset(tables["quarantine/flights"]), more=False)
    silver = multiset(_silver_of(root, cut))
    yield from _differ("silver/flights", silver, multiset(tables["silver/flights"]), more=duplicates)
    for gold, downstream in (("gold/delays_by_route", "delays_by_route"), ("gold/delays_by_wind", "delays_by_wind")):
        landed = _landed(root, cut, "silver_flights", downstream, "silver/flights")
        yield from _differ(gold, multiset(golds(landed)[gold]), multiset(tables[gold]), more=False)


def _silver_of(root: Path, cut: Cut) -> pl.DataFrame:
    flown = _landed(root, cut, "bronze_flights", "silver_flights", "bronze/flights")
    weather = _landed(root, cut, "bronze_weather", "silver_flights", "bronze/weather")
    return enriched(flown, weather)


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


def _differ(table: str, expected: Rows, there: Rows, *, more: bool) -> Iterator[str]:
    missing, surplus = (expected - there).total(), (there - expected).total()
    if missing or (surplus and not more):
        yield f"{table} lacks {missing} rows and has {surplus} that belong to another moment"
