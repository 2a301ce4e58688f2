"""The alphabet between the job door and its driver: facts (past tense) in, effects (imperative) out.

The caller's duties, in order: queue every fact; step the door with one fact at a time; carry out the
effects, slow ones elsewhere, each answered by the fact its docstring names. Effects of one step may
run in parallel, except that `AppendRow` waits for nothing but its turn and answers before the next.
"""

from dataclasses import dataclass
from enum import Enum

from checkpointing.channel_items import Segment
from checkpointing.columns import TableColumn
from checkpointing.coordinator.messages import AskHook, CloseHook, HookAnswered, HookFailed, ResetHook, RestoreHook
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import CheckpointId, SplitId, TableName, VertexId
from checkpointing.metadata.record import Row
from checkpointing.snapshots import RangeFiles, TaskWork

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class TimeAdvanced:
    """The clock shows `now_ms` (milliseconds since the epoch). Time is a fact."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class SliceOffered:
    """Answer to PollSource: a slice that starts where the poll asked."""

    slice: Segment


@dataclass(frozen=True, slots=True)
class SourceIdle:
    """Answer to PollSource: the split has nothing to read just now."""

    source: VertexId
    split: SplitId


@dataclass(frozen=True, slots=True)
class PollFailed:
    """Answer to PollSource: the split cannot be read; `error` names the file and the way out."""

    source: VertexId
    split: SplitId
    error: str


@dataclass(frozen=True, slots=True)
class SubtaskOutput:
    """What one subtask of a micro-batch wrote.

    `emitted` feeds the downstream channels (and may be the very files of a table); `staged` are the
    append tables' new files; `state` the new state files (a BASE among them ends what lies before);
    `ranges` the new files of the touched upsert ranges, complete.
    """

    emitted: tuple[FileHandle, ...] = ()
    staged: tuple[tuple[TableName, FileHandle], ...] = ()
    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()


@dataclass(frozen=True, slots=True)
class MicroBatchFinished:
    """Answer to RunMicroBatch: an output per subtask, in order; `work` too, or it is empty: nothing measured."""

    vertex: VertexId
    micro_batch: int
    outputs: tuple[SubtaskOutput, ...]
    duration_ms: int = 0
    work: tuple[TaskWork, ...] = ()


@dataclass(frozen=True, slots=True)
class MicroBatchFailed:
    """Answer to RunMicroBatch: nothing of it counts; files it may have left are leftovers."""

    vertex: VertexId
    micro_batch: int
    error: str


@dataclass(frozen=True, slots=True)
class MicroBatchNotStaged:
    """Answer to RunMicroBatch: its files could not be written, as on a full disk. Nothing of it counts.

    The files that it did write are deleted, as far as the system allows. The same rows may succeed later.
    """

    vertex: VertexId
    micro_batch: int
    error: str


@dataclass(frozen=True, slots=True)
class SuitesJudged:
    """Answer to JudgeSuites. `report` is JSON: a verdict per expectation, kept with the checkpoint.

    `message` says for a person what failed and what can be done; '' if nothing did.
    """

    vertex: VertexId
    checkpoint: CheckpointId
    passed: bool
    report: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class JudgementFailed:
    """Answer to JudgeSuites: the rows could not be judged, so no suite has accepted or rejected them.

    `error` names suite, table and cause. `report` is as in SuitesJudged, with the verdicts that there are.
    """

    vertex: VertexId
    checkpoint: CheckpointId
    error: str
    report: str = "[]"


@dataclass(frozen=True, slots=True)
class HookRestored:
    """Answer to RestoreHook or ResetHook: the hook is as it was at the cut."""

    hook: str


@dataclass(frozen=True, slots=True)
class HookRestoreFailed:
    """Answer to RestoreHook or ResetHook: the job cannot begin; `error` names the hook and the way out."""

    hook: str
    error: str


@dataclass(frozen=True, slots=True)
class TablesChecked:
    """Answer to CheckTables: problems found, each naming the table and the way out (empty: none)."""

    checkpoint: CheckpointId
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableCheckFailed:
    """Answer to CheckTables: the tables could not be looked at, so nobody knows whether they have changed."""

    checkpoint: CheckpointId
    error: str


@dataclass(frozen=True, slots=True)
class RowAppended:
    """Answer to AppendRow: the row of that nonce is in, at that version of `checkpoints`. THE COMMIT POINT."""

    nonce: str
    version: int


@dataclass(frozen=True, slots=True)
class RowRefused:
    """Answer to AppendRow: certainly not in, another coordinator took the version; names the holder."""

    nonce: str
    holder: str


@dataclass(frozen=True, slots=True)
class RowUnknown:
    """Answer to AppendRow: neither success nor a certain refusal, and the nonce could not be read back."""

    nonce: str
    error: str


@dataclass(frozen=True, slots=True)
class TablePublished:
    """Answer to PublishTable: the table shows cut n at that Delta version (`note`: what was met, or '')."""

    checkpoint: CheckpointId
    table: TableName
    version: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """Answer to PublishTable: the committed row stays unpublished; the next tick rolls it forward."""

    checkpoint: CheckpointId
    table: TableName
    error: str


@dataclass(frozen=True, slots=True)
class CutRecorded:
    """Answer to RecordCut: the cut can be read by its checkpoint id."""

    checkpoint: CheckpointId


class StopKind(Enum):
    """How a tick is asked to end."""

    AFTER_CHECKPOINT = "after_checkpoint"
    """Take a last checkpoint, then stop (a limit was reached)."""
    NOW = "now"
    """Stop in order without another checkpoint (Ctrl-C, SIGTERM): what is uncommitted is read again."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody asks the tick to end."""

    kind: StopKind


