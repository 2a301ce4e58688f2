"""What a process claims a job for, and which steps of the tick door it therefore takes."""

from dataclasses import dataclass, field
from typing import Final

from checkpointing.commit.fencing import IDS_PER_CLAIM
from checkpointing.coordinator.restart import NoRestart, RestartStrategy
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.job.setup import TickLimits
from checkpointing.metadata.record import Holder
from checkpointing.tick.messages import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """The steps of one kind of work. The order of steps is the door's; an errand only says which ones it takes."""

    questions: tuple[Question, ...] = (Question.REPAIRABLE,)
    """Asked before the claim, in this order."""
    repairs: bool = True
    """Tables that are behind a recorded cut are brought back."""
    ensures: bool = False
    """Output tables that are missing are created: only who has the pipeline knows their columns."""
    rolls_forward: bool = True
    """An entry that is committed and not published is published."""
    discards: bool = False
    """What dead holders staged and nothing references is deleted."""
    publishes: bool = False
    """The entry that the work appends is published at once; otherwise the next tick does that."""
    runs: bool = False
    """The work is a job that runs: if it fails, it is asked whether somebody else has claimed it meanwhile."""


TICK: Final = Errand(
    questions=(Question.SOUND, Question.FITS, Question.REPAIRABLE, Question.NOT_AHEAD),
    ensures=True,
    discards=True,
    runs=True,
)
SAVEPOINT: Final = Errand()
ROLLBACK: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True)
RESET: Final = Errand(questions=(Question.SOUND, Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True)
IMPORT: Final = Errand(questions=(Question.POSSIBLE,), repairs=False, rolls_forward=False)
DISPOSAL: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE))
CANCELLATION: Final = Errand(ensures=True)
CLEANUP: Final = Errand(rolls_forward=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms a process comes to the door.

    `leaves_behind` is the entry that a rollback goes back to. Another one that is committed and cannot be published is
    then left behind. `above` are the highest generation and id of another warehouse, of which an entry is imported, so
    that no name is used twice. `ids` is how many ids a claim reserves.
    """

    holder: Holder
    take_over: bool = False
    leaves_behind: CheckpointId | None = None
    above: tuple[Generation, CheckpointId] = (Generation(0), NO_CHECKPOINT)
    limits: TickLimits = field(default_factory=TickLimits)
    strategy: RestartStrategy = field(default_factory=NoRestart)
    waits_ms: int = 0
    """How long a tick that goes on in another trace waits for a process that claimed the job in between."""
    ids: int = IDS_PER_CLAIM
