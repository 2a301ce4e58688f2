"""Filters a table by its values through each reader. No reader may skip a file that holds the value by its bounds."""

import atexit
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from jobs.operators.spec import quoted
from jobs.reading import Cut
from jobs.reading.cut_sql import cut_sql, view_name
from jobs.spark.jars import DELTA, JAR_SETS
from tests.kafka_broker import Broker, running_broker
from tests.postgres_server import PostgresServer
from tests.scenarios.kafka.topics import Topic, TopicMaker

COMPARED: Final = ("=", ">=", "<=")


@dataclass(frozen=True)
class Asked:
    """A comparison of a table's column with a value, and the rows that the table must have."""

    spark: SparkSession
    cut: Cut
    table: str
    due: DataFrame
    column: str
    value: pa.Scalar
    sign: str = ""

    def compared(self, one: Any, other: Any) -> Any:
        return {"=": one == other, ">=": one >= other, "<=": one <= other}[self.sign]

    def dataset(self) -> pyarrow.dataset.Dataset:
        return DeltaTable(self.cut.folder(self.table), version=self.cut.version(self.table)).to_pyarrow_dataset()


def misread(asked: Asked) -> Iterator[str]:
    kind, value = asked.due.schema[asked.column].dataType, asked.value
    if isinstance(kind, StructType | ArrayType | MapType) or not value.is_valid:
        return
    for sign in COMPARED:
        for reader, count in _COUNTS.items():
            if reader == "delta-rs" and pa.types.is_floating(value.type) and math.isnan(value.as_py()):
                continue  # for pyarrow 0.0 <= NaN holds with a file's bounds, and not with its rows
            shown, wanted = map(_told, count(replace(asked, sign=sign)))
            if shown != wanted:
                yield f"{reader} finds {shown} rows of {asked.column!r} {sign} {str(value)[:60]}, not {wanted}"


Counts = tuple[Callable[[], int], Callable[[], int]]


def _told(count: Callable[[], int]) -> int | str:
    try:
        return count()
    except Exception as error:  # noqa: BLE001 - a reader may be unable to compare this value, with bounds or without
        return f"{type(error).__name__}, no"


def _spark(asked: Asked) -> Counts:
    condition = (
        f"{quoted([asked.column])} {asked.sign} {_literal(asked.due.schema[asked.column].dataType, asked.value)}"
    )
    shown = asked.cut.spark(asked.spark, asked.table)
    whole = asked.due.limit(2**31 - 1)  # else Spark skips Parquet files by their bounds, which leave NaN out
    return lambda: shown.filter(condition).count(), lambda: whole.filter(condition).count()


def _literal(kind: DataType, value: pa.Scalar) -> str:
    plain = value.as_py() if not pa.types.is_temporal(value.type) else value.value
    match kind.typeName():
        case "string":
            return f"decode(unhex('{plain.encode().hex()}'), 'utf-8')"
        case "binary":
            return f"unhex('{plain.hex()}')"
        case "date":
            return f"date_from_unix_date({plain})"
        case "timestamp":
            return f"timestamp_micros({plain})"
        case "timestamp_ntz":
            return f"cast(timestamp_micros({plain}) AS timestamp_ntz)"
        case _:
            text = f"{plain:f}" if isinstance(plain, Decimal) else repr(plain)
            return f"cast('{text}' AS {kind.simpleString()})"


def _polars(asked: Asked) -> Counts:
    frame = asked.cut.polars(asked.table)
    of = pl.from_arrow(pa.array([asked.value], asked.value.type))
    assert isinstance(of, pl.Series)
    condition = asked.compared(pl.col(asked.column), pl.lit(of.item(), dtype=of.dtype))
    return lambda: frame.filter(condition).collect().height, lambda: frame.collect().filter(condition).height


def _delta_rs(asked: Asked) -> Counts:
    known, condition = asked.dataset(), asked.compared(pc.field(asked.column), asked.value)
    return lambda: known.to_table(filter=condition).num_rows, lambda: known.to_table().filter(condition).num_rows


def _duckdb(asked: Asked) -> Counts:
    known, given = asked.dataset(), asked.value.as_py()
    name = '"' + asked.column.replace('"', '""') + '"'

    def count(rows: Any) -> int:
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows_of_table", rows)
        query = f"SELECT count(*) FROM rows_of_table WHERE {name} {asked.sign} ?"
        return int(connection.execute(query, [given]).fetchall()[0][0])

    return lambda: count(known), lambda: count(known.to_table())


def _view(asked: Asked) -> Counts:
    """Return the counts of the view of `tidemark cut --sql duckdb`, which reads the files without the log's bounds."""
    given, view = asked.value.as_py(), f'"cut"."{view_name(asked.table)}"'
    name = '"' + asked.column.replace('"', '""') + '"'

    def count() -> int:
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(cut_sql(asked.cut, "duckdb", "cut"))
        query = f"SELECT count(*) FROM {view} WHERE {name} {asked.sign} ?"
        return int(connection.execute(query, [given]).fetchall()[0][0])

    return count, _duckdb(asked)[1]


_COUNTS: Final[dict[str, Callable[[Asked], Counts]]] = {
    "Spark": _spark,
    "Polars": _polars,
    "delta-rs": _delta_rs,
    "DuckDB": _duckdb,
    "DuckDB's view": _view,
}
if DELTA not in JAR_SETS:  # this Spark reads no Delta table
    del _COUNTS["Spark"]


# ------------------------------------------------------------------
# The servers from which some ways read. Each is started when a case first needs it, and is stopped with this process.


_OPEN = ExitStack()
atexit.register(_OPEN.close)


@cache
def kafka() -> Broker:
    folder = _OPEN.enter_context(tempfile.TemporaryDirectory(prefix="broker"))
    return _OPEN.enter_context(running_broker(Path(folder)))


@cache
def postgres() -> PostgresServer:
    server = PostgresServer()
    _OPEN.callback(server.close)
    return server


@cache
def topic(name: str) -> Topic:
    return TopicMaker(kafka().servers).made(name, 2, {})
