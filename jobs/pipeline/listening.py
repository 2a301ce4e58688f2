"""The port of a checkpoint listener: a user's code that is told what becomes of each checkpoint (F2)."""

from typing import Protocol

from checkpointing.identifiers import CheckpointId


class CheckpointListener(Protocol):
    """Whoever wants to know what became of a checkpoint (Flink: `CheckpointListener`). See `Pipeline.listen`."""

    def notify_checkpoint_complete(self, checkpoint: CheckpointId) -> None:
        """Take note that a checkpoint is complete and every table shows it.

        At least once: after a crash, and after a restart, a tick begins by telling the checkpoint that it
        restored once more. Every completion also covers the older ones, of which one may never be told.
        """
        ...

    def notify_checkpoint_aborted(self, checkpoint: CheckpointId, reason: str) -> None:
        """Take note that a checkpoint failed, and why; its rows belong to a later one. Told at most once."""
        ...
