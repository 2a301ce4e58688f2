"""Decodes the messages of PostgreSQL's own logical decoding plugin, pgoutput, protocol version 1.

PostgreSQL's manual describes them under "Logical Replication Message Formats". Values are texts, as the server writes
them. Decoding does not depend on types or tables. The rows of many messages are decoded at once, column by column. The
few messages that describe tables are decoded one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.sources.staged.tracked_tables import arrow_type, element_of

BEGIN, COMMIT, RELATION, TRUNCATE, INSERT, UPDATE, DELETE = b"BCRTIUD"
_CARRY_NOTHING: Final = b"OY"
"""The kinds of messages that carry nothing to read: an origin, and the name of a type."""
_KINDS: Final = np.frombuffer(b"BCRTIUD" + _CARRY_NOTHING, np.uint8)
_NULL, _UNCHANGED, _TEXT = b"nut"
_KEY, _OLD, _NEW = b"KON"
_BEGIN_BYTES: Final = 21
_COMMIT_BYTES: Final = 26
_ROW_AT: Final = 6
"""Where a message's first row begins: after the message's kind, the number of its table, and the row's kind."""
_RELATION_COLUMN: Final = Struct(">ii")
_EPOCH_US: Final = 946_684_800_000_000
"""The microseconds from 1970-01-01, where Unix time begins, to 2000-01-01, from which PostgreSQL counts."""
_ROOM: Final = bytes(8)
"""Bytes appended to the last message, so that reading a truncated number finds bytes. It is then refused."""

Places = npt.NDArray[np.int64]


class NotPgoutputError(ValueError):
    """The bytes are not a message of pgoutput version 1."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column, as the server describes it before a table's first change."""

    name: str
    oid: int
    typmod: int
    in_identity: bool = False
    """True if old rows have the column, because the table's replica identity has it."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table: its number in the following messages, its name, and its published columns."""

    relation: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Values:
    """Rows of one table, column by column: texts, or null where a row has no value.

    `unchanged` marks for each column the rows whose large value was not sent, because the update did not change it
    (TOAST).
    """

    texts: list[pa.LargeBinaryArray]
    unchanged: list[npt.NDArray[np.bool_]]

    def filled(self, old: "Values", where: npt.NDArray[np.bool_]) -> "Values":
        """Return the rows. In rows that `where` marks, values that were not sent are replaced by the old values."""
        texts = [
            pc.if_else(pa.array(unsent & where), before, new) if unsent.any() else new
            for new, before, unsent in zip(self.texts, old.texts, self.unchanged, strict=True)
        ]
        return Values(texts, [unsent & ~where for unsent in self.unchanged])


