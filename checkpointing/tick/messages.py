"""The messages between the tick door and the code that carries out its effects.

One fact answers each effect. Effects in `TOLD` have no answer. `Finish` is the last effect. See also
`checkpointing.messages`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from checkpointing.commit.at_rest import Recipe
from checkpointing.commit.cleanup import Referenced
from checkpointing.commit.fencing import Refused, Turn
from checkpointing.commit.lost_publications import Again, Correction, Doubt, Versions
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.job.setup import TickLimits
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    LookForRival,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row


class Question(Enum):
    """A condition that must be true before the claim. A refusal here has changed nothing."""

    SOUND = "sound"
    """Every file that the start must read or publish exists and is complete."""
    FITS = "fits"
    """The cut can be restored into this pipeline."""
    REPAIRABLE = "repairable"
    """Every table that shows less than a recorded cut can be repaired."""
    NOT_AHEAD = "not ahead"
    """No table shows more than the newest entry."""
    WHOLE = "whole"
    """No table shows less than a recorded cut. If this holds for a finished job, the job needs no tick (B4)."""
    POSSIBLE = "possible"
    """The errand itself is possible: the entry that it needs exists, or the place that it fills is empty."""


# ------------------------------------------------------------------ effects that are answered


@dataclass(frozen=True, slots=True)
class Observe:
    """Read the entries, the recorded cuts and the holder's state. Answer: Observed, or Objected."""


@dataclass(frozen=True, slots=True)
class Examine:
    """Answer the question about files, tables and pipeline. Answer: Done if yes, Objected if no."""

    question: Question
    seen: Observed
    plan: RecoveryPlan


@dataclass(frozen=True, slots=True)
class AppendClaim:
    """Append the claim as the successor of this version, or not at all.

    Answer: RowAppended, RowRefused or RowUnknown.
    """

    row: Claim
    at_version: int


@dataclass(frozen=True, slots=True)
class AppendEntry:
    """Append the entry in the same way. The same commit drops some entries, and changes `abandoned` of others."""

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
    """Compare the tables' logs with the recorded cuts. No other process writes meanwhile. Answer: TablesSeen."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class EnsureTables:
    """Create missing output tables. Do not compare the columns of `unsettled` ones yet. Answer: Done."""

    plan: RecoveryPlan
    unsettled: frozenset[TableName]


@dataclass(frozen=True, slots=True)
class PublishAgain:
    """Publish a checkpoint again into a table whose log has lost it. Answer: TablePublished or PublishFailed."""

    again: Again


@dataclass(frozen=True, slots=True)
class LookAtLogs:
    """Find out at which version each of these tables shows which checkpoint. Answer: LogsSeen."""

    doubt: Doubt


@dataclass(frozen=True, slots=True)
class CorrectCuts:
    """Record the corrected cuts. Answer: Done."""

    doubt: Doubt
    correction: Correction


@dataclass(frozen=True, slots=True)
class ReadCut:
    """Read the recorded cut of a checkpoint. Answer: CutRead."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class DiscardLeftovers:
    """Delete staged files of generations before `current`, and roll back transactions before `first_id`.

    Answer: LeftoversDiscarded. No entry refers to the files. Outside sinks have pre-committed the transactions.
    """

    current: Generation
    by: Referenced
    first_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Work:
    """Do the work for which the job was claimed. Answer: WorkEnded if a job ran, else RowChosen or Worked."""

    claim: Claim
    at_version: int
    seen: Observed
    plan: RecoveryPlan
    limits: TickLimits


@dataclass(frozen=True, slots=True)
class RollBackPreCommitted:
    """Roll back what outside sinks have pre-committed for older checkpoints. Answer: Done."""

    before: CheckpointId


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Delete unneeded files while the job is still held. Answer: Done."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait this long, or until the tick is asked to stop. Answer: Waited."""

    delay_ms: int


# ------------------------------------------------------------------ effects that nobody answers


@dataclass(frozen=True, slots=True)
class GiveLease:
    """Write a lease in the name of a holder that cannot be seen from here."""

    to: Refused
    lease_ms: int


@dataclass(frozen=True, slots=True)
class TakeHold:
    """The claim is in. Keep renewing the lease, and notify the listener."""

    claim: Claim
    plan: RecoveryPlan


@dataclass(frozen=True, slots=True)
class RolledForward:
    """A checkpoint that was committed and not published is published now."""

    record: CheckpointRecord
    versions: tuple[tuple[TableName, int], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything that dead holders left unfinished is done. The work begins."""

    plan: RecoveryPlan
    leftovers: int


@dataclass(frozen=True, slots=True)
class RestartDue:
    """Another attempt follows a failed attempt after this delay. `restart` counts from 1."""

    restart: int
    end: EndTick
    delay_ms: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """The attempt is over, with or without a release. Give the lease up."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The process does not know which entries `checkpoints` has. The next tick or command finds out."""

    error: str


Outcome = EndTick | Refused | Unsettled | CheckpointRecord | BaseException | None
"""The end of a tick, a refusal, an unknown outcome, an appended entry, an error, or None if the work is done."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The process is done with the job. `restarts` counts the attempts that followed failed ones."""

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
    | RollBackPreCommitted
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
"""These effects have no answer, and another effect follows each of them."""

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class Done:
    """The effect was carried out."""


@dataclass(frozen=True, slots=True)
class Objected:
    """The start is refused. The error names the reason and the way out. Nothing was changed."""

    why: Exception


@dataclass(frozen=True, slots=True)
class Failed:
    """The effect could not be carried out, and the attempt ends. The restart strategy decides what follows."""

    end: EndTick


@dataclass(frozen=True, slots=True)
class Broke:
    """The effect could not be carried out, and no attempt follows. The error is raised after the release."""

    why: BaseException


@dataclass(frozen=True, slots=True)
class TablesSeen:
    """The tables in doubt and their repair, or None if no table needs one."""

    doubt: Doubt | None


@dataclass(frozen=True, slots=True)
class LogsSeen:
    """The version at which each table shows each checkpoint."""

    published: Mapping[TableName, Mapping[CheckpointId, int]]


@dataclass(frozen=True, slots=True)
class CutRead:
    """The versions in the recorded cut. Empty if no cut is recorded."""

    versions: Versions


@dataclass(frozen=True, slots=True)
class LeftoversDiscarded:
    """This many files were deleted."""

    files: int


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """A job has ended, normally or with an error.

    `next_id` is its first unused id, `at_version` the version of its last entry, and `completed` the number of its
    completed checkpoints. `renews`: it ended only because its trace was full. `votes`: some of its outside sinks vote.
    """

    end: EndTick | BaseException
    next_id: CheckpointId
    at_version: int
    completed: int = 0
    renews: bool = False
    votes: bool = False


@dataclass(frozen=True, slots=True)
class RowChosen:
    """Append the entry of this recipe."""

    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Worked:
    """The work is done, and no entry is to be appended. The release drops these entries."""

    dropped: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class Waited:
    """The waiting time is over, or the tick was asked to stop."""


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
