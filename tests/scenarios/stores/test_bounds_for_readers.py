"""Readers that skip files by a log's bounds find every row: Spark, delta-rs, Polars, and DuckDB over delta-rs.

Each file holds one row. So every bound decides whether a reader opens the file of that very value.
"""

from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.messages import Publication, TablePublished
from jobs.sinks.staged_files import StagedFiles
from jobs.warehouse.output_tables import OutputTables
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.tables import TableLogs

VALUES = {
    "money": (
        pa.decimal128(20, 2),
        [Decimal(text) for text in ("12345678901234567.89", "-12345678901234567.89", "9999999999999999.99", "0.01")],
    ),
    "exact": (
        pa.decimal128(38, 10),
        [Decimal("9" * 28 + "." + "9" * 10), Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("0.0000000001")],
    ),
    "whole": (pa.decimal128(38, 0), [Decimal("9" * 38), Decimal(-(10**37)), Decimal(2**53 + 1)]),
    "long": (pa.int64(), [2**63 - 1, -(2**63), 2**53 + 1]),
    "double": (pa.float64(), [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, float("inf"), float("-inf")]),
    "single": (pa.float32(), [0.0, -0.0, 16777217.0, 3.4028234663852886e38, 0.10000000149011612]),
    "flag": (pa.bool_(), [True, False]),
    "text": (
        pa.string(),
        ["", "a" * 32, "a" * 33, "e" + "\u0301" * 70_000, "z" * 40 + "\U0010ffff", "\U0010ffff" * 40, "\ufffd" * 33],
    ),
    "day": (pa.date32(), [date(1, 1, 1), date(202, 2, 28), date(1582, 10, 4), date(1582, 10, 15), date(9999, 12, 31)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [
            datetime(1, 1, 2, 3, 4, 5, 678901, UTC),
            datetime(1582, 10, 4, 0, 0, 0, 1, UTC),
            datetime(1883, 11, 18, 12, 0, 0, 999999, UTC),
            datetime(9999, 12, 30, 23, 59, 59, 999999, UTC),
        ],
    ),
    "local": (
        pa.timestamp("us"),
        [datetime(1, 1, 1, 0, 0, 0, 1), datetime(1900, 1, 1, 0, 0, 0, 999), datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001
    ),
}
ROWS = max(len(values) for _, values in VALUES.values())
SCHEMA = pa.schema([pa.field("id", pa.int64()), *(pa.field(name, kind) for name, (kind, _) in VALUES.items())])


@pytest.fixture
def table(warehouse, silver):
    logs = TableLogs(warehouse)
    OutputTables(warehouse, logs).ensure(silver, SCHEMA, TableMode.APPEND)
    writer = StagedFiles(str(warehouse.root), warehouse.paths.job, Generation(1), VertexId("rows"), 1)
    columns = {name: [*values, *[None] * (ROWS - len(values))] for name, (_, values) in VALUES.items()}
    whole = pa.table({"id": range(ROWS)} | columns, schema=SCHEMA)
    files = tuple(writer.write(silver, whole.slice(row, 1)) for row in range(ROWS))
    assert isinstance(
        Publisher(warehouse, logs).publish(Publication(silver, TableMode.APPEND, adds=files), CheckpointId(1)),
        TablePublished,
    )
    return str(warehouse.place(silver))


def by_delta_rs(table, name, value):
    wanted = pc.field(name) == pa.scalar(value, SCHEMA.field(name).type)
    return DeltaTable(table).to_pyarrow_dataset().to_table(filter=wanted)["id"].to_pylist()


def by_polars(table, name, value):
    kind = pl.from_arrow(SCHEMA.empty_table()).schema[name]
    return pl.scan_delta(table).filter(pl.col(name) == pl.lit(value, dtype=kind)).collect()["id"].to_list()


def by_duckdb(table, name, value):
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", DeltaTable(table).to_pyarrow_dataset())
        kind = connection.execute(f"SELECT typeof({name}) FROM t").fetchone()[0]
        literal = f"'{value}'::{kind}" if name != "text" else "'" + value + "'"
        return [row[0] for row in connection.execute(f"SELECT id FROM t WHERE {name} = {literal}").fetchall()]


def by_spark(table, name, value):
    rows = SparkSession.active().read.format("delta").load(table)
    written = value.isoformat() if isinstance(value, date) else str(value)
    found = rows.filter(F.col(name) == F.lit(written).cast(rows.schema[name].dataType)).select("id").collect()
    return [row.id for row in found]


@pytest.mark.spark
@pytest.mark.parametrize("reader", [by_spark, by_delta_rs, by_polars, by_duckdb])
def test_every_reader_finds_every_value(neighbour, table, reader):
    """The bounds of no file lie inside its values, in the way that each reader reads them."""
    lost = []
    for name, (kind, values) in VALUES.items():
        for value in pa.array(values, kind).to_pylist():
            equal = [row for row, each in enumerate(pa.array(values, kind).to_pylist()) if each == value]
            found = sorted(reader(table, name, value))
            if found != equal:
                lost.append((name, str(value)[:50], found, equal))
    assert not lost, "\n".join(map(str, lost))
