"""Nothing waits for ever for a lock on a real server. The message names the table, and who holds the lock."""

import time
from contextlib import ExitStack
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
from tests.postgres_server import SETTINGS, PostgresServer
from tidemark import PostgresSink, SinkAwayError, SinkError

pytestmark = pytest.mark.timeout(120)
OUT = "out/t"
ROWS = [pa.record_batch({"n": pa.array([1], pa.int64())})]


@pytest.fixture
def server():
    made = PostgresServer(f"{SETTINGS}\nmax_prepared_transactions = 4\n")
    yield made
    with psycopg.connect(made.url(), autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            connection.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(gid))
    made.close()


def test_somebodys_lock_ends_a_publication_with_a_sentence(server):
    """A plain sink, a sink that votes, and a source that reads. Once the lock is gone, the rows are there once."""
    plain, voting = (PostgresSink(server.url(), "sales", two_phase=each) for each in (False, True))
    plain.prepare("job", OUT, ROWS[0].schema)
    with psycopg.connect(f"{server.url()}?application_name=nightly") as other:
        other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
        said = rf"Table sales is locked by process {other.info.backend_pid} of the server \(application 'nightly', idle"
        with pytest.raises(SinkError, match=said):
            plain.publish("job", OUT, 1, ROWS)
        with pytest.raises(SinkError, match=said):
            voting.pre_commit(SinkTransaction("job", OUT, 1, 1), ROWS)
        reading = Server(server.url())
        with reading.connect() as connection:
            with pytest.raises(psycopg.errors.LockNotAvailable) as late:
                connection.execute("SELECT * FROM sales")
            assert "sales is locked by process" in reading.told(late.value)
    plain.publish("job", OUT, 1, ROWS)
    with psycopg.connect(server.url()) as connection:
        assert [(1,)] == connection.execute("SELECT n FROM sales").fetchall()


def test_a_transaction_of_a_former_target_is_named(server, tmp_path):
    """A tick died while it was prepared, and the target was renamed in the pipeline: the new one is not in its way."""
    former, new = (PostgresSink(server.url(), name, two_phase=True) for name in ("former", "new"))
    former.prepare("job", OUT, ROWS[0].schema)
    former.pre_commit(SinkTransaction("job", OUT, 1, 1), ROWS)
    assert 0 == new.prepare("job", OUT, ROWS[0].schema)
    new.publish("job", OUT, 1, ROWS)
    state = SimpleNamespace(activity=Activity.AT_REST, generation=2)
    warehouse = SimpleNamespace(paths=SimpleNamespace(job="job"), root=tmp_path)
    (section,) = sink_sections(warehouse, lambda: {OUT: AppendedTable(new, ROWS[0].schema, "v")}, state, ())
    (finding,) = section.findings
    assert "is prepared for a target that the pipeline no longer has" in finding.what
    assert {OUT: {"sink": repr(new), "checkpoint": 1, "in_step": True, "prepared": []}} == section.values
    (there,) = sink_sections(warehouse, lambda: {OUT: AppendedTable(former, ROWS[0].schema, "v")}, state, ())
    assert [{"checkpoint": 1, "generation": 1}] == there.values[OUT]["prepared"]
    with psycopg.connect(server.url(), autocommit=True) as connection:
        command = finding.repair.split("else ")[1]
        assert command.startswith("ROLLBACK PREPARED 'tidemark/job/out/t/")
        with pytest.raises(
            SinkError, match=r"Table \S+ is locked by a prepared transaction: if checkpoint 1 of job was"
        ):
            former.publish("job", OUT, 2, ROWS)
        connection.execute(command)
    former.publish("job", OUT, 2, ROWS)
    (section,) = sink_sections(warehouse, lambda: {OUT: AppendedTable(new, ROWS[0].schema, "v")}, state, ())
    assert () == section.findings


@pytest.fixture
def impatient(server, monkeypatch):
    monkeypatch.setattr(client, "SILENT_S", 1.0)
    monkeypatch.setattr(client, "_PATIENCE_S", 2.0)
    return f"{server.url()}?connect_timeout=2"


def test_a_server_that_stands_still_ends_a_call_with_a_sentence(server, impatient):
    """It is frozen before a call, in a statement, and while rows are sent. Nothing waits for it to wake up."""
    sink = PostgresSink(impatient, "sales")
    sink.prepare("job", OUT, ROWS[0].schema)
    away = r"PostgreSQL at \S+ cannot be reached \(connection timeout"
    with Server(impatient).connect() as connection:
        with (
            server.frozen(),
            pytest.raises(psycopg.OperationalError, match=r"has not answered for \d s: its process"),
        ):
            connection.execute("SELECT pg_sleep(60)")
        with server.frozen(), pytest.raises(SinkAwayError, match=away):
            sink.publish("job", OUT, 1, ROWS)
    with ExitStack() as later:

        def many():
            yield from ROWS
            later.enter_context(server.frozen())
            yield from [pa.record_batch({"n": range(100_000)})] * 20

        begun = time.monotonic()
        with pytest.raises(SinkAwayError, match=away):
            sink.publish("job", OUT, 1, many())
        assert time.monotonic() - begun < 20
    sink.publish("job", OUT, 1, ROWS)


def test_a_slow_statement_of_a_server_that_answers_ends_by_itself(impatient):
    """Nobody ends a statement because it sends nothing for several seconds."""
    with Server(impatient).connect() as connection:
        assert (7,) == connection.execute("SELECT 7 FROM pg_sleep(4)").fetchone()
