"""Tests leases, holders and requests in the warehouse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpointing.commit.fencing import Lease
from checkpointing.identifiers import CheckpointId, Generation, job_name
from checkpointing.messages import SavepointKind
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Holder
from jobs.warehouse import lease
from jobs.warehouse.lease import LeaseStore, is_alive, this_process
from jobs.warehouse.requests import AnswerStatus, RequestFolder, SavepointAnswer, SavepointRequest, Unreadable
from jobs.warehouse.warehouse import Warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path, ProtocolPaths(job_name("flights")), now_ms=lambda: 1_000)


def test_a_lease_is_read_back_as_it_was_renewed(warehouse: Warehouse) -> None:
    """A lease has the generation, the holder and the time of its end."""
    leases = LeaseStore(warehouse)
    assert leases.read() is None
    assert leases.renew(Generation(2), this_process("run-1"), lease_ms=500)
    found = leases.read()
    assert found is not None
    assert (this_process("run-1"), Lease(Generation(2), 1_500)) == (found.holder, found.lease())


def test_an_older_generation_does_not_overwrite_a_newer_lease(warehouse: Warehouse) -> None:
    """A holder that was suspended learns that it has lost the job, and cannot delete the new holder's lease."""
    leases = LeaseStore(warehouse)
    leases.renew(Generation(3), this_process(), lease_ms=500)
    assert not leases.renew(Generation(2), this_process(), lease_ms=900)
    leases.release(Generation(2))
    found = leases.read()
    assert found is not None
    assert Lease(Generation(3), 1_500) == found.lease()


def test_a_released_lease_is_gone_and_releasing_twice_is_nothing(warehouse: Warehouse) -> None:
    """A normal end leaves no lease."""
    leases = LeaseStore(warehouse)
    leases.renew(Generation(1), this_process(), lease_ms=500)
    leases.release(Generation(1))
    leases.release(Generation(1))
    assert leases.read() is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 2}', b"\xff"])
def test_a_damaged_lease_counts_as_no_lease(warehouse: Warehouse, content: bytes) -> None:
    """Safety does not depend on the lease."""
    path = warehouse.path(warehouse.paths.lease)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert LeaseStore(warehouse).read() is None
    assert LeaseStore(warehouse).renew(Generation(1), this_process(), lease_ms=1)


def test_renewing_leaves_no_other_file(warehouse: Warehouse) -> None:
    for _ in range(3):
        LeaseStore(warehouse).renew(Generation(1), this_process(), lease_ms=1)
    assert ["lease"] == [path.name for path in warehouse.path(warehouse.paths.folder).iterdir()]


def test_this_process_is_alive() -> None:
    """A process that asks about itself gets True."""
    assert is_alive(this_process()) is True


