"""Checks the columns that a user names."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
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

from checkpointing.identifiers import TableName, VertexId, column_name, table_name, vertex_id
from jobs.operators.in_time.measured_times import TimeColumn
from jobs.settings import duration_ms
from jobs.spark.columns import OWN_NAMES
from jobs.spark.versions import DATETIMES
from jobs.state.merge import DELETED, KEY_GROUP, TOUCHED, TOUCHED_BY_CLOCK

# ------------------------------------------------------------------
# The error for a wrong pipeline.


class InvalidPipelineError(ValueError):
    """A pipeline cannot be planned. The message names the vertex or table, the rule and a way out."""


RESERVED = (KEY_GROUP, DELETED, TOUCHED, TOUCHED_BY_CLOCK)
"""Columns that Tidemark itself adds to a state file."""

ALL = "_all"
"""The key of an aggregate without keys: true in every row."""


def duration(where: str, text: str) -> int:
    """Return a duration such as "30s", "10m", "2h" or "1d" in ms. Raises InvalidPipelineError."""
    if not isinstance(text, str):
        raise InvalidPipelineError(f"{where}: write a duration like 30s, 5m or 2h as a text, not {text!r}")
    try:
        return duration_ms(text)
    except ValueError as error:
        raise InvalidPipelineError(f"{where}: {error}") from None


def time_zone(where: str, name: str) -> str:
    """Return the name of a time zone. Raises InvalidPipelineError if there is no such time zone."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError) as error:
        raise InvalidPipelineError(
            f"{where}: there is no time zone {name!r}: write one such as Europe/Berlin"
        ) from error
    return name


FAIL: Final = "fail"
"""The value of `late=` that makes a late row fail its micro-batch."""


def require_late(where: str, name: str, late: object) -> None:
    """Raise InvalidPipelineError unless `late` names a table for late rows, or declares them an error."""
    if late is None:
        raise InvalidPipelineError(
            f'{where}: say where late rows go, as in late="late/{name}". With late="fail" they are an error'
        )
    if not isinstance(late, str) or (late != FAIL and "/" not in late):
        raise InvalidPipelineError(
            f"{where}: late is {late!r}, and no row is dropped: name a table for late rows, as in "
            f'late="late/{name}", or write late="fail"'
        )


def require_keys(where: str, rows: StructType, keys: Sequence[str]) -> None:
    """Raise InvalidPipelineError unless there are keys, and each key is a column that is named once."""
    if not keys:
        raise InvalidPipelineError(f"{where}: name at least one column")
    require_unique(where, keys)
    require_columns(where, rows, keys)


def require_columns(where: str, rows: StructType, names: Iterable[str]) -> None:
    """Raise InvalidPipelineError if the rows lack one of these columns.

    The message also names the columns that they have.
    """
    missing = [name for name in names if name not in rows.names]
    if missing:
        raise InvalidPipelineError(f"{where}: there is no column {missing[0]!r}; the rows have {', '.join(rows.names)}")


def require_ordered(where: str, rows: StructType, name: str, role: str = "latest_by") -> None:
    """Raise InvalidPipelineError unless the rows have that column and its values have an order."""
    require_columns(where, rows, [name])
    kind = rows[name].dataType
    if not isinstance(kind, (NumericType, *DATETIMES, StringType)):
        raise InvalidPipelineError(
            f"{where}: {role} is {name!r}, a {kind.simpleString()}, of which none is the latest; name a column of "
            "numbers, times, dates or texts"
        )


NESTED_MAX: Final = 30
"""How deep structs, lists and maps may be nested.

Parquet, Arrow or delta-rs cannot read types that are deeper than 31 maps, 41 structs or 49 lists."""


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
    """Raise InvalidPipelineError for a text that Spark compares by a collation. An operator would compare bytes."""
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
    """Return how deep a type is nested, but at most one level more than allowed. This needs no recursion in Python."""
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
    """Raise InvalidPipelineError if two columns have the same name. Case is ignored, as in Spark and Delta.

    A name must not be a pattern either, which Polars would expand to several columns. It must not be one of Tidemark's
    own names.
    """
    seen: dict[str, str] = {}
    for name in names:
        if name.lower().startswith(OWN_NAMES):
            raise InvalidPipelineError(
                f"{where}: column {name!r}: Tidemark keeps names that begin with {OWN_NAMES!r} for itself; rename it"
            )
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
    """Raise InvalidPipelineError for a column with the name of the column that Tidemark adds to each keyed row."""
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


# ------------------------------------------------------------------
# Checks the former names of vertices, tables and columns, given with `renamed_from=` (G2).


