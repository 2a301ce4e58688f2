"""What a process claims a job for, and the steps of the tick door that it therefore takes."""

from dataclasses import dataclass, field
from typing import Final

from checkpointing.commit.fencing import IDS_PER_CLAIM
from checkpointing.coordinator.restart import NoRestart, RestartStrategy
from checkpointing.graph import Vertex
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.job.setup import TickLimits
from checkpointing.metadata.record import Holder
from checkpointing.tick.messages import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """The steps of one kind of work. The door decides their order. An errand only says which ones it takes."""

    questions: tuple[Question, ...] = (Question.REPAIRABLE,)
    """The questions to ask before the claim, in this order."""
    repairs: bool = True
    """Repair tables that are behind a recorded cut."""
    ensures: bool = False
    """Create missing output tables. Only a process that has the pipeline knows their columns."""
    rolls_forward: bool = True
    """Publish an entry that is committed and not published."""
    discards: bool = False
    """Delete staged files of dead holders that nothing references."""
    publishes: bool = False
    """Publish the entry that the work appends at once. Otherwise the next tick does that."""
    moves_on: bool = False
    """It would take the job away from the cut that it stands at. It is refused while a held cut waits for approval."""
    runs: bool = False
    """The work is a running job. If it fails, find out whether another process has claimed the job meanwhile."""


TICK: Final = Errand(
    questions=(Question.SOUND, Question.FITS, Question.REPAIRABLE, Question.NOT_AHEAD),
    ensures=True,
    discards=True,
    moves_on=True,
    runs=True,
)
SAVEPOINT: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE))
ROLLBACK: Final = Errand(
    questions=(Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True, moves_on=True
)
RESET: Final = Errand(
    questions=(Question.SOUND, Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True, moves_on=True
)
APPROVAL: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True)
REJECTION: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE))
IMPORT: Final = Errand(questions=(Question.POSSIBLE,), repairs=False, rolls_forward=False)
DISPOSAL: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE))
CANCELLATION: Final = Errand(ensures=True, moves_on=True)
CLEANUP: Final = Errand(rolls_forward=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a process brings to the door: who it is, and what it may do.

    A rollback goes back to `leaves_behind`. If another committed entry cannot be published, it is left behind. `above`
    are the highest generation and id of the warehouse from which an entry is imported, so that no number is used twice.
    `ids` is how many ids a claim reserves. `sources` are those of the pipeline, if the errand runs a job.
    """

    holder: Holder
    sources: tuple[Vertex, ...] = ()
    take_over: bool = False
    leaves_behind: CheckpointId | None = None
    above: tuple[Generation, CheckpointId] = (Generation(0), NO_CHECKPOINT)
    limits: TickLimits = field(default_factory=TickLimits)
    strategy: RestartStrategy = field(default_factory=NoRestart)
    waits_ms: int = 0
    """How long a tick that goes on in another trace waits for a process that took the job in between."""
    ids: int = IDS_PER_CLAIM