class SavepointKind(Enum):
    """What a user's savepoint is for (F4, A9)."""

    PLAIN = "plain"
    """The job goes on: a pinned row that publishes nothing and notifies nobody."""
    SUSPEND = "suspend"
    """The job stops after it; waiting rows stay in the state."""
    DRAIN = "drain"
    """The job stops after it, and its inputs end before it: operators put out what still waits."""


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A user asks for a savepoint; `request` names it in SavepointTaken or SavepointFailed."""

    request: str
    kind: SavepointKind


Fact = (
    TimeAdvanced
    | SliceOffered
    | SourceIdle
    | PollFailed
    | MicroBatchFinished
    | MicroBatchFailed
    | MicroBatchNotStaged
    | SuitesJudged
    | JudgementFailed
    | HookAnswered
    | HookFailed
    | HookRestored
    | HookRestoreFailed
    | TablesChecked
    | TableCheckFailed
    | RowAppended
    | RowRefused
    | RowUnknown
    | TablePublished
    | PublishFailed
    | CutRecorded
    | StopRequested
    | SavepointRequested
)

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class PollSource:
    """Read a slice of at most `max_rows` after `position` (None: from the start)."""

    source: VertexId
    split: SplitId
    position: str | None
    max_rows: int


@dataclass(frozen=True, slots=True)
class InputSegments:
    """The segments of one input of a vertex, in the order in which its gate let them through."""

    input: int
    upstream: VertexId
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class RunMicroBatch:
    """Run one Spark job of one vertex over these segments.

    `state[i]` are subtask i's live state files, oldest first; `ranges[i]` its upsert tables' current
    files. Every file it writes is new, immutable and named by generation, vertex and micro-batch.
    `end_of_input`: no row will follow on any input (drain); a keyed vertex then ends every key of its
    state, whatever segments there are, perhaps none.
    """

    vertex: VertexId
    micro_batch: int
    generation: int
    inputs: tuple[InputSegments, ...]
    state: tuple[tuple[KeyedFile, ...], ...]
    ranges: tuple[tuple[RangeFiles, ...], ...]
    end_of_input: bool = False


@dataclass(frozen=True, slots=True)
class JudgeSuites:
    """Judge all rows staged for the vertex's judged tables since the last completed checkpoint (J3)."""

    vertex: VertexId
    checkpoint: CheckpointId
    files: tuple[tuple[TableName, tuple[FileHandle, ...]], ...]


@dataclass(frozen=True, slots=True)
class CancelJudgement:
    """The checkpoint of that JudgeSuites has ended: nobody waits for the verdict. If it still comes, it is ignored."""

    vertex: VertexId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Publication:
    """What publishing checkpoint n means for one table.

    APPEND: `adds` enter the log, and `removes`, of a rollback, leave it. UPSERT, STATE: the active files become
    exactly `files`. In the same commit the table gets `columns` and loses those that are `leaving`; what others have
    added stays. No columns: they stay as they are. `renamed` are the new and the old name of each renamed column.
    `no_others`: the table lost entries, so `leaving` does not tell all that it has too many, and it keeps no other
    columns.
    """

    table: TableName
    mode: TableMode
    adds: tuple[FileHandle, ...] = ()
    files: tuple[FileHandle, ...] = ()
    removes: tuple[FileHandle, ...] = ()
    columns: tuple[TableColumn, ...] = ()
    leaving: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    no_others: bool = False


@dataclass(frozen=True, slots=True)
class CheckTables:
    """Compare protocol, features, schema and partitioning of these tables with the last cut."""

    checkpoint: CheckpointId
    tables: tuple[TableName, ...]


@dataclass(frozen=True, slots=True)
class AppendRow:
    """Append the row to `checkpoints` if that table is at `at_version`; drop `subsumed` in the same commit."""

    row: Row
    at_version: int
    subsumed: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishTable:
    """Enter the publication into the table's log, idempotently, as `txn(job + table) = checkpoint`."""

    checkpoint: CheckpointId
    publication: Publication


@dataclass(frozen=True, slots=True)
class RecordCut:
    """Write (checkpoint, table, Delta version) for every table into `cuts`."""

    checkpoint: CheckpointId
    versions: tuple[tuple[TableName, int], ...]


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Tell listeners and sources that checkpoint n is complete and published (F1, F2).

    `positions` are those of every source split at the cut, (source, split, canonical JSON): what a
    source may now commit outside.
    """

    checkpoint: CheckpointId
    positions: tuple[tuple[VertexId, SplitId, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SavepointTaken:
    """Answer to SavepointRequested: the savepoint is committed as that row (and, of a stop, published)."""

    request: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class SavepointFailed:
    """Answer to SavepointRequested: there is no savepoint; a plain one leaves the job as it was."""

    request: str
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell listeners that checkpoint n failed, and why. Its staged files live on in the next one."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class DiscardFiles:
    """Delete these warehouse-relative files: certainly referenced by nothing."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Step the door with TimeAdvanced at `at_ms` at the latest (replaces the earlier wish)."""

    at_ms: int


class TickOutcome(Enum):
    """How a tick ended."""

    CAUGHT_UP = "caught_up"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EndTick:
    """The tick is over: `reason` and `message` say why when it failed."""

    outcome: TickOutcome
    reason: CheckpointFailureReason | None = None
    message: str = ""


Effect = (
    PollSource
    | RunMicroBatch
    | JudgeSuites
    | CancelJudgement
    | AskHook
    | RestoreHook
    | ResetHook
    | CloseHook
    | CheckTables
    | AppendRow
    | PublishTable
    | RecordCut
    | NotifyComplete
    | NotifyAborted
    | SavepointTaken
    | SavepointFailed
    | DiscardFiles
    | WakeAt
    | EndTick
)
