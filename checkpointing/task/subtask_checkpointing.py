"""The subtask door: the checkpoints of one subtask (B1 to B4, its part of F1 and F4).

From SnapshotRequested to the acknowledgement of checkpoint n, these are the steps:

| step | does                                                                                             |
|------|--------------------------------------------------------------------------------------------------|
| 0    | remembers n; if n was aborted before, sends a cancel marker downstream and does nothing more     |
| 1    | sends the barrier downstream                                                                     |
| 2    | waits for the segments in flight, if unaligned                                                   |
| 3    | takes the snapshot                                                                               |

The vertex takes the step that Flink has before these (`prepareSnapshotPreBarrier`): it runs what it has collected, and
then asks for the snapshot.

| n is         | SnapshotRequested | Taken (and stored)  | Failed  | AlignmentAborted        | CheckpointAborted |
|--------------|-------------------|---------------------|---------|-------------------------|-------------------|
| not seen     | steps 0 to 3      | -                   | -       | decline, marker         | remember          |
| in progress  | -                 | acknowledge         | decline | cancel, decline, marker | cancel            |
| over         | -                 | -                   | -       | decline, marker         | -                 |

`-` means no effect. Ids up to the last seen one count as seen (Flink: `SubtaskCheckpointCoordinatorImpl`).

An acknowledgement carries the files staged for append tables that are in no checkpoint known to be complete. A file
that was staged after barrier m is in every snapshot from the next barrier on, until one of these checkpoints is
complete. An abort drops no file.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from checkpointing.channel_items import ChannelState, SubtaskSnapshot
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import Vertex
from checkpointing.handles import StagedFile
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, SubtaskId
from checkpointing.task.messages import (
    Acknowledge,
    AlignmentAborted,
    BroadcastBarrier,
    BroadcastCancelMarker,
    CancelSnapshot,
    CheckpointAborted,
    CheckpointCompleted,
    Decline,
    FilesStaged,
    InFlightStored,
    NotifyOperatorsAborted,
    NotifyOperatorsComplete,
    RefusedFactError,
    SnapshotFailed,
    SnapshotRequested,
    SnapshotTaken,
    SubtaskEffect,
    SubtaskFact,
    SubtaskFinished,
    TakeSnapshot,
)

# ------------------------------------------------------------------
# Remembers checkpoints that were aborted before their barrier came, up to a limit (B1, step 0).


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


Effects = list[SubtaskEffect]


@dataclass(frozen=True, slots=True)
class SnapshotInProgress:
    """A snapshot in progress. `in_flight` is None while an unaligned one waits for it."""

    staged: tuple[StagedFile, ...]
    finished: bool
    in_flight: tuple[ChannelState, ...] | None
    snapshot: SubtaskSnapshot | None = None


class SubtaskCheckpointing:
    """The checkpoints of one subtask: in progress, acknowledged, declined, notified."""

    def __init__(
        self,
        subtask: SubtaskId,
        *,
        last: CheckpointId = NO_CHECKPOINT,
        staged: tuple[StagedFile, ...] = (),
    ) -> None:
        """Begin at the cut of checkpoint `last`, with the `staged` files that the cut left unpublished."""
        self.subtask = subtask
        self._last = last
        self._completed = last
        self._finished = False
        self._staged = staged
        self._in_progress: dict[CheckpointId, SnapshotInProgress] = {}
        self._aborted = AbortedCheckpoints()

    def step(self, fact: SubtaskFact) -> tuple[SubtaskEffect, ...]:
        """Take one fact. Return the effects, to be carried out in their order.

        Raise RefusedFactError, and change nothing, if an asynchronous checkpoint is to end the job, or if a checkpoint
        is complete for which this subtask was never asked.
        """
        effects: Effects = []
        match fact:
            case SnapshotRequested():
                effects = self._request(fact)
            case AlignmentAborted(checkpoint, reason):
                effects = self._abort_on_barrier(checkpoint, reason)
            case SnapshotTaken(checkpoint, snapshot):
                effects = self._advance(checkpoint, snapshot=snapshot)
            case InFlightStored(checkpoint, channels):
                effects = self._advance(checkpoint, in_flight=channels)
            case SnapshotFailed(checkpoint, reason):
                effects = self._fail(checkpoint, reason)
            case FilesStaged(files):
                self._staged += files
            case CheckpointCompleted(checkpoint):
                effects = self._complete(checkpoint)
            case CheckpointAborted(checkpoint, latest_completed):
                effects = self._abort(checkpoint, latest_completed)
            case SubtaskFinished():
                self._finished = True
            case _:
                assert_never(fact)
        return tuple(effects)

    # -------------------------------------------------------------- questions

    @property
    def staged(self) -> tuple[StagedFile, ...]:
        """The files that are in no checkpoint known to be complete, oldest first."""
        return self._staged

    def takes(self, checkpoint: CheckpointId) -> bool:
        """Return whether the snapshot for this checkpoint is in progress."""
        return checkpoint in self._in_progress

    # -------------------------------------------------------------- steps 0 to 3

    def _request(self, fact: SnapshotRequested) -> Effects:
        checkpoint = fact.barrier.checkpoint
        if fact.advance_to_max and not fact.synchronous:
            message = f"checkpoint {checkpoint} of {self.subtask}: only a synchronous savepoint may advance to MAX"
            raise RefusedFactError(message)
        if checkpoint <= self._last:
            self._aborted.clear(checkpoint)
            return []
        self._last = checkpoint
        if self._aborted.clear(checkpoint):
            return [BroadcastCancelMarker(checkpoint)]
        return self._begin(fact)

    def _begin(self, fact: SnapshotRequested) -> Effects:
        checkpoint = fact.barrier.checkpoint
        self._in_progress[checkpoint] = SnapshotInProgress(
            staged=self._staged, finished=self._finished, in_flight=None if fact.unaligned else ()
        )
        return [BroadcastBarrier(fact.barrier), TakeSnapshot(checkpoint)]

    def _advance(
        self,
        checkpoint: CheckpointId,
        *,
        snapshot: SubtaskSnapshot | None = None,
        in_flight: tuple[ChannelState, ...] | None = None,
    ) -> Effects:
        progress = self._in_progress.get(checkpoint)
        if progress is None:
            return []
        snapshot = progress.snapshot if snapshot is None else snapshot
        in_flight = progress.in_flight if in_flight is None else in_flight
        if snapshot is None or in_flight is None:
            self._in_progress[checkpoint] = replace(progress, snapshot=snapshot, in_flight=in_flight)
            return []
        del self._in_progress[checkpoint]
        return [Acknowledge(checkpoint, self._assembled(snapshot, in_flight, progress))]

    def _assembled(
        self, snapshot: SubtaskSnapshot, in_flight: tuple[ChannelState, ...], progress: SnapshotInProgress
    ) -> SubtaskSnapshot:
        """Return the whole snapshot. It is the same object if nothing has to be added (see `LiveFiles.snapshot`)."""
        staged = tuple(file for file in progress.staged if file.after >= self._completed)
        if not staged and not in_flight and not progress.finished:
            return snapshot
        return replace(snapshot, staged=staged, in_flight=in_flight, finished=snapshot.finished or progress.finished)

    # -------------------------------------------------------------- failed, aborted, complete

    def _fail(self, checkpoint: CheckpointId, reason: Reason) -> Effects:
        failed = self._in_progress.pop(checkpoint, None)
        return [] if failed is None else [Decline(checkpoint, reason)]

    def _abort_on_barrier(self, checkpoint: CheckpointId, reason: Reason) -> Effects:
        self._last = max(self._last, checkpoint)
        self._aborted.forget_before(self._last)
        cancelled = self._cancel(checkpoint)
        return [
            *cancelled,
            Decline(checkpoint, reason),
            NotifyOperatorsAborted(checkpoint),
            BroadcastCancelMarker(checkpoint),
        ]

    def _abort(self, checkpoint: CheckpointId, latest_completed: CheckpointId) -> Effects:
        effects = self._complete(latest_completed) if latest_completed > self._completed else []
        if checkpoint > self._last:
            self._aborted.add(checkpoint)
        return [*effects, *self._cancel(checkpoint), NotifyOperatorsAborted(checkpoint)]

    def _cancel(self, checkpoint: CheckpointId) -> Effects:
        cancelled = self._in_progress.pop(checkpoint, None)
        return [] if cancelled is None else [CancelSnapshot(checkpoint)]

    def _complete(self, checkpoint: CheckpointId) -> Effects:
        if checkpoint > self._last:
            message = f"checkpoint {checkpoint} was told complete to {self.subtask}, which saw none after {self._last}"
            raise RefusedFactError(message)
        self._completed = max(self._completed, checkpoint)
        self._staged = tuple(file for file in self._staged if file.after >= self._completed)
        return [NotifyOperatorsComplete(checkpoint)]


# ------------------------------------------------------------------
# All subtasks of a job, by name (B3).


class Subtasks:
    """The subtasks' doors, in the order in which they were given."""

    def __init__(self, doors: Iterable[SubtaskCheckpointing]) -> None:
        """Take the doors of all subtasks."""
        self._doors = {door.subtask: door for door in doors}

    def __iter__(self) -> Iterator[SubtaskCheckpointing]:
        """Yield the doors in order."""
        return iter(self._doors.values())

    def __getitem__(self, subtask: SubtaskId) -> SubtaskCheckpointing:
        """Return the subtask's door."""
        return self._doors[subtask]

    def takes(self, checkpoint: CheckpointId, vertex: Vertex) -> bool:
        """Return whether the checkpoint goes on for a subtask of the vertex."""
        return any(self[subtask].takes(checkpoint) for subtask in vertex.subtasks())

    def staged_for(self, checkpoint: CheckpointId, vertex: Vertex) -> Iterator[StagedFile]:
        """Yield the staged files of the vertex's subtasks, unless the checkpoint has ended for them."""
        for subtask in vertex.subtasks():
            if self[subtask].takes(checkpoint):
                yield from self[subtask].staged

    def step(self, subtask: SubtaskId, fact: SubtaskFact) -> tuple[SubtaskEffect, ...]:
        """Step this subtask's door."""
        return self[subtask].step(fact)
