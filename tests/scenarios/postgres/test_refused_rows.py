"""A row that a PostgreSQL target never takes declines the checkpoint, or goes into a table of its own."""

from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pytest

from checkpointing.commit.outside_sinks import SinkTransaction
from jobs.pipeline.planning import plan
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.rollback_plan import RollbackRefusedError
from tests.postgres_server import SETTINGS, PostgresServer
from tests.scenarios.postgres.both_sinks import URL, both, pipeline_of, shown, tick
from tests.scenarios.postgres.test_upsert_sink import Known
from tests.scenarios.runtime.rollback_job import newest
from tests.scenarios.runtime.savepoint_job import at
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD
from tidemark import PostgresSink, SinkError

pytestmark = pytest.mark.timeout(180)
OUT = "out/t"


@pytest.fixture
def root(tmp_path, bank, monkeypatch):
    """Return an empty warehouse. The pipeline finds the database."""
    monkeypatch.setenv(URL, bank.server.url(bank.name))
    return tmp_path / "warehouse"


@pytest.mark.parametrize(
    ("table", "target", "rule", "said"),
    [
        (BRONZE, "numbers", "CHECK (n < 0) NOT VALID", "Failing row contains (a"),
        (BRONZE, "numbers", "UNIQUE (split, n)", "refuses the row {'split': 'a'"),
        (GOLD, "sums", "CHECK (total < 0) NOT VALID", "Failing row contains"),
    ],
)
def test_a_refused_row_declines_the_checkpoint(root, bank, table, target, rule, said):
    """The message names vertex, table, target, reason and row. Nothing is committed. A mended target leads on."""
    tick(root, checkpoints=1)
    first = newest(root).checkpoint
    if rule.startswith("UNIQUE"):
        (n,) = bank.sql("SELECT max(n) + 1 FROM numbers WHERE split = 'a'")[0]
        bank.sql(f"INSERT INTO numbers (split, n, value) VALUES ('a', {n}, -7)")
    bank.sql(f"ALTER TABLE {target} ADD CONSTRAINT never {rule}")
    failed = tick(root).message
    vertex = {BRONZE: "bronze", GOLD: "by_key"}[table]
    for part in (
        f"table {table}, which vertex {vertex} writes",
        f"PostgresSink({target} at",
        '"never"',
        said,
        "refused=",
    ):
        assert part in failed, failed
    assert first == newest(root).checkpoint
    bank.sql(f"ALTER TABLE {target} DROP CONSTRAINT never")
    bank.sql("DELETE FROM numbers WHERE value = -7")
    tick(root)
    cut, there = shown(root, bank)
    assert cut == there


def wedged(root, bank, target="sums"):
    """Let a constraint come between the question and the commit point. Return the checkpoint before and the message."""
    tick(root, checkpoints=1, planned=both(retained=1))
    first, done = newest(root).checkpoint, []

    def late(name):
        if name == "before:AppendRow" and not done:
            done.append(bank.sql(f"ALTER TABLE {target} ADD CONSTRAINT never CHECK (false) NOT VALID"))

    failed = tick(root, late, planned=both(retained=1)).message
    assert newest(root).checkpoint > first
    return first, failed


def test_a_checkpoint_that_no_sink_takes_can_be_left_behind(root, bank):
    """With `retained=1` there is an entry to go back to. What the first refusal says is true."""
    first, failed = wedged(root, bank, "numbers")
    assert "violates check constraint" in tick(root, planned=both(retained=1)).message
    assert "take the sink out of the pipeline" in failed
    with pytest.raises(
        RollbackRefusedError, match=f"the sink of table {BRONZE} may have rows of checkpoint"
    ) as refused:
        roll_back(at(root), first, sinks=both().sinks)
    assert "has rows of later" not in str(refused.value)
    roll_back(at(root), first, sinks=both().sinks, leave_outside=True)
    assert first == newest(root).parent
    bank.sql("ALTER TABLE numbers DROP CONSTRAINT never")
    tick(root)
    cut, there = shown(root, bank, BRONZE)
    assert cut == there


