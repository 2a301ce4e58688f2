"""The messages between the job door and its driver: facts (past tense) in, effects (imperative) out.

The driver queues every fact, steps the door with one fact at a time, and carries out the effects. Slow effects run in
other threads. The docstring of a fact names the effect that the fact answers. Effects of one step can run in parallel.
Only `AppendRow` effects run one after the other: the next one begins when the one before is answered.
"""

from dataclasses import dataclass
from enum import Enum

from checkpointing.channel_items import RangeFiles, Segment, TaskWork
from checkpointing.columns import TableColumn
from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CloseHook,
    HookAnswered,
    HookFailed,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.event_time import BEFORE_TIME
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import CheckpointId, Generation, SplitId, TableName, VertexId
from checkpointing.metadata.record import Claim, ErasedFile, FileCompaction, Row

# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class TimeAdvanced:
    """The clock shows `now_ms` (milliseconds since 1970)."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class SliceOffered:
    """Answer to PollSource: a slice that starts where the poll asked."""

    slice: Segment


@dataclass(frozen=True, slots=True)
class SourceIdle:
    """Answer to PollSource: the split has nothing to read now."""

    source: VertexId
    split: SplitId


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """Answer to PollSource: the split of a bounded source has ended. No more rows will ever follow (B4)."""

    source: VertexId
    split: SplitId


@dataclass(frozen=True, slots=True)
class PollFailed:
    """Answer to PollSource: the split cannot be read. `error` names the file and the way out."""

    source: VertexId
    split: SplitId
    error: str


@dataclass(frozen=True, slots=True)
class SubtaskOutput:
    """What one subtask wrote in a micro-batch.

    `emitted` goes into the downstream channels. These may be files that a table has too. `staged` are the append
    tables' new files. `state` has the new state files. If a BASE is among them, it replaces all older state files.
    Otherwise the older state files whose paths are among `ended` are dropped from the state: their rows have expired,
    or are in a new file too. `ranges` has all files of the upsert ranges that were written: the new files, and the
    older files that still belong to a range. `due_ms` is the earliest event time at which something is due in the state
    that the micro-batch wrote. If the micro-batch fired, it is the earliest in all state (N4).
    """

    emitted: tuple[FileHandle, ...] = ()
    staged: tuple[tuple[TableName, FileHandle], ...] = ()
    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    due_ms: int | None = None
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GreatestTime:
    """The greatest event time, in ms, among the rows of one split that a micro-batch has read for one input (N1)."""

    input: int
    split: SplitId
    ms: int


@dataclass(frozen=True, slots=True)
class MicroBatchFinished:
    """Answer to RunMicroBatch: an output for each subtask, in order.

    `work` has an entry for each subtask too, or is empty if nothing was measured. `times` has the splits of inputs with
    event times, except those of whose rows none has a time.
    """

    vertex: VertexId
    micro_batch: int
    outputs: tuple[SubtaskOutput, ...]
    duration_ms: int = 0
    work: tuple[TaskWork, ...] = ()
    times: tuple[GreatestTime, ...] = ()


@dataclass(frozen=True, slots=True)
class MicroBatchFailed:
    """Answer to RunMicroBatch: it failed, and its output is not used. Files that it has written are leftovers."""

    vertex: VertexId
    micro_batch: int
    error: str


@dataclass(frozen=True, slots=True)
class MicroBatchNotStaged:
    """Answer to RunMicroBatch: its files could not be written, for example on a full disk. Its output is not used.

    The files that it did write are deleted, if the system allows it. A later micro-batch can process the same rows.
    """

    vertex: VertexId
    micro_batch: int
    error: str


@dataclass(frozen=True, slots=True)
class SuitesJudged:
    """Answer to JudgeSuites. `report` is JSON with a verdict for each expectation. The checkpoint's entry contains it.

    `message` says what failed and what a user can do, or is '' if nothing failed.
    """

    vertex: VertexId
    checkpoint: CheckpointId
    passed: bool
    report: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class JudgementFailed:
    """Answer to JudgeSuites: the rows could not be judged, so no suite has accepted or rejected them.

    `error` names suite, table and cause. `report` is as in SuitesJudged, with the verdicts that were reached.
    """

    vertex: VertexId
    checkpoint: CheckpointId
    error: str
    report: str = "[]"


@dataclass(frozen=True, slots=True)
class HookRestored:
    """Answer to RestoreHook or ResetHook: the hook has the state of the cut."""

    hook: str


@dataclass(frozen=True, slots=True)
class HookRestoreFailed:
    """Answer to RestoreHook or ResetHook: the job cannot begin. `error` names the hook and the way out."""

    hook: str
    error: str


@dataclass(frozen=True, slots=True)
class CoordinatorReset:
    """Answer to ResetOperatorCoordinator: the source's own state is the state in the cut (A7)."""

    source: str


