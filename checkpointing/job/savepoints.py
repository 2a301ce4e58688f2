"""Savepoints that users ask for while a tick runs: each request is answered once, and what they name is kept (A9, F4).

| kind    | its row                        | the tick                                                  |
|---------|--------------------------------|-----------------------------------------------------------|
| PLAIN   | pinned, it publishes nothing   | goes on                                                   |
| SUSPEND | a pinned checkpoint, published | reads nothing behind its barrier, and ends when it is in  |
| DRAIN   | the same                       | as SUSPEND, and every input ends before the barrier       |
"""

from collections.abc import Iterable, Iterator
from typing import assert_never

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.properties import CheckpointProperties, savepoint, synchronous_savepoint
from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import SavepointFailed, SavepointKind, SavepointRequested, SavepointTaken
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord

_PREFIX = "savepoint:"
"""Keeps a user's request apart from the tick's own, whatever its name."""


class Savepoints:
    """The requests that wait for their answer, and the files that savepoints pin."""

    def __init__(self, rows: Iterable[CheckpointRecord], *, unaligned: bool) -> None:
        """Begin with the rows that are there; `unaligned` as the job is configured."""
        self._unaligned = unaligned
        self._asked: dict[str, SavepointKind] = {}
        self._files: set[str] = set()
        for row in rows:
            self.pin(row)

    # -------------------------------------------------------------- requests

    @property
    def under_way(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._asked)

    def is_asked(self, request: str) -> bool:
        """Return whether that request waits for its answer."""
        return request in self._asked

    def ask(self, fact: SavepointRequested) -> told.CheckpointRequested:
        """Note a request; return it in the coordinator's words."""
        self._asked[fact.request] = fact.kind
        return told.CheckpointRequested(_PREFIX + fact.request, self._properties(fact.kind))

    def answered(
        self, effect: told.RequestSucceeded | told.RequestFailed
    ) -> tuple[tuple[SavepointTaken | SavepointFailed, ...], SavepointKind | None]:
        """Return the answer to a user's request and what the savepoint was for; nothing if the tick itself asked."""
        if not effect.request.startswith(_PREFIX):
            return (), None
        request = effect.request.removeprefix(_PREFIX)
        kind = self._asked.pop(request)
        if isinstance(effect, told.RequestSucceeded):
            return (SavepointTaken(request, effect.checkpoint),), kind
        return (SavepointFailed(request, effect.reason, effect.message),), kind

    def give_up(self, reason: CheckpointFailureReason, message: str) -> Iterator[SavepointFailed]:
        """The tick has ended: yield the answer to everybody who still waits."""
        while self._asked:
            request, _ = self._asked.popitem()
            yield SavepointFailed(request, reason, message)

    def _properties(self, kind: SavepointKind) -> CheckpointProperties:
        match kind:
            case SavepointKind.PLAIN:
                return savepoint(unaligned=self._unaligned)
            case SavepointKind.SUSPEND | SavepointKind.DRAIN:
                return synchronous_savepoint(unaligned=self._unaligned, terminate=kind is SavepointKind.DRAIN)
            case _:
                assert_never(kind)

    # -------------------------------------------------------------- files

    def pin(self, row: CheckpointRecord) -> None:
        """Keep what a savepoint's row refers to; any other row pins nothing."""
        if row.is_savepoint:
            self._files |= files_of(row)

    def unpinned(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return those files that no savepoint refers to."""
        return tuple(path for path in paths if path not in self._files)


def refused(fact: SavepointRequested, *, over: bool) -> SavepointFailed:
    """Return the answer to a request that comes when the tick has ended, or is on its way to its end."""
    if over:
        reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        return SavepointFailed(fact.request, reason, "the tick has ended: ask again")
    reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
    return SavepointFailed(fact.request, reason, "the tick is about to end: ask again when it has")
