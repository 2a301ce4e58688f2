"""Tests the PostgreSQL sink on a real server: each checkpoint's rows are in the table once, whichever side dies."""

import threading
import time
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import psycopg
import pyarrow as pa
import pytest

from checkpointing.commit.outside_sinks import SinkTransaction
from jobs.doctor.job_health import sink_sections
from jobs.sinks.port import AppendedTable
from jobs.sources.postgres import connection as client
from jobs.sources.postgres.connection import Server
from jobs.warehouse.job_stores import Activity
from tidemark import PostgresSink, SinkAwayError, SinkError

CANARY = "s3cret-canary"
OUT = "out/sales"
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


SCHEMA = numbers(1)[0].schema


@pytest.fixture
def sink(bank):
    """Return a sink into a table that does not exist yet."""
    return PostgresSink(bank.server.url(bank.name, f"postgres:{CANARY}"), "sales")


@pytest.mark.parametrize("wider", [(), ("n numeric", "paid numeric"), ("n numeric(20,1)", "paid numeric(20,4)")])
def test_a_row_of_each_type_comes_back_as_it_was(bank, sink, wider):
    """The table is created with the types of the columns. Names are quoted, and values are copied unchanged.

    A target that somebody else has created may have wider number types.
    """
    if wider:
        others = ("text text", "at timestamptz", "day date", "raw bytea", "tags text[]", '"odd ""name" float8')
        bank.sql(f"CREATE TABLE sales ({wider[0]}, {others[0]}, {wider[1]}, {', '.join(others[1:])})")
    assert 0 == sink.prepare("job", OUT, ROWS.schema)
    sink.publish("job", OUT, 3, [ROWS])
    columns = ROWS.to_pydict()
    assert [*zip(*columns.values(), strict=True)] == [tuple(row) for row in bank.sql("SELECT * FROM sales")]
    assert 3 == sink.prepare("job", OUT, ROWS.schema)


def test_a_checkpoint_is_published_once(bank, sink):
    """Publishing it again, or an older one, changes nothing and reads no rows. Another job has a number of its own."""
    sink.prepare("job", OUT, SCHEMA)
    sink.publish("job", OUT, 3, numbers(1, 2))

    def unread():
        raise AssertionError("the rows are read")
        yield

    for checkpoint in (3, 2):
        sink.publish("job", OUT, checkpoint, unread())
    sink.publish("other", OUT, 2, numbers(9))
    assert [(1,), (2,), (9,)] == sorted(bank.sql("SELECT n FROM sales"))


