"""Turns decoded messages into change rows, and compares the server's description of a table with the columns read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, assert_never

from jobs.sources.change_rows import AFTER, BEFORE, DELETE, INSERT, TRUNCATE
from jobs.sources.port import SourceError
from jobs.sources.postgres.batches import ChangeBatch
from jobs.sources.postgres.columns import SourceColumn, SourceTable
from jobs.sources.postgres.lsn import written
from jobs.sources.postgres.pgoutput import (
    NotPgoutputError,
    Relation,
    RelationColumn,
    RowChange,
    TablesTruncated,
    TransactionBegin,
    TransactionEnd,
    Values,
    decoded,
)
from jobs.sources.postgres.position import ANEW

Flush = Callable[[], None]
NewColumns = Literal["fail", "ignore", "evolve"]
"""Says what happens to a column that a table got after it was first read."""


class TableGrewError(Exception):
    """A table has new columns that are to be read: the table's number, and the columns."""

    def __init__(self, number: int, columns: tuple[RelationColumn, ...]) -> None:
        super().__init__(number, columns)
        self.number, self.columns = number, columns


@dataclass(frozen=True, slots=True)
class Known:
    """A table that the source reads: its number, and each column's place in the server's rows (None: unchanged).

    A later column may have no place (None).
    """

    number: int
    order: tuple[int | None, ...] | None


class Transactions:
    """Adds the rows of one read's messages to a batch."""

    def __init__(
        self, tables: tuple[SourceTable, ...], batch: ChangeBatch, flush: Flush, new_columns: NewColumns
    ) -> None:
        """Begin before the first transaction. `flush` is called before each row."""
        self._tables, self._batch, self._new_columns = tables, batch, new_columns
        self._flush = flush
        self._known: dict[int, Known | None] = {}
        self._begin, self._has_rows = TransactionBegin(0, 0, 0), False

    def take(self, data: bytes) -> None:
        """Take the next message.

        Raises SourceError for a message that does not fit the tables, and TableGrewError if the source is to read more
        columns.
        """
        try:
            message = decoded(data)
        except NotPgoutputError as error:
            raise SourceError(
                f"slot: {error}; this is a defect of Tidemark or of the server, please report it"
            ) from error
        match message:
            case RowChange():
                self._change(message)
            case TransactionBegin():
                self._begin, self._has_rows = message, False
            case TransactionEnd(end_lsn):
                if self._has_rows:
                    self._batch.end_transaction(end_lsn)
            case Relation():
                self._known[message.relation] = self._checked(message)
            case TablesTruncated():
                for relation in message.relations:
                    known = self._known.get(relation)
                    if known is not None:
                        self._add(TRUNCATE, known, None)
            case None:
                return
            case _ as unreachable:
                assert_never(unreachable)

    def _change(self, change: RowChange) -> None:
        known = self._known.get(change.relation)
        if known is None:
            return  # the source does not read this table of the publication
        if change.new is None:
            self._add(DELETE, known, change.old)
            return
        if change.old is not None:
            self._add(BEFORE, known, change.old)
        self._add(AFTER if change.is_update else INSERT, known, change.new)

    def _add(self, kind: str, known: Known, values: Values | None) -> None:
        if values is not None and known.order is not None:
            values = [None if place is None else values[place] for place in known.order]
        begin = self._begin
        self._flush()  # before the row is added: the last row of a transaction waits for the end of it
        self._has_rows = True
        self._batch.add(kind, known.number, values, begin.commit_lsn, begin.xid, begin.committed_us)

    def _checked(self, found: Relation) -> Known | None:
        """Return how a table's rows are read, or None if they are not. Raise SourceError if the table was changed."""
        number = next((each for each, table in enumerate(self._tables) if table.oid == found.relation), None)
        name = f"{found.schema}.{found.name}"
        if number is None:
            if any(table.full_name == name for table in self._tables):
                raise self._changed(f"table {name} was dropped and created again", f"To go on, {ANEW}")
            return None
        table = self._tables[number]
        if table.full_name != name:
            way_out = f"To go on, rename it back for good, before it has rows under the new name, or {ANEW}"
            raise self._changed(f"table {table.full_name} was renamed to {name}", way_out)
        order = tuple(self._place(name, column, found.columns) for column in table.columns)
        self._must_be_known(number, found.columns)
        return Known(number, None if order == tuple(range(len(found.columns))) else order)

    def _place(self, table: str, wanted: SourceColumn, columns: tuple[RelationColumn, ...]) -> int | None:
        for place, column in enumerate(columns):
            if column.name == wanted.name:
                if (column.oid, column.typmod) != (wanted.oid, wanted.typmod):
                    raise self._changed(
                        f"column {wanted.name} of table {table} has another type (it was read as {wanted.type})",
                        f"To go on, {ANEW}",
                    )
                return place
        if wanted.later:
            return None
        raise self._changed(
            f"column {wanted.name} of table {table} was dropped, renamed or taken out of the publication",
            f"To go on, {ANEW}",
        )

    def _must_be_known(self, number: int, columns: tuple[RelationColumn, ...]) -> None:
        table = self._tables[number]
        names = {column.name for column in table.columns}
        new = tuple(column for column in columns if column.name not in names)
        if new and self._new_columns == "evolve":
            raise TableGrewError(number, new)
        if new and self._new_columns == "fail":
            raise self._changed(
                f"table {table.full_name} has the new column {new[0].name}",
                'To read it from here on: PostgresChanges(..., new_columns="evolve"). To go on without it: '
                'new_columns="ignore"',
            )

    def _changed(self, what: str, way_out: str) -> SourceError:
        return SourceError(f"{what}, in a transaction committed at {written(self._begin.commit_lsn)}. {way_out}")
