"""What a Parquet file says of itself: its number of rows, and whether it has the columns it should."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from jobs.sources.port import SourceError


def checked_rows(path: Path, schema: StructType) -> int:
    """Return the number of rows of the file, from its footer; no row is read.

    Columns may stand in any order, and others may be there too: they are not read. Raises SourceError
    if the file is unreadable or truncated, or a column of `schema` is missing or of another type.
    """
    try:
        with pq.ParquetFile(path) as file:
            rows, columns = file.metadata.num_rows, file.schema_arrow
            int96 = {name.path for name in map(file.schema.column, range(len(file.schema))) if _is_int96(name)}
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path} cannot be read as Parquet ({_first_line(error)}): write it anew, or remove it. A file that is "
            f"still being written needs a temporary name: a leading dot or underscore, or .tmp at the end"
        ) from error
    for field in schema.fields:
        _check(path, field.name, field.dataType.simpleString(), columns, int96=int96)
    return int(rows)


def _check(path: Path, name: str, wanted: str, columns: pa.Schema, *, int96: set[str]) -> None:
    """Raise SourceError unless the file has that column, once, with that type."""
    if columns.names.count(name) != 1:
        raise SourceError(
            f"{path} has {'two columns' if name in columns.names else 'no column'} {name!r} (it has "
            f"{', '.join(columns.names)}): write it with the columns of the source's schema, or change the schema"
        )
    found = "timestamp" if name in int96 else _spark_name(columns.field(name).type)
    if found != wanted:
        raise SourceError(
            f"{path}: column {name!r} is {found}, but the source's schema says {wanted}: "
            f"write the file with that type, or change the schema"
        )


def _spark_name(arrow: pa.DataType) -> str:
    """Return the type as Spark names it; a type that Spark does not know keeps its Arrow name."""
    plain = arrow.value_type if pa.types.is_dictionary(arrow) else arrow
    try:
        return str(from_arrow_type(plain, prefer_timestamp_ntz=True).simpleString())
    except PySparkTypeError:
        return str(arrow)


def _is_int96(column: pq.ColumnSchema) -> bool:
    """Whether a column is a timestamp as Spark and Hive write it by default: a moment, without a zone in its type."""
    return bool(column.physical_type == "INT96")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
