"""Decodes the messages of PostgreSQL's own logical decoding plugin, pgoutput, protocol version 1.

Their form is described in PostgreSQL's manual, "Logical Replication Message Formats". Values are the texts that the
server writes. This module knows neither types nor tables.
"""

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

NULL, UNCHANGED, TEXT = ord("n"), ord("u"), ord("t")
_KEY, _OLD, _NEW = ord("K"), ord("O"), ord("N")
_BEGIN: Final = Struct(">qqi")
_COMMIT: Final = Struct(">qqq")
_RELATION_COLUMN: Final = Struct(">ii")
_EPOCH_US: Final = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000-01-01, and Unix time begins at 1970-01-01."""


class Unchanged(Enum):
    """Stands for a large value that an update did not change. The server does not send it (unchanged TOAST)."""

    VALUE = "unchanged"


Value = bytes | None | Unchanged
Values = list[Value]


class NotPgoutputError(ValueError):
    """These bytes are no message of pgoutput version 1."""


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """A transaction begins: the place of its commit record, when it was committed (microseconds), and its id."""

    commit_lsn: int
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The transaction's last message: the place behind its commit record."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column in the form in which the server describes it before a table's first change."""

    name: str
    oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, its number in the following messages, and its published columns."""

    relation: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row was inserted (`new`), updated (`new`, and `old` if the server sends it) or deleted (`old`).

    With REPLICA IDENTITY FULL, `old` is the whole old row. Otherwise `old` has only the key columns, and the others are
    None. An update then has `old` only if its key changed.
    """

    relation: int
    old: Values | None
    new: Values | None
    is_update: bool = False


@dataclass(frozen=True, slots=True)
class TablesTruncated:
    """All rows of these tables are gone."""

    relations: tuple[int, ...]


Message = TransactionBegin | TransactionEnd | Relation | RowChange | TablesTruncated


def decoded(data: bytes) -> Message | None:
    """Return the message, or None for a message without a change: an origin or a type's name.

    Raises NotPgoutputError.
    """
    try:
        return _decoded(data)
    except (IndexError, ValueError) as error:
        if isinstance(error, NotPgoutputError):
            raise
        raise NotPgoutputError(f"a message {data[:1]!r} of {len(data)} bytes is cut short") from error


def _decoded(data: bytes) -> Message | None:
    match data[0]:
        case 0x49:  # I
            new, _ = _tuple(data, 6)
            return RowChange(_int(data, 1), None, new)
        case 0x55:  # U
            return _update(data)
        case 0x44:  # D
            old, _ = _tuple(data, 6)
            return RowChange(_int(data, 1), old, None)
        case 0x42:  # B
            if len(data) != 1 + _BEGIN.size:
                raise NotPgoutputError(f"a begin of {len(data)} bytes")
            commit_lsn, committed_us, xid = _BEGIN.unpack_from(data, 1)
            return TransactionBegin(commit_lsn, committed_us + _EPOCH_US, xid & 0xFFFF_FFFF)
        case 0x43:  # C
            if len(data) != 2 + _COMMIT.size:
                raise NotPgoutputError(f"a commit of {len(data)} bytes")
            _, end_lsn, _ = _COMMIT.unpack_from(data, 2)  # behind its flags
            return TransactionEnd(end_lsn)
        case 0x52:  # R
            return _relation(data)
        case 0x54:  # T
            count = _int(data, 1)
            return TablesTruncated(tuple(_int(data, 6 + 4 * each) for each in range(count)))
        case 0x4F | 0x59:  # O, Y
            return None
        case _:
            raise NotPgoutputError(f"a message of the unknown kind {data[:1]!r}")


def _update(data: bytes) -> RowChange:
    old: Values | None = None
    at, kind = 5, data[5]
    if kind in (_KEY, _OLD):
        old, at = _tuple(data, at + 1)
    if data[at] != _NEW:
        raise NotPgoutputError(f"an update without its new row, {data[at : at + 1]!r} instead")
    new, _ = _tuple(data, at + 1)
    if old is not None and kind == _OLD and Unchanged.VALUE in new:
        new = [before if value is Unchanged.VALUE else value for before, value in zip(old, new, strict=True)]
    return RowChange(_int(data, 1), old, new, is_update=True)


def _tuple(data: bytes, at: int) -> tuple[Values, int]:
    """Return the values that begin there, and the place of their end."""
    count = data[at] << 8 | data[at + 1]
    at += 2
    values: Values = [None] * count
    for place in range(count):
        kind = data[at]
        at += 1
        if kind == TEXT:
            end = at + 4 + int.from_bytes(data[at : at + 4])
            values[place] = data[at + 4 : end]
            at = end
        elif kind == UNCHANGED:
            values[place] = Unchanged.VALUE
        elif kind != NULL:
            raise NotPgoutputError(f"a value of the unknown kind {kind:c}")
    if at > len(data):
        raise NotPgoutputError(f"a row of {len(data)} bytes is cut short")
    return values, at


def _relation(data: bytes) -> Relation:
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    count = data[at + 1] << 8 | data[at + 2]  # behind the replica identity
    at += 3
    columns = []
    for _ in range(count):
        column, at = _text(data, at + 1)  # behind its flags
        if at + _RELATION_COLUMN.size > len(data):
            raise NotPgoutputError("a table's description is cut short")
        columns.append(RelationColumn(column, *_RELATION_COLUMN.unpack_from(data, at)))
        at += _RELATION_COLUMN.size
    return Relation(_int(data, 1), schema or "pg_catalog", name, tuple(columns))


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _int(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4])
