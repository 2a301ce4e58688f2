"""Chooses the columns of a table of changes: those of the table, those that keep values, those with a history."""

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.types import StructType

from jobs.pipeline.columns import require_columns
from jobs.pipeline.failures import InvalidPipelineError

_NULLS = "ignore_null_updates"
_HISTORY = "track_history"


class NullsIgnored(NamedTuple):
    """What a user says of nulls that keep the value before: in all columns, in these, or in all but the others."""

    everywhere: bool
    named: Sequence[str]
    others: Sequence[str]


def kept_columns(
    where: str,
    rows: StructType,
    of_table: Sequence[str],
    keys: Sequence[str],
    named: Sequence[str],
    others: Sequence[str],
) -> tuple[str, ...]:
    """Return the columns of the table besides its keys: those named, or all but the others.

    Raises InvalidPipelineError for columns that are not there, and if the user names both.
    """
    require_columns(where, rows, [*named, *others])
    if named and others:
        raise InvalidPipelineError(f"{where}: name columns or except_columns, not both")
    return tuple(name for name in named or of_table if name not in keys and name not in others)


def ignored_columns(
    where: str, rows: StructType, kept: Sequence[str], nulls: NullsIgnored, *, by_rows: bool
) -> tuple[str, ...]:
    """Return the columns in which a null keeps the value before.

    Raises InvalidPipelineError for a choice that contradicts itself, for other columns than those of the table, for a
    struct, and for changes that say themselves what they are (`by_rows`).
    """
    if not any(nulls):
        return ()
    if sum(map(bool, nulls)) > 1:
        raise InvalidPipelineError(f"{where}: set one of {_NULLS}, {_NULLS}_columns and {_NULLS}_except_columns")
    if by_rows:
        raise InvalidPipelineError(
            f"{where}: a null in the changes of a database's table is the row's value. Leave {_NULLS} out"
        )
    found = _chosen(where, kept, _NULLS, nulls.named, nulls.others)
    nested = [name for name in found if isinstance(rows[name].dataType, StructType)]
    if nested:
        raise InvalidPipelineError(
            f"{where}: column {nested[0]!r} is a struct, and each of its fields may be null. Make columns of its "
            f"fields, or name {nested[0]!r} in {_NULLS}_except_columns"
        )
    return found


def tracked_columns(
    where: str, kept: Sequence[str], named: Sequence[str], others: Sequence[str], *, history: bool
) -> tuple[str, ...] | None:
    """Return the columns that begin a version, or None for all.

    Raises InvalidPipelineError for a table without history, for a choice that contradicts itself, and for other columns
    than those of the table.
    """
    if not (named or others):
        return None
    if not history:
        raise InvalidPipelineError(f"{where}: type 1 has no history. Set type=2, or leave {_HISTORY}_columns out")
    if named and others:
        raise InvalidPipelineError(f"{where}: name {_HISTORY}_columns or {_HISTORY}_except_columns, not both")
    return _chosen(where, kept, _HISTORY, named, others)


def _chosen(
    where: str, kept: Sequence[str], setting: str, named: Sequence[str], others: Sequence[str]
) -> tuple[str, ...]:
    """Return the named columns of the table, or all but the others."""
    for name in (*named, *others):
        if name not in kept:
            raise InvalidPipelineError(
                f"{where}: {setting}{'_columns' if named else '_except_columns'} names {name!r}. Name columns of the "
                f"table that are no keys: {', '.join(kept)}"
            )
    return tuple(name for name in kept if (name in named if named else name not in others))
