"""Counts checkpoint ids: they strictly rise, and none is handed out twice (A6; `CheckpointIDCounter`)."""

from checkpointing.identifiers import CheckpointId

FIRST_ID = CheckpointId(1)


class CheckpointIdCounter:
    """Counts up from 1, or from the id that the persisted claim says.

    A caller with several threads fetches under its own lock. `fetch` itself neither awaits nor calls back.
    """

    __slots__ = ("_next",)

    def __init__(self, next_id: CheckpointId = FIRST_ID) -> None:
        self._next = _positive(next_id)

    @property
    def next_id(self) -> CheckpointId:
        """Return the id that `fetch` would hand out."""
        return self._next

    def fetch(self) -> CheckpointId:
        """Return the next id and advance."""
        fetched = self._next
        self._next = CheckpointId(fetched + 1)
        return fetched

    def go_on_at(self, next_id: CheckpointId) -> None:
        """Continue at `next_id`, after a restore. Raise ValueError for an id below the first one."""
        self._next = _positive(next_id)


def _positive(next_id: CheckpointId) -> CheckpointId:
    if next_id < FIRST_ID:
        raise ValueError(f"checkpoint id {next_id}: ids begin at {FIRST_ID}")
    return next_id