def test_a_pipeline_without_the_sink_leads_on(root, bank):
    """The tick publishes the checkpoint without the sink, and the other sink goes on."""
    wedged(root, bank)
    before = bank.sql("SELECT * FROM sums")
    assert not tick(root, planned=plan(pipeline_of(upserts=False))).message
    cut, there = shown(root, bank, BRONZE)
    assert (cut, before) == (there, bank.sql("SELECT * FROM sums"))


@contextmanager
def preparing_server():
    """Return a server that prepares transactions."""
    server = PostgresServer(f"{SETTINGS}\nmax_prepared_transactions = 4\n")
    try:
        yield server
    finally:
        server.close()


KEYED = pa.schema({"id": pa.string(), "n": pa.int64()})


def keyed(*rows):
    return pa.Table.from_pylist([dict(zip(KEYED.names, row, strict=True)) for row in rows], KEYED)


@pytest.mark.parametrize("two_phase", [False, True])
def test_refused_rows_of_an_upsert_table_lie_in_their_own_table(two_phase):
    """The others go on. A key whose new row is refused leaves the target. A repetition changes nothing."""
    with preparing_server() as server, psycopg.connect(server.url(), autocommit=True) as connection:
        sink = PostgresSink(server.url(), "sales", refused="sales_refused", two_phase=two_phase)
        assert 0 == sink.prepare_upsert("job", OUT, KEYED, ("id",))
        good = [(f"g{n}", n) for n in range(300)]
        sink.apply("job", OUT, 1, Known(keyed(("a", 1), (None, 2), ("x\0y", 3), *good)))
        connection.execute("ALTER TABLE sales ADD CHECK (n >= 0)")
        changes = Known(None, since=1, changed=keyed(("a", -1), ("c", 7)), deleted=())
        for _ in range(2):
            if two_phase:
                transaction = SinkTransaction("job", OUT, 1, 2)
                sink.pre_commit(transaction, changes)
                sink.commit(transaction)
            sink.apply("job", OUT, 2, changes)
        assert [("c", 7), *sorted(good)] == connection.execute("SELECT * FROM sales ORDER BY id").fetchall()
        kept = connection.execute('SELECT checkpoint, "row", reason FROM sales_refused ORDER BY 1, reason').fetchall()
        assert [(1, {"id": "x\\0y", "n": 3}), (1, {"id": None, "n": 2}), (2, {"id": "a", "n": -1})] == [
            row[:2] for row in kept
        ]
        assert ["invalid byte sequence", "null value in column", "violates check"] == [
            said
            for said, row in zip(("invalid byte sequence", "null value in column", "violates check"), kept, strict=True)
            if said in row[2]
        ]
        assert 2 == sink.prepare_upsert("job", OUT, KEYED, ("id",))


def test_refused_rows_of_an_append_table(bank):
    """Also values that Python or the server's text cannot have. Without `refused`, each is named before the commit."""
    url = bank.server.url(bank.name)
    bank.sql("CREATE TABLE sales (id text NOT NULL, n bigint, day date)")
    texts = pa.array([b"a", b"\xff", b"b", b"n\0l"]).view(pa.string())
    days = pa.array([1, 2, 10**8, 3], pa.int32()).view(pa.date32())
    rows = [pa.record_batch({"id": texts, "n": pa.array([1, 2, 3, 4], pa.int64()), "day": days})]
    strict = PostgresSink(url, "sales")
    strict.prepare("job", OUT, rows[0].schema)
    for row in rows[0].slice(1, 1), rows[0].slice(2, 1), rows[0].slice(3, 1):
        with pytest.raises(SinkError, match=r"sales at .*(cannot hold|refuses) the row .*'n': .*With refused=, "):
            strict.check("job", OUT, 1, [row])
    strict.check("job", OUT, 1, [rows[0].slice(0, 1)])
    assert [] == bank.sql("SELECT * FROM sales")
    sink = PostgresSink(url, "sales", refused="sales_refused")
    sink.prepare("job", OUT, rows[0].schema)
    sink.publish("job", OUT, 1, rows)
    assert [(1,)] == bank.sql("SELECT n FROM sales")
    assert [(2,), (3,), (4,)] == bank.sql("SELECT (\"row\" ->> 'n')::int FROM sales_refused ORDER BY 1")
