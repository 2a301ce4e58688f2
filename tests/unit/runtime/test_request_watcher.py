"""The watcher between a job's request folder and its driver: every request is asked once and answered once."""

import threading
import time
from contextlib import contextmanager

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import (
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    StopKind,
    StopRequested,
)
from checkpointing.metadata.paths import ProtocolPaths
from jobs.tick.request_watcher import RequestWatcher
from jobs.warehouse.lease import this_process
from jobs.warehouse.requests import AnswerStatus, RequestFolder
from jobs.warehouse.warehouse import Warehouse


class Facts:
    """What a driver's inbox got."""

    def __init__(self):
        self.got = []
        self._new = threading.Condition()

    def put(self, fact):
        with self._new:
            self.got.append(fact)
            self._new.notify_all()

    def wait_for(self, number):
        with self._new:
            assert self._new.wait_for(lambda: len(self.got) >= number, timeout=10), self.got
            return self.got[number - 1]


@pytest.fixture
def warehouse(tmp_path):
    """Return a warehouse with nothing in it."""
    return Warehouse(tmp_path, ProtocolPaths("numbers"))


@contextmanager
def watching(warehouse, facts):
    """Watch as a tick with one attempt does."""
    watcher = RequestWatcher(warehouse, facts.put)
    with watcher.attempt():
        yield watcher
    watcher.close()


def ask(warehouse, kind=SavepointKind.PLAIN):
    """Ask as another process would."""
    return RequestFolder(warehouse).ask(kind, this_process()).request


def answer_to(warehouse, request):
    """Wait for an answer."""
    limit = time.monotonic() + 10
    while (answer := RequestFolder(warehouse).answer_to(request)) is None:
        assert time.monotonic() < limit, "no answer came"
        time.sleep(0.01)
    return answer


def test_a_request_becomes_a_fact_and_the_effect_its_answer(warehouse):
    """Asked before or after the tick began, it is handed on once, and answered with the savepoint's id."""
    facts = Facts()
    early = ask(warehouse)
    with watching(warehouse, facts) as watcher:
        assert SavepointRequested(early, SavepointKind.PLAIN) == facts.wait_for(1)
        late = ask(warehouse, SavepointKind.SUSPEND)
        assert SavepointRequested(late, SavepointKind.SUSPEND) == facts.wait_for(2)
        watcher.answer(SavepointTaken(early, CheckpointId(5)))
        watcher.answer(SavepointFailed(late, CheckpointFailureReason.QUALITY, "a suite said no"))
        taken, failed = answer_to(warehouse, early), answer_to(warehouse, late)
    assert (AnswerStatus.TAKEN, 5) == (taken.status, taken.checkpoint)
    assert (AnswerStatus.FAILED, None, "a suite said no") == (failed.status, failed.checkpoint, failed.message)
    assert 2 == len(facts.got)


def test_what_the_tick_did_not_answer_is_told_that_it_ended(warehouse):
    """No process waits for a tick that has ended."""
    facts = Facts()
    with watching(warehouse, facts):
        request = ask(warehouse)
        facts.wait_for(1)
    answer = answer_to(warehouse, request)
    assert (AnswerStatus.ENDED, "the tick ended before there was a savepoint") == (answer.status, answer.message)


def test_a_cancellation_becomes_a_stop_and_is_answered_when_the_tick_is_over(warehouse):
    """Once; the answer is the end itself."""
    facts = Facts()
    with watching(warehouse, facts):
        request = RequestFolder(warehouse).ask_to_cancel(this_process()).request
        assert StopRequested(StopKind.NOW) == facts.wait_for(1)
        time.sleep(2 * warehouse.storage.look_ms / 1000)
        assert RequestFolder(warehouse).is_waiting(request)
        assert 1 == len(facts.got)
    ended = answer_to(warehouse, request)
    assert (AnswerStatus.ENDED, "the tick ended") == (ended.status, ended.message)


@pytest.mark.parametrize(
    "reason",
    [
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
    ],
)
def test_the_end_of_an_attempt_is_no_refusal(warehouse, reason):
    """A door that only ends says nothing against the savepoint: the asker hears of the end once the tick is over."""
    facts = Facts()
    with watching(warehouse, facts) as watcher:
        request = ask(warehouse)
        facts.wait_for(1)
        watcher.answer(SavepointFailed(request, reason, ""))
        assert RequestFolder(warehouse).is_waiting(request)
    assert AnswerStatus.ENDED is answer_to(warehouse, request).status


def test_a_request_that_an_attempt_left_is_asked_of_the_next(warehouse):
    """A job that restarts takes the savepoint that its failed attempt did not."""
    facts = Facts()
    watcher = RequestWatcher(warehouse, facts.put)
    request = ask(warehouse)
    with watcher.attempt():
        facts.wait_for(1)
    with watcher.attempt():
        assert SavepointRequested(request, SavepointKind.PLAIN) == facts.wait_for(2)
        watcher.answer(SavepointTaken(request, CheckpointId(9)))
    watcher.close()
    assert 9 == answer_to(warehouse, request).checkpoint


def test_a_malformed_request_is_answered_and_harms_nothing(warehouse):
    """It gets an answer that says what is wrong; a request beside it is handed on."""
    facts = Facts()
    with watching(warehouse, facts):
        request = ask(warehouse)
        (warehouse.path(warehouse.paths.requests) / "broken.json").write_text("{")
        answer = answer_to(warehouse, "broken")
        facts.wait_for(1)
    assert AnswerStatus.UNREADABLE is answer.status
    assert "EOF" in answer.message
    assert [request] == [fact.request for fact in facts.got]


def test_a_withdrawn_request_gets_no_answer(warehouse):
    """The savepoint may still be taken, but no file answers the request."""
    facts = Facts()
    with watching(warehouse, facts) as watcher:
        request = ask(warehouse)
        facts.wait_for(1)
        RequestFolder(warehouse).withdraw(request)
        watcher.answer(SavepointTaken(request, CheckpointId(5)))
    assert [] == list(warehouse.path(warehouse.paths.requests).iterdir())


def test_a_tick_that_never_began_answers_nobody(warehouse):
    """Requests to a job that another holds are the other's."""
    request = ask(warehouse)
    RequestWatcher(warehouse, Facts().put).close()
    assert RequestFolder(warehouse).is_waiting(request)
