"""Requests to a running tick: whole files, withdrawn, cleaned up, or no requests at all."""

import os

import pytest

from checkpointing.identifiers import CheckpointId
from checkpointing.messages import SavepointKind
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Holder
from jobs.warehouse.lease import is_alive, this_process
from jobs.warehouse.requests import AnswerStatus, RequestFolder, SavepointAnswer, SavepointRequest, Unreadable
from jobs.warehouse.warehouse import Warehouse


@pytest.fixture
def folder(tmp_path):
    """Return the requests of a job. Its clock stands still."""
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
    """The tick reads the request as it was written. The answer replaces it."""
    asked = folder.ask(SavepointKind.DRAIN, this_process())
    assert (asked,) == folder.waiting()
    assert SavepointKind.DRAIN is folder.waiting()[0].kind
    assert folder.answer(answer(asked.request))
    assert () == folder.waiting()
    assert 7 == folder.answer_to(asked.request).checkpoint
    assert [f"{asked.request}.answer.json"] == names(tmp_path)


def test_a_request_to_cancel_has_a_format_of_its_own(folder):
    """Requests for savepoints, with their old format, are still read."""
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
    """Nonsense, half a file and a newer format are reported as unreadable, with the problem."""
    folder.ask(SavepointKind.PLAIN, this_process())
    (tmp_path / "_tidemark/numbers/requests/nonsense.json").write_text(content)
    found = [each for each in folder.waiting() if isinstance(each, Unreadable)]
    assert ["nonsense"] == [each.request for each in found]
    assert said in found[0].error
    assert 1 == sum(isinstance(each, SavepointRequest) for each in folder.waiting())


def test_a_request_under_another_name_is_unreadable(folder, tmp_path):
    """A copied request does not count as the original."""
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

    Those of a dead one are deleted, and so is an answer without a reader, an hour old.
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
