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

_TRUNCATED: Final = (
    "the table was truncated, and apply_changes cannot delete all keys at once. To go on, leave such rows out before "
    f"it, as in transform(lambda rows: rows.filter(\"{KIND} <> '{TRUNCATE}'\")). Then the keys stay in the table"
)


@dataclass(frozen=True, slots=True)
class ToldByRows:
    """What rows say of themselves, as Spark SQL: their place in the order, whether they delete, why they are refused.

    `columns` are those of the table. `refused` is null for a change that can be applied.
    """

    columns: tuple[str, ...]
    sequence: str
    deletes: str

    refused: str

    def unsent(self, kept: Sequence[str]) -> str:
        """Return Spark SQL that is null if all values of these columns were sent, and else says which were not."""
        names = ", ".join(_text(name) for name in kept)
        unsent = f"array_intersect({UNCHANGED}, array({names}))" if kept else "cast(array() as array<string>)"
        return f"CASE WHEN size({unsent}) > 0 THEN {unsent} END"


def told_by_rows(where: str, rows: StructType, deletes: str | None) -> ToldByRows:
    """Return what the changes of a database's table say of themselves.

    The old row of an update gets the place of the new row. So a key that an update changes ends where the new one
    begins. Raises InvalidPipelineError for other rows, and for a condition `deletes` beside the kinds.
    """
    if not is_of_database(rows):
        raise InvalidPipelineError(
            f"{where}: its rows do not say their order. Name the column that does, as in sequence_by='changed_at'. "
            f"Only the changes of a database's table may go without, if they still have {KIND}, {UNCHANGED} and "
            f"{POSITION_COLUMN}"
        )
    if deletes is not None:
        raise InvalidPipelineError(
            f"{where}: {KIND} says which changes delete, so leave apply_as_deletes out, or name sequence_by too"
        )
    return ToldByRows(
        columns=tuple(name for name in rows.names if name not in _NOT_OF_THE_TABLE),
        sequence=f"{quoted([POSITION_COLUMN])} + if({KIND} = {_text(BEFORE)}, 1, 0)",
        deletes=f"{KIND} IN ({_text(DELETE)}, {_text(BEFORE)})",
        refused=f"CASE WHEN {KIND} = {_text(TRUNCATE)} THEN {_text(_TRUNCATED)} END",
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
