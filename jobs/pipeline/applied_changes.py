"""Declares the table that results from a stream of changes: SCD type 1 or 2."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegralType,
    StringType,
    StructField,
    StructType,
)

from checkpointing.identifiers import vertex_id
from jobs.operators.applied_changes import (
    CURRENT,
    DELETES,
    HISTORY,
    SEQUENCE,
    TRUNCATES,
    UNSENT,
    VALID_FROM,
    VALID_TO,
    AppliedChanges,
    Distance,
    applied_output,
)
from jobs.operators.changes import KIND
from jobs.operators.spec import quoted
from jobs.pipeline.columns import (
    InvalidPipelineError,
    former_id,
    require_columns,
    require_free,
    require_keys,
    require_ordered,
    require_unique,
)
from jobs.pipeline.streams import Stream
from jobs.pipeline.vertices import AppliedVertex
from jobs.sources.change_rows import BEFORE, COMMITTED_AT, DELETE, HEAD, LSN, TRUNCATE, UNCHANGED, XID
from jobs.sources.change_rows import KIND as CHANGE_KIND
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.spark.versions import DATETIMES

# ------------------------------------------------------------------
# Chooses columns of the table: all that it has, those in which nulls are ignored, and those that begin a version.


_NULLS = "ignore_null_updates"
_HISTORY = "track_history"


class NullsIgnored(NamedTuple):
    """The columns in which a null keeps the value before: all columns, those named, or all but the others."""

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

    Raises InvalidPipelineError for columns that are not there, and if both `named` and `others` are given.
    """
    require_columns(where, rows, [*named, *others])
    if named and others:
        raise InvalidPipelineError(f"{where}: name columns or except_columns, not both")
    return tuple(name for name in named or of_table if name not in keys and name not in others)


def ignored_columns(
    where: str, rows: StructType, kept: Sequence[str], nulls: NullsIgnored, *, by_rows: bool
) -> tuple[str, ...]:
    """Return the columns in which a null keeps the value before.

    Raises InvalidPipelineError for a choice that contradicts itself, for columns that the table does not have, for a
    struct, and for changes of a database's table (`by_rows`).
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

    Raises InvalidPipelineError for a table without history, for a choice that contradicts itself, and for columns that
    the table does not have.
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


# ------------------------------------------------------------------
# Defines how the changes of a database's table are applied: their order, what they delete, and which are refused.


_NOT_OF_THE_TABLE: Final = frozenset({*HEAD.names, SPLIT_COLUMN, POSITION_COLUMN})
_OF_TRANSACTIONS: Final = (LSN, XID, COMMITTED_AT)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Spark SQL for a change: its place in the order, whether it deletes its key, whether it empties the table."""

    sequence: str
    deletes: str
    truncates: str | None


@dataclass(frozen=True, slots=True)
class ToldByRows:
    """How the changes of a database's table describe themselves. `columns` are the columns of the table."""

    columns: tuple[str, ...]
    conditions: Conditions

    def unsent(self, kept: Sequence[str]) -> str:
        """Return Spark SQL for the names of these columns whose values were not sent. It is null if all were sent."""
        names = ", ".join(_text(name) for name in kept)
        unsent = f"array_intersect({UNCHANGED}, array({names}))" if kept else "cast(array() as array<string>)"
        return f"CASE WHEN size({unsent}) > 0 THEN {unsent} END"


def told_by_rows(where: str, rows: StructType, *conditions: str | None) -> ToldByRows:
    """Return how the changes of a database's table describe themselves.

    The old row of an update gets the place of the new row. So if an update changes the key, the old key ends where the
    new key begins. Raises InvalidPipelineError for rows that are not such changes, and for `conditions`, because the
    kinds of the changes already say what they delete.
    """
    if not is_of_database(rows):
        raise InvalidPipelineError(
            f"{where}: its rows do not say their order. Name the column that does, as in sequence_by='changed_at'. "
            f"Only the changes of a database's table may go without, if they still have {CHANGE_KIND}, {UNCHANGED} and "
            f"{POSITION_COLUMN}"
        )
    if any(conditions):
        raise InvalidPipelineError(
            f"{where}: {CHANGE_KIND} says which changes delete or empty the table, so leave apply_as_deletes and "
            "apply_as_truncates out, or name sequence_by too"
        )
    return ToldByRows(
        columns=tuple(name for name in rows.names if name not in _NOT_OF_THE_TABLE),
        conditions=Conditions(
            sequence=f"{quoted([POSITION_COLUMN])} + if({CHANGE_KIND} = {_text(BEFORE)}, 1, 0)",
            deletes=f"{CHANGE_KIND} IN ({_text(DELETE)}, {_text(BEFORE)})",
            truncates=f"{CHANGE_KIND} = {_text(TRUNCATE)}",
        ),
    )


