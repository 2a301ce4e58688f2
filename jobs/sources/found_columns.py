"""Remembers columns that a file source found in its files, and that its declared schema lacks.

They are in a hidden file in the source's folder, `_columns.json`. A column stays once a completed checkpoint has read
the file that taught it, also when its files are gone. So a table never loses a column because of its input.

Before that, the file may turn out to be damaged, or to be a stranger's. If it is removed or changed, the column is
forgotten. So no job is blocked by a file that is gone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt, field_validator
from pyspark.sql.types import DataType, NullType, StructField, StructType

from jobs.sources.file_footer import Column
from jobs.sources.input_folder import input_folder
from jobs.sources.port import SourceError
from jobs.sources.schema_json import SchemaJsonError, schema_of_json
from jobs.storage.documents import document
from jobs.storage.place import StoragePlace

FOUND: Final = "_columns.json"


class Teacher(BaseModel):
    """The file that taught a column, which no checkpoint has read yet: its place below the source's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: str
    folder: str
    name: str
    size: NonNegativeInt
    modified_ns: int

    @field_validator("folder", "name")
    @classmethod
    def _below_the_root(cls, path: str) -> str:
        if "\0" in path or not {".", ".."}.isdisjoint(path.split("/")) or path.startswith("/"):
            raise ValueError("must be a path below the source's folder")
        return path

    def is_there(self, root: StoragePlace) -> bool:
        """Return whether the file is there as it was."""
        try:
            now = input_folder(root / self.folder if self.folder else root).found(self.name)
        except OSError:
            return False
        return (now.size, now.modified_ns) == (self.size, self.modified_ns)


class FoundColumns(BaseModel):
    """The content of the file: the columns in the order in which they were found, in Spark's JSON for schemas.

    Format 2 has `taught`: the file of each column that no completed checkpoint has read yet.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1, 2] = 2
    columns: dict[str, JsonValue]
    taught: dict[str, Teacher] = {}


@dataclass(frozen=True, slots=True)
class Lessons:
    """The columns that count, and the files that taught those of which no checkpoint has read a value."""

    columns: StructType
    taught: Mapping[str, Teacher]


def found_columns(root: StoragePlace) -> Lessons:
    """Return the columns that were found so far; raise SourceError if the file that says so cannot be read.

    Those of a file that is gone or changed before it was read are left out.
    """
    path = root / FOUND
    try:
        said = FoundColumns.model_validate_json(path.read())
        columns = schema_of_json(said.columns)
        gone = {name for name, teacher in said.taught.items() if not teacher.is_there(root)}
        kept = StructType([field for field in columns if field.name not in gone])
        return Lessons(kept, {name: each for name, each in said.taught.items() if name not in gone})
    except FileNotFoundError:
        return Lessons(StructType(), {})
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, SchemaJsonError) else type(error).__name__
        raise SourceError(
            f"{path}, which names the columns that were found in files, cannot be read ({why}): put "
            "it back as it was, or add its columns to the source's schema and delete it"
        ) from error


def remember(
    root: StoragePlace, file: StoragePlace, columns: Iterable[Column], teacher: Teacher, declared: Iterable[str]
) -> None:
    """Add columns that were found in a file; raise SourceError if one has a type or a name that cannot be read.

    Spark takes two names for one if only their case differs. `declared` are the names of the source's schema.
    """
    known = found_columns(root)
    new = [StructField(each.name, _type(file, each)) for each in columns if each.name not in known.columns.names]
    taken = {name.lower(): name for name in (*declared, *known.columns.names)}
    for field in new:
        if field.name.lower() in taken:
            raise SourceError(
                f"{file}: column {field.name!r} has the name of column {taken[field.name.lower()]!r} but for its case, "
                "and Spark takes both for one: rename it in the file"
            )
        taken[field.name.lower()] = field.name
    lessons = Lessons(StructType([*known.columns, *new]), {**known.taught, **{field.name: teacher for field in new}})
    _write(root, lessons, f"to add the columns of {file}")


def confirm(root: StoragePlace, read: Callable[[Teacher], bool]) -> None:
    """Keep the columns for good whose file a completed checkpoint has read. Raise SourceError."""
    known = found_columns(root)
    left = {name: teacher for name, teacher in known.taught.items() if not read(teacher)}
    if len(left) < len(known.taught):
        _write(root, Lessons(known.columns, left), "to keep the columns of files that were read")


def _write(root: StoragePlace, lessons: Lessons, why: str) -> None:
    said = FoundColumns(columns=lessons.columns.jsonValue(), taught=dict(lessons.taught))
    try:
        (root / FOUND).replace(document(said))
    except OSError as error:
        raise SourceError(
            f"{root / FOUND} cannot be written ({error.strerror or error}), {why}: correct the "
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