class Messages:
    """A sequence of messages. Parts of many messages are read at once.

    Each method raises NotPgoutputError for messages that are too short or too long.
    """

    def __init__(self, messages: Sequence[bytes]) -> None:
        """Take the messages. Raise NotPgoutputError if a message has an unknown kind."""
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        self._joined = b"".join([*messages, _ROOM])
        self._bytes = np.frombuffer(self._joined, np.uint8)
        self.kinds = self._bytes[self._starts]
        unknown = ~np.isin(self.kinds, _KINDS) | (lengths == 0)
        if unknown.any():
            one = messages[int(np.argmax(unknown))]
            raise NotPgoutputError(f"a message of the unknown kind {one[:1]!r}")

    def of(self, *kinds: int) -> Places:
        """Return the numbers of the messages of these kinds, in order."""
        return np.flatnonzero(np.isin(self.kinds, kinds))

    def begins(self, which: Places) -> tuple[Places, Places, Places]:
        """Return the commit records' places, the commit times in microseconds, and the ids of begun transactions."""
        self._must_have(which, _BEGIN_BYTES, "begin")
        at = self._starts[which]
        return self._numbers(at + 1, 8), self._numbers(at + 9, 8) + _EPOCH_US, self._numbers(at + 17, 4)

    def commits(self, which: Places) -> Places:
        """Return the places after the commit records of transactions that end."""
        self._must_have(which, _COMMIT_BYTES, "commit")
        return self._numbers(self._starts[which] + 10, 8)

    def relations(self, which: Places) -> Places:
        """Return for each of these changes the number of its table."""
        return self._numbers(self._starts[which] + 1, 4)

    def has_old(self, which: Places) -> npt.NDArray[np.bool_]:
        """Return which of these updates have an old row."""
        return np.isin(self._bytes[self._starts[which] + _ROW_AT - 1], (_KEY, _OLD))

    def inserted(self, which: Places) -> Values:
        """Return the new rows of inserts, and of updates without old rows, all of one table."""
        values, ends = self._rows(which, self._starts[which] + _ROW_AT, (_NEW,))
        self._must_end(which, ends)
        return values

    def deleted(self, which: Places) -> Values:
        """Return the old rows of deletes, all of one table. A row is complete, or has only its key."""
        values, ends = self._rows(which, self._starts[which] + _ROW_AT, (_KEY, _OLD))
        self._must_end(which, ends)
        return values

    def updated(self, which: Places) -> tuple[Values, Values]:
        """Return the old and the new rows of updates with old rows, all of one table.

        With REPLICA IDENTITY FULL, an old row is complete. Then the new row gets the values that were not sent from the
        old row.
        """
        begin = self._starts[which] + _ROW_AT
        old, ends = self._rows(which, begin, (_KEY, _OLD))
        new, last = self._rows(which, ends + 1, (_NEW,))
        self._must_end(which, last)
        return old, new.filled(old, self._bytes[begin - 1] == _OLD)

    def relation(self, number: int) -> Relation:
        """Return the table that a message describes."""
        return _relation(self._one(number))

    def truncated(self, number: int) -> list[int]:
        """Return the numbers of the tables that a truncate message names."""
        data = self._one(number)
        count = int.from_bytes(data[1:5])
        if len(data) != _ROW_AT + 4 * count:
            raise NotPgoutputError(f"a truncate of {len(data)} bytes")
        return [int.from_bytes(data[at : at + 4]) for at in range(_ROW_AT, len(data), 4)]

    def _rows(self, which: Places, at: Places, kinds: tuple[int, ...]) -> tuple[Values, Places]:
        """Return the rows at these places, and where they end. Before each place is a byte of one of these kinds."""
        ends = self._ends[which]
        marks = self._bytes[np.minimum(at - 1, len(self._bytes) - 1)]
        if (at > ends).any() or not np.isin(marks, kinds).all():
            raise NotPgoutputError("a change has not the rows that its kind has")
        count = self._numbers(at, 2)
        at = at + 2
        if (count != count[0]).any():
            raise NotPgoutputError("rows of one table have different numbers of columns")
        texts, unchanged = [], []
        for _ in range(int(count[0])):
            kind, begin = self._numbers(at, 1), at + 1
            has_text = kind == _TEXT
            if not (has_text | (kind == _NULL) | (kind == _UNCHANGED)).all():
                raise NotPgoutputError("a value is of an unknown kind")
            begin = np.where(has_text, begin + 4, begin)
            at = np.where(has_text, begin + self._numbers(begin - 4, 4), begin)
            if (at > ends).any():
                raise NotPgoutputError("a row is cut short")
            texts.append(self._texts(begin, at, has_text))
            unchanged.append(kind == _UNCHANGED)
        return Values(texts, unchanged), at

    def _texts(self, begins: Places, ends: Places, valid: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
        """Return the bytes between each begin and its end, or null where `valid` is False."""
        bounds = np.stack([begins, ends], axis=1).reshape(-1)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._joined)]
        every_other = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
        return every_other.take(pa.array(np.arange(0, len(bounds), 2), mask=~valid))

    def _numbers(self, at: Places, size: int) -> Places:
        """Return the numbers at these places. Each has `size` bytes, the most significant byte first."""
        found = np.zeros(len(at), np.int64)
        at = np.minimum(at, len(self._bytes) - len(_ROOM))
        for place in range(size):
            found = found << 8 | self._bytes[at + place]
        return found

    def _one(self, number: int) -> bytes:
        return self._joined[self._starts[number] : self._ends[number]]

    def _must_have(self, which: Places, size: int, name: str) -> None:
        lengths = self._ends[which] - self._starts[which]
        if (lengths != size).any():
            raise NotPgoutputError(f"a {name} of {lengths[np.argmax(lengths != size)]} bytes")

    def _must_end(self, which: Places, ends: Places) -> None:
        if (ends != self._ends[which]).any():
            raise NotPgoutputError("a change has more bytes than its rows")


def _relation(data: bytes) -> Relation:
    try:
        schema, at = _text(data, 5)
        name, at = _text(data, at)
        count = data[at + 1] << 8 | data[at + 2]  # after the replica identity
        columns = tuple(_columns(data, at + 3, count))
    except (IndexError, ValueError) as error:
        raise NotPgoutputError("a table's description is cut short") from error
    return Relation(int.from_bytes(data[1:5]), schema or "pg_catalog", name, columns)


