"""Ticks with PostgreSQL sinks on a real server. Some sinks are plain, others vote on each checkpoint by a transaction.

After each fault the targets show what the newest cut shows, and no transaction is left prepared.
"""

import subprocess
import threading
from contextlib import suppress

import psycopg
import pytest

from checkpointing.commit.outside_sinks import SinkTransaction
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.disk_errors import DISK_FULL, SERVER_DISK_FULL
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
from tests.scenarios.postgres.reading import Bank, prepared
from tests.scenarios.postgres.sinks_job import JOB, URL, both, killed_at, pipeline_of, shown, tick
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, at, newest
from tidemark import PostgresSink
from tidemark.testing import Trial

CANARY = "s3cret-canary"
ROOM_KIB = 640
"""The size of a disk on which the server can create the tables and store some rows."""
pytestmark = pytest.mark.timeout(400)

FROM_THE_ENTRY = ("AppendRow", f"PublishOutside:{BRONZE}", f"PublishOutside:{GOLD}", "RecordCut")
VOTING = ("CheckTables", f"PreCommit:{BRONZE}", f"PreCommit:{GOLD}", *FROM_THE_ENTRY)
KILLS = [
    (two_phase, f"{side}:{step}#{occurrence}")
    for two_phase, steps in ((False, FROM_THE_ENTRY), (True, VOTING))
    for side in ("before", "after")
    for step in steps
    for occurrence in (1, 2)
]
RECOVERING = (f"after:RollForwardOutside:{BRONZE}", f"after:RollForwardOutside:{GOLD}", "before:DiscardLeftovers")
BOTH_KINDS = pytest.mark.parametrize("two_phase", [False, True], ids=["plain", "voting"])


@pytest.fixture
def root(bank, tmp_path, monkeypatch):
    monkeypatch.setenv(URL, bank.server.url(bank.name, f"postgres:{CANARY}"))
    return tmp_path / "warehouse"


