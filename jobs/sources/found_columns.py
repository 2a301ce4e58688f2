"""Remembers columns that a file source found in its files, and that its declared schema lacks.

They are in a hidden file in the source's folder, `_columns.json`. A column that was found once stays, also when its
files are gone. So a table never loses a column because of its input.
"""

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue
from pyspark.sql.types import DataType, NullType, StructField, StructType

from jobs.sources.file_footer import Column
from jobs.sources.port import SourceError
from jobs.sources.schema_json import SchemaJsonError, schema_of_json
from jobs.storage.documents import document
from jobs.storage.place import StoragePlace

FOUND: Final = "_columns.json"


class FoundColumns(BaseModel):
    """The content of the file: the columns in the order in which they were found, in Spark's JSON for schemas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    columns: dict[str, JsonValue]


def found_columns(root: StoragePlace) -> StructType:
    """Return the columns that were found so far; raise SourceError if the file that says so cannot be read."""
    path = root / FOUND
    try:
        said = FoundColumns.model_validate_json(path.read())
        return schema_of_json(said.columns)
    except FileNotFoundError:
        return StructType()
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, SchemaJsonError) else type(error).__name__
        raise SourceError(
            f"{path}, which names the columns that were found in files, cannot be read ({why}): put "
            "it back as it was, or add its columns to the source's schema and delete it"
        ) from error


def remember(root: StoragePlace, file: StoragePlace, columns: Iterable[Column]) -> None:
    """Add columns that were found in a file; raise SourceError if one has a type that cannot be read."""
    known = found_columns(root)
    new = [StructField(each.name, _type(file, each)) for each in columns if each.name not in known.names]
    try:
        (root / FOUND).replace(document(FoundColumns(columns=StructType([*known, *new]).jsonValue())))
    except OSError as error:
        raise SourceError(
            f"{root / FOUND} cannot be written ({error.strerror or error}), to add the columns of {file}: correct the "
            "rights of the folder, or add the columns to the source's schema"
        ) from error


def _type(file: StoragePlace, column: Column) -> DataType:
    if column.type is None:
        raise SourceError(
            f"{file}: column {column.name!r} is {column.said}, a type that Spark cannot read: write another"
        )
    if isinstance(column.type, NullType):
        raise SourceError(
            f"{file}: column {column.name!r} has no values and no type: write it with a type, or leave it out"
        )
    return column.type
