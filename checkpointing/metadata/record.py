"""The rows of the `checkpoints` table, as they are persisted: versioned pydantic models, JSON, no pickle.

A row of kind CHECKPOINT is one consistent cut; one of kind ROLLBACK is an older cut under a new id, one of kind RESET
the newest cut with other positions (K2); one of kind SAVEPOINT is a cut that no tick begins from unasked. CLAIM and
RELEASE rows carry the fence (`commit.fencing`).
"""

from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from checkpointing.channel_items import AlignmentType
from checkpointing.columns import TableColumns
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, has_control_characters
from checkpointing.snapshots import SubtaskSnapshot
from checkpointing.state_meaning import ColumnMeaning

FORMAT: Literal[5] = 5


class RowKind(Enum):
    """What a row of `checkpoints` says."""

    CLAIM = "claim"
    RELEASE = "release"
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    ROLLBACK = "rollback"
    RESET = "reset"


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _printable(text: str) -> str:
    if has_control_characters(text):
        raise ValueError("holds control characters")
    return text


_Name = Annotated[str, Field(max_length=1_024), AfterValidator(_printable)]
"""A name from outside that messages show: nothing in it moves a terminal."""


class Holder(_Persisted):
    """Who holds a job: enough to name him to a user and to find out whether he is still alive."""

    host: _Name
    pid: int = Field(ge=0, lt=2**32)
    started: _Name
    """When that process started, as the operating system tells it: a pid alone may be reused."""
    dagster_run: _Name | None = None

    def __str__(self) -> str:
        """Return the holder as a user reads it."""
        run = f", Dagster run {self.dagster_run}" if self.dagster_run else ""
        return f"process {self.pid} on {self.host}{run}"


class Claim(_Persisted):
    """A tick's claim on the job: its generation, who it is, and the ids it may hand out (A6)."""

    format: Literal[5] = FORMAT
    generation: Generation
    holder: Holder
    first_id: CheckpointId
    last_id: CheckpointId
    at_ms: int
    nonce: str


class Release(_Persisted):
    """An orderly end: the job is free, and `next_id` is the first id that was not used."""

    format: Literal[5] = FORMAT
    generation: Generation
    next_id: CheckpointId
    at_ms: int
    nonce: str


class TableKeys(_Persisted):
    """The key columns of an upsert table."""

    table: TableName
    columns: tuple[str, ...]


class VertexRecord(_Persisted):
    """One vertex of a cut: its micro-batch counter at the barrier and a snapshot per subtask."""

    vertex: VertexId
    micro_batch: int
    subtasks: tuple[SubtaskSnapshot, ...]
    splits: tuple[str, ...] = ()
    """The split of each subtask, for a source."""
    meanings: tuple[ColumnMeaning, ...] | None = None
    """How the columns of its state were computed; None in rows of format 3 and older, which did not record it."""

    table_keys: tuple[TableKeys, ...] = ()
    """The keys of the upsert tables that it writes; none in rows of format 3 and older, which did not record them."""


class TableRecord(_Persisted):
    """What publishing this row means for one table; `parent_version` is its version at the parent cut.

    Of a rollback: the version that it was planned against.
    """

    table: TableName
    mode: TableMode
    adds: tuple[FileHandle, ...] = ()
    files: tuple[FileHandle, ...] = ()
    removes: tuple[FileHandle, ...] = ()
    """Files of ours that leave an append table, by a rollback, or since a renamed one takes the name.

    Nobody needs them to restore this row.
    """
    leaving: tuple[str, ...] = ()
    """Columns of ours that leave the table: those of its present cut that it does not have at this one (D6)."""
    parent_version: int


class RenameKind(Enum):
    """What has another name."""

    VERTEX = "vertex"
    TABLE = "table"
    COLUMN = "column"


class Rename(_Persisted):
    """A rename that the pipeline declared: what older entries call `was`, this one calls `now`.

    `vertex` is the one whose column it is; it is empty for a vertex or a table.
    """

    kind: RenameKind
    was: str
    now: str
    vertex: str = ""


class BarrierRecord(_Persisted):
    """When barrier n reached one channel of a vertex."""

    channel: str
    at_ms: int


