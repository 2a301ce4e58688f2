"""A cut that a reader reserved stays readable, whatever ticks and clean-ups do, until the reader is gone."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.reading import CutGoneError, Cuts, NotReservedError
from jobs.reading.cuts import Found, reserved
from jobs.tick.cleaning import clean_up, decide_cleanup
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cleanup import delete_unneeded, gather
from jobs.warehouse.cuts_table import InvalidReservationError, ReservationStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import NeverRunError
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, at, build, run

PLAN = build({"a": 450, "b": 450})
HOUR_MS = 3_600_000
READER = """
import sys, time
from jobs.reading import Cuts
with Cuts(sys.argv[1], "numbers").reserved(sys.argv[2], lease_ms=int(sys.argv[3])) as cut:
    print(cut.checkpoint, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Make a warehouse at checkpoint 3, with more rows to come."""
    root = tmp_path_factory.mktemp("history")
    run(root, 3, plan=PLAN)
    return root


@pytest.fixture
def root(history, tmp_path):
    return shutil.copytree(history, tmp_path / "warehouse")


def advanced(root, now_ms=None):
    """Complete three more checkpoints, of which two are retained. Clean up without grace, and return the report."""
    run(root, 3, plan=PLAN)
    warehouse = at(root) if now_ms is None else Warehouse(root, ProtocolPaths(JOB), now_ms=lambda: now_ms)
    return clean_up(warehouse, 0)


def contents(cut):
    return {table: sorted(cut.polars(table).collect().rows()) for table in (str(BRONZE), str(GOLD))}


def started(root, name, lease_ms=HOUR_MS):
    words = [sys.executable, "-c", READER, str(root), name, str(lease_ms)]
    program = subprocess.Popen(words, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True)
    return program, int(program.stdout.readline())


def killed(program):
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()


def test_a_reserved_cut_stays_readable_through_ticks_and_clean_ups(root):
    """The cut was subsumed and everything else was cleaned up. The cut still reads as before.

    Without its reader, the next clean-up deletes it.
    """
    cuts = Cuts(root, JOB)
    with cuts.reserved() as cut:
        before = contents(cut)
        advanced(root)
        assert cut.checkpoint not in [each.checkpoint for each in cuts.all()]
        assert before == contents(cut)
    assert clean_up(at(root), 0).deleted.files
    with pytest.raises(CutGoneError, match="no longer retained"):
        contents(cut)


def state_of(cut):
    return sorted(cut.state("by_key").polars().collect().rows())


def forget_past_entries(root):
    folder = root / "_tidemark" / JOB / "checkpoints"
    active = {Path(file).name for file in DeltaTable(str(folder)).file_uris()}
    for file in (folder / "_rows").iterdir():
        if file.name not in active:
            file.unlink()


def test_state_at_a_reserved_cut_stays_readable_for_every_reader(root, capsys):
    """The cut's entry was subsumed. Readers that join the reservation, or name the cut, can still read."""
    program, chosen = started(root, "run-1")
    try:
        before = state_of(Cuts(root, JOB).at(chosen))
        assert 7 == len(before)
        for _ in range(2):
            advanced(root)
        forget_past_entries(root)
        with Cuts(root, JOB).reserved("run-1") as cut:
            assert (chosen, before) == (cut.checkpoint, state_of(cut))
        by_number = Cuts(root, JOB).at(chosen)
        assert before == state_of(by_number)
        words = ["state", JOB, "by_key", "--at", str(chosen), "--warehouse", str(root)]
        assert ExitCode.DONE == execute(words), capsys.readouterr().err
        assert f"at cut {chosen} of {JOB}" in capsys.readouterr().out
    finally:
        killed(program)
    later = Warehouse(root, ProtocolPaths(JOB), now_ms=lambda: int(time.time() * 1000) + HOUR_MS + 1)
    assert clean_up(later, 0).deleted.files
    with pytest.raises(CutGoneError):
        state_of(by_number)


def test_readers_of_one_name_read_one_cut(root):
    """A second process comes when newer cuts are there already. It reads the cut that the first process has chosen."""
    program, chosen = started(root, "run-1")
    try:
        advanced(root)
        with Cuts(root, JOB).reserved("run-1") as cut:
            assert chosen == cut.checkpoint
            assert 300 == len(contents(cut)[str(BRONZE)])
        with Cuts(root, JOB).reserved("run-2") as cut:
            assert chosen < cut.checkpoint
    finally:
        killed(program)
    with Cuts(root, JOB).reserved("run-1") as cut:  # a reservation outlives its readers until it lapses
        assert 300 == len(contents(cut)[str(BRONZE)])


def test_a_reader_that_was_killed_keeps_nothing_for_ever(root):
    """An hour after the reader's last renewal, the cut may be deleted. A later reader of that name gets the reason."""
    program, chosen = started(root, "run-1")
    killed(program)
    cut = Cuts(root, JOB).at(chosen)
    before = contents(cut)
    advanced(root)
    assert before == contents(cut)
    later = Warehouse(root, ProtocolPaths(JOB), now_ms=lambda: int(time.time() * 1000) + HOUR_MS + 1)
    assert clean_up(later, 0).deleted.files
    with pytest.raises(CutGoneError):
        contents(cut)
    found = Found(lambda: pytest.fail("it reads no other cut unawares"), Cuts(root, JOB).still)
    with pytest.raises(CutGoneError, match=f"cut {chosen} of {JOB} was reserved until .*begin again"):
        reserved(later, found, "run-1", HOUR_MS).__enter__()


def test_a_reader_that_lives_renews_its_reservation(root):
    """A reader that works for longer than its lease keeps the cut, because it renews the reservation."""
    with Cuts(root, JOB).reserved(lease_ms=300) as cut:
        before = contents(cut)
        time.sleep(1)
        advanced(root)
        assert before == contents(cut)


def test_a_reservation_that_cannot_be_written_is_refused_with_the_way_out(root):
    """If a reader may not write into the warehouse, the error says how to read without a reservation."""
    (root / "_tidemark" / JOB / "reservations").write_text("a file in the folder's place")
    with pytest.raises(NotReservedError, match=r"cannot be written .*latest\(\)"), Cuts(root, JOB).reserved():
        pass
    assert 300 == len(contents(Cuts(root, JOB).latest())[str(BRONZE)])


@pytest.mark.parametrize("name", ["../lease", "a/b", "", "a" * 65])
def test_a_name_that_may_not_be_a_files_is_refused(root, name):
    """Nothing outside the folder of reservations is read or written."""
    with pytest.raises(InvalidReservationError):
        ReservationStore(at(root)).read(name)


def test_a_damaged_reservation_reserves_nothing_and_stops_nothing(root):
    """Clean-ups ignore a reservation file that cannot be read."""
    folder = root / "_tidemark" / JOB / "reservations"
    folder.mkdir()
    (folder / "run-1.json").write_text('{"format": 1, "checkpoint": "x"')
    assert advanced(root).deleted.files


@pytest.mark.timeout(60)
def test_what_is_no_file_reserves_nothing_and_nobody_waits_for_it(root):
    """If a named pipe lay in place of a reservation or its entry, opening it would block for ever."""
    with Cuts(root, JOB).reserved("run-1") as cut:
        before = contents(cut)
        folder = root / "_tidemark" / JOB / "reservations"
        os.mkfifo(folder / "pipe.json")
        (folder / "run-1.entry").unlink()
        os.mkfifo(folder / "run-1.entry")
        assert advanced(root).deleted.files
        assert before == contents(cut)


def test_a_job_that_never_ran_gets_no_folder(tmp_path):
    """A reservation in an empty warehouse fails because the job never ran, and creates nothing."""
    with pytest.raises(NeverRunError), Cuts(tmp_path, JOB).reserved():
        pass
    assert [] == list(tmp_path.iterdir())


ORDERS = [(write, look, drop) for write in range(4) for look in range(write, 4) for drop in range(4)]


@pytest.mark.matrix
@pytest.mark.parametrize(("write", "look", "drop"), ORDERS)
def test_no_order_of_reader_tick_and_clean_up_loses_a_cut_that_was_reserved(root, monkeypatch, write, look, drop):
    """A reader writes its reservation and checks that the cut is there, while a tick drops the cut.

    In any order of these steps and a clean-up, a cut that the check has found stays whole.
    """
    run(root, 1, plan=PLAN)
    cuts, store = Cuts(root, JOB), ReservationStore(at(root))
    wanted = cuts.at(3)
    before = contents(wanted)
    seen = []
    steps = (
        (write, lambda: store.reserve("reader", wanted._recorded, HOUR_MS, kept=False)),
        (look, lambda: seen.append(cuts.still(CheckpointId(3)))),
        (drop, lambda: run(root, 1, plan=PLAN)),
    )

    def at_point(point):
        for when, step in steps:
            if when == point:
                step()

    def cleaners_clock():
        return int(time.time() * 1000)

    read = ReservationStore.reservations

    def watched(self):
        if self._warehouse.now_ms is not cleaners_clock:
            return read(self)
        at_point(1)
        found = read(self)
        at_point(2)
        return found

    monkeypatch.setattr(ReservationStore, "reservations", watched)
    cleaner = JobStores(Warehouse(root, ProtocolPaths(JOB), now_ms=cleaners_clock), cross_freely)
    at_point(0)
    found = gather(cleaner.held, Generation(99), 0, others_hold=True)
    delete_unneeded(cleaner.warehouse, decide_cleanup(found.facts).delete)
    at_point(3)
    if seen == [None]:
        assert before == contents(wanted)
