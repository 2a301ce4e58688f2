"""Ticks with PostgreSQL sinks that vote on each checkpoint, on a real server that prepares transactions."""

import threading
import time
from contextlib import suppress

import psycopg
import pytest

from checkpointing.commit.outside_sinks import SinkTransaction
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.tick.at_rest.held_cut import approve, reject
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.refusals import TickRefusedError
from tests.postgres_server import SETTINGS, PostgresServer
from tests.scenarios.postgres.both_sinks import URL, both, killed, shown
from tests.scenarios.postgres.both_sinks import tick as any_tick
from tests.scenarios.postgres.reading import Bank
from tests.scenarios.postgres.test_sink import numbers
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.rollback_job import newest
from tests.scenarios.runtime.savepoint_job import at
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD
from tidemark import PostgresSink, SinkError

pytestmark = pytest.mark.timeout(180)
PREPARING = f"{SETTINGS}\nmax_prepared_transactions = 8\n"
OUT = "out/sales"
SCHEMA = numbers(1)[0].schema
GRID = [
    (f"{side}:{step}", occurrence)
    for side in ("before", "after")
    for step in (
        "CheckTables",
        f"PreCommit:{BRONZE}",
        f"PreCommit:{GOLD}",
        "AppendRow",
        f"PublishOutside:{BRONZE}",
        f"PublishOutside:{GOLD}",
        "RecordCut",
    )
    for occurrence in (1, 2)
]
RECOVERING = (f"after:RollForwardOutside:{BRONZE}", f"after:RollForwardOutside:{GOLD}", "before:DiscardLeftovers")


@pytest.fixture(scope="module")
def preparing():
    """Return a server that prepares transactions."""
    server = PostgresServer(PREPARING)
    yield server
    server.close()


@pytest.fixture
def bank(preparing, tmp_path, monkeypatch):
    """Return a new database of this server."""
    name = f"bank{time.monotonic_ns()}"
    with psycopg.connect(preparing.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    monkeypatch.setenv(URL, preparing.url(name))
    made = Bank(preparing, name, tmp_path / "staged")
    yield made
    made.close()
    with psycopg.connect(preparing.url(name), autocommit=True) as connection:
        names = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
        for (gid,) in names:
            connection.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(gid))


def tick(root, *more, **how):
    """Run a tick whose sinks vote."""
    return any_tick(root, *more, planned=how.pop("planned", None) or both(two_phase=True), **how)


def prepared(bank):
    """Return the names of the prepared transactions, without the number of the target."""
    names = bank.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")
    return [gid.split("/")[:4] + gid.split("/")[5:] for (gid,) in names]


def assert_exact(root, bank):
    """Assert that both targets show the newest cut, and that no transaction is left."""
    cut, there = shown(root, bank)
    assert (cut, []) == (there, prepared(bank))


@pytest.fixture
def root(tmp_path):
    """Return an empty warehouse."""
    return tmp_path / "warehouse"


@pytest.mark.kill
@pytest.mark.parametrize(("boundary", "occurrence"), GRID)
def test_a_tick_killed_at_any_boundary_is_made_up_for(root, bank, boundary, occurrence):
    """SIGKILL. The next ticks die too while they recover, if they have to. In the end nothing is prepared."""
    assert killed(root, boundary, occurrence, "--two-phase")
    for step in RECOVERING:
        with suppress(Dead):
            tick(root, Mortal(step))
    tick(root)
    assert_exact(root, bank)


def test_rows_are_prepared_before_the_commit_point_and_visible_after_it(root, bank):
    """The names of the transactions say job, table, generation and checkpoint. Nobody sees the rows yet."""
    seen = []

    def look(name):
        if name == "before:AppendRow" and not seen:
            seen.append((prepared(bank), bank.sql("SELECT count(*) FROM numbers")))

    tick(root, look)
    names = [["tidemark", "numbers", *table.split("/"), "1", "1"] for table in (BRONZE, GOLD)]
    assert [(names, [(0,)])] == seen
    assert_exact(root, bank)


def test_a_violated_constraint_declines_the_checkpoint(root, bank):
    """The message names constraint and row. Nothing is committed or prepared, and no table shows the epoch."""
    tick(root, checkpoints=1)
    first = newest(root).checkpoint
    bank.sql("ALTER TABLE sums ADD CONSTRAINT small CHECK (total < 0) NOT VALID")
    failed = tick(root).message
    for said in (
        "violates check constraint",
        "small",
        "Failing row contains",
        f"the sink of table {GOLD}, which vertex by_key writes, refuses",
    ):
        assert said in failed, failed
    assert (first, []) == (newest(root).checkpoint, prepared(bank))
    bank.sql("ALTER TABLE sums DROP CONSTRAINT small")
    tick(root)
    assert_exact(root, bank)