class SubtaskStatistics(_Persisted):
    """Numbers of a vertex's subtasks in an epoch, a column each; the i-th entry is subtask i's (E6).

    A column is empty if no subtask measured it, as in every entry of format 4 and older. An entry is None if this
    subtask did not. A subtask takes some forty bytes here and at least ten times as many for its snapshot, so the
    entry grows by a tenth at any parallelism. Fields mean what those of `SnapshotMetrics` do.
    """

    task_ms: tuple[int | None, ...] = ()
    sync_ms: tuple[int | None, ...] = ()
    rows_in: tuple[int | None, ...] = ()
    rows_out: tuple[int | None, ...] = ()
    bytes_out: tuple[int | None, ...] = ()
    checkpointed_bytes: tuple[int | None, ...] = ()


class VertexStatistics(_Persisted):
    """The epoch's life at one vertex (E6, C7); times in ms since the epoch, durations in ms."""

    vertex: VertexId
    barriers: tuple[BarrierRecord, ...] = ()
    aligned_ms: int = 0
    """When the snapshot was taken: at the last barrier, or of an unaligned checkpoint before it."""
    alignment: AlignmentType = AlignmentType.ALIGNED
    """How the barrier passed in the end; a checkpoint that began aligned may have turned (C6)."""
    alignment_ms: int = 0
    """From the first barrier to the last, whether anything waited meanwhile or not."""
    bytes_held: int = 0
    """What waited behind the barriers when the snapshot was taken."""
    acknowledged_ms: int = 0
    micro_batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    busy_ms: int = 0
    start_delay_ms: int | None = None
    """From the trigger to the first barrier at the vertex; None in entries of format 4 and older, as the next two."""
    bytes_processed: int | None = None
    """Bytes that the gate let through between the first barrier and the last."""
    async_ms: int | None = None
    """From the snapshot to the last acknowledgement: suites are judged, segments in flight are gathered."""
    subtasks: SubtaskStatistics = SubtaskStatistics()


class CheckpointCounts(_Persisted):
    """How many checkpoints a generation has had; `total` is the sum of those in progress, completed and failed (E6).

    `restored` is 1 if the generation began from a checkpoint.
    """

    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0

    def __add__(self, other: "CheckpointCounts") -> "CheckpointCounts":
        """Add the counts of another generation."""
        return CheckpointCounts(
            total=self.total + other.total,
            in_progress=self.in_progress + other.in_progress,
            completed=self.completed + other.completed,
            failed=self.failed + other.failed,
            restored=self.restored + other.restored,
        )


class Statistics(_Persisted):
    """What is known of the epoch when its row is written. Statistics never steer."""

    triggered_ms: int
    committed_ms: int
    rows: int
    """Rows that the sources sent between the barrier of the parent and this one, those of failed checkpoints too."""
    vertices: tuple[VertexStatistics, ...] = ()
    verdicts: tuple[str, ...] = ()
    """The suites' verdicts, JSON as the judge gave them (J3)."""
    counts: CheckpointCounts | None = None
    """The checkpoints of its generation when the entry was written, itself in progress; None: not counted."""


class HookState(_Persisted):
    """What a master hook answered for this cut: its state, a JSON text (A8)."""

    hook: str
    state: str


class CheckpointRecord(_Persisted):
    """One consistent cut: positions, state handles and the net files of every table."""

    format: Literal[5] = FORMAT
    job: str
    kind: RowKind = RowKind.CHECKPOINT
    pinned: bool = False
    """It and all files that it names stay until its owner disposes of it: every savepoint's row (A9, F4)."""
    abandoned: bool = False
    """The job was rolled back behind it: off the line, and there only because it is pinned (K2)."""
    checkpoint: CheckpointId
    parent: CheckpointId
    generation: Generation
    nonce: str
    max_parallelism: int
    vertices: tuple[VertexRecord, ...]
    tables: tuple[TableRecord, ...]
    columns: tuple[TableColumns, ...] = ()
    """The columns of every table at this cut; of a table that was written before format 4 it says nothing (D6)."""
    renames: tuple[Rename, ...] = ()
    """The renames that the pipeline declared when the row was written: they have happened, and do not happen again."""
    hooks: tuple[HookState, ...] = ()
    """The state of every master hook that has some; none in rows of format 4 and older, which knew no hooks."""
    statistics: Statistics

    @property
    def is_savepoint(self) -> bool:
        """Whether its owner alone disposes of it; never subsumed, it is none of the retained checkpoints (A9, E4)."""
        return self.pinned or self.kind is RowKind.SAVEPOINT

    @property
    def commits(self) -> bool:
        """Whether tables come to show it and ticks begin from it: every row of a cut but a plain savepoint's."""
        return self.kind is not RowKind.SAVEPOINT


Row = CheckpointRecord | Claim | Release