@dataclass(frozen=True, slots=True)
class CoordinatorResetFailed:
    """Answer to ResetOperatorCoordinator: the job cannot begin. `error` names the source and the way out."""

    source: str
    error: str


@dataclass(frozen=True, slots=True)
class TablesChecked:
    """Answer to CheckTables: the problems that were found, if any. Each names the table and the way out."""

    checkpoint: CheckpointId
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableCheckFailed:
    """Answer to CheckTables: the tables could not be read, or an outside sink cannot take the rows."""

    checkpoint: CheckpointId
    error: str


@dataclass(frozen=True, slots=True)
class RowAppended:
    """Answer to AppendRow: the entry with this nonce is in, at this version of `checkpoints`. THE COMMIT POINT."""

    nonce: str
    version: int


@dataclass(frozen=True, slots=True)
class RowRefused:
    """Answer to AppendRow: the entry is certainly not in. Another coordinator, the `holder`, took the version."""

    nonce: str
    holder: str


@dataclass(frozen=True, slots=True)
class RowUnknown:
    """Answer to AppendRow: nobody knows whether the entry is in, since it was not possible to search for its nonce."""

    nonce: str
    error: str


@dataclass(frozen=True, slots=True)
class TablePublished:
    """Answer to PublishTable: the table shows cut n at this Delta version.

    `note` reports what the publication found in the table, or is ''. `outside`: the table's outside sink has the rows,
    and there is no version.
    """

    checkpoint: CheckpointId
    table: TableName
    version: int
    note: str = ""
    outside: bool = False


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """Answer to PublishTable: the committed entry stays unpublished, and the next tick rolls it forward."""

    checkpoint: CheckpointId
    table: TableName
    error: str


@dataclass(frozen=True, slots=True)
class CutRecorded:
    """Answer to RecordCut: readers can read the cut by its checkpoint id."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Compacted:
    """The compactions of one append table. They are ready to be committed."""

    table: TableName
    compactions: tuple[FileCompaction, ...]


@dataclass(frozen=True, slots=True)
class FilesCompacted:
    """Answer to CompactFiles: for each table, what was compacted. Without `found` there was nothing to do.

    The tables in `more` have further files to compact. They are left to the next request, so that no request takes too
    long. `error` says what went wrong, or is ''. After an error the tables keep their small files, and the job goes on.
    """

    found: tuple[Compacted, ...] = ()
    more: tuple[TableName, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class RivalSeen:
    """Answer to LookForRival: the claim of a later generation. None: there is no such claim, or the look-up failed."""

    claim: Claim | None


class StopKind(Enum):
    """How a tick is asked to end."""

    AFTER_CHECKPOINT = "after_checkpoint"
    """Take a last checkpoint, then stop, for example because a limit was reached."""
    NOW = "now"
    """Stop cleanly without another checkpoint (Ctrl-C, SIGTERM). The next tick reads uncommitted rows again."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user or a limit asks the tick to stop."""

    kind: StopKind


