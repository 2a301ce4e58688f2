"""Ticks with PostgreSQL sinks of both kinds, and a server in trouble. Each time the targets are exact in the end."""

import subprocess
import threading
import time
from contextlib import suppress

import psycopg
import pytest

from jobs.disk_errors import DISK_FULL, SERVER_DISK_FULL
from jobs.tick.at_rest.roll_back import roll_back
from tests.postgres_server import PostgresServer
from tests.scenarios.postgres.both_sinks import URL, both, killed, shown, tick
from tests.scenarios.postgres.reading import Bank
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, at, newest
from tests.scenarios.runtime.sequence_job import tick as limited

CANARY = "s3cret-canary"
ROOM_KIB = 640
"""As large a disk as lets the server make the tables, and take some rows."""

pytestmark = pytest.mark.dear


@pytest.fixture
def root(bank, tmp_path, monkeypatch):
    monkeypatch.setenv(URL, bank.server.url(bank.name, f"postgres:{CANARY}"))
    return tmp_path / "warehouse"


def assert_exact(root, bank, *tables):
    cut, there = shown(root, bank, *tables)
    assert cut == there


WHERE = [
    (f"{side}:{step}", occurrence)
    for side in ("before", "after")
    for step in ("AppendRow", f"PublishOutside:{BRONZE}", f"PublishOutside:{GOLD}", "RecordCut")
    for occurrence in (1, 2)
]
RECOVERING = (f"after:RollForwardOutside:{BRONZE}", f"after:RollForwardOutside:{GOLD}")


@pytest.mark.kill
@pytest.mark.parametrize(("boundary", "occurrence"), WHERE)
def test_a_tick_killed_at_any_boundary_is_made_up_for(root, bank, boundary, occurrence):
    """SIGKILL. The next ticks die too while they roll forward, if they have to, at each boundary of the sinks."""
    assert killed(root, boundary, occurrence)
    for step in RECOVERING:
        with suppress(Dead):
            tick(root, Mortal(step))
    tick(root)
    assert_exact(root, bank)


@pytest.mark.timeout(120)
def test_a_rollback_takes_an_upsert_target_back(root, bank):
    """Keys that came later are gone. The next tick goes on from there."""
    planned = both(retained=9, appends=False)
    limited(root, 1, plan=planned)
    first, expected = newest(root).checkpoint, shown(root, bank, GOLD)
    tick(root, planned=planned)
    bank.sql("INSERT INTO sums VALUES (99, 1, 1)")  # stands for a key that came later
    roll_back(at(root), first, sinks=planned.sinks)
    assert expected == shown(root, bank, GOLD)
    tick(root, planned=planned)
    assert_exact(root, bank, GOLD)


def test_a_revoked_right_stops_the_job_until_it_is_there_again(root, bank, monkeypatch):
    """The message names the table. Nothing is missing afterwards. If rights are missing at once, no tick begins."""
    bank.sql("CREATE ROLE writer LOGIN; GRANT CREATE ON SCHEMA public TO writer")
    monkeypatch.setenv(URL, bank.server.url(bank.name, "writer"))
    limited(root, 1, plan=both())
    for table, right in (("numbers", "INSERT"), ("sums", "DELETE, UPDATE")):
        bank.sql(f"REVOKE {right} ON {table} FROM writer")
        failed = tick(root).message
        assert f"permission denied for table {table}" in failed, failed
        bank.sql(f"GRANT {right} ON {table} TO writer")
    tick(root)
    assert_exact(root, bank)
    bank.sql("DROP OWNED BY writer; DROP ROLE writer")


@pytest.fixture
def own_bank(tmp_path, monkeypatch):
    server = PostgresServer()
    made = Bank(server, "postgres", tmp_path / "staged")
    monkeypatch.setenv(URL, server.url())
    yield made
    made.close()
    server.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("when", [f"before:PublishOutside:{GOLD}", f"after:PublishOutside:{BRONZE}"])
def test_a_server_killed_between_two_publications_is_waited_for(own_bank, tmp_path, when):
    """SIGKILL of the server. The sink waits until it is there again, and the tick goes on."""
    died = []

    def strike(name):
        if name == when and not died:
            died.append(name)
            own_bank.server.kill()
            threading.Thread(target=_later, args=(own_bank.server,)).start()

    report = tick(tmp_path / "warehouse", strike)
    own_bank.reconnect()
    assert ([when], "") == (died, report.message if report.outcome.value == "failed" else "")
    assert_exact(tmp_path / "warehouse", own_bank)


def _later(server):
    time.sleep(1)
    server.start()


@pytest.mark.timeout(180)
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
        limited(root, 1, plan=both())
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
