"""Turns decoded messages into rows of changes, and compares the server's tables with the columns to read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from jobs.sources.change_rows import AFTER, BEFORE, DELETE, INSERT, TRUNCATE
from jobs.sources.port import SourceError
from jobs.sources.postgres import pgoutput
from jobs.sources.postgres.catalog import SourceColumn, SourceTable
from jobs.sources.postgres.pgoutput import (
    Messages,
    NotPgoutputError,
    Relation,
    RelationColumn,
    UnfitValueError,
    Values,
    converted,
)
from jobs.sources.postgres.way_out import ANEW, EVOLVE
from jobs.sources.staged.log import (
    Batches,
    Heads,
    Numbers,
    TableRows,
    ended,
)
from jobs.sources.staged.lsn import written
from jobs.sources.staged.tracked_tables import NewColumns

_KINDS: Final = (INSERT, AFTER, BEFORE, DELETE, TRUNCATE)


class TextBatches(Batches):
    """Makes the batches of one staged file from the texts that the server sends."""

    def __init__(self, tables: Sequence[SourceTable], *, nulls_for_unfit: bool) -> None:
        """Take the tables, in the order of their numbers."""
        super().__init__(tables)
        self._nulls_for_unfit = nulls_for_unfit

    def columns(self, number: int, rows: TableRows, heads: Heads) -> Sequence[pa.Array]:
        """Return the values of one table's columns, for the table's rows only. Raise SourceError for an unfit value."""
        arrays = []
        for column, values in zip(self._tables[number].columns, rows.columns, strict=True):
            try:
                arrays.append(converted(values, column.type, nulls_for_unfit=self._nulls_for_unfit))
            except UnfitValueError as error:
                lsn = int(heads.lsns[rows.numbers[0]])
                raise SourceError(
                    f"table {self._tables[number].full_name}, column {column.name}: {error.text!r} is no value of "
                    f"Spark's type {column.type}, in a row committed at or after {written(lsn)}: change the row, or "
                    'read such values as null with PostgresChanges(..., unfit="null")'
                ) from None
        return arrays


class TableGrewError(Exception):
    """A table has new columns that the source must read. The error has the table's number, and these columns."""

    def __init__(self, number: int, columns: tuple[RelationColumn, ...]) -> None:
        super().__init__(number, columns)
        self.number, self.columns = number, columns


@dataclass(frozen=True, slots=True)
class Known:
    """A table that the source reads: its number, and the index of each column in the server's rows.

    The index is None for a later column that the server's rows do not have.
    """

    number: int
    order: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Begins:
    """The transactions that begin in a part of the messages, after the transaction that continues from the part before.

    The other arrays begin with the continued transaction. `at` does not have it: `at` has the numbers of the messages
    with which the other transactions begin.
    """

    at: Numbers
    lsns: Numbers
    committed_us: Numbers
    xids: Numbers

    def of(self, messages: Numbers) -> Numbers:
        """Return the number of each message's transaction."""
        return np.searchsorted(self.at, messages, side="right")


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one kind and one table: the rows' messages, and which row of its message each row is (`place`)."""

    known: Known
    kind: str
    messages: Numbers
    values: Values | None
    place: int = 0


