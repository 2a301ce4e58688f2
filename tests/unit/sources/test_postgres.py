"""Tests decoding of pgoutput's messages in the form of PostgreSQL's manual. Damaged messages are named."""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.postgres.catalog import SourceColumn, SourceTable, spark_type
from jobs.sources.postgres.pgoutput import (
    Messages,
    NotPgoutputError,
    Relation,
    RelationColumn,
    UnfitValueError,
    converted,
)
from jobs.sources.postgres.transactions import TextBatches, Transactions
from jobs.sources.staged.log import END
from jobs.sources.staged.tracked_tables import arrow_type


class Unsent(Enum):
    """Stands for a value that the server did not send again."""

    VALUE = "unsent"


VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=300), st.just(Unsent.VALUE)), min_size=1, max_size=12)
ONE = np.array([0])


def row(values):
    """Return the values of a row in the form that the server writes."""
    parts = [struct.pack(">h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is Unsent.VALUE:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">i", len(value)) + value)
    return b"".join(parts)


def change(kind, relation, *rows):
    return kind + struct.pack(">I", relation) + b"".join(mark + row(values) for mark, values in rows)


def rows_of(values):
    """Return decoded rows with a mark where a value was not sent."""
    columns = [texts.to_pylist() for texts in values.texts]
    return [
        [Unsent.VALUE if values.unchanged[place][number] else column[number] for place, column in enumerate(columns)]
        for number in range(len(columns[0]))
    ]


@given(
    st.integers(1, 12).flatmap(
        lambda size: st.lists(
            st.lists(VALUES.map(lambda values: values[0]), min_size=size, max_size=size), min_size=1, max_size=5
        )
    ),
    st.integers(1, 2**32 - 1),
)
def test_rows_are_read_as_they_were_written(rows, relation):
    """Inserts, deletes and updates have nulls, unchanged values and texts of any length. Many are decoded at once."""
    every = np.arange(len(rows))
    inserts = Messages([change(b"I", relation, (b"N", values)) for values in rows])
    assert [relation] * len(rows) == inserts.relations(every).tolist()
    assert rows == rows_of(inserts.inserted(every))
    assert rows == rows_of(Messages([change(b"D", relation, (b"K", values)) for values in rows]).deleted(every))
    doubled = Messages([change(b"U", relation, (b"K", values), (b"N", values)) for values in rows])
    assert doubled.has_old(every).all()
    assert [rows, rows] == [rows_of(found) for found in doubled.updated(every)]


def test_an_update_has_its_old_row_if_the_server_sends_it():
    """The server sends the old key or the whole old row.

    A value that the server does not send again is taken from the old row.
    """
    new = [b"1", Unsent.VALUE]
    plain = Messages([change(b"U", 7, (b"N", new))])
    assert not plain.has_old(ONE).any()
    assert [new] == rows_of(plain.inserted(ONE))
    both = Messages(
        [change(b"U", 7, (b"K", [b"0", None]), (b"N", new)), change(b"U", 7, (b"O", [b"0", b"x"]), (b"N", new))]
    )
    old, found = both.updated(np.arange(2))
    assert [[b"0", None], [b"0", b"x"]] == rows_of(old)
    assert [new, [b"1", b"x"]] == rows_of(found)


def test_transactions_tables_and_truncates_are_decoded():
    """A commit time counts from the year 2000, and a transaction's id is unsigned."""
    column = b"\1id\0" + struct.pack(">ii", 23, -1)
    messages = Messages(
        [
            b"B" + struct.pack(">qqi", 99, 1, -1),
            b"O" + bytes(9),
            b"Y" + bytes(9),
            b"R" + struct.pack(">I", 5) + b"public\0t\0d" + struct.pack(">h", 1) + column,
            b"T" + struct.pack(">IBII", 2, 0, 5, 6),
            b"C\0" + struct.pack(">qqq", 99, 120, 1),
        ]
    )
    begin = [found.tolist() for found in messages.begins(messages.of(ord("B")))]
    assert [[99], [946_684_800_000_001], [2**32 - 1]] == begin
    assert [120] == messages.commits(messages.of(ord("C"))).tolist()
    assert Relation(5, "public", "t", (RelationColumn("id", 23, -1, in_identity=True),)) == messages.relation(3)
    assert [5, 6] == messages.truncated(4)


@given(VALUES, st.integers(1, 400))
def test_a_message_that_is_cut_short_or_too_long_is_named(values, cut):
    """A damaged row never counts as a whole one, whatever message follows."""
    whole = change(b"I", 1, (b"N", values))
    for damaged in (whole[: -min(cut, len(whole) - 1)], whole + bytes(cut)):
        with pytest.raises(NotPgoutputError):
            Messages([damaged, whole]).inserted(ONE)


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"?", lambda _: None),
        (b"", lambda _: None),
        (b"B\0", lambda messages: messages.begins(ONE)),
        (b"C\0\0", lambda messages: messages.commits(ONE)),
        (b"U" + bytes(4) + b"X", lambda messages: messages.inserted(ONE)),
        (b"U", lambda messages: messages.updated(ONE)),
        (b"R" + bytes(4) + b"no end", lambda messages: messages.relation(0)),
        (b"T" + bytes(3), lambda messages: messages.truncated(0)),
    ],
)
def test_bytes_that_are_no_message_are_named(data, read):
    """Such bytes have an unknown kind or a wrong length."""
    with pytest.raises(NotPgoutputError):
        read(Messages([data]))