def require_order(where: str, rows: StructType, sequence_by: str) -> None:
    """Raise InvalidPipelineError for an order by a column that has one value for a whole transaction of a database."""
    if is_of_database(rows) and sequence_by in _OF_TRANSACTIONS:
        raise InvalidPipelineError(
            f"{where}: sequence_by is {sequence_by!r}, which is the same for all changes of a transaction. Leave "
            "sequence_by out: the changes of a database's table say their order themselves"
        )


def is_of_database(rows: StructType) -> bool:
    """Return whether rows are the changes of a database's table, as `PostgresChanges.of` returns them."""
    return {CHANGE_KIND, UNCHANGED, POSITION_COLUMN} <= {*rows.names}


def _text(words: str) -> str:
    """Return the words as a string literal of Spark SQL."""
    escaped = words.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_NEVER: Final = "false"
"""The condition that no change meets."""


def apply_changes(  # noqa: PLR0913 - each says one thing of the table
    changes: Stream,
    id: str,  # noqa: A002 - its name
    *,
    keys: Sequence[str],
    sequence_by: str | None = None,
    type: Literal[1, 2] = 1,  # noqa: A002 - its name
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    forget_deletes_after: Distance | None = None,
    columns: Sequence[str] = (),
    except_columns: Sequence[str] = (),
    ignore_null_updates: bool = False,
    ignore_null_updates_columns: Sequence[str] = (),
    ignore_null_updates_except_columns: Sequence[str] = (),
    track_history_columns: Sequence[str] = (),
    track_history_except_columns: Sequence[str] = (),
    renamed_from: str | None = None,
) -> Stream:
    """Return the table that results from these changes, as AUTO CDC of Spark's pipelines does. Keep it with `upsert`.

    With type 1 the table has a row for each key, from the change with the greatest `sequence_by`. With type 2 it has a
    row for each version of a key, with `valid_from`, `valid_to` and `current`. Changes may come in any order.
    `apply_as_deletes` is Spark SQL that is true for a change that deletes its key. `apply_as_truncates` is Spark SQL
    that is true for a change that empties the table: it deletes every key that has an older change. The table has the
    keys and these `columns`, or all columns but `except_columns`. `renamed_from` is the id that the vertex had before.
    The state remembers a deleted key, so that an older change does not bring it back. With `forget_deletes_after` the
    state forgets the key when a change comes that is newer by so much. The distance is a number for a sequence of
    numbers, and a timedelta for dates and timestamps. The changes of a database's table (`PostgresChanges.of`) come in
    order, and their kinds say what they delete. For such changes, leave out `sequence_by`, `apply_as_deletes`,
    `apply_as_truncates` and `forget_deletes_after`. With `ignore_null_updates`, a null in a change keeps the value that
    the row had before, in all columns. With `ignore_null_updates_columns`, it does so in these columns only. With
    `ignore_null_updates_except_columns`, it does so in all other columns. With type 2, only a new value in one of
    `track_history_columns`, or in a column that is not in `track_history_except_columns`, begins a version. A new value
    in another column changes the present version. Raises InvalidNameError, and InvalidPipelineError for columns that
    are not there and for updates of an aggregate.
    """
    where, rows, by = f"vertex {id}", changes.schema, tuple(keys)
    place, told = _order(where, changes, by, sequence_by, apply_as_deletes, apply_as_truncates)
    kept = kept_columns(where, rows, told.columns if told else rows.names, by, columns, except_columns)
    history, by_rows = _is_history(where, type), told is not None
    _require_distance(where, rows[place], forget_deletes_after, by_rows=by_rows)
    nulls = NullsIgnored(ignore_null_updates, ignore_null_updates_columns, ignore_null_updates_except_columns)
    ignored = ignored_columns(where, rows, kept, nulls, by_rows=by_rows)
    tracked = tracked_columns(where, kept, track_history_columns, track_history_except_columns, history=history)
    own = Conditions(quoted([place]), apply_as_deletes or _NEVER, apply_as_truncates)
    said, distance = told.conditions if told else own, forget_deletes_after
    empties = said.truncates is not None
    function = AppliedChanges(by, kept, place, history, by_rows, distance, empties, ignored, tracked)
    return _declared(changes, id, function, said, told, renamed_from)