class SavepointKind(Enum):
    """What a user's savepoint is for (F4, A9)."""

    PLAIN = "plain"
    """The job goes on. The savepoint is a pinned entry that publishes nothing and notifies nobody."""
    SUSPEND = "suspend"
    """The job stops after it. Waiting rows stay in the state."""
    DRAIN = "drain"
    """The job stops after it. Its inputs end before it, so operators emit the waiting rows."""


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A user asks for a savepoint. `request` names it in SavepointTaken or SavepointFailed."""

    request: str
    kind: SavepointKind


Fact = (
    TimeAdvanced
    | SliceOffered
    | SourceIdle
    | SourceEnded
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
    | OperatorCoordinatorAnswered
    | OperatorCoordinatorFailed
    | CoordinatorReset
    | CoordinatorResetFailed
    | TablesChecked
    | TableCheckFailed
    | RowAppended
    | RowRefused
    | RowUnknown
    | TablePublished
    | PublishFailed
    | CutRecorded
    | FilesCompacted
    | RivalSeen
    | StopRequested
    | SavepointRequested
)

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class PollSource:
    """Read a slice of at most `max_rows` rows after `position` (None: from the start).

    A source that reads another job's cuts reads no further than `cut`. With None, it takes the newest cut (A10).
    """

    source: VertexId
    split: SplitId
    position: str | None
    max_rows: int
    cut: str | None = None


@dataclass(frozen=True, slots=True)
class InputSegments:
    """The segments of one input of a vertex, in the order in which its gate let them through."""

    input: int
    upstream: VertexId
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class RunMicroBatch:
    """Run one Spark job of one vertex over these segments.

    `state[i]` are subtask i's live state files, oldest first. `ranges[i]` are the current files of its upsert tables.
    Every file that the job writes is new and immutable, and its name has generation, vertex and micro-batch.
    `end_of_input`: no more rows come on any input, because of a drain, or because all sources have ended. A keyed
    vertex then ends every key of its state, even if there is no segment. A row is late if its event time, in ms, is not
    after `late_ms`, the watermark of the last barrier. With `due_ms` the vertex processes its rows, and then fires all
    of its state that is due by `due_ms` (N4). State expires by `now_ms`, the time of the last barrier. None if no state
    expires, or if there is no watermark yet (N5).
    """

    vertex: VertexId
    micro_batch: int
    generation: int
    inputs: tuple[InputSegments, ...]
    state: tuple[tuple[KeyedFile, ...], ...]
    ranges: tuple[tuple[RangeFiles, ...], ...]
    end_of_input: bool = False
    late_ms: int = BEFORE_TIME
    due_ms: int | None = None
    now_ms: int | None = None


@dataclass(frozen=True, slots=True)
class JudgeSuites:
    """Judge all rows that were staged for the vertex's judged tables since the last completed checkpoint (J3).

    If a table has no files, none of the rows went to it. It is judged because its suite expects something of such an
    epoch too.
    """

    vertex: VertexId
    checkpoint: CheckpointId
    files: tuple[tuple[TableName, tuple[FileHandle, ...]], ...]


@dataclass(frozen=True, slots=True)
class CancelJudgement:
    """Cancel the judgement of a JudgeSuites whose checkpoint has ended, since nothing waits for the verdict.

    If the verdict still comes, it is ignored.
    """

    vertex: VertexId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class FileChanges:
    """The files that a publication adds to and removes from a table, if the table's log is still at `version`.

    The table is an upsert or state table. At `version` it shows the parent's cut.
    """

    version: int
    new: tuple[FileHandle, ...]
    gone: tuple[FileHandle, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """What publishing checkpoint n means for one table.

    APPEND: `adds` enter the log, and for a rollback `removes` leave it. UPSERT, STATE: the active files become exactly
    `files`. In the same commit the table gets `columns` and loses those in `leaving`. Columns that other writers have
    added stay. If `columns` is empty, all columns stay as they are. `renamed` has the new and the old name of each
    renamed column. Each file of an append table that has only the old name is written again. `in_order`: the columns
    get the order of `columns`. `no_others`: the table's log lost entries, so columns that the table must lose may be
    missing in `leaving`. The table then keeps only `columns`.
    """

    table: TableName
    mode: TableMode
    adds: tuple[FileHandle, ...] = ()
    files: tuple[FileHandle, ...] = ()
    removes: tuple[FileHandle, ...] = ()
    columns: tuple[TableColumn, ...] = ()
    leaving: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    in_order: bool = False
    rolls_back: bool = False
    """True if columns may get narrower types, those of an older cut. No file of the table has a wider type."""
    generation: Generation | None = None
    """The entry's generation. Files that are written again belong to it. None: no file is written again."""
    no_others: bool = False
    outside: bool = False
    """True if this publication goes to the table's outside sink. Then the table's log has the checkpoint already."""
    since: CheckpointId | None = None
    """For the sink of an upsert table: the checkpoint at which the table had the files `before`. None: unknown."""
    before: tuple[FileHandle, ...] = ()
    compactions: tuple[FileCompaction, ...] = ()
    """Compactions that change no row. The same commit carries out those that the table's present files allow."""
    erases: bool = False
    """True if rows were erased. Then no version of the table may show a file in `erased`, or the statistics of one."""
    erased: tuple[ErasedFile, ...] = ()
    """Files of the table, each with its successor."""
    changes: FileChanges | None = None
    """How `files` differ from the table at the parent's cut. None: nobody knows, so all files are compared."""


