"""What the demo's tables say after a tick: where every flight is, and the ten worst routes. Read at one cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
from deltalake import DeltaTable

from checkpointing.identifiers import TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.engine_paths import polars_reads
from jobs.state.key_groups import KeyGroupRange
from jobs.state.merge import StateChange, apply_change

SHOWN: Final = 10
FLIGHTS_MIN: Final = 52
"""A route that was not flown about once a week tells nothing of the route."""

_JOIN: Final = VertexId("silver_flights")
_KEYS: Final = ("origin", "time_hour")


@dataclass(frozen=True, slots=True)
class Accounting:
    """Rows of bronze/flights and the three places where each of them is."""

    bronze: int
    silver: int
    quarantine: int
    waiting: int

    @property
    def balanced(self) -> bool:
        """Whether every flight is in exactly one place, as far as sums can tell."""
        return self.bronze == self.silver + self.quarantine + self.waiting


@dataclass(frozen=True, slots=True)
class Route:
    """A row of gold/delays_by_route; delays in minutes."""

    carrier: str
    dest: str
    flights: int
    delay_mean: float
    delay_max: int


def accounting(root: Path, record: CheckpointRecord, cut: Mapping[TableName, int]) -> Accounting:
    """Count the flights at a cut: tables from their logs, those who wait from the operator's state."""
    return Accounting(
        bronze=_rows(root, cut, TableName("bronze/flights")),
        silver=_rows(root, cut, TableName("silver/flights")),
        quarantine=_rows(root, cut, TableName("quarantine/flights")),
        waiting=waiting_flights(root, record),
    )


def waiting_flights(root: Path, record: CheckpointRecord) -> int:
    """Return how many flights wait for their weather, from the state files that the checkpoint refers to."""
    subtasks = (subtask for vertex in record.vertices if vertex.vertex == _JOIN for subtask in vertex.subtasks)
    total = 0
    for subtask in subtasks:
        rows: pl.DataFrame | None = None
        for keyed in subtask.state:
            frame = pl.read_parquet(root / keyed.file.path, glob=False)
            change = StateChange(keyed.kind, KeyGroupRange(keyed.first_key_group, keyed.last_key_group), frame)
            rows = apply_change(frame.clear().drop("_deleted") if rows is None else rows, change, _KEYS)
        if rows is not None:
            total += int(rows["waiting"].list.len().sum())
    return total


def worst_routes(root: Path, cut: Mapping[TableName, int]) -> tuple[Route, ...]:
    """Return the ten routes with the greatest mean arrival delay at a cut."""
    table = TableName("gold/delays_by_route")
    folder = (root / table).absolute()
    gold = pl.scan_delta(str(folder), version=cut[table], use_pyarrow=not polars_reads(folder))
    mean = pl.col("arr_delay_sum") / pl.col("flights")
    worst = (
        gold.filter(pl.col("flights") >= FLIGHTS_MIN)
        .with_columns(delay_mean=mean)
        .sort(["delay_mean", "carrier", "dest"], descending=[True, False, False])
        .head(SHOWN)
        .collect()
    )
    return tuple(
        Route(row["carrier"], row["dest"], row["flights"], row["delay_mean"], row["arr_delay_max"])
        for row in worst.iter_rows(named=True)
    )


def _rows(root: Path, cut: Mapping[TableName, int], table: TableName) -> int:
    """Return a table's rows at its version in the cut."""
    return DeltaTable(str((root / table).absolute()), version=cut[table]).count()