def test_two_processes_publish_a_checkpoint_once(bank, sink):
    """Threads publish the same checkpoint at the same time. All but one wait, and find the checkpoint published."""
    sink.prepare("job", OUT, SCHEMA)
    meet = threading.Barrier(4)

    def publish():
        meet.wait()
        for checkpoint in range(1, 6):
            sink.publish("job", OUT, checkpoint, numbers(checkpoint))

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
        ("n numeric(20,2)", r"has column n as numeric\(20,2\), and the stream has it as bigint"),
        ("n bigint, must text NOT NULL", "needs a value for column must, which the stream does not have"),
        ("m bigint, n bigint GENERATED ALWAYS AS (m) STORED", "has column n as a generated column"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(bank, sink, table, said):
    bank.sql(f"CREATE TABLE sales ({table})")
    with pytest.raises(SinkError, match=said) as refused:
        sink.prepare("job", OUT, SCHEMA)
    assert CANARY not in f"{refused.value} {sink!r}"
    assert [(None,)] == bank.sql("SELECT to_regclass('tidemark_published')::text")


def test_what_postgresql_cannot_hold_is_refused():
    """An invalid table name is refused when the pipeline is built. A struct column is refused when the tick begins."""
    for name in ("", "a.b.c", "x" * 64, "a\0"):
        with pytest.raises(SinkError, match="is no name of a PostgreSQL table"):
            PostgresSink("env:NONE", name)
    struct = pa.schema({"s": pa.struct({"a": pa.int64()})})
    with pytest.raises(SinkError, match="column s has type struct<a: int64>"):
        PostgresSink("env:NONE", "sales").prepare("job", OUT, struct)


def test_a_violated_constraint_names_the_row_and_leaves_nothing(bank, sink):
    """Neither the rows before the refused row nor the checkpoint's number are in the database."""
    bank.sql("CREATE TABLE sales (n bigint PRIMARY KEY CHECK (n < 100), note text DEFAULT 'none')")
    sink.prepare("job", OUT, SCHEMA)
    for rows, said in (([1, 2, 1], r"Key \(n\)=\(1\) already exists"), ([3, 500], r"Failing row contains \(500")):
        with pytest.raises(SinkError, match=said) as failed:
            sink.publish("job", OUT, 1, numbers(*rows))
        assert CANARY not in str(failed.value)
    assert ([], 0) == (bank.sql("SELECT n FROM sales"), sink.prepare("job", OUT, SCHEMA))


@pytest.fixture
def loses_a_reply(monkeypatch):
    """Return a list. Once a test has emptied the list, the reply to the next commit is lost, and the list is filled."""
    real, lost = psycopg.Transaction._commit_gen, [0]

    def commit(self):
        yield from real(self)
        if not lost:
            lost.append(1)
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(psycopg.Transaction, "_commit_gen", commit)
    return lost


def test_a_server_that_dies_meanwhile_has_the_rows_once(bank, sink, loses_a_reply):
    """The connection breaks while rows are copied, then after the commit. The third try finds the checkpoint."""
    sink.prepare("job", OUT, SCHEMA)
    loses_a_reply.clear()
    cut = []

    def rows(batch):
        yield from batch
        if not cut:
            cut[:] = bank.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'")

    class Again:
        def __iter__(self):
            return rows(numbers(1, 2))

    sink.publish("job", OUT, 1, Again())
    assert ([(True,)], [1], [(1,), (2,)]) == (cut, loses_a_reply, sorted(bank.sql("SELECT n FROM sales")))


# ------------------------------------------------------------------ a sink that prepares its transactions


@pytest.fixture
def voting(bank):
    made = PostgresSink(bank.server.url(bank.name), "sales", two_phase=True)
    assert 0 == made.prepare("job", OUT, SCHEMA)
    return made


def of(checkpoint, generation=1):
    return SinkTransaction("job", OUT, generation, checkpoint)


def test_a_transaction_is_prepared_and_committed_once(bank, voting):
    """Repeating a call changes nothing. Other jobs, tables and targets have transactions of their own."""
    for _ in range(2):
        voting.pre_commit(of(1), numbers(1, 2))
    assert ((of(1),), ()) == (voting.pre_committed("job", OUT), voting.pre_committed("other", OUT))
    other = PostgresSink(bank.server.url(bank.name), "other", two_phase=True)
    other.prepare("job2", OUT, SCHEMA)
    assert () == other.pre_committed("job", OUT)
    for _ in range(2):
        voting.commit(of(1))
        voting.publish("job", OUT, 1, numbers(1, 2))
    voting.pre_commit(of(1), numbers(1, 2))
    assert ([(1,), (2,)], ()) == (sorted(bank.sql("SELECT n FROM sales")), voting.pre_committed("job", OUT))


def test_what_somebody_rolled_back_by_hand_is_written_again(bank, voting):
    """The job has committed the checkpoint. Publishing it finds no transaction and no number, and writes the rows."""
    voting.pre_commit(of(1), numbers(1, 2))
    voting.roll_back(of(1))
    voting.roll_back(of(1))
    voting.commit(of(1))
    voting.publish("job", OUT, 1, numbers(1, 2))
    assert [(1,), (2,)] == sorted(bank.sql("SELECT n FROM sales"))


def test_lost_replies_change_nothing(bank, voting, monkeypatch):
    lost, real = [], psycopg.Connection.execute

    def execute(self, statement, *arguments, **more):
        done = real(self, statement, *arguments, **more)
        text = statement if isinstance(statement, str) else statement.as_string(self)
        if text.split("'")[0] in ("PREPARE TRANSACTION ", "COMMIT PREPARED ") and text not in lost:
            lost.append(text)
            self.close()
            raise psycopg.OperationalError("the connection is lost")
        return done

    with monkeypatch.context() as losing:
        losing.setattr(psycopg.Connection, "execute", execute)
        voting.pre_commit(of(1), numbers(1, 2))
        assert (of(1),) == voting.pre_committed("job", OUT)
        voting.commit(of(1))
    voting.publish("job", OUT, 1, numbers(1, 2))
    assert (2, [(1,), (2,)]) == (len(lost), sorted(bank.sql("SELECT n FROM sales")))


def test_a_name_that_is_too_long_is_refused(bank):
    long = PostgresSink(bank.server.url(bank.name), "sales", two_phase=True)
    with pytest.raises(SinkError, match="are too long for the name of a prepared transaction"):
        long.prepare("job", "out/" + "x" * 150, SCHEMA)


# ------------------------------------------------------------------ rows that a target never takes


def test_refused_rows_of_an_append_table(bank):
    """Some have values that Python or the server's text cannot hold. Without `refused`, `check` names each such row."""
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


# ------------------------------------------------------------------ locks, and a server that stands still


def test_somebodys_lock_ends_a_publication_with_a_sentence(bank):
    """This holds for a plain sink, a sink that votes, and a source.

    Once the lock is gone, the rows are there once.
    """
    plain, voting = (PostgresSink(bank.server.url(bank.name), "sales", two_phase=each) for each in (False, True))
    plain.prepare("job", OUT, SCHEMA)
    with psycopg.connect(f"{bank.server.url(bank.name)}?application_name=nightly") as other:
        other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
        said = rf"Table sales is locked by process {other.info.backend_pid} of the server \(application 'nightly', idle"
        with pytest.raises(SinkError, match=said):
            plain.publish("job", OUT, 1, numbers(1))
        with pytest.raises(SinkError, match=said):
            voting.pre_commit(SinkTransaction("job", OUT, 1, 1), numbers(1))
        reading = Server(bank.server.url(bank.name))
        with reading.connect() as connection:
            with pytest.raises(psycopg.errors.LockNotAvailable) as late:
                connection.execute("SELECT * FROM sales")
            assert "sales is locked by process" in reading.told(late.value)
    plain.publish("job", OUT, 1, numbers(1))
    with psycopg.connect(bank.server.url(bank.name)) as connection:
        assert [(1,)] == connection.execute("SELECT n FROM sales").fetchall()


def test_a_transaction_of_a_former_target_is_named(bank, tmp_path):
    """A tick died with a prepared transaction, and the pipeline now names another target. The new target works."""
    former, new = (PostgresSink(bank.server.url(bank.name), name, two_phase=True) for name in ("former", "new"))
    former.prepare("job", OUT, SCHEMA)
    former.pre_commit(SinkTransaction("job", OUT, 1, 1), numbers(1))
    assert 0 == new.prepare("job", OUT, SCHEMA)
    new.publish("job", OUT, 1, numbers(1))
    state = SimpleNamespace(activity=Activity.AT_REST, generation=2)
    warehouse = SimpleNamespace(paths=SimpleNamespace(job="job"), root=tmp_path)
    (section,) = sink_sections(warehouse, lambda: {OUT: AppendedTable(new, SCHEMA, "v")}, state, ())
    (finding,) = section.findings
    assert "is prepared for a target that the pipeline no longer has" in finding.what
    assert {OUT: {"sink": repr(new), "checkpoint": 1, "in_step": True, "prepared": []}} == section.values
    (there,) = sink_sections(warehouse, lambda: {OUT: AppendedTable(former, SCHEMA, "v")}, state, ())
    assert [{"checkpoint": 1, "generation": 1}] == there.values[OUT]["prepared"]
    with psycopg.connect(bank.server.url(bank.name), autocommit=True) as connection:
        command = finding.repair.split("else ")[1]
        assert command.startswith("ROLLBACK PREPARED 'tidemark/job/out/sales/")
        with pytest.raises(
            SinkError, match=r"Table \S+ is locked by a prepared transaction: if checkpoint 1 of job was"
        ):
            former.publish("job", OUT, 2, numbers(1))
        connection.execute(command)
    former.publish("job", OUT, 2, numbers(1))
    (section,) = sink_sections(warehouse, lambda: {OUT: AppendedTable(new, SCHEMA, "v")}, state, ())
    assert () == section.findings


@pytest.fixture
def impatient(bank, monkeypatch):
    monkeypatch.setattr(client, "SILENT_S", 1.0)
    monkeypatch.setattr(client, "_PATIENCE_S", 2.0)
    return f"{bank.server.url(bank.name)}?connect_timeout=2"


def test_a_server_that_stands_still_ends_a_call_with_a_sentence(bank, impatient):
    """The server is frozen before a call, in a statement, and while rows are sent. No call waits until it resumes."""
    sink = PostgresSink(impatient, "sales")
    sink.prepare("job", OUT, SCHEMA)
    away = r"PostgreSQL at \S+ cannot be reached \(connection timeout"
    with Server(impatient).connect() as connection:
        with (
            bank.server.frozen(),
            pytest.raises(psycopg.OperationalError, match=r"has not answered for \d s: its process"),
        ):
            connection.execute("SELECT pg_sleep(60)")
        with bank.server.frozen(), pytest.raises(SinkAwayError, match=away):
            sink.publish("job", OUT, 1, numbers(1))
    with ExitStack() as later:

        def many():
            yield from numbers(1)
            later.enter_context(bank.server.frozen())
            yield from [pa.record_batch({"n": range(100_000)})] * 20

        begun = time.monotonic()
        with pytest.raises(SinkAwayError, match=away):
            sink.publish("job", OUT, 1, many())
        assert time.monotonic() - begun < 20
    sink.publish("job", OUT, 1, numbers(1))


def test_a_slow_statement_of_a_server_that_answers_ends_by_itself(impatient):
    """A statement that sends nothing for several seconds is not ended if its server answers."""
    with Server(impatient).connect() as connection:
        assert (7,) == connection.execute("SELECT 7 FROM pg_sleep(4)").fetchone()
