"""Filters a table by its values through each reader: what it skips by the bounds of a log must not hold the value."""

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from jobs.operators.schemas import quoted
from jobs.reading import Cut

COMPARED: Final = ("=", ">=", "<=")


def misread(spark: SparkSession, cut: Cut, table: str, due: DataFrame, column: str, value: pa.Scalar) -> Iterator[str]:
    """Yield each reader and comparison with this value that finds other rows in the table than without bounds."""
    kind = due.schema[column].dataType
    if isinstance(kind, StructType | ArrayType | MapType) or not value.is_valid:
        return
    for sign in COMPARED:
        for reader, count in _COUNTS.items():
            shown, wanted = map(_told, count(spark, cut, table, due, column, value, sign))
            if shown != wanted:
                yield f"{reader} finds {shown} rows of {column!r} {sign} {str(value)[:60]}, not {wanted}"


Count = Callable[[], int]
Counts = tuple[Count, Count]


def _told(count: Count) -> int | str:
    try:
        return count()
    except Exception as error:  # noqa: BLE001 - a reader may be unable to compare this value, with bounds or without
        return f"{type(error).__name__}, no"


def _spark(
    spark: SparkSession, cut: Cut, table: str, due: DataFrame, column: str, value: pa.Scalar, sign: str
) -> Counts:
    condition = f"{quoted([column])} {sign} {_literal(due.schema[column].dataType, value)}"
    return lambda: cut.spark(spark, table).filter(condition).count(), lambda: due.filter(condition).count()


def _literal(kind: DataType, value: pa.Scalar) -> str:
    """Return the value in Spark SQL: what it is written as in hexadecimal, or as a number."""
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


def _polars(
    spark: SparkSession, cut: Cut, table: str, due: DataFrame, column: str, value: pa.Scalar, sign: str
) -> Counts:
    frame = cut.polars(table)
    of = pl.from_arrow(pa.array([value], value.type))
    assert isinstance(of, pl.Series)
    condition = _compared(pl.col(column), pl.lit(of.item(), dtype=of.dtype), sign)
    return lambda: frame.filter(condition).collect().height, lambda: frame.collect().filter(condition).height


def _delta_rs(
    spark: SparkSession, cut: Cut, table: str, due: DataFrame, column: str, value: pa.Scalar, sign: str
) -> Counts:
    known = _dataset(cut, table)
    condition = _compared(pc.field(column), value, sign)
    return lambda: known.to_table(filter=condition).num_rows, lambda: known.to_table().filter(condition).num_rows


def _duckdb(
    spark: SparkSession, cut: Cut, table: str, due: DataFrame, column: str, value: pa.Scalar, sign: str
) -> Counts:
    known, given = _dataset(cut, table), value.as_py()
    name = '"' + column.replace('"', '""') + '"'

    def count(rows: Any) -> int:
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows_of_table", rows)
        found = connection.execute(f"SELECT count(*) FROM rows_of_table WHERE {name} {sign} ?", [given]).fetchall()
        return int(found[0][0])

    return lambda: count(known), lambda: count(known.to_table())


def _dataset(cut: Cut, table: str) -> pyarrow.dataset.Dataset:
    return DeltaTable(cut.folder(table), version=cut.version(table)).to_pyarrow_dataset()


def _compared(one: Any, other: Any, sign: str) -> Any:
    return {"=": one == other, ">=": one >= other, "<=": one <= other}[sign]


_COUNTS: Final[Mapping[str, Callable[..., Counts]]] = {
    "Spark": _spark,
    "Polars": _polars,
    "delta-rs": _delta_rs,
    "DuckDB": _duckdb,
}
