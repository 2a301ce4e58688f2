"""Tests upserts into a real PostgreSQL server: the target shows the table, whatever the target had before."""

from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from checkpointing.commit.outside_sinks import SinkTransaction
from tidemark import Difference, PostgresSink, SinkError, TableChanges

CANARY = "s3cret-canary"
SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "paid": pa.decimal128(10, 2), "tags": pa.list_(pa.string())})


def rows(*made):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in made], SCHEMA)


FIRST = rows((1, "a", Decimal("1.25"), ["x"]), (2, None, None, None), (3, "c", Decimal(3), []))


class Known(TableChanges):
    """Changes that are known since one checkpoint."""

    keys = ("id",)

    def __init__(self, table, since=None, changed=None, deleted=()):
        self._table, self._since = table, since
        self._difference = Difference(changed or pa.table({}), pa.table({"id": pa.array(deleted, pa.int64())}))

    def since(self, checkpoint):
        return self._difference if checkpoint == self._since else None

    def whole(self):
        return self._table.to_batches(max_chunksize=2)


@pytest.fixture
def sink(bank):
    """Return a sink into a table that does not exist yet."""
    return PostgresSink(bank.server.url(bank.name, f"postgres:{CANARY}"), "sales")


def prepared(sink, keys=("id",)):
    return sink.prepare_upsert("job", "gold/sales", SCHEMA, keys)


def apply(sink, checkpoint, changes):
    sink.apply("job", "gold/sales", checkpoint, changes)


def there(bank):
    """Return the target's rows, and for each row the number of the server's transaction that has written it."""
    found = bank.sql("SELECT *, xmin::text FROM sales ORDER BY id")
    return [row[:-1] for row in found], [row[-1] for row in found]


def as_rows(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def left_over(bank):
    return bank.sql("SELECT relname FROM pg_class WHERE relname LIKE 'tidemark_rows%'")


def test_changes_and_deletes_are_applied_once(bank, sink):
    """The first checkpoint writes all rows, the next one only the changes. Applying a checkpoint again does nothing."""
    assert 0 == prepared(sink)
    apply(sink, 3, Known(FIRST))
    assert as_rows(FIRST) == there(bank)[0]
    changed = rows((1, "b", Decimal(2), ["y", None]), (4, "d", None, None))
    changes = Known(None, since=3, changed=changed, deleted=[2])
    for checkpoint, given in ((4, changes), (4, changes), (2, Known(rows()))):
        apply(sink, checkpoint, given)
        assert [*as_rows(changed)[:1], *as_rows(FIRST)[2:], *as_rows(changed)[1:]] == there(bank)[0]
    assert (4, []) == (prepared(sink), left_over(bank))


def test_a_target_with_another_checkpoint_gets_the_whole_table(bank, sink):
    """Other keys are deleted, and unchanged rows are not written again. An empty table empties the target."""
    prepared(sink)
    apply(sink, 3, Known(FIRST))
    before = there(bank)[1]
    whole = rows(as_rows(FIRST)[0], (5, "e", None, None))
    apply(sink, 7, Known(whole, since=6))
    assert as_rows(whole) == there(bank)[0]
    assert before[0] == there(bank)[1][0] != there(bank)[1][1]
    apply(sink, 8, Known(rows()))
    assert ([], 0) == (there(bank)[0], prepared(sink))  # a target without rows is as good as new


def test_a_table_of_keys_alone(bank, sink):
    schema = pa.schema({"id": pa.int64()})
    sink.prepare_upsert("job", "gold/sales", schema, ("id",))
    for checkpoint in (1, 2):
        apply(sink, checkpoint, Known(pa.table({"id": [1, 2]})))
    assert [(1,), (2,)] == there(bank)[0]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("id bigint, {}", r"needs a primary key or a unique index on \(id\)"),
        ("id bigint UNIQUE DEFERRABLE, {}", r"needs a primary key or a unique index on \(id\)"),
        ("id bigint, {}, PRIMARY KEY (id, name)", r"needs a primary key or a unique index on \(id\)"),
        ("id bigint UNIQUE, {}", r"may have nulls in its key \(id\): set these columns NOT NULL"),
    ],
)
def test_a_table_without_the_key_is_refused(bank, sink, table, said):
    """The server could not find a row by its key. Tidemark creates nothing."""
    bank.sql(f"CREATE TABLE sales ({table.format('name text, paid numeric(10,2), tags text[]')})")
    with pytest.raises(SinkError, match=said):
        prepared(sink)
    assert [(None,)] == bank.sql("SELECT to_regclass('tidemark_published')::text")