def test_a_deferred_constraint_declines_the_checkpoint_too(root, bank):
    """The server checks it when it prepares the transaction."""
    tick(root, checkpoints=1)
    first = newest(root).checkpoint
    bank.sql("ALTER TABLE numbers ADD CONSTRAINT once UNIQUE (split, key, n) DEFERRABLE INITIALLY DEFERRED")
    (row,) = bank.sql("SELECT max(n) + 1 FROM numbers WHERE split = 'a'")
    bank.sql(f"INSERT INTO numbers SELECT 'a', {row[0]}, {row[0] % 7}, 0, 'a', 0")
    assert "violates unique constraint" in tick(root).message
    assert (first, []) == (newest(root).checkpoint, prepared(bank))
    bank.sql("DELETE FROM numbers WHERE value = 0 AND n > 0")
    tick(root)
    assert_exact(root, bank)


def test_a_job_tolerates_checkpoints_that_a_sink_declines(root, bank):
    """With `tolerable_failures`, it goes on. The next checkpoint has the rows of the declined one."""
    tick(root, checkpoints=1)
    bank.sql("ALTER TABLE numbers ADD CONSTRAINT small CHECK (n < 0) NOT VALID")
    planned, dropped = both(two_phase=True, tolerates=50), []

    def repair(name):
        if name == "after:CheckTables" and not dropped:
            dropped.append(name)
            bank.sql("ALTER TABLE numbers DROP CONSTRAINT small")

    report = tick(root, repair, planned=planned)
    assert (1, "") == (len(dropped), report.message)
    assert_exact(root, bank)


def test_a_revoked_right_declines_the_checkpoint(root, bank, monkeypatch):
    """The message names the table, and nothing of the checkpoint is committed."""
    bank.sql("CREATE ROLE voter LOGIN; GRANT CREATE ON SCHEMA public TO voter")
    monkeypatch.setenv(URL, bank.server.url(bank.name, "voter"))
    tick(root, checkpoints=1)
    first = newest(root).checkpoint
    bank.sql("REVOKE INSERT ON numbers FROM voter")
    assert "permission denied for table numbers" in tick(root).message
    assert (first, []) == (newest(root).checkpoint, prepared(bank))
    bank.sql("GRANT INSERT ON numbers TO voter")
    tick(root)
    assert_exact(root, bank)
    bank.sql("DROP OWNED BY voter; DROP ROLE voter")


def test_a_server_that_prepares_nothing_refuses_the_tick(root, postgres, tmp_path, monkeypatch):
    """The message says what to set. Nothing was claimed, and the target was not created."""
    monkeypatch.setenv(URL, postgres.url())
    with pytest.raises(TickRefusedError, match=r"prepares no transactions, .* set max_prepared_transactions to at"):
        tick(root)
    assert not [*root.rglob("*.parquet")]
    with psycopg.connect(postgres.url()) as connection:
        assert (None,) == connection.execute("SELECT to_regclass('sums')::text").fetchone()


def test_a_zombie_neither_commits_nor_keeps_what_it_prepared(root, bank):
    """It sleeps before its entry, while another tick goes on. Its transaction is rolled back, not its successor's."""
    asleep, awake, said = threading.Event(), threading.Event(), []

    def sleep(name):
        if name == "before:AppendRow" and not asleep.is_set():
            asleep.set()
            assert awake.wait(60)

    zombie = threading.Thread(target=lambda: said.append(tick(root, sleep).message))
    zombie.start()
    assert asleep.wait(60)
    tick(root)
    assert_exact(root, bank)
    awake.set()
    zombie.join()
    assert "claimed by" in said[0], said
    assert_exact(root, bank)


def test_a_zombie_that_prepares_late_does_not_stop_its_successor(root, bank):
    """It prepares after its successor has recovered. The successor's next checkpoint rolls its transaction back."""
    tick(root, checkpoints=1)
    sink, target = PostgresSink(f"env:{URL}", "numbers", two_phase=True), both(two_phase=True)
    schema = target.table_schemas[BRONZE]
    late = []

    def prepare(name):
        if name == "after:DiscardLeftovers":
            late.append(newest(root).checkpoint + 1)
            sink.pre_commit(SinkTransaction("numbers", BRONZE, 1, late[0]), [])

    tick(root, prepare, planned=target)
    assert (1, True) == (len(late), "n" in schema.names)
    assert_exact(root, bank)


def test_a_rollback_takes_an_upsert_target_back(root, bank):
    """It goes on although a dead tick has left a transaction that locks the target."""
    planned = both(retained=9, appends=False, two_phase=True)
    tick(root, checkpoints=1, planned=planned)
    first, expected = newest(root).checkpoint, shown(root, bank, GOLD)
    tick(root, checkpoints=1, planned=planned)
    assert killed(root, "before:AppendRow", 1, "--two-phase", "--upserts")
    assert 1 == len(prepared(bank))
    roll_back(at(root), first, sinks=planned.sinks)
    assert (expected, []) == (shown(root, bank, GOLD), prepared(bank))
    tick(root, planned=planned)
    cut, there = shown(root, bank, GOLD)
    assert (cut, []) == (there, prepared(bank))


