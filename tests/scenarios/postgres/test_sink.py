"""Tests the PostgreSQL sink on a real server: each checkpoint's rows are in the table once, whatever dies."""

import threading
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.warehouse.refusals import TickRefusedError
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.postgres.sink_job import TABLE
from tidemark import PostgresSink, SinkError
from tidemark.testing import Trial

CANARY = "s3cret-canary"
ROWS = pa.record_batch(
    {
        "n": pa.array([1, 2], pa.int64()),
        "text": ["a\tb\n", None],
        "paid": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "at": pa.array([datetime(2026, 1, 2, 3, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 2), None], pa.date32()),
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
        "tags": pa.array([["x", None], []], pa.list_(pa.string())),
        'odd "name': pa.array([1.5, float("inf")], pa.float64()),
    }
)


def numbers(*rows):
    return [pa.record_batch({"n": pa.array(rows, pa.int64())})]


@pytest.fixture
def sink(bank):
    """Return a sink into a table that does not exist yet."""
    return PostgresSink(bank.server.url(bank.name, f"postgres:{CANARY}"), "sales")


def test_a_row_of_each_type_comes_back_as_it_was(bank, sink):
    """The table is created with the types of the columns. Names are quoted, and values are copied unchanged."""
    assert 0 == sink.prepare("job", "out/sales", ROWS.schema)
    sink.publish("job", "out/sales", 3, [ROWS])
    columns = ROWS.to_pydict()
    assert [*zip(*columns.values(), strict=True)] == [tuple(row) for row in bank.sql("SELECT * FROM sales")]
    assert 3 == sink.prepare("job", "out/sales", ROWS.schema)


def test_a_checkpoint_is_published_once(bank, sink):
    """A repetition and an older checkpoint change nothing. Rows are not even read. Another job has its own number."""
    sink.prepare("job", "out/sales", numbers(1)[0].schema)
    sink.publish("job", "out/sales", 3, numbers(1, 2))

    def unread():
        raise AssertionError("the rows are read")
        yield

    for checkpoint in (3, 2):
        sink.publish("job", "out/sales", checkpoint, unread())
    sink.publish("other", "out/sales", 2, numbers(9))
    assert [(1,), (2,), (9,)] == sorted(bank.sql("SELECT n FROM sales"))


