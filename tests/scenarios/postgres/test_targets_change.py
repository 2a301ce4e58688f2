"""A target that is renamed, dropped or emptied gets the whole upsert table, and projects may share a schema."""

import pyarrow as pa
import pytest

from tests.scenarios.postgres.test_upsert_sink import FIRST, SCHEMA, Known, as_rows
from tidemark import PostgresSink, SinkError

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
    """The next checkpoint writes all rows, in a tick that goes on and in a new one."""
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
    """Its number is its own. The former target stays as it is, and a target that is only renamed keeps its number."""
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
    """Somebody may need these rows. Emptied, it gets the whole table."""
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
    """The table gets its new columns in place. The upsert table is written as a whole once, an append table goes on."""
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