# ------------------------------------------------------------------
# Tests that PostgreSQL's texts of values become Arrow arrays. A text that does not fit is named, or becomes null.


FITTING = [
    ("boolean", [b"t", None, b"f"], [True, None, False]),
    ("bigint", [b"-9223372036854775808", None], [-(2**63), None]),
    ("decimal(10,2)", [b"12.50", b"-0.01"], [Decimal("12.50"), Decimal("-0.01")]),
    ("double", [b"Infinity", b"-Infinity", b"1e-5"], [float("inf"), float("-inf"), 1e-5]),
    ("timestamp", [b"2026-01-02 03:04:05.12+00"], [datetime(2026, 1, 2, 3, 4, 5, 120_000, UTC)]),
    ("timestamp_ntz", [b"0001-01-01 00:00:00"], [datetime(1, 1, 1)]),  # noqa: DTZ001 - it has no zone
    ("date", [b"2026-02-28", None], [date(2026, 2, 28), None]),
    ("binary", [b"\\x00ff", b"\\x", None], [b"\0\xff", b"", None]),
    ("string", ["é".encode(), "", None], ["é", "", None]),
    ("array<int>", [b"{1,NULL,3}", b"{}", None], [[1, None, 3], [], None]),
    ("array<string>", [b'{a,"b,\\"c\\\\",NULL,"NULL",""}'], [["a", 'b,"c\\', None, "NULL", ""]]),
    ("array<decimal(6,2)>", [b"{1.50}"], [[Decimal("1.50")]]),
]
UNFIT = [
    ("timestamp", b"infinity"),
    ("date", b"0044-03-15 BC"),
    ("date", b"12026-01-01"),
    ("decimal(10,2)", b"NaN"),
    ("array<int>", b"{{1},{2}}"),
    ("array<int>", b"[0:1]={1,2}"),
    ("boolean", b"yes"),
]


@pytest.mark.parametrize(("name", "texts", "values"), FITTING)
def test_values_that_fit_become_arrow_values(name, texts, values):
    """The values get the column's Arrow type, and nulls stay null."""
    found = converted(pa.array(texts, pa.large_binary()), name, nulls_for_unfit=False)
    assert (arrow_type(name), values) == (found.type, found.to_pylist())


@pytest.mark.parametrize(("name", "text"), UNFIT)
def test_values_that_do_not_fit_are_named_or_null(name, text):
    """The message names the value. On request it becomes null, and the other values stay."""
    with pytest.raises(UnfitValueError) as found:
        converted(pa.array([None, text]), name, nulls_for_unfit=False)
    assert text.decode() == found.value.text
    assert [None, None] == converted(pa.array([text, None]), name, nulls_for_unfit=True).to_pylist()


@pytest.mark.parametrize(
    ("base", "typmod", "element", "name"),
    [
        (1700, (10 << 16 | 2) + 4, 0, "decimal(10,2)"),
        (1700, -1, 0, "string"),
        (1700, (50 << 16 | 2) + 4, 0, "string"),
        (1700, (3 << 16 | 5) + 4, 0, "string"),
        (1700, (3 << 16 | 0x7FE) + 4, 0, "string"),
        (1184, -1, 0, "timestamp"),
        (1007, -1, 23, "array<int>"),
        (99_999, -1, 0, "string"),
    ],
)
def test_columns_get_the_types_of_the_catalog(base, typmod, element, name):
    """A numeric column stays text if it has no precision, or a scale that Spark does not support."""
    assert name == spark_type(base, typmod, element)


# ------------------------------------------------------------------
# Tests that messages become rows in order, with their transactions, however the messages are cut into parts.


