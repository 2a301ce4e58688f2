"""The words between the tick door and those who carry out its effects: facts in, effects out.

The door waits for one answer at a time. Every effect is answered by exactly one fact, except those of `TOLD`, and
`Finish`, which is the last. Appends, publications and cuts are answered by the facts of `checkpointing.messages`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from checkpointing.commit.at_rest import Recipe
from checkpointing.commit.behind import Again, Correction, Doubt, Versions
from checkpointing.commit.fencing import Refused
from checkpointing.commit.leftovers import Referenced
from checkpointing.commit.line import Turn
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.job.setup import TickLimits
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row


class Question(Enum):
    """What must be true before the job is claimed. A refusal here has changed nothing."""

    SOUND = "sound"
    """Every file is there, whole, that the start reads or has yet to publish."""
    FITS = "fits"
    """The cut can be restored into this pipeline."""
    REPAIRABLE = "repairable"
    """Every table that shows less than a recorded cut can be brought back."""
    NOT_AHEAD = "not ahead"
    """No table shows more than the newest entry."""
    POSSIBLE = "possible"
    """What the process wants to do can be done: the target is there, the place is empty."""


# ------------------------------------------------------------------ effects that are answered


@dataclass(frozen=True, slots=True)
class Observe:
    """Read the entries, the recorded cuts and what is known of the holder: Observed, or Objected."""


@dataclass(frozen=True, slots=True)
class Examine:
    """Look whether this is true of files, tables and pipeline: Done, or Objected."""

    question: Question
    seen: Observed
    plan: RecoveryPlan


@dataclass(frozen=True, slots=True)
class AppendClaim:
    """Append the claim as the successor of that version, or not at all: RowAppended, RowRefused or RowUnknown."""

    row: Claim
    at_version: int


@dataclass(frozen=True, slots=True)
class AppendEntry:
    """Append the entry in the same way. The same commit drops entries, and marks others as abandoned or not."""

    row: CheckpointRecord
    at_version: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class AppendRelease:
    """Append the release in the same way. The same commit drops these entries."""

    row: Release
    at_version: int
    dropped: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class LookAtTables:
    """Compare the tables' logs with the recorded cuts, now that nobody else writes: TablesSeen."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class EnsureTables:
    """Create the output tables that are missing; the columns of `unsettled` ones are not compared yet: Done."""

    plan: RecoveryPlan
    unsettled: frozenset[TableName]


@dataclass(frozen=True, slots=True)
class PublishAgain:
    """Publish a checkpoint again into a table whose log has lost it: TablePublished or PublishFailed."""

    again: Again


@dataclass(frozen=True, slots=True)
class LookAtLogs:
    """Look at which version each of these tables has come to show which checkpoint: LogsSeen."""

    doubt: Doubt


@dataclass(frozen=True, slots=True)
class CorrectCuts:
    """Record cuts as they are now: Done."""

    doubt: Doubt
    correction: Correction


@dataclass(frozen=True, slots=True)
class ReadCut:
    """Read the recorded cut of a checkpoint: CutRead."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class DiscardLeftovers:
    """Delete the staged files of generations before `current` that nothing references: LeftoversDiscarded."""

    current: Generation
    by: Referenced


@dataclass(frozen=True, slots=True)
class Work:
    """Do what the job was claimed for: WorkEnded after a job has run, or RowChosen, or Worked."""

    claim: Claim
    at_version: int
    seen: Observed
    plan: RecoveryPlan
    limits: TickLimits


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Delete what nobody needs any more, while the job is still held: Done."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class LookForRival:
    """Look whether somebody has claimed the job since this generation: RivalSeen."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait so long, or until somebody asks the tick to stop: Waited."""

    delay_ms: int


# ------------------------------------------------------------------ effects that nobody answers


@dataclass(frozen=True, slots=True)
class GiveLease:
    """Write a lease in the name of a holder that nobody here can look at."""

    to: Refused
    lease_ms: int


@dataclass(frozen=True, slots=True)
class TakeHold:
    """The claim is in: keep the lease alive, and tell who listens."""

    claim: Claim
    plan: RecoveryPlan


