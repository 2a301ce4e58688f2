"""Keeps the requests to a running tick, and the answers: small JSON files in the job's folder, each written whole.

`<uuid>.json` is a request and `<uuid>.answer.json` its answer. A command withdraws its request by deleting the file. A
tick that answers deletes the request. So a request whose file still exists has no answer yet.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, assert_never
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.identifiers import CheckpointId
from checkpointing.messages import SavepointKind
from checkpointing.metadata.record import Holder
from jobs.storage.json_files import DOCUMENT_BYTES_MAX, document, read_document
from jobs.storage.place import StoragePlace, drop_unfinished
from jobs.storage.port import NotARegularFileError
from jobs.warehouse.warehouse import Warehouse

STALE_MS: Final = 3_600_000
"""How long a file is kept if it is not known whether the asking process is alive."""

_REQUEST = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,64})\.json")
_ANSWER = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,64})\.answer\.json")


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SavepointRequest(_Persisted):
    """The content of a request file. `asked_at_ms` is in ms since the epoch, by the clock of the asking process."""

    format: Literal[1] = 1
    request: str
    kind: SavepointKind
    asker: Holder
    asked_at_ms: int


class CancelRequest(_Persisted):
    """A request to end the tick now (G3). A tick that knows only format 1 answers that the request is unreadable."""

    format: Literal[2] = 2
    request: str
    kind: Literal["cancel"] = "cancel"
    asker: Holder
    asked_at_ms: int


Request = SavepointRequest | CancelRequest


class _Versioned(BaseModel):
    """The field of a request file that determines the format of the other fields."""

    format: Literal[1, 2] = 1


class AnswerStatus(Enum):
    """The outcome of a request."""

    TAKEN = "taken"
    FAILED = "failed"
    ENDED = "ended"
    """The tick ended without acting on the request. The command may ask the next tick, or act at rest."""
    UNREADABLE = "unreadable"


class SavepointAnswer(_Persisted):
    """The content of an answer file: the savepoint's id, or the reason why there is none."""

    format: Literal[1] = 1
    request: str
    status: AnswerStatus
    checkpoint: CheckpointId | None = None
    message: str = ""
    asker: Holder | None = None
    answered_at_ms: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file with the name of a request that cannot be read as one: the request's name and the problem."""

    request: str
    error: str


class RequestFolder:
    """The requests of one job. Several processes use the folder at the same time. No data depends on it."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Store the folder's place. The first request creates the folder."""
        self._warehouse = warehouse
        self._folder = warehouse.place(warehouse.paths.requests)

    def ask(self, kind: SavepointKind, asker: Holder) -> SavepointRequest:
        """Write a durable request under a new name."""
        request = SavepointRequest(request=str(uuid4()), kind=kind, asker=asker, asked_at_ms=self._warehouse.now_ms())
        self._request(request.request).replace(document(request))
        return request

    def ask_to_cancel(self, asker: Holder) -> CancelRequest:
        """Write a durable request to end the tick, under a new name."""
        request = CancelRequest(request=str(uuid4()), asker=asker, asked_at_ms=self._warehouse.now_ms())
        self._request(request.request).replace(document(request))
        return request

    def withdraw(self, request: str) -> None:
        """Delete a request and its answer, if they exist."""
        self._request(request).delete()
        self._answer(request).delete()

    def waiting(self) -> tuple[Request | Unreadable, ...]:
        """Return the requests that are neither answered nor withdrawn, ordered by name."""
        return tuple(found for name in self._names(_REQUEST) if (found := self._read(name)) is not None)

    def is_waiting(self, request: str) -> bool:
        """Return True if a request still exists."""
        return self._request(request).exists()

    def answer(self, answer: SavepointAnswer) -> bool:
        """Answer a request durably. Return False, and write nothing, if it has been withdrawn."""
        if not self.is_waiting(answer.request):
            return False
        self._answer(answer.request).replace(document(answer))
        self._request(answer.request).delete()
        return True

    def answer_to(self, request: str) -> SavepointAnswer | None:
        """Return the answer to a request, or None if there is no readable answer yet."""
        return read_document(SavepointAnswer, self._answer(request))

    def clean(self, is_alive: Callable[[Holder], bool | None]) -> None:
        """Delete requests and answers of dead asking processes, and answers without a known asker after an hour."""
        if not any(True for _ in self._folder.entries()):
            return
        for request in self.waiting():
            if not isinstance(request, Unreadable) and is_alive(request.asker) is False:
                self.withdraw(request.request)
        for name in self._names(_ANSWER):
            answer = self.answer_to(name)
            asker = answer.asker if answer is not None else None
            unwanted = self._is_stale(self._answer(name)) if asker is None else is_alive(asker) is False
            if unwanted:
                self._answer(name).delete()
        drop_unfinished(self._folder, before_ms=self._warehouse.now_ms() - STALE_MS)

    def _read(self, name: str) -> Request | Unreadable | None:
        try:
            request = _decoded(self._request(name).read(DOCUMENT_BYTES_MAX))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            return Unreadable(name, _first_line(error))
        if request.request != name:
            return Unreadable(name, f"it says that it is request {request.request!r}, and lies under {name!r}")
        return request

    def _names(self, pattern: re.Pattern[str]) -> list[str]:
        found = (pattern.fullmatch(each.name) for each in self._folder.entries())
        return sorted(match["name"] for match in found if match)

    def _is_stale(self, answer: StoragePlace) -> bool:
        try:
            return self._warehouse.now_ms() - answer.described().changed_ms > STALE_MS
        except FileNotFoundError:
            return False

    def _request(self, name: str) -> StoragePlace:
        return self._folder / f"{name}.json"

    def _answer(self, name: str) -> StoragePlace:
        return self._folder / f"{name}.answer.json"


def _decoded(content: bytes) -> Request:
    match _Versioned.model_validate_json(content).format:
        case 1:
            return SavepointRequest.model_validate_json(content)
        case 2:
            return CancelRequest.model_validate_json(content)
        case _ as unreachable:
            assert_never(unreachable)


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}".removeprefix(": ")
    return str(error) if isinstance(error, NotARegularFileError) else f"{type(error).__name__}: {error}"
