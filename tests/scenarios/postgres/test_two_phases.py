"""Ticks with PostgreSQL sinks that vote on each checkpoint, on a real server that prepares transactions."""

import threading
import time
from contextlib import contextmanager, suppress

import psycopg
import pyarrow as pa
import pytest

from checkpointing.commit.outside_sinks import SinkTransaction
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.doctor.job_health import sink_sections
from jobs.pipeline.planning import plan
from jobs.tick.at_rest.held_cut import approve, reject
from jobs.tick.at_rest.import_entry import Import, find_origin, import_row, sinks_after
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores, state_of
from jobs.warehouse.outside_publishing import SinkRefusedError
from jobs.warehouse.refusals import TickRefusedError
from jobs.warehouse.warehouse import Warehouse
from tests.postgres_server import SETTINGS, PostgresServer
from tests.scenarios.postgres.both_sinks import JOB, URL, both, killed, pipeline_of, shown
from tests.scenarios.postgres.both_sinks import tick as any_tick
from tests.scenarios.postgres.both_sinks import tick as tick_of_refused_rows
from tests.scenarios.postgres.both_sinks import tick as tick_of_sinks_after_import
from tests.scenarios.postgres.reading import Bank
from tests.scenarios.postgres.test_sink import numbers
from tests.scenarios.postgres.test_upsert_sink import Known
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, at, newest
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
    server = PostgresServer(PREPARING)
    yield server
    server.close()


@pytest.fixture
def bank(preparing, tmp_path, monkeypatch):
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
    return any_tick(root, *more, planned=how.pop("planned", None) or both(two_phase=True), **how)


def prepared(bank):
    names = bank.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")
    return [gid.split("/")[:4] + gid.split("/")[5:] for (gid,) in names]


def assert_exact(root, bank):
    cut, there = shown(root, bank)
    assert (cut, []) == (there, prepared(bank))


@pytest.fixture
def root(tmp_path):
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


# ------------------------------------------------------------------
# A row that a PostgreSQL target never takes declines the checkpoint, or goes into a table of its own.


OUT_OF_REFUSED_ROWS = "out/t"


@pytest.fixture
def root_of_refused_rows(tmp_path, bank, monkeypatch):
    monkeypatch.setenv(URL, bank.server.url(bank.name))
    return tmp_path / "warehouse"


@pytest.mark.parametrize(
    ("table", "target", "rule", "said"),
    [
        (BRONZE, "numbers", "CHECK (n < 0) NOT VALID", "Failing row contains ("),
        (BRONZE, "numbers", "UNIQUE (split, n)", "refuses the row {'split': 'a'"),
        (GOLD, "sums", "CHECK (total < 0) NOT VALID", "Failing row contains"),
    ],
)
def test_a_refused_row_declines_the_checkpoint(root_of_refused_rows, bank, table, target, rule, said):
    """The message names vertex, table, target, reason and row. Nothing is committed. A mended target leads on."""
    tick_of_refused_rows(root_of_refused_rows, checkpoints=1)
    first = newest(root_of_refused_rows).checkpoint
    if rule.startswith("UNIQUE"):
        (n,) = bank.sql("SELECT max(n) + 1 FROM numbers WHERE split = 'a'")[0]
        bank.sql(f"INSERT INTO numbers (split, n, value) VALUES ('a', {n}, -7)")
    bank.sql(f"ALTER TABLE {target} ADD CONSTRAINT never {rule}")
    failed = tick_of_refused_rows(root_of_refused_rows).message
    vertex = {BRONZE: "bronze", GOLD: "by_key"}[table]
    for part in (
        f"table {table}, which vertex {vertex} writes",
        f"PostgresSink({target} at",
        '"never"',
        said,
        "refused=",
    ):
        assert part in failed, failed
    assert first == newest(root_of_refused_rows).checkpoint
    bank.sql(f"ALTER TABLE {target} DROP CONSTRAINT never")
    bank.sql("DELETE FROM numbers WHERE value = -7")
    tick_of_refused_rows(root_of_refused_rows)
    cut, there = shown(root_of_refused_rows, bank)
    assert cut == there