@dataclass(frozen=True, slots=True)
class RolledForward:
    """A committed checkpoint that was not published now is."""

    record: CheckpointRecord
    versions: tuple[tuple[TableName, int], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """All that a dead holder left undone is done: the work begins."""

    plan: RecoveryPlan
    leftovers: int


@dataclass(frozen=True, slots=True)
class RestartDue:
    """Another attempt follows on a failed one, after that delay; `restart` counts from 1."""

    restart: int
    end: EndTick
    delay_ms: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """The attempt is over, released or not: the lease goes."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Whether an entry is in cannot be told: the next start finds out."""

    error: str


Outcome = EndTick | Refused | Unsettled | CheckpointRecord | BaseException | None
"""How it ended: as a tick ends; refused; in doubt; with an entry that was appended; by an error; or done."""


@dataclass(frozen=True, slots=True)
class Finish:
    """It is over; `restarts` attempts followed on failed ones."""

    outcome: Outcome
    restarts: int = 0


TickEffect = (
    Observe
    | Examine
    | AppendClaim
    | AppendEntry
    | AppendRelease
    | LookAtTables
    | EnsureTables
    | PublishAgain
    | LookAtLogs
    | CorrectCuts
    | ReadCut
    | PublishTable
    | RecordCut
    | DiscardLeftovers
    | Work
    | CleanUp
    | LookForRival
    | Wait
    | GiveLease
    | TakeHold
    | RolledForward
    | Recovered
    | RestartDue
    | LetGo
    | Finish
)
TOLD: Final = (GiveLease, TakeHold, RolledForward, Recovered, RestartDue, LetGo)
"""Nobody answers these, and something follows on them."""

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class Done:
    """It is done, and there is nothing to say about it."""


@dataclass(frozen=True, slots=True)
class Objected:
    """The start is refused, for a reason that names the thing and the way out. Nothing was changed."""

    why: Exception


@dataclass(frozen=True, slots=True)
class Failed:
    """The effect could not be carried out, and the attempt ends so; the restart strategy decides what follows."""

    end: EndTick


@dataclass(frozen=True, slots=True)
class Broke:
    """The effect could not be carried out, and no attempt follows: the error is raised when the job is released."""

    why: BaseException


@dataclass(frozen=True, slots=True)
class TablesSeen:
    """Which tables are in doubt, and what brings them back; None: they stay as they are."""

    doubt: Doubt | None


@dataclass(frozen=True, slots=True)
class LogsSeen:
    """At which version each table has come to show which checkpoint."""

    published: Mapping[TableName, Mapping[CheckpointId, int]]


@dataclass(frozen=True, slots=True)
class CutRead:
    """What the recorded cut says; nothing if none is recorded."""

    versions: Versions


@dataclass(frozen=True, slots=True)
class LeftoversDiscarded:
    """So many files were deleted."""

    files: int


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """A job ran and ended, by an error perhaps: with this next id, behind that version of `checkpoints`.

    `completed` checkpoints completed in it. `renews`: it ended only because its trace was full.
    """

    end: EndTick | BaseException
    next_id: CheckpointId
    at_version: int
    completed: int = 0
    renews: bool = False


@dataclass(frozen=True, slots=True)
class RowChosen:
    """An entry is to be appended by this recipe."""

    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Worked:
    """The work is done, and appends nothing; the release drops these entries."""

    dropped: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class RivalSeen:
    """The claim of a later generation, if there is one."""

    claim: Claim | None


@dataclass(frozen=True, slots=True)
class Waited:
    """The time is over, or somebody has asked the tick to stop."""


TickFact = (
    Observed
    | Done
    | Objected
    | Failed
    | Broke
    | RowAppended
    | RowRefused
    | RowUnknown
    | TablesSeen
    | LogsSeen
    | TablePublished
    | PublishFailed
    | CutRead
    | CutRecorded
    | LeftoversDiscarded
    | WorkEnded
    | RowChosen
    | Worked
    | RivalSeen
    | Waited
)
