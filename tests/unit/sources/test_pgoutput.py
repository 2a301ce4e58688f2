"""Tests decoding of pgoutput's messages in the form of PostgreSQL's manual. Damaged messages are named."""

import struct
from enum import Enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.postgres.pgoutput import Messages, NotPgoutputError, Relation, RelationColumn


class Unsent(Enum):
    """Stands for a value that the server did not send again."""

    VALUE = "unsent"


VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=300), st.just(Unsent.VALUE)), min_size=1, max_size=12)
ONE = np.array([0])


def row(values):
    """Return values as the server writes them."""
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
    """Return the message of a change; each row has its mark in front."""
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

    A value that it does not send again is taken from the old row.
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
    """A commit time counts from 2000, and a transaction's id has no sign."""
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
    """They have an unknown kind or the wrong length."""
    with pytest.raises(NotPgoutputError):
        read(Messages([data]))