def _order(
    where: str, changes: Stream, keys: Sequence[str], sequence_by: str | None, *conditions: str | None
) -> tuple[str, ToldByRows | None]:
    """Return the column of a change's place in the order, and how the rows describe themselves if no column is named.

    Raises InvalidPipelineError for rows without keys or order, and for updates of an aggregate.
    """
    rows = changes.schema
    require_keys(where, rows, keys)
    told = None if sequence_by else told_by_rows(where, rows, *conditions)
    place = sequence_by or POSITION_COLUMN
    require_ordered(where, rows, place, "sequence_by")
    require_order(where, rows, place)
    _require_changes(where, changes)
    return place, told


def _declared(
    changes: Stream,
    name: str,
    function: AppliedChanges,
    said: Conditions,
    told: ToldByRows | None,
    renamed_from: str | None,
) -> Stream:
    """Declare the vertex, and return its stream. Raise InvalidPipelineError for column names that Tidemark reserves."""
    where, rows = f"vertex {name}", changes.schema
    added = (VALID_FROM, VALID_TO, CURRENT) if function.history else ()
    require_unique(where, [*rows.names, SEQUENCE, DELETES, TRUNCATES, UNSENT, HISTORY, KIND, *added])
    require_free(where, rows.names)
    stream = _marked(changes, said, rows[function.sequence_by].dataType)
    if told:
        stream = stream.with_column(UNSENT, told.unsent(function.columns), ArrayType(StringType()))
    output = applied_output(stream.schema, function.keys, function.columns, history=function.history)
    before = former_id(renamed_from)
    vertex = AppliedVertex(vertex_id(name), (stream.as_input(function.keys),), output, function, renamed_from=before)
    changes.declarations.add(vertex)
    return Stream(changes.declarations, vertex.id, (), output)


def _is_history(where: str, kind: int) -> bool:
    """Return whether the table keeps all versions. Raise InvalidPipelineError for a type that does not exist."""
    if kind not in (1, 2):
        raise InvalidPipelineError(f"{where}: type is {kind!r}; write 1 for the newest rows or 2 for all versions")
    return kind == 2  # noqa: PLR2004 - SCD type 2


def _require_changes(where: str, changes: Stream) -> None:
    """Raise InvalidPipelineError for updates of an aggregate, because these are no changes of a source."""
    upstream = changes.declarations.updates_of(changes.as_input())
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of {upstream!r}, which say themselves what they replace. Write the stream "
            f"of {upstream!r} with upsert"
        )


def _marked(changes: Stream, conditions: Conditions, sequence: DataType) -> Stream:
    """Return the changes with columns for place in the order, and for whether a change deletes its key or all keys."""
    stream = _with_condition(changes, DELETES, conditions.deletes)
    stream = stream.with_column(SEQUENCE, conditions.sequence, sequence)
    return stream if conditions.truncates is None else _with_condition(stream, TRUNCATES, conditions.truncates)


def _with_condition(stream: Stream, name: str, condition: str) -> Stream:
    """Return the stream with a column that says whether the condition is true."""
    known = condition if condition == _NEVER else f"coalesce({condition}, false)"
    return stream.with_column(name, known, BooleanType())


def _require_distance(where: str, sequence: StructField, distance: Distance | None, *, by_rows: bool) -> None:
    """Raise InvalidPipelineError unless this is a distance between two places in the order, and not negative."""
    if distance is None:
        return
    if by_rows:
        raise InvalidPipelineError(
            f"{where}: the changes of a database's table come in order, so the state forgets a deleted key anyway. "
            "Leave forget_deletes_after out"
        )
    number, moment = (isinstance(sequence.dataType, kinds) for kinds in (IntegralType, DATETIMES))
    right = type(distance) is int if number else isinstance(distance, timedelta)
    if not (number or moment) or not right:
        fits = "a whole number" if number else "a timedelta, as in timedelta(days=7)" if moment else None
        raise InvalidPipelineError(
            f"{where}: forget_deletes_after is {distance!r}, and sequence_by is {sequence.name!r}, a "
            f"{sequence.dataType.simpleString()}. "
            + (f"Write {fits}" if fits else "Only whole numbers, dates and moments have a distance: leave it out")
        )
    if distance < timedelta(0) if isinstance(distance, timedelta) else distance < 0:
        raise InvalidPipelineError(f"{where}: forget_deletes_after is {distance!r}; it may not be negative")