class Transactions:
    """Turns the messages of one read into batches of rows, and writes them in order."""

    def __init__(
        self,
        tables: tuple[SourceTable, ...],
        batches: TextBatches,
        write: Callable[[pa.RecordBatch], None],
        new_columns: NewColumns,
        identities: tuple[frozenset[str], ...] = (),
    ) -> None:
        """Begin before the first transaction. `identities` are the columns that old rows of each table must have."""
        self._tables, self._batches, self._new_columns = tables, batches, new_columns
        self._identities = identities
        self._write = write
        self._known: dict[int, Known | None] = {}
        self._open = (0, 0, 0)
        """The newest transaction's commit record, time in microseconds, and id."""
        self._has_rows = False
        """True if the newest transaction is not complete and had rows in an earlier part."""
        self._waiting: pa.RecordBatch | None = None
        """The newest rows. The last of them is marked if the next part ends their transaction without more rows."""

    def take(self, messages: Sequence[bytes]) -> None:
        """Process the next messages.

        Raises SourceError for a message that does not fit the tables, and TableGrewError if the source must read more
        columns.
        """
        try:
            self._take(Messages(messages))
        except NotPgoutputError as error:
            raise SourceError(
                f"slot: {error}; this is a defect of Tidemark or of the server, please report it"
            ) from error

    def finish(self) -> None:
        """Write the newest rows."""
        if self._waiting is not None:
            self._write(self._waiting)
            self._waiting = None

    def _take(self, messages: Messages) -> None:
        at = messages.of(pgoutput.BEGIN)
        told = (np.append(first, rest) for first, rest in zip(self._open, messages.begins(at), strict=True))
        begins = Begins(at, *told)
        pieces = tuple(self._pieces(messages, begins))
        counts = np.zeros(len(messages.kinds), np.int64)
        for piece in pieces:
            counts[piece.messages] += 1
        after = np.cumsum(counts)
        ends = self._ends(messages, begins, after)
        if after.size and after[-1]:
            self.finish()
            self._waiting = self._batch(pieces, begins, after - counts, ends)
        self._carry(messages, begins, after)

    def _pieces(self, messages: Messages, begins: Begins) -> Iterator[Piece]:
        """Yield the rows of the tables to read, decoded by the last description of their table before them."""
        told = {relation: [(0, known)] for relation, known in self._known.items()}
        for number in messages.of(pgoutput.RELATION).tolist():
            found = messages.relation(number)
            known = self._checked(found, int(begins.lsns[begins.of(np.array(number))]))
            self._known[found.relation] = known
            told.setdefault(found.relation, []).append((number, known))
        changes = messages.of(pgoutput.INSERT, pgoutput.UPDATE, pgoutput.DELETE)
        relations = messages.relations(changes)
        for relation, descriptions in told.items():
            own = changes[relations == relation]
            firsts = [number for number, _ in descriptions]
            for (first, each), end in zip(descriptions, [*firsts[1:], len(messages.kinds)], strict=True):
                if each is not None:
                    yield from _of_one(messages, each, own[(own >= first) & (own < end)])
        for number in messages.of(pgoutput.TRUNCATE).tolist():
            last = [
                [each for first, each in told.get(one, []) if first <= number] for one in messages.truncated(number)
            ]
            read = [each[-1] for each in last if each]
            for place, each in enumerate(one for one in read if one is not None):
                yield Piece(each, TRUNCATE, np.array([number]), None, place)

    def _ends(self, messages: Messages, begins: Begins, after: Numbers) -> pa.Array:
        """Return for the last row of each transaction the place after the commit record, and null for all other rows.

        If all rows of a transaction were in the part before, the transaction's last row is marked in that part.
        """
        at = messages.of(pgoutput.COMMIT)
        lsns, transactions = messages.commits(at), begins.of(at)
        before = np.append(0, after[begins.at])[transactions]
        here = after[at] > before
        if self._has_rows and self._waiting is not None and at.size and not (transactions[0] or here[0]):
            self._waiting = ended(self._waiting, int(lsns[0]))
        ends = np.zeros(int(after[-1]) if after.size else 0, np.int64)
        ends[after[at[here]] - 1] = lsns[here]
        return pa.array(ends, mask=ends == 0)

    def _batch(self, pieces: Sequence[Piece], begins: Begins, before: Numbers, ends: pa.Array) -> pa.RecordBatch:
        """Return the rows in the order of the messages. `before` has the number of rows before each message."""
        count = len(ends)
        kinds, tables, transactions = (np.zeros(count, np.int64) for _ in range(3))
        unchanged: dict[int, list[str]] = {}
        rows: dict[int, list[TableRows]] = {}
        for piece in pieces:
            numbers, known = before[piece.messages] + piece.place, piece.known
            kinds[numbers], tables[numbers] = _KINDS.index(piece.kind), known.number
            transactions[numbers] = begins.of(piece.messages)
            if piece.values is not None:
                rows.setdefault(known.number, []).append(TableRows(numbers, _ordered(piece.values, known.order)))
                names = [column.name for column in self._tables[known.number].columns]
                _note_unchanged(unchanged, names, piece.values, known.order, numbers)
        heads = Heads(
            kinds=pa.array(_KINDS).take(pa.array(kinds)),
            tables=tables,
            lsns=begins.lsns[transactions],
            xids=begins.xids[transactions],
            committed_us=begins.committed_us[transactions],
            unchanged=unchanged,
            ends=ends,
        )
        return self._batches.made(heads, {number: _merged(parts) for number, parts in rows.items()})

    def _carry(self, messages: Messages, begins: Begins, after: Numbers) -> None:
        """Store the newest transaction for the next part, and whether it is incomplete and has rows."""
        commits = messages.of(pgoutput.COMMIT)
        begun = int(begins.at[-1]) if begins.at.size else -1
        if commits.size and commits[-1] > begun:
            self._has_rows = False
        elif begins.at.size:
            self._has_rows = bool(after[-1] > after[begun])
        else:
            self._has_rows = self._has_rows or bool(after.size and after[-1])
        self._open = (int(begins.lsns[-1]), int(begins.committed_us[-1]), int(begins.xids[-1]))

    def _checked(self, found: Relation, lsn: int) -> Known | None:
        """Return how a table's rows are read, or None to skip them. Raise SourceError for a changed table.

        `lsn` is the commit record of the transaction with this description of the table.
        """
        number = next((each for each, table in enumerate(self._tables) if table.oid == found.relation), None)
        name = f"{found.schema}.{found.name}"
        if number is None:
            if any(table.full_name == name for table in self._tables):
                raise _changed(lsn, f"table {name} was dropped and created again", f"To go on, {ANEW}")
            return None
        table = self._tables[number]
        if table.full_name != name:
            way_out = f"To go on, rename it back for good, before it has rows under the new name, or {ANEW}"
            raise _changed(lsn, f"table {table.full_name} was renamed to {name}", way_out)
        order = tuple(_place(name, column, found.columns, lsn) for column in table.columns)
        self._must_be_known(number, found.columns, lsn)
        sent = {column.name for column in found.columns if column.in_identity}
        lost = sorted(self._identities[number] - sent) if self._identities and sent else []
        if lost:
            what = f"table {name} had another replica identity, without {', '.join(lost)}"
            raise _changed(lsn, what, f"To go on, {ANEW}")
        return Known(number, order)

    def _must_be_known(self, number: int, columns: tuple[RelationColumn, ...], lsn: int) -> None:
        table = self._tables[number]
        names = {column.name for column in table.columns}
        new = tuple(column for column in columns if column.name not in names)
        if new and self._new_columns == "evolve":
            raise TableGrewError(number, new)
        if new and self._new_columns == "fail":
            raise _changed(lsn, f"table {table.full_name} has the new column {new[0].name}", EVOLVE)


