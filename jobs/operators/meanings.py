"""Returns the meaning of a keyed vertex's state columns, for the checkpoint (`checkpointing.state_meaning`)."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import StructType

from checkpointing.metadata.field_validity import NUMBER_MAX
from checkpointing.state_meaning import BROADCAST, PROCESS, Argument, ColumnMeaning
from jobs.operators.aggregate import Named
from jobs.operators.applied_changes import HISTORY, AppliedChanges
from jobs.operators.broadcast import Broadcast
from jobs.operators.enrich import RIGHT, WAITING
from jobs.operators.functions import KeyedFunction
from jobs.operators.join import LEFT
from jobs.operators.join import RIGHT as JOINED_RIGHT
from jobs.operators.top_rows import ROWS, TopRows

BROADCAST_ROWS: Final = "_broadcast_rows"
"""Stands in a checkpoint's entry for the columns of broadcast state."""


class InvalidStateVersionError(ValueError):
    """A `state_version` is not a whole number from 1; the message names the declared value."""


def aggregate_meanings(aggregates: Sequence[Named], rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of each aggregate over rows of this schema."""
    return tuple(
        ColumnMeaning(
            column=one.name,
            function=one.function.name,
            arguments=_arguments(rows, one.function.columns),
        )
        for one in aggregates
    )


def enrich_meanings(
    right: StructType, right_keys: Sequence[str], latest_by: str | None = None
) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of an enrichment's state: which right row of a key it keeps, and its waiting left rows."""
    function, ordered = ("first_right_row", ()) if latest_by is None else ("latest_right_row", (latest_by,))
    return (
        ColumnMeaning(column=RIGHT, function=function, arguments=_arguments(right, (*right_keys, *ordered))),
        ColumnMeaning(column=WAITING, function="waiting_left_rows"),
    )


def join_meanings(
    left: StructType, right: StructType, keys: Sequence[str], right_keys: Sequence[str]
) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of a join's state: the rows of both sides, by these keys. Any type of join keeps the same."""
    return (
        ColumnMeaning(column=LEFT, function="joined_rows", arguments=_arguments(left, keys)),
        ColumnMeaning(column=JOINED_RIGHT, function="joined_rows", arguments=_arguments(right, right_keys)),
    )


def applied_meanings(function: AppliedChanges, rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of the changes that a key holds: all or the newest, of which columns, in which order.

    It also says in how many columns a null is ignored and how many begin a version, and names them last: the table that
    is written so far shows it.
    """
    kept = "all_changes" if function.history else "newest_change"
    kept = f"{kept}_of_a_database" if function.of_database else kept
    kept = f"{kept}_ignoring_nulls_of_{len(function.ignored)}" if function.ignored else kept
    kept = kept if function.tracked is None else f"{kept}_tracking_{len(function.tracked)}"
    named = (*function.columns, *function.ignored, *(function.tracked or ()))
    arguments = _arguments(rows, (function.sequence_by, *named))
    return (ColumnMeaning(column=HISTORY, function=kept, arguments=arguments),)


def top_meanings(function: TopRows, rows: StructType) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of a key's kept rows: how many are first, in which order, and whether others are kept too.

    All of it tells which rows were put out so far, so no other number and no other order goes on from them.
    """
    kept = "all_rows" if function.changelog else "new_rows"
    ordered = (Argument(str(by), rows[by.column].dataType.simpleString()) for by in function.order)
    rest = [name for name in function.columns if name not in {by.column for by in function.order}]
    arguments = (*ordered, *_arguments(rows, rest))
    return (ColumnMeaning(column=ROWS, function=f"first_{function.n}_of_{kept}", arguments=arguments),)


def process_meanings(function: KeyedFunction, state: StructType, keys: Sequence[str]) -> tuple[ColumnMeaning, ...]:
    """Return the meaning of a user function's state columns: that the function wrote them, and its version.

    Raise InvalidStateVersionError if its `state_version` is not a whole number from 1 that an entry may hold.
    """
    version = getattr(function, "state_version", None)
    if version is not None and not _is_version(version):
        raise InvalidStateVersionError(
            f"state_version is {version!r}; declare a whole number from 1 to {NUMBER_MAX}, or leave it out"
        )
    own = [name for name in state.names if name not in keys]
    return tuple(ColumnMeaning(column=name, function=PROCESS, version=version) for name in own)


def broadcast_meaning(kept: Broadcast, rows: StructType) -> ColumnMeaning:
    """Return the meaning of a vertex's broadcast state: which row of a key it keeps. It stands for all its columns."""
    return ColumnMeaning(column=BROADCAST_ROWS, function=BROADCAST, arguments=_arguments(rows, (kept.latest_by,)))


def _is_version(version: object) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and 1 <= version <= NUMBER_MAX


def _arguments(rows: StructType, columns: Sequence[str]) -> tuple[Argument, ...]:
    return tuple(Argument(name, rows[name].dataType.simpleString()) for name in columns)
