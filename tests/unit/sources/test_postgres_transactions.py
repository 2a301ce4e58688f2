"""Tests that messages become rows in order, with their transactions, in parts of any size."""

import struct

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.postgres.catalog import SourceColumn, SourceTable
from jobs.sources.postgres.staged_log import END, Batches
from jobs.sources.postgres.transactions import Transactions
from tests.unit.sources.test_pgoutput import Unsent, change

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
        """Write one transaction."""
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
    server, batches, made = Server(), Batches(TABLES, nulls_for_unfit=False), []
    for number, changes in enumerate(transactions):
        server.transaction(number, changes)
    taker = Transactions(TABLES, batches, made.append, "fail")
    for begin in range(0, len(server.messages), size):
        taker.take(server.messages[begin : begin + size])
    taker.finish()
    found = pa.Table.from_batches(made, batches.schema).drop_columns(["_committed_at"]).to_pylist()
    assert server.rows == found