def test_a_unique_index_is_a_key_and_further_columns_keep_their_values(bank, sink):
    """The index may include other columns. An update does not touch a column that only the target has."""
    bank.sql(
        "CREATE TABLE sales (id bigint NOT NULL, name text, paid numeric, tags text[], note text DEFAULT 'new');"
        "CREATE UNIQUE INDEX ON sales (id) INCLUDE (name)"
    )
    prepared(sink)
    apply(sink, 1, Known(FIRST))
    bank.sql("UPDATE sales SET note = 'mine' WHERE id = 1")
    apply(sink, 2, Known(None, since=1, changed=rows((1, "z", None, None))))
    assert [(1, "z", "mine"), (2, None, "new")] == bank.sql("SELECT id, name, note FROM sales ORDER BY id LIMIT 2")


def test_a_table_with_rows_of_others_is_refused(bank, sink):
    prepared(sink)
    bank.sql("INSERT INTO sales VALUES (1)")
    with pytest.raises(SinkError, match="has rows, and this job has written none of them: empty it"):
        prepared(sink)
    bank.sql("DELETE FROM sales")
    apply(sink, 1, Known(FIRST))
    assert 1 == prepared(sink)


def test_a_violated_constraint_names_the_row_and_leaves_nothing(bank, sink):
    bank.sql("CREATE TABLE names (name text PRIMARY KEY); INSERT INTO names VALUES ('a'), ('c')")
    prepared(sink)
    bank.sql("ALTER TABLE sales ADD CHECK (paid < 100), ADD FOREIGN KEY (name) REFERENCES names")
    apply(sink, 1, Known(FIRST))
    for row, said in (
        ((7, "a", Decimal(500), None), r"Failing row contains \(7, a, 500.00"),
        ((None, "a", None, None), r"null value in column .id.*Failing row contains \(null, a"),
        ((8, "zz", None, None), r"Key \(name\)=\(zz\) is not present in table .names."),
    ):
        with pytest.raises(SinkError, match=said) as failed:
            apply(sink, 2, Known(None, since=1, changed=rows(row), deleted=[1]))
        assert CANARY not in str(failed.value)
    assert (as_rows(FIRST), 1, []) == (there(bank)[0], prepared(sink), left_over(bank))


def test_a_server_that_dies_meanwhile_has_the_changes_once(bank, sink, monkeypatch):
    """The connection breaks while rows are copied. The second try's reply is lost. The third finds the changes."""
    prepared(sink)
    real, lost, cut = psycopg.Transaction._commit_gen, [], []

    class Cut(Known):
        def whole(self):
            yield FIRST.to_batches()[0]
            if not cut:
                cut[:] = bank.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'")

    def commit(self):
        yield from real(self)
        if not lost:
            lost.append(1)
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(psycopg.Transaction, "_commit_gen", commit)
    apply(sink, 1, Cut(FIRST))
    assert ([(True,)], [1], as_rows(FIRST), []) == (cut, lost, there(bank)[0], left_over(bank))


KEYED = pa.schema({"id": pa.string(), "n": pa.int64()})


def keyed(*rows):
    return pa.Table.from_pylist([dict(zip(KEYED.names, row, strict=True)) for row in rows], KEYED)


@pytest.mark.parametrize("two_phase", [False, True])
def test_refused_rows_of_an_upsert_table_lie_in_their_own_table(bank, two_phase):
    """The other rows go on. A key whose new row is refused leaves the target. A repetition changes nothing."""
    sink = PostgresSink(bank.server.url(bank.name), "sales", refused="sales_refused", two_phase=two_phase)
    assert 0 == sink.prepare_upsert("job", "gold/sales", KEYED, ("id",))
    good = [(f"g{n}", n) for n in range(300)]
    sink.apply("job", "gold/sales", 1, Known(keyed(("a", 1), (None, 2), ("x\0y", 3), *good)))
    bank.sql("ALTER TABLE sales ADD CHECK (n >= 0)")
    changes = Known(None, since=1, changed=keyed(("a", -1), ("c", 7)), deleted=())
    for _ in range(2):
        if two_phase:
            transaction = SinkTransaction("job", "gold/sales", 1, 2)
            sink.pre_commit(transaction, changes)
            sink.commit(transaction)
        sink.apply("job", "gold/sales", 2, changes)
    assert [("c", 7), *sorted(good)] == bank.sql("SELECT * FROM sales ORDER BY id")
    kept = bank.sql('SELECT checkpoint, "row", reason FROM sales_refused ORDER BY 1, reason')
    assert [(1, {"id": "x\\0y", "n": 3}), (1, {"id": None, "n": 2}), (2, {"id": "a", "n": -1})] == [
        row[:2] for row in kept
    ]
    assert ["invalid byte sequence", "null value in column", "violates check"] == [
        said
        for said, row in zip(("invalid byte sequence", "null value in column", "violates check"), kept, strict=True)
        if said in row[2]
    ]
    assert 2 == sink.prepare_upsert("job", "gold/sales", KEYED, ("id",))


# ------------------------------------------------------------------ a target that is renamed, dropped or emptied


OLD = """
CREATE TABLE tidemark_published (job text, sink text, checkpoint bigint NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, sink));
INSERT INTO tidemark_published VALUES ('job', 'gold/sales', 1)
"""


