"""Makes the columns of a source from the schemas of a registry, and compares later schemas with them.

| `columns=` | a schema has another field          | it lacks a field | a field has another type         |
|------------|-------------------------------------|------------------|----------------------------------|
| `fail`     | refused                             | null             | refused                          |
| `ignore`   | the field is not read               | null             | its records do not decode        |
| `evolve`   | the next tick has it, see below     | null             | refused                          |

`evolve` is for columns that nobody declared: they are the fields of all versions of the subject, in the order in which
the versions brought them. The first record with a field that the columns lack waits for the next tick, whose pipeline
is built with the column. A field has another type unless it fits into the column's: a whole number into a longer one or
into a double, a float into a double. A field that a user's Avro schema has, and the writer's lacks, gets its default.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from jobs.sources.arrow_types import ColumnType
from jobs.sources.port import SourceError
from jobs.sources.registry.client import NotInRegistryError, SchemaRegistry
from jobs.sources.registry.known_schema import KnownSchema

OnOther = Literal["fail", "ignore", "evolve"]
Strategy = Literal["topic", "record", "topic-record"]
STRATEGIES: Final = ("topic", "record", "topic-record")

_WIDER: Final[Mapping[type[DataType], tuple[type[DataType], ...]]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    LongType: (),
    FloatType: (DoubleType,),
}


@dataclass(frozen=True, slots=True)
class Described:
    """What a schema says: the name of its record, and the type of each field. `name` is empty if it has none."""

    name: str
    fields: Mapping[str, ColumnType]


class SchemaVerdict(Enum):
    """What becomes of the records of a schema."""

    READ = "read"
    PASSED_OVER = "passed over"
    """They are other records of a topic that has several kinds."""
    UNREADABLE = "unreadable"
    WAITS = "waits"
    """The next tick has their columns."""


Describe = Callable[[KnownSchema], Described]
"""Returns what a schema says. Raises SourceError for one that is no record, or that has a type without a column."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """Under which names of the registry the schemas of topics are, as the producers' name strategy says.

    `record` is the full name of the one record that is read from a topic of several.
    """

    strategy: Strategy = "topic"
    record: str | None = None

    def __post_init__(self) -> None:
        """Raise SourceError for a strategy that does not exist, and for one that needs a record."""
        if self.strategy not in STRATEGIES:
            raise SourceError(f"subject={self.strategy!r}: write one of {', '.join(map(repr, STRATEGIES))}")
        if self.strategy != "topic" and self.record is None:
            raise SourceError(
                f"subject={self.strategy!r} needs record=, as in record='shop.Order': the record to read from topics "
                "that have several kinds"
            )

    def of(self, topic: str) -> str:
        """Return the subject of a topic's records."""
        match self.strategy:
            case "topic":
                return f"{topic}-value"
            case "record":
                return str(self.record)
            case "topic-record":
                return f"{topic}-{self.record}"


class RegisteredColumns:
    """The columns of a source whose records have their schemas in a registry."""

    def __init__(
        self,
        registry: SchemaRegistry,
        describe: Describe,
        subjects: Subjects,
        on_other: OnOther,
        declared: Mapping[str, ColumnType] | None = None,
    ) -> None:
        """`declared` are the columns that the user wants; None: those of the subjects."""
        self.registry, self._describe, self.subjects, self._on_other = registry, describe, subjects, on_other
        self._declared = declared
        self.types: Mapping[str, ColumnType] = declared or {}
        self._names: list[str] = []

    def find(self, topics: Sequence[str]) -> StructType:
        """Return the columns. Unless they are declared, they are those of all schemas of these topics.

        Raises SourceError for schemas that contradict each other, and RegistryAwayError.
        """
        if self._declared is None:
            self._names = list(dict.fromkeys(map(self.subjects.of, topics)))
            self.types = self._union(self._versions(name) for name in self._names)
        return StructType([StructField(name, each.spark) for name, each in self.types.items()])

    def verdict(self, known: KnownSchema, place: str) -> SchemaVerdict:
        """Return what becomes of the records of a schema, the first of which is at `place`.

        Raises SourceError if its columns do not fit.
        """
        described = self._describe(known)
        if self.subjects.record is not None and described.name not in ("", self.subjects.record):
            return SchemaVerdict.PASSED_OVER
        odd = next((name for name, kind in described.fields.items() if not self._fits(name, kind)), None)
        if odd is not None and self._on_other == "ignore":
            return SchemaVerdict.UNREADABLE
        if odd is not None:
            raise SourceError(
                f"{place} has schema {known.number} of the registry, whose field {odd!r} is "
                f"{described.fields[odd].spark.simpleString()}, and the column is "
                f"{self.types[odd].spark.simpleString()}: let the producer write the old type, or declare the columns "
                "with schema= and let such records not decode with columns='ignore'"
            )
        later = [name for name in described.fields if name not in self.types]
        if not later or self._on_other == "ignore":
            return SchemaVerdict.READ
        if self._on_other == "fail":
            raise SourceError(
                f"{place} has schema {known.number} of the registry, with the field {later[0]!r}, and the source has "
                "no such column: add it to schema=, pass over such fields with columns='ignore', or leave schema= out, "
                "so that each tick has the columns of the registry"
            )
        self._must_come(later, known, place)
        return SchemaVerdict.WAITS

    def _fits(self, name: str, kind: ColumnType) -> bool:
        own = self.types.get(name)
        return own is None or fits(kind, own)

    def _must_come(self, later: Sequence[str], known: KnownSchema, place: str) -> None:
        """Raise SourceError unless the next tick's columns have these fields."""
        now = self._union(self._versions(name, anew=True) for name in self._names)
        missing = [name for name in later if name not in now]
        if missing:
            raise SourceError(
                f"{place} has schema {known.number} of the registry, with the field {missing[0]!r}, and no version of "
                f"{' or '.join(self._names)} has it: register the schema there, or declare the columns with schema="
            )

    def _versions(self, subject: str, *, anew: bool = False) -> tuple[KnownSchema, ...]:
        try:
            return self.registry.versions(subject, anew=anew)
        except NotInRegistryError as error:
            raise NotInRegistryError(
                f"{error}: let the producer register its schema, correct the url, subject= or the topic, or declare "
                "the columns with schema="
            ) from None

    def _union(self, versions: Iterable[Iterable[KnownSchema]]) -> dict[str, ColumnType]:
        found: dict[str, ColumnType] = {}
        for known in (each for subject in versions for each in subject):
            for name, kind in self._describe(known).fields.items():
                found.setdefault(name, kind)
        return found


def fits(kind: ColumnType, own: ColumnType) -> bool:
    """Return whether each value of a field's type is one of a column's type, stored in the same way."""
    if kind == own:
        return True
    one, other = kind.spark, own.spark
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        return one.scale == other.scale and one.precision <= other.precision
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _struct_fits(kind, own)
    return isinstance(other, _WIDER.get(type(one), ()))


def _struct_fits(kind: ColumnType, own: ColumnType) -> bool:
    """Return whether all fields of a struct are there, and fit."""
    names = set(kind.spark.names)  # type: ignore[attr-defined]  # both are structs
    if not names <= set(own.spark.names):  # type: ignore[attr-defined]
        return False
    return all(fits(_field(kind, name), _field(own, name)) for name in names)


def _field(of: ColumnType, name: str) -> ColumnType:
    inside = of.stored.field(name).type if pa.types.is_struct(of.stored) else of.stored
    return ColumnType(of.spark[name].dataType, inside)  # type: ignore[index]  # a struct
