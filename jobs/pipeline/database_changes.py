"""Says how the changes of a database's table are applied: their order, what they delete, and which are refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructType

from jobs.operators.schemas import quoted
from jobs.pipeline.failures import InvalidPipelineError
from jobs.sources.change_rows import BEFORE, COMMITTED_AT, DELETE, HEAD, KIND, LSN, TRUNCATE, UNCHANGED, XID
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN

_NOT_OF_THE_TABLE: Final = frozenset({*HEAD.names, SPLIT_COLUMN, POSITION_COLUMN})
_OF_TRANSACTIONS: Final = (LSN, XID, COMMITTED_AT)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a change is, as Spark SQL: its place in the order, and whether it deletes its key, or empties the table."""

    sequence: str
    deletes: str
    truncates: str | None


@dataclass(frozen=True, slots=True)
class ToldByRows:
    """What the changes of a database's table say of themselves. `columns` are those of the table."""

    columns: tuple[str, ...]
    conditions: Conditions

    def unsent(self, kept: Sequence[str]) -> str:
        """Return Spark SQL that is null if all values of these columns were sent, and else says which were not."""
        names = ", ".join(_text(name) for name in kept)
        unsent = f"array_intersect({UNCHANGED}, array({names}))" if kept else "cast(array() as array<string>)"
        return f"CASE WHEN size({unsent}) > 0 THEN {unsent} END"


def told_by_rows(where: str, rows: StructType, *conditions: str | None) -> ToldByRows:
    """Return what the changes of a database's table say of themselves.

    The old row of an update gets the place of the new row. So a key that an update changes ends where the new one
    begins. Raises InvalidPipelineError for other rows, and for conditions beside the kinds.
    """
    if not is_of_database(rows):
        raise InvalidPipelineError(
            f"{where}: its rows do not say their order. Name the column that does, as in sequence_by='changed_at'. "
            f"Only the changes of a database's table may go without, if they still have {KIND}, {UNCHANGED} and "
            f"{POSITION_COLUMN}"
        )
    if any(conditions):
        raise InvalidPipelineError(
            f"{where}: {KIND} says which changes delete or empty the table, so leave apply_as_deletes and "
            "apply_as_truncates out, or name sequence_by too"
        )
    return ToldByRows(
        columns=tuple(name for name in rows.names if name not in _NOT_OF_THE_TABLE),
        conditions=Conditions(
            sequence=f"{quoted([POSITION_COLUMN])} + if({KIND} = {_text(BEFORE)}, 1, 0)",
            deletes=f"{KIND} IN ({_text(DELETE)}, {_text(BEFORE)})",
            truncates=f"{KIND} = {_text(TRUNCATE)}",
        ),
    )


def require_order(where: str, rows: StructType, sequence_by: str) -> None:
    """Raise InvalidPipelineError for a column that all changes of a database's transaction share."""
    if is_of_database(rows) and sequence_by in _OF_TRANSACTIONS:
        raise InvalidPipelineError(
            f"{where}: sequence_by is {sequence_by!r}, which is the same for all changes of a transaction. Leave "
            "sequence_by out: the changes of a database's table say their order themselves"
        )


def is_of_database(rows: StructType) -> bool:
    """Return whether rows are the changes of a database's table, as `PostgresChanges.of` returns them."""
    return {KIND, UNCHANGED, POSITION_COLUMN} <= {*rows.names}


def _text(words: str) -> str:
    """Return a text of Spark SQL."""
    escaped = words.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
