"""The state that a source has besides its positions, with that of its parts (A7)."""

import json
from typing import Final, Protocol, runtime_checkable

from checkpointing.identifiers import CheckpointId
from jobs.sources.port import Source, SourceError, every_layer

_AGAIN: Final = "give the source an id of its own, which begins anew"


@runtime_checkable
class KeepsState(Protocol):
    """Optional for a source: has state of its own, besides the positions in its splits (A7; Flink: `SplitEnumerator`).

    Each checkpoint holds this state. It is restored before the source is polled, but its splits are listed before.
    """

    def snapshot_state(self) -> str:
        """Return the state as text, less than a million characters. It comes before the checkpoint's barrier.

        The checkpoint may hold rows that were polled after this call. Returns at once, because every checkpoint waits.
        """
        ...

    def restore_state(self, checkpoint: CheckpointId | None, state: str | None) -> None:
        """Take the state of a checkpoint back. `checkpoint` is None if the job has never read this source.

        `state` is None if the checkpoint has none, because an older version of the source wrote it. Raises SourceError
        for the state of another source.
        """
        ...


def keeps_state(source: Source) -> bool:
    """Return whether the source, or one inside it, has state besides its positions."""
    return any(isinstance(each, KeepsState) for each in every_layer(source))


class OwnState:
    """Gathers and hands out the states of a source and of all sources inside it, in their order."""

    def __init__(self, source: Source) -> None:
        """Ask nothing yet."""
        self._keepers = tuple(each for each in every_layer(source) if isinstance(each, KeepsState))

    def snapshot(self) -> str:
        """Return the states as one JSON text."""
        return json.dumps([keeper.snapshot_state() for keeper in self._keepers])

    def restore(self, checkpoint: CheckpointId | None, text: str | None) -> None:
        """Hand out the states of a checkpoint. Raise SourceError if they are those of other sources."""
        states = [None] * len(self._keepers) if text is None else _parsed(text)
        if len(states) != len(self._keepers):
            raise SourceError(f"checkpoint {checkpoint} has the state of {len(states)} sources here: {_AGAIN}")
        for keeper, state in zip(self._keepers, states, strict=True):
            keeper.restore_state(checkpoint, state)


def _parsed(text: str) -> list[str]:
    states = json.loads(text)
    if not isinstance(states, list) or not all(isinstance(state, str) for state in states):
        raise SourceError(f"its state in the checkpoint was written by another source: {_AGAIN}")
    return states
