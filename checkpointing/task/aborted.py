"""Remembers checkpoints that were aborted before their barrier came, up to a limit (B1, step 0)."""

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId

MAX_RECORD_ABORTED_CHECKPOINTS = 128
"""Flink: `SubtaskCheckpointCoordinatorImpl.DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS`."""


class AbortedCheckpoints:
    """The newest aborted ids. If an id is so old that it may have been forgotten, it counts as aborted."""

    def __init__(self) -> None:
        """Begin with none."""
        self._ids: dict[CheckpointId, None] = {}
        self._newest = NO_CHECKPOINT

    def add(self, checkpoint: CheckpointId) -> None:
        """Remember the id. If there are too many, forget the one that was remembered first."""
        self._ids[checkpoint] = None
        self._newest = max(self._newest, checkpoint)
        if len(self._ids) > MAX_RECORD_ABORTED_CHECKPOINTS:
            del self._ids[next(iter(self._ids))]

    def clear(self, checkpoint: CheckpointId) -> bool:
        """Forget the id; return whether it was aborted."""
        if checkpoint in self._ids:
            del self._ids[checkpoint]
            return True
        return checkpoint + MAX_RECORD_ABORTED_CHECKPOINTS < self._newest

    def forget_before(self, checkpoint: CheckpointId) -> None:
        """Forget all older ids. Their barriers have no effect any more."""
        self._ids = {n: None for n in self._ids if n >= checkpoint}