def test_two_processes_publish_a_checkpoint_once(bank, sink):
    """A zombie and its successor publish the same checkpoint at the same time: one waits, and finds it published."""
    sink.prepare("job", "out/sales", numbers(1)[0].schema)
    meet = threading.Barrier(4)

    def publish():
        meet.wait()
        for checkpoint in range(1, 6):
            sink.publish("job", "out/sales", checkpoint, numbers(checkpoint))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(n,) for n in range(1, 6)] == sorted(bank.sql("SELECT n FROM sales"))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("other bigint", "has no column n: add it as bigint, or drop it"),
        ("n text", "has column n as text, and the stream has it as bigint"),
        ("n bigint, must text NOT NULL", "needs a value for column must, which the stream does not have"),
        ("m bigint, n bigint GENERATED ALWAYS AS (m) STORED", "has column n as a generated column"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(bank, sink, table, said):
    bank.sql(f"CREATE TABLE sales ({table})")
    with pytest.raises(SinkError, match=said) as refused:
        sink.prepare("job", "out/sales", numbers(1)[0].schema)
    assert CANARY not in f"{refused.value} {sink!r}"
    assert [(None,)] == bank.sql("SELECT to_regclass('tidemark_published')::text")


def test_what_postgresql_cannot_hold_is_refused():
    """A name that is none is refused when the pipeline is built, a struct when the tick begins."""
    for name in ("", "a.b.c", "x" * 64, "a\0"):
        with pytest.raises(SinkError, match="is no name of a PostgreSQL table"):
            PostgresSink("env:NONE", name)
    struct = pa.schema({"s": pa.struct({"a": pa.int64()})})
    with pytest.raises(SinkError, match="column s has type struct<a: int64>"):
        PostgresSink("env:NONE", "sales").prepare("job", "out/sales", struct)


def test_a_violated_constraint_names_the_row_and_leaves_nothing(bank, sink):
    """The rows before it are not there either, nor the checkpoint's number."""
    bank.sql("CREATE TABLE sales (n bigint PRIMARY KEY CHECK (n < 100), note text DEFAULT 'none')")
    schema = numbers(1)[0].schema
    sink.prepare("job", "out/sales", schema)
    for rows, said in (([1, 2, 1], r"Key \(n\)=\(1\) already exists"), ([3, 500], r"Failing row contains \(500")):
        with pytest.raises(SinkError, match=said) as failed:
            sink.publish("job", "out/sales", 1, numbers(*rows))
        assert CANARY not in str(failed.value)
    assert ([], 0) == (bank.sql("SELECT n FROM sales"), sink.prepare("job", "out/sales", schema))


def test_a_server_that_dies_meanwhile_has_the_rows_once(bank, sink):
    """Its connection is cut while rows are copied, and after the commit, before the reply is read."""
    sink.prepare("job", "out/sales", numbers(1)[0].schema)
    cut = []

    def rows(batch):
        yield from batch
        if not cut:
            cut[:] = bank.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'")

    class Again:
        def __iter__(self):
            return rows(numbers(1, 2))

    sink.publish("job", "out/sales", 1, Again())
    assert [(True,)] == cut
    assert [(1,), (2,)] == sorted(bank.sql("SELECT n FROM sales"))


def test_a_lost_reply_of_the_commit_changes_nothing(bank, sink, monkeypatch):
    """The commit is in, and the client sees the connection break. The next try finds the checkpoint."""
    sink.prepare("job", "out/sales", numbers(1)[0].schema)
    real, lost = psycopg.Transaction._commit_gen, []

    def commit(self):
        yield from real(self)
        if not lost:
            lost.append(1)
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(psycopg.Transaction, "_commit_gen", commit)
    sink.publish("job", "out/sales", 1, numbers(1, 2))
    assert ([1], [(1,), (2,)]) == (lost, sorted(bank.sql("SELECT n FROM sales")))


# ------------------------------------------------------------------ whole ticks


@pytest.fixture
def trial(bank, tmp_path, monkeypatch, spark):
    monkeypatch.setenv("TARGET_URL", bank.server.url(bank.name, f"postgres:{CANARY}"))
    return Trial("tests.scenarios.postgres.sink_job:build", tmp_path / "trial")


def at(trial):
    return Warehouse(trial.warehouse, ProtocolPaths(JobName("numbers")))


def assert_exact(trial, bank):
    cut = trial.cuts.latest().polars(TABLE).collect()
    assert sorted(cut.iter_rows()) == sorted(bank.sql(f"SELECT {', '.join(cut.columns)} FROM numbers"))
    files = [path for path in trial.warehouse.rglob("*") if path.is_file()]
    assert [] == [path for path in files if CANARY.encode() in path.read_bytes()]


COMMITTING = ("before:AppendRow", "after:AppendRow", "after:PublishTable")
PUBLISHING = ("before:PublishOutside", "after:PublishOutside", "before:RecordCut", "after:RecordCut")
RECOVERING = ("after:AppendRow", "before:RollForwardOutside", "after:RollForwardOutside", "before:RollForwardCut")


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(590)
@pytest.mark.parametrize(
    "boundaries", [COMMITTING, PUBLISHING, RECOVERING], ids=["committing", "publishing", "recovering"]
)
def test_a_tick_killed_at_any_boundary_is_made_up_for(trial, bank, boundaries):
    """Ticks die at each boundary, one after the other. Then one ends as ever, and the target has each row once."""
    for boundary in boundaries:
        trial.kill(boundary, spark_cores=1)
    trial.run(spark_cores=1)
    assert_exact(trial, bank)


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_violated_constraint_stops_the_job_until_it_is_gone(trial, bank):
    """The tick declines the checkpoint by name, and so does the next one. Once repaired, nothing is missing."""
    trial.run(checkpoints=1)
    bank.sql("ALTER TABLE numbers ADD CONSTRAINT small CHECK (n < 25) NOT VALID")
    for _ in range(2):
        with pytest.raises(Exception, match=r"so it is not committed: .*violates check constraint .small."):
            trial.run()
    bank.sql("ALTER TABLE numbers DROP CONSTRAINT small")
    trial.run()
    assert_exact(trial, bank)


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_rollback_behind_published_rows_is_refused(trial, bank):
    """The message has the flag by which the sink keeps its rows. Then it gets the rows again."""
    first = trial.run(checkpoints=1).checkpoint
    rows = trial.run().polars(TABLE).collect().height
    with pytest.raises(RollbackRefusedError, match=f"the sink of table {TABLE} has rows of later checkpoints"):
        roll_back(at(trial), first)
    roll_back(at(trial), first, leave_outside=True)
    left = trial.cuts.latest().polars(TABLE).collect().height
    trial.run()
    assert [(rows + rows - left,)] == bank.sql("SELECT count(*) FROM numbers")


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_empty_warehouse_does_not_publish_into_a_target_of_another_one(trial, bank, tmp_path):
    """Its first checkpoints would have numbers that the target knows already, and would be lost."""
    trial.run()
    other = Trial("tests.scenarios.postgres.sink_job:build", tmp_path / "other")
    with pytest.raises(TickRefusedError, match="so another warehouse has published into it"):
        other.run()
    bank.sql("ALTER TABLE numbers DROP COLUMN n")
    with pytest.raises(TickRefusedError, match="has no column n: add it as bigint"):
        trial.run()