@pytest.fixture
def sink_into(bank):
    def made(table, job="job"):
        sink = PostgresSink(bank.server.url(bank.name), table)
        return sink, sink.prepare_upsert(job, "gold/sales", SCHEMA, ("id",))

    return made


def changes():
    return Known(FIRST, since=1, changed=FIRST.slice(0, 1))


@pytest.mark.parametrize(
    "lost",
    [
        "TRUNCATE sales",
        "DROP TABLE sales",
        "DELETE FROM sales",
        "ALTER TABLE sales RENAME TO gone",
        "VACUUM FULL sales",
    ],
)
def test_a_target_that_lost_its_rows_gets_the_whole_table(bank, sink_into, lost):
    """The next checkpoint writes all rows, in a tick that is running and in a new one."""
    for prepares in (True, False):
        bank.sql("DROP TABLE IF EXISTS sales, tidemark_published, gone")
        sink, _ = sink_into("sales")
        sink.apply("job", "gold/sales", 1, Known(FIRST))
        bank.sql(lost)
        if prepares or "DROP" in lost or "RENAME" in lost:
            sink, newest = sink_into("sales")
            assert (1 if lost.startswith("VACUUM") else 0) == newest
        sink.apply("job", "gold/sales", 2, changes())
        assert as_rows(FIRST) == bank.sql("SELECT * FROM sales ORDER BY id")


def test_another_target_in_the_pipeline_gets_the_whole_table(bank, sink_into):
    """Each target has its own number. The former target stays as it is, and a renamed target keeps its number."""
    sink_into("sales")[0].apply("job", "gold/sales", 1, Known(FIRST))
    other, newest = sink_into("public.others")
    other.apply("job", "gold/sales", 2, changes())
    assert (0, as_rows(FIRST)) == (newest, bank.sql("SELECT * FROM others ORDER BY id"))
    assert 1 == sink_into("sales")[1] == sink_into("public.sales")[1]
    bank.sql("ALTER TABLE sales RENAME TO renamed")
    assert 1 == sink_into("renamed")[1]


def test_two_projects_of_one_name_share_a_schema(bank, sink_into):
    (one, _), (two, _) = sink_into("one"), sink_into("two")
    one.apply("job", "gold/sales", 7, Known(FIRST))
    two.apply("job", "gold/sales", 1, Known(FIRST.slice(1)))
    assert (7, 1) == (sink_into("one")[1], sink_into("two")[1])
    assert as_rows(FIRST.slice(1)) == bank.sql("SELECT * FROM two ORDER BY id")


def test_a_target_of_another_table_with_rows_is_refused(bank, sink_into):
    """Somebody may need these rows. Once the target is empty, it gets the whole table."""
    sink_into("sales")[0].apply("job", "gold/sales", 1, Known(FIRST))
    bank.sql("ALTER TABLE sales RENAME TO former")
    bank.sql("CREATE TABLE sales (LIKE former INCLUDING ALL)")
    bank.sql("INSERT INTO sales SELECT * FROM former")
    with pytest.raises(
        SinkError, match=r"not the one that the job has written: somebody has created it anew: empty it"
    ):
        sink_into("sales")
    bank.sql("TRUNCATE sales")
    sink, newest = sink_into("sales")
    sink.apply("job", "gold/sales", 2, changes())
    assert (0, as_rows(FIRST)) == (newest, bank.sql("SELECT * FROM sales ORDER BY id"))


def test_numbers_of_an_older_version_go_on(bank):
    """The table of numbers gets its new columns in place.

    The upsert table is written as a whole once, and an append table goes on.
    """
    sink = PostgresSink(bank.server.url(bank.name), "sales")
    bank.sql("CREATE TABLE sales (id bigint PRIMARY KEY, name text, paid numeric(10,2), tags text[])")
    bank.sql("INSERT INTO sales (id) VALUES (1)")
    bank.sql(OLD)
    bank.sql("INSERT INTO tidemark_published VALUES ('job', 'out/sales', 5)")
    assert 1 == sink.prepare_upsert("job", "gold/sales", SCHEMA, ("id",))
    sink.apply("job", "gold/sales", 1, Known(FIRST))
    assert [(1,)] == bank.sql("SELECT id FROM sales")
    sink.apply("job", "gold/sales", 2, changes())
    assert as_rows(FIRST) == bank.sql("SELECT * FROM sales ORDER BY id")
    appends = PostgresSink(bank.server.url(bank.name), "numbers")
    schema = pa.schema({"n": pa.int64()})
    assert 5 == appends.prepare("job", "out/sales", schema)
    for checkpoint in (5, 6, 6):
        appends.publish("job", "out/sales", checkpoint, [pa.record_batch({"n": [checkpoint]})])
    assert [(6,)] == bank.sql("SELECT n FROM numbers")