@pytest.mark.parametrize("approves", [True, False])
def test_a_held_cut_is_voted_on_and_keeps_no_transaction(root, bank, approves):
    """A person may take days. Its approval writes the rows."""
    bank.sql("CREATE TABLE numbers (split text, n bigint, key bigint, value bigint, _split text, _position bigint)")
    bank.sql("ALTER TABLE numbers ADD CONSTRAINT small CHECK (n < 0)")
    assert "refuses checkpoint" in tick(root, hold=True).message
    bank.sql("ALTER TABLE numbers DROP CONSTRAINT small")
    tick(root, hold=True)
    assert ([], [(0,)]) == (prepared(bank), bank.sql("SELECT count(*) FROM numbers"))
    if approves:
        approve(at(root), sinks=both(two_phase=True).sinks)
        cut, there = shown(root, bank)
        assert cut == there
    else:
        reject(at(root))
    tick(root)
    assert_exact(root, bank)


def test_the_doctor_shows_what_a_dead_tick_has_prepared(root, bank, monkeypatch, capsys):
    """The finding names the sink and the repair. The repair removes it."""
    assert killed(root, "before:AppendRow", 1, "--two-phase")
    words = ["doctor", "tests.scenarios.postgres.both_sinks:two_phases", "--warehouse", str(root)]
    code = execute(words)
    told = " ".join(capsys.readouterr().out.split())
    assert ExitCode.FAILED == code, told
    assert f"checkpoint 1 of generation 1 is prepared in the sink of table {BRONZE}" in told, told
    assert "tidemark run" in told
    tick(root)
    execute(words)
    assert "is prepared in" not in capsys.readouterr().out


# ------------------------------------------------------------------ the sink itself


@pytest.fixture
def sink(bank):
    """Return a sink into a table that was created."""
    made = PostgresSink(f"env:{URL}", "sales", two_phase=True)
    assert 0 == made.prepare("job", OUT, SCHEMA)
    return made


def of(checkpoint, generation=1):
    return SinkTransaction("job", OUT, generation, checkpoint)


def test_a_transaction_is_prepared_and_committed_once(bank, sink):
    """Repetitions change nothing. Another job, another table and another target have their own."""
    for _ in range(2):
        sink.pre_commit(of(1), numbers(1, 2))
    assert ((of(1),), ()) == (sink.pre_committed("job", OUT), sink.pre_committed("other", OUT))
    other = PostgresSink(f"env:{URL}", "other", two_phase=True)
    other.prepare("job2", OUT, SCHEMA)
    assert () == other.pre_committed("job", OUT)
    for _ in range(2):
        sink.commit(of(1))
        sink.publish("job", OUT, 1, numbers(1, 2))
    sink.pre_commit(of(1), numbers(1, 2))
    assert ([(1,), (2,)], ()) == (sorted(bank.sql("SELECT n FROM sales")), sink.pre_committed("job", OUT))


def test_what_somebody_rolled_back_by_hand_is_written_again(bank, sink):
    """The checkpoint was committed. Its publication finds no transaction and no number, and writes the rows."""
    sink.pre_commit(of(1), numbers(1, 2))
    sink.roll_back(of(1))
    sink.roll_back(of(1))
    sink.commit(of(1))
    sink.publish("job", OUT, 1, numbers(1, 2))
    assert [(1,), (2,)] == sorted(bank.sql("SELECT n FROM sales"))


def test_lost_replies_change_nothing(bank, sink, monkeypatch):
    """The connection breaks after the server has prepared, and after it has committed what was prepared."""
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
        sink.pre_commit(of(1), numbers(1, 2))
        assert (of(1),) == sink.pre_committed("job", OUT)
        sink.commit(of(1))
    sink.publish("job", OUT, 1, numbers(1, 2))
    assert (2, [(1,), (2,)]) == (len(lost), sorted(bank.sql("SELECT n FROM sales")))


def test_a_name_that_is_too_long_is_refused(bank):
    """PostgreSQL would refuse it at each checkpoint."""
    long = PostgresSink(f"env:{URL}", "sales", two_phase=True)
    with pytest.raises(SinkError, match="are too long for the name of a prepared transaction"):
        long.prepare("job", "out/" + "x" * 150, SCHEMA)


def test_a_server_killed_between_prepare_and_commit_keeps_the_transaction(tmp_path, monkeypatch):
    """SIGKILL of the server, which comes back. Each time the tick goes on, or the next one does."""
    server = PostgresServer(PREPARING)
    own = Bank(server, "postgres", tmp_path / "staged")
    monkeypatch.setenv(URL, server.url())
    root, died = tmp_path / "warehouse", []
    try:
        for when in (f"after:PreCommit:{BRONZE}", "before:AppendRow", f"before:PublishOutside:{GOLD}"):

            def strike(name, when=when):
                if name == when and when not in died:
                    died.append(when)
                    server.kill()
                    threading.Timer(1, server.start).start()

            tick(root, strike, checkpoints=1)
            own.reconnect()
            assert 0 == len(prepared(own))
        assert 3 == len(died)
        tick(root)
        assert_exact(root, own)
    finally:
        own.close()
        server.close()