def test_a_killed_process_is_dead_even_before_it_is_reaped() -> None:
    """A process that has ended but was not reaped counts as dead."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    me = this_process()
    started = lease._start_time(child.pid)
    assert started is not None
    holder = me.model_copy(update={"pid": child.pid, "started": _with_start(me, started)})
    assert is_alive(holder) is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_alive(holder) is False
    child.wait()
    assert is_alive(holder) is False


def _with_start(holder: Holder, ticks: str) -> str:
    boot, namespace, _ = holder.started.split("|")
    return f"{boot}|{namespace}|{ticks}"


def test_a_reused_process_id_is_another_process() -> None:
    me = this_process()
    assert is_alive(me.model_copy(update={"started": _with_start(me, "1")})) is False


def test_a_reboot_ended_every_holder_of_this_host() -> None:
    """The same host has rebooted, so every earlier process has ended."""
    me = this_process()
    assert is_alive(me.model_copy(update={"started": "other-boot" + me.started[me.started.index("|") :]})) is False


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"started": "?"}])
def test_a_process_on_another_host_or_in_another_container_is_unknown(change: dict[str, str]) -> None:
    """Whether such a process lives is unknown.

    If it counted as dead, another tick could take over from a living one.
    """
    me = this_process()
    if "started" in change:
        boot, _, ticks = me.started.split("|")
        change = {"started": f"{boot}|pid:[1]|{ticks}"}
    assert is_alive(me.model_copy(update=change)) is None


def test_a_dagster_run_that_ended_counts_for_a_holder_elsewhere() -> None:
    """Dagster is asked only about a holder on another host."""
    away = this_process("run-1").model_copy(update={"host": "elsewhere"})
    assert is_alive(away, lambda _: True) is False
    assert is_alive(away, lambda _: None) is None
    assert is_alive(this_process("run-1"), lambda _: True) is True


# ------------------------------------------------------------------
# Requests to a running tick: valid requests, withdrawn ones, clean-up, and files that are no requests.


@pytest.fixture
def folder(tmp_path):
    """Return the request folder of a job, with a clock that stands still."""
    return RequestFolder(Warehouse(tmp_path, ProtocolPaths("numbers"), now_ms=lambda: 1_000))


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "_tidemark/numbers/requests").iterdir())


def answer(request, *, asker=None):
    return SavepointAnswer(
        request=request, status=AnswerStatus.TAKEN, checkpoint=CheckpointId(7), asker=asker, answered_at_ms=1
    )


def dead():
    return Holder(host=this_process().host, pid=os.getpid(), started="another boot||1")


def test_a_request_is_read_back_until_it_is_answered(folder, tmp_path):
    """The tick reads the request as it was written. The answer replaces the request."""
    asked = folder.ask(SavepointKind.DRAIN, this_process())
    assert (asked,) == folder.waiting()
    assert SavepointKind.DRAIN is folder.waiting()[0].kind
    assert folder.answer(answer(asked.request))
    assert () == folder.waiting()
    assert 7 == folder.answer_to(asked.request).checkpoint
    assert [f"{asked.request}.answer.json"] == names(tmp_path)


def test_a_request_to_cancel_has_a_format_of_its_own(folder):
    """Requests for savepoints, with their older format, can still be read."""
    cancel = folder.ask_to_cancel(this_process())
    asked = folder.ask(SavepointKind.SUSPEND, this_process())
    assert (1, 2) == (asked.format, cancel.format)
    assert {cancel, asked} == set(folder.waiting())
    assert folder.answer(answer(cancel.request))
    assert (asked,) == folder.waiting()


def test_a_withdrawn_request_is_not_answered(folder, tmp_path):
    """After a command has withdrawn its request, no tick finds it, and a late answer leaves no file."""
    asked = folder.ask(SavepointKind.PLAIN, this_process())
    folder.withdraw(asked.request)
    assert () == folder.waiting()
    assert not folder.answer(answer(asked.request))
    assert [] == names(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "Input should be an object"),
        ('{"format": 3}', "format: Input should be 1 or 2"),
        ('{"format": 2, "request": "nonsense", "kind": "drain"}', "kind: Input should be 'cancel'"),
        ("\x00" * 100_000, "expected value"),
    ],
)
def test_a_file_that_is_no_request_is_reported(folder, tmp_path, content, said):
    """Nonsense, an incomplete file and a newer format are reported as unreadable, with the problem."""
    folder.ask(SavepointKind.PLAIN, this_process())
    (tmp_path / "_tidemark/numbers/requests/nonsense.json").write_text(content)
    found = [each for each in folder.waiting() if isinstance(each, Unreadable)]
    assert ["nonsense"] == [each.request for each in found]
    assert said in found[0].error
    assert 1 == sum(isinstance(each, SavepointRequest) for each in folder.waiting())


def test_a_request_under_another_name_is_unreadable(folder, tmp_path):
    """A request must have its own name, so a copied request does not count."""
    asked = folder.ask(SavepointKind.PLAIN, this_process())
    requests = tmp_path / "_tidemark/numbers/requests"
    (requests / f"{asked.request}.json").rename(requests / "another.json")
    assert f"request {asked.request!r}" in folder.waiting()[0].error


def test_files_with_other_names_are_ignored(folder, tmp_path):
    """Temporary files, folders and answers are no requests."""
    folder.ask(SavepointKind.PLAIN, this_process())
    for name in (".x.json.1.tmp", "notes.txt", "a b.json", "x.answer.json"):
        (tmp_path / "_tidemark/numbers/requests" / name).write_text("")
    assert 1 == len(folder.waiting())


def test_only_files_of_dead_processes_are_cleaned_up(folder, tmp_path):
    """The files of a living process stay.

    Files of a dead process are deleted, and so is an answer without a reader after an hour.
    """
    mine, gone = folder.ask(SavepointKind.PLAIN, this_process()), folder.ask(SavepointKind.PLAIN, dead())
    answered = [folder.ask(SavepointKind.PLAIN, asker) for asker in (this_process(), dead())]
    for each in answered:
        folder.answer(answer(each.request, asker=each.asker))
    old = tmp_path / "_tidemark/numbers/requests/old.answer.json"
    old.write_text("")
    os.utime(old, (-4_000, -4_000))
    folder.clean(is_alive)
    assert sorted([f"{mine.request}.json", f"{answered[0].request}.answer.json"]) == names(tmp_path)
    assert not (tmp_path / "_tidemark/numbers/requests" / f"{gone.request}.json").exists()
