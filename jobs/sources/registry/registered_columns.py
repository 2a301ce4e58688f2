"""Makes the columns of a source from the schemas of a registry, and compares later schemas with these columns.

| `columns=` | a schema has another field        | it lacks a field | a field has another type  |
|------------|-----------------------------------|------------------|---------------------------|
| `fail`     | refused                           | null             | refused                   |
| `ignore`   | the field is not read             | null             | its records do not decode |
| `evolve`   | the next tick reads it, see below | null             | refused                   |

`evolve` is for a source without declared columns. Its columns are the fields of all versions of the subject, in the
order in which the versions added them. The first record with a field that is no column yet waits for the next tick,
whose pipeline is built with the column. A field has another type unless all its values fit into the column's type: an
integer into a longer one or into a double, a float into a double. A field that a user's Avro schema has, and the
writer's lacks, gets its default.
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
    """A schema's record: its name, and the type of each field. `name` is empty if the record has no name."""

    name: str
    fields: Mapping[str, ColumnType]


class SchemaVerdict(Enum):
    """What happens to the records of a schema."""

    READ = "read"
    PASSED_OVER = "passed over"
    """The topic has several kinds of records, and these are of a kind that is not read."""
    UNREADABLE = "unreadable"
    WAITS = "waits"
    """The records wait for the next tick, which has their columns."""


Describe = Callable[[KnownSchema], Described]
"""Returns the record of a schema. Raises SourceError for a schema that is no record, or has a type without a column."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The names that the schemas of topics have in the registry, as the producers' subject name strategy forms them.

    `record` is the full name of the record to read from a topic with several kinds of records.
    """

    strategy: Strategy = "topic"
    record: str | None = None

    def __post_init__(self) -> None:
        """Raise SourceError for a strategy that does not exist, and for a strategy that needs a record and has none."""
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
        """`declared` are the columns that the user declares, or None to read the columns of the subjects."""
        self.registry, self._describe, self.subjects, self._on_other = registry, describe, subjects, on_other
        self._declared = declared
        self.types: Mapping[str, ColumnType] = declared or {}
        self._names: list[str] = []

    def find(self, topics: Sequence[str]) -> StructType:
        """Return the columns: the declared ones, or else the columns of all schemas of these topics.

        Raises RegistryAwayError, and SourceError for a schema that cannot be columns or is missing.
        """
        if self._declared is None:
            self._names = list(dict.fromkeys(map(self.subjects.of, topics)))
            self.types = self._union(self._versions(name) for name in self._names)
        return StructType([StructField(name, each.spark) for name, each in self.types.items()])

    def verdict(self, known: KnownSchema, place: str) -> SchemaVerdict:
        """Return what happens to the records of a schema. The first such record is at `place`.

        Raises SourceError if the schema's fields do not fit the columns.
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
    """Return whether a column of type `own` can hold each value of a field of type `kind`."""
    if kind == own:
        return True
    one, other = kind.spark, own.spark
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        return one.scale == other.scale and one.precision <= other.precision
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _struct_fits(kind, own)
    return isinstance(other, _WIDER.get(type(one), ()))


def _struct_fits(kind: ColumnType, own: ColumnType) -> bool:
    """Return whether the column's struct has all fields of the other struct, and each of them fits."""
    names = set(kind.spark.names)  # type: ignore[attr-defined]  # both are structs
    if not names <= set(own.spark.names):  # type: ignore[attr-defined]
        return False
    return all(fits(_field(kind, name), _field(own, name)) for name in names)


def _field(of: ColumnType, name: str) -> ColumnType:
    inside = of.stored.field(name).type if pa.types.is_struct(of.stored) else of.stored
    return ColumnType(of.spark[name].dataType, inside)  # type: ignore[index]  # a struct
