"""Checks the columns that a user names."""

from collections.abc import Iterable, Sequence

from pyspark.sql.types import DataType, DatetimeType, NumericType, StringType, StructType

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