def assert_exact(root, bank, *tables):
    """Assert that the targets show the newest cut, no transaction is prepared, and no file has the password."""
    cut, there = shown(root, bank, *tables)
    assert (cut, []) == (there, prepared(bank))
    assert [] == [path for path in root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


@pytest.mark.kill
@pytest.mark.parametrize(("two_phase", "boundary"), KILLS)
def test_a_tick_killed_at_any_boundary_is_made_up_for(root, bank, two_phase, boundary):
    """The next ticks die too if they have something to recover."""
    killed_at(boundary, root, two_phase=two_phase)
    planned = both(two_phase=two_phase)
    for step in RECOVERING:
        with suppress(Dead):
            tick(root, Mortal(step), planned=planned)
    tick(root, planned=planned)
    assert_exact(root, bank)


@pytest.mark.spark
@pytest.mark.dear
@pytest.mark.timeout(590)
def test_a_tick_on_spark_that_is_killed_beside_the_commit_is_made_up_for(root, bank, spark, tmp_path):
    trial = Trial("tests.scenarios.postgres.sinks_job:build", tmp_path / "trial")
    for boundary in ("before:AppendRow", "after:AppendRow", f"after:PublishOutside:{BRONZE}"):
        trial.kill(boundary, spark_cores=1)
    trial.run(spark_cores=1)
    assert_exact(trial.warehouse, bank)


def test_rows_are_prepared_before_the_commit_point_and_visible_after_it(root, bank):
    """The transactions' names contain job, table, generation and checkpoint. Nobody sees the rows yet."""
    seen = []

    def look(name):
        if name == "before:AppendRow" and not seen:
            seen.append((prepared(bank), bank.sql("SELECT count(*) FROM numbers")))

    tick(root, look, planned=both(two_phase=True))
    names = [["tidemark", "numbers", *table.split("/"), "1", "1"] for table in (BRONZE, GOLD)]
    assert [(names, [(0,)])] == seen
    assert_exact(root, bank)


# ------------------------------------------------------------------ a target that takes no more rows


@pytest.mark.parametrize(
    ("two_phase", "target", "rule", "said"),
    [
        (False, "numbers", "CHECK (n < 0) NOT VALID", "Failing row contains ("),
        (False, "numbers", "UNIQUE (split, n)", "refuses the row {'split': 'a'"),
        (False, "sums", "CHECK (total < 0) NOT VALID", "Failing row contains"),
        (True, "sums", "CHECK (total < 0) NOT VALID", "Failing row contains"),
        (True, "numbers", "UNIQUE (split, n) DEFERRABLE INITIALLY DEFERRED", "violates unique constraint"),
    ],
)
def test_a_refused_row_declines_the_checkpoint(root, bank, two_phase, target, rule, said):
    """The message names vertex, table, target, reason and row. Nothing is committed.

    Once the target is mended, the next tick goes on.
    """
    planned = both(two_phase=two_phase)
    tick(root, checkpoints=1, planned=planned)
    first = newest(root).checkpoint
    if rule.startswith("UNIQUE"):
        (n,) = bank.sql("SELECT max(n) + 1 FROM numbers WHERE split = 'a'")[0]
        bank.sql(f"INSERT INTO numbers (split, n, value) VALUES ('a', {n}, -7)")
    bank.sql(f"ALTER TABLE {target} ADD CONSTRAINT never {rule}")
    for _ in range(2):
        failed = tick(root, planned=planned).message
        table, vertex = {"numbers": (BRONZE, "bronze"), "sums": (GOLD, "by_key")}[target]
        for part in (f"table {table}, which vertex {vertex} writes", f"PostgresSink({target} at", '"never"', said):
            assert part in failed, failed
        assert (first, []) == (newest(root).checkpoint, prepared(bank))
    bank.sql(f"ALTER TABLE {target} DROP CONSTRAINT never")
    bank.sql("DELETE FROM numbers WHERE value = -7")
    tick(root, planned=planned)
    assert_exact(root, bank)


@BOTH_KINDS
def test_a_revoked_right_stops_the_job_until_it_is_there_again(root, bank, monkeypatch, two_phase):
    """The message names the table. A sink that votes prevents the commit. No row is missing afterwards."""
    role = f"writer_{bank.name}"
    bank.sql(f"CREATE ROLE {role} LOGIN; GRANT CREATE ON SCHEMA public TO {role}")
    monkeypatch.setenv(URL, bank.server.url(bank.name, role))
    planned = both(two_phase=two_phase)
    tick(root, checkpoints=1, planned=planned)
    first = newest(root).checkpoint
    for table, right in (("numbers", "INSERT"), ("sums", "DELETE, UPDATE")):
        bank.sql(f"REVOKE {right} ON {table} FROM {role}")
        failed = tick(root, planned=planned).message
        assert f"permission denied for table {table}" in failed, failed
        assert [] == prepared(bank)
        assert not two_phase or first == newest(root).checkpoint
        bank.sql(f"GRANT {right} ON {table} TO {role}")
    tick(root, planned=planned)
    assert_exact(root, bank)
    bank.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_job_tolerates_checkpoints_that_a_sink_declines(root, bank):
    """With `tolerable_failures`, the job goes on. The next checkpoint has the rows of the declined one."""
    tick(root, checkpoints=1, planned=both(two_phase=True))
    bank.sql("ALTER TABLE numbers ADD CONSTRAINT small CHECK (n < 0) NOT VALID")
    dropped = []

    def repair(name):
        if name == "after:CheckTables" and not dropped:
            dropped.append(name)
            bank.sql("ALTER TABLE numbers DROP CONSTRAINT small")

    report = tick(root, repair, planned=both(two_phase=True, tolerates=50))
    assert (1, "") == (len(dropped), report.message)
    assert_exact(root, bank)


def test_a_server_that_prepares_nothing_refuses_the_tick(root, monkeypatch):
    """The message says what to set. The job is not claimed, and the target is not created."""
    server = PostgresServer(f"{SETTINGS}\nmax_prepared_transactions = 0\n")
    monkeypatch.setenv(URL, server.url())
    try:
        with pytest.raises(TickRefusedError, match=r"prepares no transactions, .* set max_prepared_transactions to at"):
            tick(root, planned=both(two_phase=True))
        assert not [*root.rglob("*.parquet")]
        with psycopg.connect(server.url()) as connection:
            assert (None,) == connection.execute("SELECT to_regclass('sums')::text").fetchone()
    finally:
        server.close()


@pytest.fixture
def own_bank(tmp_path, monkeypatch):
    """Return the database of a server that the test may kill or fill."""
    server = PostgresServer()
    made = Bank(server, "postgres", tmp_path / "staged")
    monkeypatch.setenv(URL, server.url())
    yield made
    made.close()
    server.close()


@BOTH_KINDS
def test_a_server_killed_at_any_step_of_a_sink_is_waited_for(own_bank, tmp_path, two_phase):
    """A prepared transaction is still there when the server is back. The same tick or the next one goes on."""
    server, root, planned = own_bank.server, tmp_path / "warehouse", both(two_phase=two_phase)
    before = (f"after:PreCommit:{BRONZE}", "before:AppendRow") if two_phase else (f"after:PublishOutside:{BRONZE}",)
    for when in (*before, f"before:PublishOutside:{GOLD}"):
        died = []

        def strike(name, when=when, died=died):
            if name == when and not died:
                died.append(name)
                server.kill()
                threading.Timer(1, server.start).start()

        report = tick(root, strike, planned=planned, checkpoints=1)
        own_bank.reconnect()
        assert ([when], []) == (died, prepared(own_bank))
        assert two_phase or report.outcome.value != "failed", report.message
    tick(root, planned=planned)
    assert_exact(root, own_bank)


@pytest.mark.dear
def test_a_full_disk_of_the_server_stops_the_job_until_there_is_room(own_bank, tmp_path):
    folder = own_bank.server.folder / "small"
    folder.mkdir()
    own = ["chown", str(own_bank.server.user or "root"), str(folder)]
    subprocess.run(own, check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_KIB}k", "tmpfs", str(folder)], check=True)
    try:
        subprocess.run(own, check=True)
        own_bank.sql(f"CREATE TABLESPACE small LOCATION '{folder}'")
        own_bank.sql("ALTER DATABASE postgres SET default_tablespace = small")
        root = tmp_path / "warehouse"
        tick(root, checkpoints=1)
        own_bank.reconnect()
        own_bank.sql("CREATE TABLE filler (what text STORAGE PLAIN)")
        with pytest.raises(psycopg.errors.DiskFull):
            own_bank.sql("DO $$ BEGIN LOOP INSERT INTO filler VALUES (repeat('x', 7000)); COMMIT; END LOOP; END $$")
        for _ in range(2):
            failed = tick(root).message
            assert f"{SERVER_DISK_FULL}. The server said: could not extend file" in failed, failed
            assert DISK_FULL not in failed
        own_bank.sql("DROP TABLE filler")
        tick(root)
        assert_exact(root, own_bank)
        own_bank.sql("DROP TABLE numbers, sums, tidemark_published")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def wedged(root, bank, target="sums"):
    """Make a target refuse a committed checkpoint. Return the checkpoint before it, and the tick's message."""
    tick(root, checkpoints=1, planned=both(retained=1))
    first, done = newest(root).checkpoint, []

    def late(name):
        if name == "before:AppendRow" and not done:
            done.append(bank.sql(f"ALTER TABLE {target} ADD CONSTRAINT never CHECK (false) NOT VALID"))

    failed = tick(root, late, planned=both(retained=1)).message
    assert newest(root).checkpoint > first
    return first, failed


def test_a_checkpoint_that_no_sink_takes_can_be_left_behind(root, bank):
    """Even with `retained=1` there is an entry to roll back to. The way out in the tick's first message works."""
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
    assert_exact(root, bank, BRONZE)


MENDS = {
    "numbers": ["ALTER TABLE numbers DROP CONSTRAINT never"],
    "sums": [
        "ALTER TABLE sums DROP CONSTRAINT never",
        "ALTER TABLE sums DROP CONSTRAINT never, ALTER total TYPE numeric, ADD COLUMN seen timestamptz DEFAULT now()",
        "ALTER TABLE sums DROP CONSTRAINT never; DELETE FROM sums",
        "DROP TABLE sums",
    ],
}


@pytest.mark.parametrize(("target", "mend"), [(target, mend) for target, mends in MENDS.items() for mend in mends])
def test_a_target_that_is_mended_by_hand_leads_on(root, bank, target, mend):
    """Even with `retained=1`, the next tick publishes the committed checkpoint and all later ones."""
    _, failed = wedged(root, bank, target)
    assert "violates check constraint" in failed
    bank.sql(mend)
    assert not tick(root, planned=both(retained=1)).message
    assert_exact(root, bank)


def test_a_pipeline_without_the_sink_leads_on(root, bank):
    """The tick publishes the checkpoint without the sink, and the other sink goes on."""
    wedged(root, bank)
    before = bank.sql("SELECT * FROM sums")
    assert not tick(root, planned=plan(pipeline_of(upserts=False))).message
    assert before == bank.sql("SELECT * FROM sums")
    assert_exact(root, bank, BRONZE)


# ------------------------------------------------------------------ several ticks


def test_a_zombie_neither_commits_nor_keeps_what_it_prepared(root, bank):
    """The zombie sleeps before it appends its entry, while another tick goes on.

    The zombie's transaction is rolled back, and that of its successor is not.
    """
    asleep, awake, said = threading.Event(), threading.Event(), []

    def sleep(name):
        if name == "before:AppendRow" and not asleep.is_set():
            asleep.set()
            assert awake.wait(60)

    planned = both(two_phase=True)
    zombie = threading.Thread(target=lambda: said.append(tick(root, sleep, planned=planned).message))
    zombie.start()
    assert asleep.wait(60)
    tick(root, planned=planned)
    assert_exact(root, bank)
    awake.set()
    zombie.join()
    assert "claimed by" in said[0], said
    assert_exact(root, bank)


def test_a_zombie_that_prepares_late_does_not_stop_its_successor(root, bank):
    """The zombie prepares after its successor has recovered. The successor's next checkpoint rolls this back."""
    planned = both(two_phase=True)
    tick(root, checkpoints=1, planned=planned)
    late = []

    def prepare(name):
        if name == "after:DiscardLeftovers":
            late.append(newest(root).checkpoint + 1)
            sink = PostgresSink(f"env:{URL}", "numbers", two_phase=True)
            sink.pre_commit(SinkTransaction("numbers", BRONZE, 1, late[0]), [])

    tick(root, prepare, planned=planned)
    assert 1 == len(late)
    assert_exact(root, bank)


@BOTH_KINDS
def test_a_rollback_takes_an_upsert_target_back(root, bank, two_phase):
    """Later keys are gone. The rollback works although a dead tick has left a transaction that locks the target."""
    how = {"retained": 9, "appends": False, "two_phase": two_phase}
    planned = both(**how)
    tick(root, checkpoints=1, planned=planned)
    first, expected = newest(root).checkpoint, shown(root, bank, GOLD)
    tick(root, checkpoints=1, planned=planned)
    bank.sql("INSERT INTO sums VALUES (99, 1, 1)")  # stands for a key that came later
    killed_at("before:AppendRow", root, **how)
    assert two_phase == bool(prepared(bank))
    roll_back(at(root), first, sinks=planned.sinks)
    assert (expected, []) == (shown(root, bank, GOLD), prepared(bank))
    tick(root, planned=planned)
    assert_exact(root, bank, GOLD)


def test_a_rollback_behind_published_rows_is_refused(root, bank):
    """The message names the flag that leaves the rows in the target. With this flag the target gets the rows again."""
    planned = both(retained=9, upserts=False)
    tick(root, checkpoints=1, planned=planned)
    first, left = newest(root).checkpoint, len(shown(root, bank, BRONZE)[0][BRONZE])
    tick(root, planned=planned)
    rows = len(shown(root, bank, BRONZE)[0][BRONZE])
    with pytest.raises(RollbackRefusedError, match=f"the sink of table {BRONZE} has rows of later checkpoints"):
        roll_back(at(root), first, sinks=planned.sinks)
    roll_back(at(root), first, sinks=planned.sinks, leave_outside=True)
    tick(root, planned=planned)
    assert [(rows + rows - left,)] == bank.sql("SELECT count(*) FROM numbers")


@pytest.mark.parametrize("approves", [True, False])
def test_a_held_cut_is_voted_on_and_keeps_no_transaction(root, bank, approves):
    """A person may take days to decide, so no transaction stays open. The approval writes the rows."""
    planned = both(two_phase=True)
    bank.sql("CREATE TABLE numbers (split text, n bigint, key bigint, value bigint, _split text, _position bigint)")
    bank.sql("ALTER TABLE numbers ADD CONSTRAINT small CHECK (n < 0)")
    assert "refuses checkpoint" in tick(root, planned=planned, hold=True).message
    bank.sql("ALTER TABLE numbers DROP CONSTRAINT small")
    tick(root, planned=planned, hold=True)
    assert ([], [(0,)]) == (prepared(bank), bank.sql("SELECT count(*) FROM numbers"))
    if approves:
        approve(at(root), sinks=planned.sinks)
        assert_exact(root, bank)
    else:
        reject(at(root))
    tick(root, planned=planned)
    assert_exact(root, bank)


def test_the_doctor_shows_what_a_dead_tick_has_prepared(root, bank, capsys):
    """The finding names the sink and the repair. The repair removes the prepared transaction."""
    killed_at("before:AppendRow", root, two_phase=True)
    words = ["doctor", "tests.scenarios.postgres.sinks_job:two_phases", "--warehouse", str(root)]
    code = execute(words)
    told = " ".join(capsys.readouterr().out.split())
    assert ExitCode.FAILED == code, told
    assert f"checkpoint 1 of generation 1 is prepared in the sink of table {BRONZE}" in told, told
    assert "tidemark run" in told
    tick(root, planned=both(two_phase=True))
    execute(words)
    assert "is prepared in" not in capsys.readouterr().out


# ------------------------------------------------------------------ another warehouse


@pytest.fixture
def roots(root):
    for _ in range(2):
        tick(root, checkpoints=1)
    return root, root.with_name("two")


def wanted(roots, checkpoint, **how):
    origin = find_origin(f"{roots[0]}@{checkpoint}", roots[1], JOB)
    return Import(origin=origin, root=roots[1], plan=both(), **how)


def findings(root):
    warehouse = Warehouse(root, ProtocolPaths(JOB))
    rows = JobStores(warehouse, cross_freely).entries.rows()
    sections = sink_sections(warehouse, lambda: both().sinks, state_of(warehouse, rows), rows)
    return [each.what for section in sections for each in section.findings]


def test_the_newest_checkpoint_goes_on_where_the_sinks_are(roots, bank):
    """The doctor finds nothing before the import and after the next tick. In between it finds that the sinks wait."""
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
    tick(roots[1])
    assert_exact(roots[1], bank)
    assert [] == findings(roots[1])


def test_an_older_checkpoint_would_give_rows_twice(roots, bank):
    """Such an import is refused before anything is copied.

    The ways out in the message work: a new target, or a flag that allows the rows twice.
    """
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


def test_another_warehouse_is_noticed_by_its_numbers(root, bank):
    """A warehouse recognises its own targets, also after an import has moved them. Empty targets may be taken over."""
    mine, other = root, root.with_name("other")
    tick(other, checkpoints=1, planned=both(appends=False, upserts=False))
    tick(mine, checkpoints=1)
    before = shown(mine, bank)
    for foreign in (other, root.with_name("empty")):
        with pytest.raises(SinkRefusedError, match="has rows of another warehouse, up to checkpoint 1: name that"):
            tick(foreign)
    assert before == shown(mine, bank)
    tick(mine, checkpoints=1)
    moved = (mine, root.with_name("moved"))
    import_row(wanted(moved, newest(mine).checkpoint))
    tick(moved[1], checkpoints=1)
    with pytest.raises(SinkRefusedError, match="another warehouse"):
        tick(mine)
    bank.sql("TRUNCATE numbers, sums")
    tick(other)
    cut, there = shown(other, bank, GOLD)
    assert cut == there
