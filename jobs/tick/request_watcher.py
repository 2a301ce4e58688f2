"""Watches a job's requests while its tick runs: passes them to the driver as facts, and writes the answers.

Requests are advisory, like the lease, so an error here fails no tick. After the release, the tick answers each open
request with the message that it has ended, so that the asking process need not wait.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, assert_never

import structlog

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Fact, SavepointFailed, SavepointRequested, SavepointTaken, StopKind, StopRequested
from jobs.warehouse.lease import is_alive
from jobs.warehouse.requests import (
    AnswerStatus,
    CancelRequest,
    Request,
    RequestFolder,
    SavepointAnswer,
    SavepointRequest,
    Unreadable,
)
from jobs.warehouse.warehouse import Warehouse

_log = structlog.get_logger(__name__)

_ENDS: Final = frozenset(
    {
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
    }
)
"""If a savepoint failed for one of these reasons, it failed only because the attempt ended."""


class RequestWatcher:
    """Looks for requests from a tick's first attempt until `close`. A thread of its own calls `put` with facts."""

    def __init__(self, warehouse: Warehouse, put: Callable[[Fact], None]) -> None:
        """Prepare without reading."""
        self._folder = RequestFolder(warehouse)
        self._warehouse = warehouse
        self._put = put
        self._handed: dict[str, Request] = {}
        self._answers: dict[str, SavepointAnswer] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Pass the requests to the attempt within this block.

        The next attempt gets the requests that this one does not answer.

        Each attempt first deletes the requests of dead processes, so that they do not pile up in a tick that never
        ends.
        """
        self._guarded(lambda: self._folder.clean(is_alive))
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="request-watcher", daemon=True)
            self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._handed.clear()
            self._guarded(self._forget_answered)

    def _forget_answered(self) -> None:
        """Keep an answer only while its request exists. It still exists if the answer could not be written."""
        self._answers = {name: answer for name, answer in self._answers.items() if self._folder.is_waiting(name)}

    def close(self) -> None:
        """Stop looking, and answer all open requests with the message that the tick has ended."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._guarded(self._tell_the_end)

    def answer(self, effect: SavepointTaken | SavepointFailed) -> None:
        """Write the door's answer, unless the request was withdrawn.

        If a savepoint failed only because its attempt ended, the next attempt or the end of the tick answers.
        """
        if isinstance(effect, SavepointFailed) and effect.reason in _ENDS:
            return
        with self._lock:
            request = self._handed.get(effect.request)
        match effect:
            case SavepointTaken():
                answer = self._says(effect.request, AnswerStatus.TAKEN, request, checkpoint=effect.checkpoint)
            case SavepointFailed():
                message = effect.message or effect.reason.message
                answer = self._says(effect.request, AnswerStatus.FAILED, request, message=message)
            case _ as unreachable:
                assert_never(unreachable)
        self._answers[effect.request] = answer
        self._guarded(lambda: self._folder.answer(answer))

    def _watch(self) -> None:
        self._guarded(self._look)
        while not self._ended.wait(self._warehouse.storage.look_ms / 1000):
            self._guarded(self._look)

    def _look(self) -> None:
        for request in self._folder.waiting():
            if isinstance(request, Unreadable):
                self._folder.answer(self._refusal(request))
            elif self._is_new(request):
                self._put(_fact(request))

    def _is_new(self, request: Request) -> bool:
        with self._lock:
            new = request.request not in self._handed and request.request not in self._answers
            self._handed[request.request] = request
            return new

    def _refusal(self, unreadable: Unreadable) -> SavepointAnswer:
        message = f"the request cannot be read ({unreadable.error}); ask with 'tidemark savepoint' or 'tidemark stop'"
        return self._says(unreadable.request, AnswerStatus.UNREADABLE, None, message=message)

    def _tell_the_end(self) -> None:
        for request in self._folder.waiting():
            if isinstance(request, Unreadable):
                self._folder.answer(self._refusal(request))
                continue
            cancelled = isinstance(request, CancelRequest)
            message = "the tick ended" if cancelled else "the tick ended before there was a savepoint"
            ended = self._says(request.request, AnswerStatus.ENDED, request, message=message)
            self._folder.answer(self._answers.get(request.request, ended))

    def _says(
        self,
        name: str,
        status: AnswerStatus,
        request: Request | None,
        *,
        checkpoint: CheckpointId | None = None,
        message: str = "",
    ) -> SavepointAnswer:
        return SavepointAnswer(
            request=name,
            status=status,
            checkpoint=checkpoint,
            message=message,
            asker=request.asker if request is not None else None,
            answered_at_ms=self._warehouse.now_ms(),
        )

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - logged; requests are advisory
            _log.warning("requests not attended to", error=f"{type(error).__name__}: {error}")


def _fact(request: Request) -> Fact:
    match request:
        case SavepointRequest():
            return SavepointRequested(request.request, request.kind)
        case CancelRequest():
            return StopRequested(StopKind.NOW)
        case _ as unreachable:
            assert_never(unreachable)