@dataclass(frozen=True, slots=True)
class CheckTables:
    """Compare protocol, features, schema and partitioning of these tables with the last cut.

    The checkpoint takes the files `leaving` out of append tables. So find out whether another writer has moved rows of
    these files into other files.
    """

    checkpoint: CheckpointId
    tables: tuple[TableName, ...]
    leaving: tuple[str, ...] = ()
    pre_commits: tuple[Publication, ...] = ()
    """If the check finds no problem, the outside sinks that vote pre-commit these publications, all or none of them."""
    keeps: bool = True
    """False for a held cut. Then the sinks roll back at once what they have pre-committed."""


@dataclass(frozen=True, slots=True)
class AppendRow:
    """Append the entry if `checkpoints` is at `at_version`. Drop the entries in `subsumed` in the same commit."""

    row: Row
    at_version: int
    subsumed: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishTable:
    """Publish into the table's log, with `txn(job + table) = checkpoint`, or into its outside sink, under the same id.

    A repetition changes nothing.
    """

    checkpoint: CheckpointId
    publication: Publication


@dataclass(frozen=True, slots=True)
class RecordCut:
    """Record (checkpoint, table, Delta version) in `cuts`, for every table."""

    checkpoint: CheckpointId
    versions: tuple[tuple[TableName, int], ...]


@dataclass(frozen=True, slots=True)
class CompactFiles:
    """Write small files of these append tables into larger ones, beside all other work. Nobody waits for the answer.

    `checkpointing.commit.compaction` chooses the files among those that a table shows. Answer: FilesCompacted.
    """

    tables: tuple[TableName, ...]
    files_min: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Notify listeners and sources that checkpoint n is complete and published (F1, F2).

    `positions` are those of all source splits at the cut: (source, split, canonical JSON). A source may now commit them
    outside.
    """

    checkpoint: CheckpointId
    positions: tuple[tuple[VertexId, SplitId, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SavepointTaken:
    """Answer to SavepointRequested: the savepoint is committed as this entry.

    If the savepoint is a stop's, it is also published.
    """

    request: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class SavepointFailed:
    """Answer to SavepointRequested: there is no savepoint. After a failed plain one, the job goes on as before."""

    request: str
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Notify listeners that checkpoint n failed, and why. Its staged files belong to the next checkpoint.

    `ends_tick`: this failure ends the tick, and the tick's error has the message too.
    """

    checkpoint: CheckpointId
    reason: CheckpointFailureReason
    message: str
    ends_tick: bool = False


@dataclass(frozen=True, slots=True)
class LookForRival:
    """Find out whether another process has claimed the job since this generation. Answer: RivalSeen."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class DiscardFiles:
    """Delete these files, given by warehouse-relative paths. Certainly nothing refers to them."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Step the door with TimeAdvanced at `at_ms` at the latest. This replaces the time of the last WakeAt."""

    at_ms: int


class TickOutcome(Enum):
    """How a tick ended."""

    CAUGHT_UP = "caught_up"
    FINISHED = "finished"
    """All sources are bounded and have ended, and the newest cut shows the effect of every row (B4)."""
    STOPPED = "stopped"
    HELD = "held"
    """A cut waits for a person's approval. This tick has held it, or found it and changed nothing."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EndTick:
    """The tick is over. If it failed, `reason` and `message` say why. If a cut waits, `message` names it."""

    outcome: TickOutcome
    reason: CheckpointFailureReason | None = None
    message: str = ""


Effect = (
    PollSource
    | RunMicroBatch
    | JudgeSuites
    | CancelJudgement
    | AskOperatorCoordinator
    | ResetOperatorCoordinator
    | AskHook
    | RestoreHook
    | ResetHook
    | CloseHook
    | CheckTables
    | AppendRow
    | PublishTable
    | RecordCut
    | CompactFiles
    | NotifyComplete
    | NotifyAborted
    | LookForRival
    | SavepointTaken
    | SavepointFailed
    | DiscardFiles
    | WakeAt
    | EndTick
)