def _of_one(messages: Messages, known: Known, changes: Numbers) -> Iterator[Piece]:
    """Yield the rows of changes that belong to the same description of their table."""
    kinds = messages.kinds[changes]
    inserts, deletes, updates = (changes[kinds == kind] for kind in (pgoutput.INSERT, pgoutput.DELETE, pgoutput.UPDATE))
    has_old = messages.has_old(updates)
    plain, whole = updates[~has_old], updates[has_old]
    if inserts.size:
        yield Piece(known, INSERT, inserts, messages.inserted(inserts))
    if plain.size:
        yield Piece(known, AFTER, plain, messages.inserted(plain))
    if deletes.size:
        yield Piece(known, DELETE, deletes, messages.deleted(deletes))
    if whole.size:
        old, new = messages.updated(whole)
        yield Piece(known, BEFORE, whole, old)
        yield Piece(known, AFTER, whole, new, place=1)


def _ordered(values: Values, order: tuple[int | None, ...]) -> list[pa.Array]:
    """Return the columns in the order of the source's columns of the table."""
    count = len(values.texts[0])
    return [pa.nulls(count, pa.large_binary()) if place is None else values.texts[place] for place in order]


def _note_unchanged(
    found: dict[int, list[str]], names: Sequence[str], values: Values, order: tuple[int | None, ...], numbers: Numbers
) -> None:
    """Add to `found` the columns that were not sent, by the number of their row."""
    for name, place in zip(names, order, strict=True):
        if place is not None and values.unchanged[place].any():
            for number in numbers[values.unchanged[place]].tolist():
                found.setdefault(number, []).append(name)


def _merged(parts: Sequence[TableRows]) -> TableRows:
    """Return the rows of one table, in order."""
    if len(parts) == 1:
        return parts[0]
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers)
    columns = [
        pa.concat_arrays(same).take(pa.array(order)) for same in zip(*(part.columns for part in parts), strict=True)
    ]
    return TableRows(numbers[order], columns)


def _place(table: str, wanted: SourceColumn, columns: tuple[RelationColumn, ...], lsn: int) -> int | None:
    for place, column in enumerate(columns):
        if column.name == wanted.name:
            if not wanted.reads(column.oid, column.typmod):
                raise _changed(
                    lsn,
                    f"column {wanted.name} of table {table} has another type (it was read as {wanted.type})",
                    f"To go on, {ANEW}",
                )
            return place
    if wanted.later:
        return None
    raise _changed(
        lsn,
        f"column {wanted.name} of table {table} was dropped, renamed or taken out of the publication",
        f"To go on, {ANEW}",
    )


def _changed(lsn: int, what: str, way_out: str) -> SourceError:
    return SourceError(f"{what}, in a transaction committed at {written(lsn)}. {way_out}")
