"""The port of a checkpoint listener: a user's code that is called when a checkpoint completes or fails (F2)."""

from typing import Protocol

from checkpointing.identifiers import CheckpointId


class CheckpointListener(Protocol):
    """Is called when a checkpoint completes or fails (Flink: `CheckpointListener`). See `Pipeline.listen`."""

    def notify_checkpoint_complete(self, checkpoint: CheckpointId) -> None:
        """React to a completed checkpoint: every table shows it.

        Called at least once. After a crash or a restart, the tick calls it again for the checkpoint that it restored. A
        call covers all older checkpoints too: there may be no call for an older one.
        """
        ...

    def notify_checkpoint_aborted(self, checkpoint: CheckpointId, reason: str) -> None:
        """React to a failed checkpoint. Its rows belong to a later one. Called at most once for each checkpoint."""
        ...
