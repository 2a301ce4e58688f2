"""Checks the columns that a user names, and describes the columns of an aggregate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import DatetimeType, NumericType, StringType, StructType

from jobs.operators.aggregate import Aggregate, Kind
from jobs.pipeline.failures import InvalidPipelineError
from jobs.state.merge import DELETED, KEY_GROUP

RESERVED = (KEY_GROUP, DELETED)
"""Columns that Tidemark itself adds to a state file."""


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    """What an output column of `aggregate` holds: an aggregate of `column` (None: of rows).

    `renamed_from` is the name that the output column had before.
    """

    kind: Kind
    column: str | None = None
    renamed_from: str | None = None


def count(column: str | None = None, *, renamed_from: str | None = None) -> AggregateColumn:
    """Count rows, or the rows in which `column` is not null.

    `renamed_from`, here and in the other aggregates, is the name that the output column had before: it keeps its
    values in the state and in the vertex's upsert table.
    """
    return AggregateColumn(Kind.COUNT, column, renamed_from)


def sum_of(column: str, *, renamed_from: str | None = None) -> AggregateColumn:
    """Add up a column. Nulls are left out, and the sum of only nulls is null. Types and limits are Spark's.

    | the column holds | the sum is | what does not fit |
    |---|---|---|
    | tinyint, smallint, int, bigint | bigint, exact | the tick fails and names vertex, column and key |
    | decimal(p, s) | decimal(min(38, p + 10), s), exact | the same |
    | float, double | double, rounded by IEEE 754 | becomes infinite; NaN, and inf - inf, make the sum NaN for good |

    The rows of one micro-batch and the total after it must fit. (Spark with ANSI mode, its default, fails likewise.)
    A double's last digits depend on the order of the rows: sum decimals where that matters. Other types are refused.
    """
    return AggregateColumn(Kind.SUM, column, renamed_from)


def min_of(column: str, *, renamed_from: str | None = None) -> AggregateColumn:
    """Take a column's least value."""
    return AggregateColumn(Kind.MIN, column, renamed_from)


def max_of(column: str, *, renamed_from: str | None = None) -> AggregateColumn:
    """Take a column's greatest value."""
    return AggregateColumn(Kind.MAX, column, renamed_from)


def named_aggregates(
    where: str, keys: Sequence[str], rows: StructType, columns: Mapping[str, AggregateColumn]
) -> tuple[Aggregate, ...]:
    """Return the aggregates under their names; raise InvalidPipelineError for one that cannot be computed."""
    if not columns:
        raise InvalidPipelineError(f"{where}: an aggregate needs a column, such as rows=count()")
    require_unique(where, [*keys, *columns])
    require_free(where, [*keys, *columns])
    require_columns(where, rows, [one.column for one in columns.values() if one.column is not None])
    return tuple(Aggregate(one.kind, one.column, name) for name, one in columns.items())


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


def require_ordered(where: str, rows: StructType, name: str) -> None:
    """Raise InvalidPipelineError unless the rows have that column and its values have an order."""
    require_columns(where, rows, [name])
    kind = rows[name].dataType
    if not isinstance(kind, NumericType | DatetimeType | StringType):
        raise InvalidPipelineError(
            f"{where}: latest_by is {name!r}, a {kind.simpleString()}, of which none is the latest; name a column of "
            "numbers, times, dates or texts"
        )


def require_unique(where: str, names: Iterable[str]) -> None:
    """Raise InvalidPipelineError if two columns have one name; case does not count, as in Spark and Delta."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            other = seen[name.lower()]
            raise InvalidPipelineError(f"{where}: columns {other!r} and {name!r} have one name; rename one")
        seen[name.lower()] = name


def require_free(where: str, names: Iterable[str]) -> None:
    """Raise InvalidPipelineError for a name that state files reserve."""
    taken = [name for name in names if name.lower() in RESERVED]
    if taken:
        raise InvalidPipelineError(f"{where}: a state column may not be called {taken[0]!r}; rename it")
