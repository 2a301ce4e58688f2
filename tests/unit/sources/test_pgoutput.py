"""Tests decoding of pgoutput's messages in the form of PostgreSQL's manual. Damaged messages are named."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.postgres.pgoutput import (
    NotPgoutputError,
    Relation,
    RelationColumn,
    RowChange,
    TablesTruncated,
    TransactionBegin,
    TransactionEnd,
    Unchanged,
    decoded,
)

VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=300), st.just(Unchanged.VALUE)), max_size=12)


def row(values):
    """Return values as the server writes them."""
    parts = [struct.pack(">h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is Unchanged.VALUE:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">i", len(value)) + value)
    return b"".join(parts)


@given(VALUES, st.integers(1, 2**32 - 1))
def test_rows_are_read_as_they_were_written(values, relation):
    """Inserts and deletes have nulls, unchanged values and texts of any length."""
    head = struct.pack(">I", relation)
    assert RowChange(relation, None, values) == decoded(b"I" + head + b"N" + row(values))
    assert RowChange(relation, values, None) == decoded(b"D" + head + b"K" + row(values))


def test_an_update_has_its_old_row_if_the_server_sends_it():
    """The server sends the old key or the whole old row.

    A value that it does not send again is taken from the old row.
    """
    head, new = struct.pack(">I", 7), [b"1", Unchanged.VALUE]
    assert RowChange(7, None, new, is_update=True) == decoded(b"U" + head + b"N" + row(new))
    assert RowChange(7, [b"0", None], new, is_update=True) == decoded(
        b"U" + head + b"K" + row([b"0", None]) + b"N" + row(new)
    )
    whole = decoded(b"U" + head + b"O" + row([b"0", b"x"]) + b"N" + row(new))
    assert RowChange(7, [b"0", b"x"], [b"1", b"x"], is_update=True) == whole


def test_transactions_tables_and_truncates_are_decoded():
    """A commit time counts from 2000, a transaction's id has no sign, and an empty schema is the system's."""
    begin = decoded(b"B" + struct.pack(">qqi", 99, 1, -1))
    assert TransactionBegin(99, 946_684_800_000_001, 2**32 - 1) == begin
    assert TransactionEnd(120) == decoded(b"C\0" + struct.pack(">qqq", 99, 120, 1))
    column = b"\1id\0" + struct.pack(">ii", 23, -1)
    relation = decoded(b"R" + struct.pack(">I", 5) + b"public\0t\0d" + struct.pack(">h", 1) + column)
    assert Relation(5, "public", "t", (RelationColumn("id", 23, -1),)) == relation
    assert TablesTruncated((5, 6)) == decoded(b"T" + struct.pack(">IBII", 2, 0, 5, 6))
    assert None is decoded(b"O" + bytes(9))
    assert None is decoded(b"Y" + bytes(9))


@given(VALUES.filter(bool), st.integers(1, 400))
def test_a_message_that_is_cut_short_is_named(values, cut):
    """A damaged row never counts as a whole one."""
    whole = b"I" + struct.pack(">I", 1) + b"N" + row(values)
    if cut < len(whole):
        with pytest.raises(NotPgoutputError):
            decoded(whole[:-cut])


@pytest.mark.parametrize("data", [b"?", b"", b"B\0", b"C\0\0", b"U" + bytes(4) + b"X", b"R" + bytes(4) + b"no end"])
def test_bytes_that_are_no_message_are_named(data):
    """They have an unknown kind or the wrong length."""
    with pytest.raises(NotPgoutputError):
        decoded(data)
