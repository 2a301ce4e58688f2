"""The demo's report reads the tables of one cut and the state files that its checkpoint refers to."""

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, TableName, VertexId
from checkpointing.metadata.record import VertexRecord
from checkpointing.snapshots import SubtaskSnapshot
from jobs.cli.flights_report import Accounting, Route, accounting, worst_routes
from tests.odd_names import ALL_IN_ONE

CUT = {TableName(name): 0 for name in ("bronze/flights", "silver/flights", "quarantine/flights")}
GOLD = TableName("gold/delays_by_route")


def written(root, name, rows, kind, number):
    """Write a state file of (hour, waiting flights or None for a tombstone) and return its handle."""
    frame = pl.DataFrame(
        {
            "_key_group": [5] * len(rows),
            "origin": ["EWR"] * len(rows),
            "time_hour": [hour for hour, _ in rows],
            "waiting": [waiting for _, waiting in rows],
            "_deleted": [waiting is None for _, waiting in rows],
        },
        schema_overrides={"_key_group": pl.Int32, "waiting": pl.List(pl.Int64)},
    )
    frame.write_parquet(root / name)
    return KeyedFile(FileHandle(name, len(rows), 1, 1), kind, 0, 127, Version(Generation(1), number))


@pytest.fixture
def demo(tmp_path, record):
    """Tables whose newest version is not the cut's, a state of a base and a delta; a warehouse of an odd name."""
    root = tmp_path / ALL_IN_ONE
    for table, rows in zip(CUT, (10, 6, 1), strict=True):
        for batch in (rows, 5):
            write_deltalake(str(root / table), pa.table({"n": list(range(batch))}), mode="append")
    files = (
        written(root, "base.parquet", [(1, [7, 8]), (2, [9]), (3, [])], KeyedFileKind.BASE, 1),
        written(root, "delta.parquet", [(1, [7]), (2, None), (4, [1, 2])], KeyedFileKind.DELTA, 2),
    )
    joined = VertexRecord(
        vertex=VertexId("silver_flights"),
        micro_batch=2,
        subtasks=(SubtaskSnapshot(state=files), SubtaskSnapshot()),
    )
    return root, record().model_copy(update={"vertices": (joined,)})


def test_every_flight_is_counted_where_it_is(demo):
    """Tables at their versions of the cut; who waits from base and delta, the newest row of a key winning."""
    root, checkpoint = demo
    found = accounting(root, checkpoint, CUT)
    assert Accounting(bronze=10, silver=6, quarantine=1, waiting=3) == found
    assert found.balanced


def test_the_worst_routes_are_those_of_greatest_mean_delay(tmp_path):
    """Rarely flown routes are left out, equals are in order of their names, at most ten are shown."""
    routes = [
        ("AA", "RARE", 51, 51_000),
        ("EV", "CAE", 100, 4_176),
        ("B6", "SFO", 100, 1_000),
        ("AA", "SFO", 100, 1_000),
    ]
    routes += [("ZZ", f"D{number}", 100, number) for number in range(10)]
    names = ("carrier", "dest", "flights", "arr_delay_sum")
    columns = {name: [route[place] for route in routes] for place, name in enumerate(names)}
    root = tmp_path / ALL_IN_ONE
    write_deltalake(str(root / GOLD), pa.table(columns | {"arr_delay_max": [60] * len(routes)}))
    found = worst_routes(root, {GOLD: 0})
    assert Route("EV", "CAE", 100, 41.76, 60) == found[0]
    assert ["CAE", "SFO", "SFO", "D9"] == [route.dest for route in found[:4]]
    assert ["AA", "B6"] == [route.carrier for route in found[1:3]]
    assert 10 == len(found)