def wedged(root, bank, target="sums"):
    tick_of_refused_rows(root, checkpoints=1, planned=both(retained=1))
    first, done = newest(root).checkpoint, []

    def late(name):
        if name == "before:AppendRow" and not done:
            done.append(bank.sql(f"ALTER TABLE {target} ADD CONSTRAINT never CHECK (false) NOT VALID"))

    failed = tick_of_refused_rows(root, late, planned=both(retained=1)).message
    assert newest(root).checkpoint > first
    return first, failed


def test_a_checkpoint_that_no_sink_takes_can_be_left_behind(root_of_refused_rows, bank):
    """With `retained=1` there is an entry to go back to. What the first refusal says is true."""
    first, failed = wedged(root_of_refused_rows, bank, "numbers")
    assert "violates check constraint" in tick_of_refused_rows(root_of_refused_rows, planned=both(retained=1)).message
    assert "take the sink out of the pipeline" in failed
    with pytest.raises(
        RollbackRefusedError, match=f"the sink of table {BRONZE} may have rows of checkpoint"
    ) as refused:
        roll_back(at(root_of_refused_rows), first, sinks=both().sinks)
    assert "has rows of later" not in str(refused.value)
    roll_back(at(root_of_refused_rows), first, sinks=both().sinks, leave_outside=True)
    assert first == newest(root_of_refused_rows).parent
    bank.sql("ALTER TABLE numbers DROP CONSTRAINT never")
    tick_of_refused_rows(root_of_refused_rows)
    cut, there = shown(root_of_refused_rows, bank, BRONZE)
    assert cut == there


def test_a_pipeline_without_the_sink_leads_on(root_of_refused_rows, bank):
    """The tick publishes the checkpoint without the sink, and the other sink goes on."""
    wedged(root_of_refused_rows, bank)
    before = bank.sql("SELECT * FROM sums")
    assert not tick_of_refused_rows(root_of_refused_rows, planned=plan(pipeline_of(upserts=False))).message
    cut, there = shown(root_of_refused_rows, bank, BRONZE)
    assert (cut, before) == (there, bank.sql("SELECT * FROM sums"))


@contextmanager
def preparing_server():
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
        assert 0 == sink.prepare_upsert("job", OUT_OF_REFUSED_ROWS, KEYED, ("id",))
        good = [(f"g{n}", n) for n in range(300)]
        sink.apply("job", OUT_OF_REFUSED_ROWS, 1, Known(keyed(("a", 1), (None, 2), ("x\0y", 3), *good)))
        connection.execute("ALTER TABLE sales ADD CHECK (n >= 0)")
        changes = Known(None, since=1, changed=keyed(("a", -1), ("c", 7)), deleted=())
        for _ in range(2):
            if two_phase:
                transaction = SinkTransaction("job", OUT_OF_REFUSED_ROWS, 1, 2)
                sink.pre_commit(transaction, changes)
                sink.commit(transaction)
            sink.apply("job", OUT_OF_REFUSED_ROWS, 2, changes)
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
        assert 2 == sink.prepare_upsert("job", OUT_OF_REFUSED_ROWS, KEYED, ("id",))


def test_refused_rows_of_an_append_table(bank):
    """Also values that Python or the server's text cannot have. Without `refused`, each is named before the commit."""
    url = bank.server.url(bank.name)
    bank.sql("CREATE TABLE sales (id text NOT NULL, n bigint, day date)")
    texts = pa.array([b"a", b"\xff", b"b", b"n\0l"]).view(pa.string())
    days = pa.array([1, 2, 10**8, 3], pa.int32()).view(pa.date32())
    rows = [pa.record_batch({"id": texts, "n": pa.array([1, 2, 3, 4], pa.int64()), "day": days})]
    strict = PostgresSink(url, "sales")
    strict.prepare("job", OUT_OF_REFUSED_ROWS, rows[0].schema)
    for row in rows[0].slice(1, 1), rows[0].slice(2, 1), rows[0].slice(3, 1):
        with pytest.raises(SinkError, match=r"sales at .*(cannot hold|refuses) the row .*'n': .*With refused=, "):
            strict.check("job", OUT_OF_REFUSED_ROWS, 1, [row])
    strict.check("job", OUT_OF_REFUSED_ROWS, 1, [rows[0].slice(0, 1)])
    assert [] == bank.sql("SELECT * FROM sales")
    sink = PostgresSink(url, "sales", refused="sales_refused")
    sink.prepare("job", OUT_OF_REFUSED_ROWS, rows[0].schema)
    sink.publish("job", OUT_OF_REFUSED_ROWS, 1, rows)
    assert [(1,)] == bank.sql("SELECT n FROM sales")
    assert [(2,), (3,), (4,)] == bank.sql("SELECT (\"row\" ->> 'n')::int FROM sales_refused ORDER BY 1")


