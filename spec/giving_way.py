"""Checks on any run that a tick whose job was taken over looks for the other claim, and ends (G5).

`one-generation` says that such a tick commits nothing. This rule says that it does not go on in vain.
"""

from typing import Final

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import (
    AppendRow,
    CutRecorded,
    Effect,
    EndTick,
    Fact,
    LookForRival,
    NotifyAborted,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
    TickOutcome,
)
from spec.steps import Begun
from spec.watching import DoorJudge, Watched

_OF_THE_JOB: Final = (
    Reason.IO_EXCEPTION,
    Reason.CHECKPOINT_ASYNC_EXCEPTION,
    Reason.CHECKPOINT_EXPIRED,
    Reason.CHECKPOINT_DECLINED,
    Reason.FINALIZE_CHECKPOINT_FAILURE,
)
"""Failures for which the tick must look. Other reasons belong to the normal life of a job."""
_COMMITTED: Final = (RowAppended, RowRefused, RowUnknown, TablePublished, PublishFailed, CutRecorded)


class GivesWay(DoorJudge):
    """Judges what a door does after a failed checkpoint, and after the answer that the job has another claim."""

    def __init__(self, door: Watched) -> None:
        """Begin without a failure."""
        super().__init__(door)
        self._looks = False
        self._must_look = False
        self._lost = False
        self._unsettled = 0
        """The number of effects of a commit without an answer yet."""

    def told(self, fact: Begun | Fact) -> None:
        """Record the answers to looks and to effects of a commit."""
        if isinstance(fact, RivalSeen):
            self._looks = False
            self._lost |= fact.claim is not None
        self._unsettled -= isinstance(fact, _COMMITTED)

    def asked(self, effect: Effect) -> None:
        """Record failures and looks. Judge how the tick ends."""
        match effect:
            case NotifyAborted():
                self._must_look |= effect.reason in _OF_THE_JOB and not self._looks
            case LookForRival():
                self._looks, self._must_look = True, False
                if effect.generation != self.door.setup.claim.generation:
                    self.wrong(f"it looks for claims after generation {effect.generation}, which is not its own")
            case AppendRow() | PublishTable() | RecordCut():
                self._unsettled += 1
            case EndTick() if self._lost and effect.outcome is not TickOutcome.FAILED:
                self.wrong(f"the job was taken over, and the tick ends as {effect.outcome.value}")
            case _:
                pass

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge a tick that goes on."""
        del given
        if self.door.is_over:
            return
        if self._must_look:
            self._must_look = False
            self.wrong("a checkpoint failed, and nobody looks for another claim")
        if self._lost and not self._unsettled:
            self.wrong("the job was taken over, and the tick goes on")
