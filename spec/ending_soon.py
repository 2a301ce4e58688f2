"""Judges that a tick ends soon if it must stop, cannot go on, or has all its checkpoints.

It must read no more and begin no checkpoint. It only waits until no entry is in doubt. If it began another checkpoint,
that one would be in doubt next, and the tick could go on for long. Flink stops periodic triggering when a job fails
(CheckpointCoordinatorDeActivator).

A tick that reads another job's cuts may still ask its splits, because they may be on their way to a cut (A10).
"""

from checkpointing.identifiers import CheckpointId
from checkpointing.messages import (
    AppendRow,
    Effect,
    EndTick,
    Fact,
    MicroBatchFailed,
    PollSource,
    RowAppended,
    StopKind,
    StopRequested,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.steps import Begun
from spec.watching import DoorJudge, Watched, begins_commit


class EndsSoon(DoorJudge):
    """Judges what a tick begins although it is to end."""

    def __init__(self, door: Watched) -> None:
        """Begin with a tick that goes on."""
        super().__init__(door)
        self._why = ""
        self._is_late = False
        """When the tick last came to rest, its time was over and no user's request was open."""
        self._holds: set[str] = set()
        """The nonces of cuts that are held for approval."""
        self._is_held = False
        """The entry of a held cut has been appended."""
        self._begun_before = CheckpointId(0)
        """The checkpoints below it had an id when the tick had to end. One more may have waited for a block of ids."""

    def told(self, fact: Begun | Fact) -> None:
        """Note why the tick must end."""
        self._is_held |= isinstance(fact, RowAppended) and fact.nonce in self._holds
        stops = isinstance(fact, StopRequested) and fact.kind is StopKind.NOW
        if stops or isinstance(fact, MicroBatchFailed):
            self._must_end("was asked to stop now" if stops else "cannot go on")

    def _must_end(self, why: str) -> None:
        if not self._why:
            self._why = why
            waits_for_id = self.door.next_id > self.door.last_id
            self._begun_before = CheckpointId(self.door.next_id + waits_for_id)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge the triggers. Note whether the tick has all its checkpoints, and whether its time is over.

        If it has all its checkpoints, it must end, unless one is pending or it is reserving ids.
        """
        door, limits = self.door, self.door.setup.limits
        for checkpoint in given:
            if self._why and checkpoint >= self._begun_before:
                self.wrong(f"the tick {self._why}, and triggers checkpoint {checkpoint}")
        if limits.checkpoints is None and limits.duration_ms is None:
            return
        if limits.checkpoints is not None and door.completed >= limits.checkpoints and not door.is_over:
            self._must_end("has all its checkpoints")
            if not (door.pending or door.reserving):
                self.wrong(f"the tick has {door.completed} checkpoints of {limits.checkpoints}, and goes on")
        late_ms = None if limits.duration_ms is None else door.started_ms + limits.duration_ms
        self._is_late = late_ms is not None and door.now_ms >= late_ms and not door.requests

    def asked(self, effect: Effect) -> None:
        """Judge which splits are asked, and which checkpoints commit.

        Without an interval, every checkpoint was requested.
        """
        match effect:
            case AppendRow(CheckpointRecord(kind=RowKind.HELD) as record):
                self._holds.add(record.nonce)
            case EndTick() if self._is_held and effect.outcome not in (TickOutcome.HELD, TickOutcome.FAILED):
                self.wrong(f"the tick holds a cut for approval, and ends as {effect.outcome.value}")
            case _:
                pass
        if self._is_late and isinstance(effect, PollSource) and not self.door.setup.cut_groups:
            self.wrong(f"the tick's time is over, and it asks split {effect.split} of {effect.source}")
        if not self._why:
            return
        if isinstance(effect, PollSource) and not self.door.setup.cut_groups:
            self.wrong(f"the tick {self._why}, and asks split {effect.split} of {effect.source}")
        commits = begins_commit(effect)
        if commits is not None and commits >= self._begun_before and self.door.setup.config.interval_ms is not None:
            self.wrong(f"the tick {self._why}, and commits checkpoint {commits}, which had not begun")