# ------------------------------------------------------------------
# A restore into another warehouse says what happens to each outside sink, and refuses rows twice or never.


@pytest.fixture
def roots(tmp_path, bank, monkeypatch):
    monkeypatch.setenv(URL, bank.server.url(bank.name))
    for _ in range(2):
        tick_of_sinks_after_import(tmp_path / "one", checkpoints=1)
    return tmp_path / "one", tmp_path / "two"


def wanted(roots, checkpoint, **how):
    origin = find_origin(f"{roots[0]}@{checkpoint}", roots[1], JOB)
    return Import(origin=origin, root=roots[1], plan=both(), **how)


def findings(root):
    warehouse = Warehouse(root, ProtocolPaths(JOB))
    rows = JobStores(warehouse, cross_freely).rows()
    sections = sink_sections(warehouse, lambda: both().sinks, state_of(warehouse, rows), rows)
    return [each.what for section in sections for each in section.findings]


def test_the_newest_checkpoint_goes_on_where_the_sinks_are(roots, bank):
    """The doctor finds nothing before and after, and that the sinks wait in between."""
    assert [] == findings(roots[0])
    last = newest(roots[0]).checkpoint
    said = sinks_after(wanted(roots, last))
    assert said[0].endswith(f"has checkpoint {last}, and goes on from there")
    assert f"table {GOLD}" in said[1]
    assert "shows the whole table with the next checkpoint" in said[1]
    import_row(wanted(roots, last))
    bronze, gold = findings(roots[1])
    assert f"has checkpoint {last}, and the newest one of this warehouse" in bronze
    assert f"shows checkpoint {last}, and the table shows" in gold
    tick_of_sinks_after_import(roots[1])
    cut, there = shown(roots[1], bank)
    assert (cut, []) == (there, findings(roots[1]))


def test_an_older_checkpoint_would_give_rows_twice(roots, bank):
    """It is refused before anything is copied. The way out is true: a new target, or the rows twice if you say so."""
    first = newest(roots[0]).parent
    with pytest.raises(
        SinkRefusedError, match=rf"table {BRONZE} .*later than checkpoint {first}: .*a second time; noth"
    ):
        import_row(wanted(roots, first))
    assert not roots[1].exists()
    (bronze, gold) = sinks_after(wanted(roots, first, allow_non_restored_state=True))
    assert "a second time" in bronze
    assert GOLD in gold
    bank.sql("ALTER TABLE numbers RENAME TO former")
    bank.sql("DELETE FROM tidemark_published WHERE sink = 'bronze/numbers'")
    assert "none of those that the table has already" in sinks_after(wanted(roots, first))[0]


def test_another_warehouse_with_higher_numbers_is_noticed(tmp_path, bank, monkeypatch):
    """Each warehouse knows its own targets, also after an import, which moves them. Emptied ones may be taken."""
    monkeypatch.setenv(URL, bank.server.url(bank.name))
    mine, other = tmp_path / "mine", tmp_path / "other"
    tick_of_sinks_after_import(other, checkpoints=1, planned=both(appends=False, upserts=False))
    tick_of_sinks_after_import(mine, checkpoints=1)
    before = shown(mine, bank)
    with pytest.raises(
        SinkRefusedError, match=r"has rows of another warehouse, up to checkpoint 1: name that warehouse"
    ):
        tick_of_sinks_after_import(other)
    assert before == shown(mine, bank)
    tick_of_sinks_after_import(mine, checkpoints=1)
    moved = (mine, tmp_path / "moved")
    import_row(wanted(moved, newest(mine).checkpoint))
    tick_of_sinks_after_import(moved[1], checkpoints=1)
    with pytest.raises(SinkRefusedError, match="another warehouse"):
        tick_of_sinks_after_import(mine)
    bank.sql("TRUNCATE numbers, sums")
    tick_of_sinks_after_import(other)
    cut, there = shown(other, bank, GOLD)
    assert cut == there
