"""Savepoints that users ask for while a tick runs. Each request gets one answer, and its files are kept (A9, F4).

| kind    | its entry                      | the tick                                                  |
|---------|--------------------------------|-----------------------------------------------------------|
| PLAIN   | pinned, it publishes nothing   | goes on                                                   |
| SUSPEND | a pinned checkpoint, published | reads nothing after its barrier, and ends when it is in   |
| DRAIN   | the same                       | as SUSPEND, and every input ends before the barrier       |
"""

from collections.abc import Iterable, Iterator
from typing import Final, assert_never

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.properties import CheckpointProperties, savepoint, synchronous_savepoint
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.messages import SavepointFailed, SavepointKind, SavepointRequested, SavepointTaken
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord

_PREFIX = "savepoint:"
"""This prefix keeps a user's request apart from the tick's own, whatever name the user chose."""
_ENDINGS: Final = {
    Reason.CHECKPOINT_COORDINATOR_SHUTDOWN: "the tick has ended: ask again",
    Reason.CHECKPOINT_COORDINATOR_SUSPEND: "the tick is about to end: ask again when it has",
}
"""What a user is told whose savepoint fails only because the tick ends."""
HOLDS: Final = (
    "the tick holds its next checkpoint for approval and ends then, and a stop would publish one: wait for its end, or "
    "end it now with 'tidemark cancel'"
)
"""What a user is told who wants to stop a tick that publishes nothing."""


class Savepoints:
    """The requests that wait for their answer, and the files that savepoints pin."""

    def __init__(self, rows: Iterable[CheckpointRecord], *, unaligned: bool) -> None:
        """Begin with the existing entries. `unaligned` is the job's setting."""
        self._unaligned = unaligned
        self._asked: dict[str, SavepointKind] = {}
        self._files: set[str] = set()
        known = tuple(rows)
        self._committed = {row.checkpoint: row for row in known if row.commits}
        """The entries after which a plain savepoint may be taken, or was."""
        for row in known:
            self.pin(row)

    # -------------------------------------------------------------- requests

    @property
    def under_way(self) -> bool:
        """True if a request waits for its answer."""
        return bool(self._asked)

    def is_asked(self, request: str) -> bool:
        """Return whether this request waits for its answer."""
        return request in self._asked

    def ask(self, fact: SavepointRequested) -> told.CheckpointRequested:
        """Note a request. Return it in the coordinator's form."""
        self._asked[fact.request] = fact.kind
        return told.CheckpointRequested(_PREFIX + fact.request, self._properties(fact.kind))

    def answered(
        self, effect: told.RequestSucceeded | told.RequestFailed
    ) -> tuple[tuple[SavepointTaken | SavepointFailed, ...], SavepointKind | None]:
        """Return the answer to a user's request and the savepoint's kind; nothing for the tick's own requests."""
        if not effect.request.startswith(_PREFIX):
            return (), None
        request = effect.request.removeprefix(_PREFIX)
        kind = self._asked.pop(request)
        if isinstance(effect, told.RequestSucceeded):
            return (SavepointTaken(request, effect.checkpoint),), kind
        return (SavepointFailed(request, effect.reason, _ENDINGS.get(effect.reason, effect.message)),), kind

    def give_up(self, reason: Reason, message: str) -> Iterator[SavepointFailed]:
        """Yield a failure for every request that still waits, because the tick has ended."""
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

    def stored(self, row: CheckpointRecord) -> None:
        """Note an entry that is in. A committed one is the cut after which the next plain savepoint is taken."""
        self.pin(row)
        if row.commits:
            self._committed = {row.checkpoint: row}

    def pin(self, row: CheckpointRecord) -> None:
        """Keep the files that a savepoint's entry names. A plain one also keeps those of the cut that it stands on.

        Other entries pin nothing.
        """
        if row.is_savepoint:
            self._files |= files_of(row)
        if not row.commits and row.parent in self._committed:
            self._files |= files_of(self._committed[row.parent])

    def unpinned(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the files that no savepoint names."""
        return tuple(path for path in paths if path not in self._files)


def refused(fact: SavepointRequested, *, over: bool) -> SavepointFailed:
    """Return the answer to a request that comes when the tick has ended or is about to end."""
    reason = Reason.CHECKPOINT_COORDINATOR_SHUTDOWN if over else Reason.CHECKPOINT_COORDINATOR_SUSPEND
    return SavepointFailed(fact.request, reason, _ENDINGS[reason])
