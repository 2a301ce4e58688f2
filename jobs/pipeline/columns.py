"""Checks the columns that a user names."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DatetimeType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobs.pipeline.failures import InvalidPipelineError
from jobs.state.merge import DELETED, KEY_GROUP

RESERVED = (KEY_GROUP, DELETED)
"""Columns that Tidemark itself adds to a state file."""

ALL = "_all"
"""The key of an aggregate without keys: true in every row."""


def require_keys(where: str, rows: StructType, keys: Sequence[str]) -> None:
    """Raise InvalidPipelineError unless there are keys, each a column, each once."""
    if not keys:
        raise InvalidPipelineError(f"{where}: name at least one column")
    require_unique(where, keys)
    require_columns(where, rows, keys)


def require_columns(where: str, rows: StructType, names: Iterable[str]) -> None:
    """Raise InvalidPipelineError naming the columns that the rows lack, and those they have."""
    missing = [name for name in names if name not in rows.names]
    if missing:
        raise InvalidPipelineError(f"{where}: there is no column {missing[0]!r}; the rows have {', '.join(rows.names)}")


def require_ordered(where: str, rows: StructType, name: str, role: str = "latest_by") -> None:
    """Raise InvalidPipelineError unless the rows have that column and its values have an order."""
    require_columns(where, rows, [name])
    kind = rows[name].dataType
    if not isinstance(kind, NumericType | DatetimeType | StringType):
        raise InvalidPipelineError(
            f"{where}: {role} is {name!r}, a {kind.simpleString()}, of which none is the latest; name a column of "
            "numbers, times, dates or texts"
        )


NESTED_MAX: Final = 30
"""So deep may structs, lists and maps lie in each other. Parquet, Arrow or delta-rs read none that are deeper than 31
maps, 41 structs or 49 lists."""


def require_shallow(where: str, rows: StructType) -> None:
    """Raise InvalidPipelineError if a column's type is nested too deep for a table."""
    for field in rows.fields:
        if _depth(field.dataType) > NESTED_MAX:
            raise InvalidPipelineError(
                f"{where}: column {field.name!r} has structs, lists or maps nested more than {NESTED_MAX} deep, which "
                "no Delta table can hold: keep the inner ones as a text, as with to_json, or as columns of their own"
            )


_KEPT: Final = frozenset(
    {
        *(ArrayType, BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType),
        *(LongType, MapType, ShortType, StringType, StructType, TimestampNTZType, TimestampType),
    }
)
"""The types that Spark, Arrow, Polars and Delta all have."""


def require_kept(where: str, rows: StructType) -> None:
    """Raise InvalidPipelineError if tables, states or files between vertices cannot hold a column's type."""
    require_shallow(where, rows)
    for field in rows.fields:
        for kind in _parts(field.dataType):
            if type(kind) not in _KEPT:
                raise InvalidPipelineError(
                    f"{where}: column {field.name!r} has the type {kind.simpleString()}, which Delta tables or Arrow "
                    "files cannot hold: cast it to another type in a step before, for example to a text or a number, "
                    "or drop it there"
                )
            if isinstance(kind, StructType):
                require_unique(f"{where}: column {field.name!r}", kind.names, "fields")


def require_plain_texts(where: str, rows: StructType) -> None:
    """Raise InvalidPipelineError for a text that Spark compares by a collation. An operator compares its bytes."""
    for field in rows.fields:
        if any(isinstance(kind, StringType) and kind.simpleString() != "string" for kind in _parts(field.dataType)):
            raise InvalidPipelineError(
                f"{where}: column {field.name!r} has the type {field.dataType.simpleString()}, and operators compare "
                "texts without a collation: cast it to string in a step before"
            )


def _parts(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types inside of it."""
    level = [kind]
    while level:
        yield from level
        level = [inner for each in level for inner in _inside(each)]


def _depth(kind: DataType) -> int:
    """Return how deep a type is nested, at most one more than is allowed. It needs no recursion of Python's."""
    level, depth = [kind], -1
    while level and depth <= NESTED_MAX:
        depth += 1
        level = [inner for each in level for inner in _inside(each)]
    return depth


def _inside(kind: DataType) -> list[DataType]:
    match kind:
        case StructType():
            return [field.dataType for field in kind.fields]
        case ArrayType():
            return [kind.elementType]
        case MapType():
            return [kind.keyType, kind.valueType]
        case _:
            return []


def require_unique(where: str, names: Iterable[str], what: str = "columns") -> None:
    """Raise InvalidPipelineError if two columns have one name; case does not count, as in Spark and Delta.

    A name must not be a pattern either, for which Polars would take several columns.
    """
    seen: dict[str, str] = {}
    for name in names:
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise InvalidPipelineError(f"{where}: Polars takes the name of column {name!r} for a pattern; rename it")
        if name.lower() in seen:
            other = seen[name.lower()]
            raise InvalidPipelineError(f"{where}: {what} {other!r} and {name!r} have one name; rename one")
        seen[name.lower()] = name


def require_free(where: str, names: Iterable[str]) -> None:
    """Raise InvalidPipelineError for a name that state files reserve."""
    taken = [name for name in names if name.lower() in RESERVED]
    if taken:
        raise InvalidPipelineError(f"{where}: a state column may not be called {taken[0]!r}; rename it")


def require_no_key_group(where: str, names: Iterable[str]) -> None:
    """Raise InvalidPipelineError for a column that has the name of the one that Tidemark adds to each keyed row."""
    taken = [name for name in names if name.lower() == KEY_GROUP]
    if taken:
        raise InvalidPipelineError(f"{where}: keyed rows may not have a column {taken[0]!r}; drop or rename it before")


def require_keys_alike(
    where: str, left: StructType, keys: Sequence[str], right: StructType, its: Sequence[str]
) -> None:
    """Raise InvalidPipelineError unless the keys of two streams have the same types, in the same order."""
    types, others = ([rows[key].dataType for key in named] for rows, named in ((left, keys), (right, its)))
    if types != others:
        raise InvalidPipelineError(
            f"{where}: the keys are {_listed(keys, types)} and {_listed(its, others)}; "
            "cast them to the same types, in the same order"
        )


def _listed(keys: Sequence[str], types: Sequence[DataType]) -> str:
    return ", ".join(f"{key} {kind.simpleString()}" for key, kind in zip(keys, types, strict=True))