def _columns(data: bytes, at: int, count: int) -> Iterator[RelationColumn]:
    for _ in range(count):
        flags = data[at]
        name, at = _text(data, at + 1)
        if at + _RELATION_COLUMN.size > len(data):
            raise ValueError(name)
        oid, typmod = _RELATION_COLUMN.unpack_from(data, at)
        yield RelationColumn(name, oid, typmod, in_identity=bool(flags & 1))
        at += _RELATION_COLUMN.size


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


# ------------------------------------------------------------------
# Converts PostgreSQL's texts of values to Arrow arrays with the types of their columns.


_SHOWN_MAX: Final = 60


class UnfitValueError(Exception):
    """A value that the Spark type cannot hold, such as `infinity`."""

    def __init__(self, text: str) -> None:
        super().__init__(text[:_SHOWN_MAX])
        self.text = text[:_SHOWN_MAX]


def converted(texts: pa.Array, name: str, *, nulls_for_unfit: bool) -> pa.Array:
    """Return the values of a column of this Spark type. The texts are strings, or bytes as in the server's messages.

    Raises UnfitValueError for a value that does not fit, unless such a value becomes null.
    """
    try:
        return _converted(texts, name)
    except (pa.ArrowException, ValueError, UnicodeDecodeError):
        return pa.concat_arrays([_single(text, name, nulls_for_unfit=nulls_for_unfit) for text in texts.to_pylist()])


def _single(text: bytes | str | None, name: str, *, nulls_for_unfit: bool) -> pa.Array:
    try:
        return _converted(pa.array([text], pa.large_binary()), name)
    except (pa.ArrowException, ValueError, UnicodeDecodeError):
        if nulls_for_unfit:
            return pa.nulls(1, arrow_type(name))
        shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise UnfitValueError(shown) from None


def _converted(texts: pa.Array, name: str) -> pa.Array:
    element = element_of(name)
    if element is not None:
        return _arrays(texts.to_pylist(), name, element)
    if name == "binary":
        return pa.array([None if text is None else _bytes_of(text) for text in texts.to_pylist()], pa.binary())
    written = texts.cast(pa.string())
    match name:
        case "string":
            return written
        case "boolean":
            if pc.any(pc.invert(pc.is_in(written, pa.array(["t", "f", None])))).as_py():
                raise ValueError(name)
            return pc.equal(written, "t")
        case _:
            return written.cast(arrow_type(name))


def _bytes_of(text: bytes | str) -> bytes:
    shown = text.decode("ascii") if isinstance(text, bytes) else text
    if not shown.startswith("\\x"):
        raise ValueError(shown)
    return bytes.fromhex(shown[2:])


def _arrays(texts: Sequence[bytes | str | None], name: str, element: str) -> pa.Array:
    lists = [None if text is None else _elements(text.decode() if isinstance(text, bytes) else text) for text in texts]
    offsets: list[int | None] = []
    flat: list[str | None] = []
    for values in lists:
        offsets.append(None if values is None else len(flat))
        flat.extend(values or ())
    ends = pa.array([*offsets, len(flat)], pa.int32())
    return pa.ListArray.from_arrays(ends, _converted(pa.array(flat, pa.string()), element)).cast(arrow_type(name))


def _elements(text: str) -> list[str | None]:
    """Return the elements of an array with one dimension. Raise ValueError for several dimensions (`{{1,2},{3,4}}`)."""
    if text == "{}":
        return []
    if not (text.startswith("{") and text.endswith("}")) or text.startswith("{{"):
        raise ValueError(text)  # `[0:1]={1,2}` has explicit bounds, and Spark's arrays cannot have any
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        value, at = _quoted(text, at + 1) if text[at] == '"' else _plain(text, at)
        found.append(value)
        at += 1  # after the comma
    return found


def _plain(text: str, at: int) -> tuple[str | None, int]:
    stop = text.find(",", at)
    stop = len(text) - 1 if stop < 0 else stop
    value = text[at:stop]
    return None if value == "NULL" else value, stop


def _quoted(text: str, at: int) -> tuple[str, int]:
    value: list[str] = []
    while text[at] != '"':
        at += text[at] == "\\"
        value.append(text[at])
        at += 1
    return "".join(value), at + 1