COLUMNS = (
    SourceColumn(name="id", oid=23, typmod=-1, type="int"),
    SourceColumn(name="note", oid=25, typmod=-1, type="string"),
)
TABLES = tuple(
    SourceTable(oid=oid, schema_="public", name=name, columns=COLUMNS, keys=("id",))
    for oid, name in ((1, "a"), (2, "b"))
)
UNREAD = 3


def described(oid, name, names=("id", "note")):
    """Return the description of a table. Its columns may be in another order."""
    types = {"id": 23, "note": 25}
    columns = b"".join(b"\0" + each.encode() + b"\0" + struct.pack(">ii", types[each], -1) for each in names)
    return b"R" + struct.pack(">I", oid) + b"public\0" + name + b"\0d" + struct.pack(">h", len(names)) + columns


def values(number, note):
    return [str(number).encode(), note]


CHANGE = st.tuples(
    st.sampled_from((1, 2, UNREAD)),
    st.sampled_from(("insert", "update", "key", "full", "delete", "truncate", "turn")),
    st.integers(0, 99),
    st.sampled_from((b"x", None, b"", Unsent.VALUE)),
)
TRANSACTIONS = st.lists(st.lists(CHANGE, max_size=6), min_size=1, max_size=6)


class Server:
    """Writes transactions as messages, and records the rows that a reader must see."""

    def __init__(self):
        self.messages, self.rows = [described(1, b"a"), described(2, b"b"), described(3, b"c")], []
        self.turned = {1: False, 2: False}

    def transaction(self, number, changes):
        lsn, before = 100 + 10 * number, len(self.rows)
        self.messages.append(b"B" + struct.pack(">qqi", lsn, number, number))
        for table, what, key, note in changes:
            self._change(lsn, number, table, what, key, note)
        self.messages.append(b"C\0" + struct.pack(">qqq", lsn, lsn + 5, number))
        if len(self.rows) > before:
            self.rows[-1][END] = lsn + 5

    def _change(self, lsn, number, table, what, key, note):
        if what == "turn":
            if table != UNREAD:
                self.turned[table] = not self.turned[table]
                names = ("note", "id") if self.turned[table] else ("id", "note")
                self.messages.append(described(table, b"ab"[table - 1 : table], names))
            return
        new, old = values(key, note), values(key + 1, b"old")
        full = values(key, b"old" if note is Unsent.VALUE else note)
        written = {
            "insert": (b"I", [(b"N", new)], [("insert", new)]),
            "update": (b"U", [(b"N", new)], [("update_after", new)]),
            "key": (
                b"U",
                [(b"K", values(key + 1, None)), (b"N", new)],
                [("update_before", values(key + 1, None)), ("update_after", new)],
            ),
            "full": (b"U", [(b"O", old), (b"N", new)], [("update_before", old), ("update_after", full)]),
            "delete": (b"D", [(b"O", old)], [("delete", old)]),
            "truncate": (b"T", [], [("truncate", None)]),
        }
        kind, sent, seen = written[what]
        if what == "truncate":
            self.messages.append(b"T" + struct.pack(">IBI", 1, 0, table))
        else:
            turn = self.turned.get(table, False)
            self.messages.append(change(kind, table, *((mark, row[::-1] if turn else row) for mark, row in sent)))
        if table != UNREAD:
            self.rows += [self._row(lsn, number, table, name, row) for name, row in seen]

    @staticmethod
    def _row(lsn, number, table, kind, row):
        unsent = row is not None and row[1] is Unsent.VALUE
        note = None if row is None or unsent or row[1] is None else row[1].decode()
        return {
            "_kind": kind,
            "_table": f"public.{'ab'[table - 1]}",
            "_lsn": lsn,
            "_xid": number,
            "_unchanged": ["note"] if unsent else None,
            END: None,
            "public_a": None if table == 2 or row is None else {"id": int(row[0]), "note": note},
            "public_b": None if table == 1 or row is None else {"id": int(row[0]), "note": note},
        }


@given(TRANSACTIONS, st.integers(1, 9))
def test_parts_of_any_size_give_the_same_rows(transactions, size):
    """Each row has its transaction. The last row of each transaction has the place after its commit record."""
    server, batches, made = Server(), TextBatches(TABLES, nulls_for_unfit=False), []
    for number, changes in enumerate(transactions):
        server.transaction(number, changes)
    taker = Transactions(TABLES, batches, made.append, "fail")
    for begin in range(0, len(server.messages), size):
        taker.take(server.messages[begin : begin + size])
    taker.finish()
    found = pa.Table.from_batches(made, batches.schema).drop_columns(["_committed_at"]).to_pylist()
    assert server.rows == found