def former_id(renamed_from: str | None) -> VertexId | None:
    """Return the former id of a vertex, or None if it was not renamed. Raise InvalidNameError for an invalid id."""
    return None if renamed_from is None else vertex_id(renamed_from)


def former_table(renamed_from: str | None) -> TableName | None:
    """Return the former name of a table, or None if it was not renamed. Raise InvalidNameError for an invalid name."""
    return None if renamed_from is None else table_name(renamed_from)


def require_id_of_its_own(where: str, id: str | None, id_renamed_from: str | None) -> None:  # noqa: A002 - its name
    """Raise InvalidPipelineError if a call has `id_renamed_from` but no `id`."""
    if id is None and id_renamed_from is not None:
        raise InvalidPipelineError(
            f"{where}: id_renamed_from={id_renamed_from!r} belongs to id=, and there is none; say renamed_from= where "
            "the vertex that writes it gets its id"
        )


def former_columns(
    where: str, keys: Collection[str], columns: Collection[str], renamed: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the old names of renamed columns by the new ones. `columns` are the vertex's columns besides its `keys`.

    Raises InvalidNameError for an invalid name, and InvalidPipelineError for a rename that makes no sense.
    """
    for new, old in renamed.items():
        said = f"{where}: column {new} is renamed from {column_name(old)!r}"
        require_no_key(said, keys, new)
        if new not in columns:
            raise InvalidPipelineError(f"{said}, and there is no column {new!r}; there are {', '.join(columns)}")
        if new == old:
            raise InvalidPipelineError(f"{said}, which is its own name; leave the rename out")
        if old in renamed:
            raise InvalidPipelineError(
                f"{said}, and {old} is renamed from {renamed[old]!r}: columns cannot pass on their names at once. "
                "Take a name that is free, or rename one of them first, and the other one after the next checkpoint"
            )
        if old in keys or old in columns:
            raise InvalidPipelineError(
                f"{said}, and there still is a column {old}: leave the rename out if {new} is a new one, or take "
                f"another name for {old}"
            )
        twin = next((other for other, before in renamed.items() if before == old and other != new), None)
        if twin is not None:
            raise InvalidPipelineError(f"{said}, and {twin} too; only one of them can have been it")
    return dict(renamed)


def require_no_key(said: str, keys: Collection[str], renamed: str) -> None:
    """Raise InvalidPipelineError if a renamed column is a key. `said` names the column and its old name."""
    if renamed in keys:
        raise InvalidPipelineError(
            f"{said}, and it is a key, which keeps its name: key the rows as before, and rename the column where you "
            "read it. Or begin without state under another id"
        )


# ------------------------------------------------------------------
# How a pipeline changes the existing columns of an append table: renames, drops, or another order.


NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChangedColumns:
    """The old names of a table's columns by the new ones, the columns to drop, and whether the order changes."""

    renamed_from: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drops: tuple[str, ...] = ()
    in_order: bool = False


UNCHANGED: Final = ChangedColumns()


def changed_columns(
    table: str, rows: StructType, renamed_from: Mapping[str, str], drops: Sequence[str], *, in_order: bool
) -> ChangedColumns:
    """Return the changes of the columns of a table with these rows.

    Raises InvalidNameError for an invalid name, and InvalidPipelineError for a change that makes no sense.
    """
    where, columns = f"table {table}", rows.names
    renamed = former_columns(where, (), columns, renamed_from)
    if isinstance(drops, str):
        raise InvalidPipelineError(f"{where}: drop is the text {drops!r}; name columns, as in [{drops!r}]")
    require_unique(f"{where}, drop", drops)
    written, old = ({name.casefold() for name in names} for names in (columns, renamed.values()))
    for name in map(column_name, drops):
        if name.casefold() in written:
            raise InvalidPipelineError(
                f"{where}: drop names {name!r}, and the pipeline writes this column; drop it from the stream before "
                f"the table, as in .drop({name!r}), or leave it out here"
            )
        if name.casefold() in old:
            raise InvalidPipelineError(
                f"{where}: drop names {name!r}, which another column is renamed from; leave it out of one of the two"
            )
    return ChangedColumns(renamed, tuple(drops), in_order)


def time_column(where: str, rows: StructType, column: str) -> TimeColumn:
    """Return the event time in a column. Raise InvalidPipelineError unless the column exists and is a timestamp."""
    require_keys(where, rows, [column])
    kind = rows[column].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise InvalidPipelineError(
            f"{where}: column {column} has type {kind.simpleString()}: make it a timestamp, with with_column"
        )
    return TimeColumn(column, kind)
