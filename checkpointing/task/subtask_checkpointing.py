"""The checkpoints of one subtask (B1 to B4, its part of F4).

From a request to the acknowledgement of checkpoint n, these are the steps:

| step | does                                                                                             |
|------|--------------------------------------------------------------------------------------------------|
| 0    | remembers n; if n was aborted before, a cancel marker goes downstream, and nothing more happens  |
| 1    | the barrier goes downstream                                                                      |
| 2    | waits for the segments in flight, if unaligned                                                   |
| 3    | takes the snapshot                                                                               |

Flink has one step before these (`prepareSnapshotPreBarrier`). Here the vertex does it: it runs what it has collected,
and then asks for the snapshot.

| n is        | requested          | taken (and stored) | failed   | aborted by the gate | told as aborted |
|-------------|--------------------|--------------------|----------|---------------------|-----------------|
| not seen    | barrier, or marker | -                  | -        | is seen             | remember        |
| in progress | -                  | whole snapshot     | declined | is over             | is over         |
| over        | -                  | -                  | -        | -                   | -               |

`-` means no effect. Ids up to the last seen id are treated as seen (Flink: `SubtaskCheckpointCoordinatorImpl`).

A snapshot carries the files staged for append tables that are in no checkpoint known to be complete. A file that was
staged after barrier m is in every snapshot from the next barrier on, until one of these checkpoints is complete. An
abort drops no file.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from checkpointing.channel_items import Barrier, CancelMarker, ChannelState, SubtaskSnapshot
from checkpointing.graph import Vertex
from checkpointing.handles import StagedFile
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, SubtaskId

# ------------------------------------------------------------------
# Keeps the ids of checkpoints that were aborted before their barrier came, up to a limit (B1, step 0).


MAX_RECORD_ABORTED_CHECKPOINTS = 128
"""Flink: `SubtaskCheckpointCoordinatorImpl.DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS`."""


class AbortedCheckpoints:
    """The newest aborted ids. An id that is so old that it may have been forgotten is treated as aborted."""

    def __init__(self) -> None:
        """Begin with no id."""
        self._ids: dict[CheckpointId, None] = {}
        self._newest = NO_CHECKPOINT

    def add(self, checkpoint: CheckpointId) -> None:
        """Remember the id. If there are too many ids, forget the oldest remembered one."""
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


class UnseenCheckpointError(ValueError):
    """A checkpoint for which the subtask was never asked is complete. The subtask is unchanged."""


@dataclass(frozen=True, slots=True)
class SnapshotInProgress:
    """A snapshot in progress. `in_flight` is None while an unaligned snapshot waits for its segments in flight."""

    staged: tuple[StagedFile, ...]
    finished: bool
    in_flight: tuple[ChannelState, ...] | None
    snapshot: SubtaskSnapshot | None = None


class SubtaskCheckpointing:
    """The checkpoints of one subtask that are in progress, and the staged files that no complete checkpoint holds."""

    def __init__(self, subtask: SubtaskId, *, last: CheckpointId = NO_CHECKPOINT) -> None:
        """Begin at the cut of checkpoint `last`."""
        self.subtask = subtask
        self._last = last
        self._completed = last
        self._finished = False
        self._staged: tuple[StagedFile, ...] = ()
        self._in_progress: dict[CheckpointId, SnapshotInProgress] = {}
        self._aborted = AbortedCheckpoints()

    # -------------------------------------------------------------- questions

    @property
    def staged(self) -> tuple[StagedFile, ...]:
        """The files that are in no checkpoint known to be complete, oldest first."""
        return self._staged

    def takes(self, checkpoint: CheckpointId) -> bool:
        """Return whether the snapshot for this checkpoint is in progress."""
        return checkpoint in self._in_progress

    # -------------------------------------------------------------- work

    def stage(self, files: tuple[StagedFile, ...]) -> None:
        """Add the files that a micro-batch wrote for append tables."""
        self._staged += files

    def finish(self) -> None:
        """Record that no row is left: the split has ended, or the vertex has processed all its input (B4)."""
        self._finished = True

    # -------------------------------------------------------------- steps 0 to 3

    def request(self, barrier: Barrier, *, unaligned: bool = False) -> Barrier | CancelMarker | None:
        """Begin the snapshot for this barrier. Return what goes downstream.

        An `unaligned` snapshot holds the segments in flight too.
        """
        checkpoint = barrier.checkpoint
        was_aborted = self._aborted.clear(checkpoint)
        if checkpoint <= self._last:
            return None
        self._last = checkpoint
        if was_aborted:
            return CancelMarker(checkpoint)
        in_flight = None if unaligned else ()
        self._in_progress[checkpoint] = SnapshotInProgress(self._staged, self._finished, in_flight)
        return barrier

    def taken(self, checkpoint: CheckpointId, snapshot: SubtaskSnapshot) -> SubtaskSnapshot | None:
        """Add the operator's or the split's own snapshot. Return the whole snapshot once nothing is missing."""
        return self._advance(checkpoint, snapshot=snapshot)

    def stored(self, checkpoint: CheckpointId, channels: tuple[ChannelState, ...]) -> SubtaskSnapshot | None:
        """Add all segments in flight, which are in files. Return the whole snapshot once nothing is missing."""
        return self._advance(checkpoint, in_flight=channels)

    def _advance(
        self,
        checkpoint: CheckpointId,
        *,
        snapshot: SubtaskSnapshot | None = None,
        in_flight: tuple[ChannelState, ...] | None = None,
    ) -> SubtaskSnapshot | None:
        progress = self._in_progress.get(checkpoint)
        if progress is None:
            return None
        snapshot = progress.snapshot if snapshot is None else snapshot
        in_flight = progress.in_flight if in_flight is None else in_flight
        if snapshot is None or in_flight is None:
            self._in_progress[checkpoint] = replace(progress, snapshot=snapshot, in_flight=in_flight)
            return None
        del self._in_progress[checkpoint]
        return self._assembled(snapshot, in_flight, progress)

    def _assembled(
        self, snapshot: SubtaskSnapshot, in_flight: tuple[ChannelState, ...], progress: SnapshotInProgress
    ) -> SubtaskSnapshot:
        """Return the whole snapshot. It is the same object if nothing has to be added (see `LiveFiles.snapshot`)."""
        staged = tuple(file for file in progress.staged if file.after >= self._completed)
        if not staged and not in_flight and not progress.finished:
            return snapshot
        return replace(snapshot, staged=staged, in_flight=in_flight, finished=snapshot.finished or progress.finished)

    # -------------------------------------------------------------- failed, aborted, complete

    def failed(self, checkpoint: CheckpointId) -> bool:
        """Give the snapshot up. Return whether it was in progress, so that the coordinator must be notified."""
        return self._in_progress.pop(checkpoint, None) is not None

    def abort_at_gate(self, checkpoint: CheckpointId) -> None:
        """Give up the snapshot of a checkpoint that the gate aborted.

        If its barrier comes later, the barrier is obsolete.
        """
        self._last = max(self._last, checkpoint)
        self._aborted.forget_before(self._last)
        self._in_progress.pop(checkpoint, None)

    def abort(self, checkpoint: CheckpointId, latest_completed: CheckpointId) -> None:
        """Handle the coordinator's notice of an abort. `latest_completed` is 0 if no checkpoint is complete.

        Staged files of the aborted checkpoint stay for the next checkpoint (3.4).
        """
        if latest_completed > self._completed:
            self.complete(latest_completed)
        if checkpoint > self._last:
            self._aborted.add(checkpoint)
        self._in_progress.pop(checkpoint, None)

    def complete(self, checkpoint: CheckpointId) -> None:
        """Handle the coordinator's notice that the checkpoint is complete, and so has the staged files in it.

        Raise UnseenCheckpointError if this subtask was never asked for it.
        """
        if checkpoint > self._last:
            message = f"checkpoint {checkpoint} was told complete to {self.subtask}, which saw none after {self._last}"
            raise UnseenCheckpointError(message)
        self._completed = max(self._completed, checkpoint)
        self._staged = tuple(file for file in self._staged if file.after >= self._completed)


# ------------------------------------------------------------------
# All subtasks of a job (B3). Each subtask is found by its name.


class Subtasks:
    """The checkpoints of every subtask."""

    def __init__(self, each: Iterable[SubtaskCheckpointing]) -> None:
        """Begin with the checkpoints of all subtasks."""
        self._by_subtask = {own.subtask: own for own in each}

    def __getitem__(self, subtask: SubtaskId) -> SubtaskCheckpointing:
        """Return the checkpoints of this subtask."""
        return self._by_subtask[subtask]

    def takes(self, checkpoint: CheckpointId, vertex: Vertex) -> bool:
        """Return whether the checkpoint is in progress for a subtask of the vertex."""
        return any(self[subtask].takes(checkpoint) for subtask in vertex.subtasks())

    def staged_for(self, checkpoint: CheckpointId, vertex: Vertex) -> Iterator[StagedFile]:
        """Yield the staged files of the vertex's subtasks, unless the checkpoint has ended for them."""
        for subtask in vertex.subtasks():
            if self[subtask].takes(checkpoint):
                yield from self[subtask].staged
