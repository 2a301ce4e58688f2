"""The entries of the table `checkpoints`, as they are persisted: pydantic models with a format number, JSON, no pickle.

An entry of kind CHECKPOINT is one consistent cut. ROLLBACK is an older cut under a new id, and RESET is the newest cut
with other positions (K2). FORGET is the newest cut without erased rows (K6). SAVEPOINT is a cut from which no tick
begins unless a user asks for it. HELD is a cut that waits for a person's approval (`commit.at_rest`). CLAIM and RELEASE
entries are the base of the fence (`commit.fencing`).
"""

from enum import Enum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from checkpointing.channel_items import AlignmentType, SubtaskSnapshot
from checkpointing.columns import TableColumns
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, has_control_characters
from checkpointing.state_meaning import ColumnMeaning

FORMAT: Literal[7] = 7


COMPACTED_FILES_MAX: Final = 1_000
"""A compaction replaces no more files than this, since the entry names all replaced files."""


class RowKind(Enum):
    """The kind of an entry of `checkpoints`."""

    CLAIM = "claim"
    RELEASE = "release"
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    ROLLBACK = "rollback"
    RESET = "reset"
    FORGET = "forget"
    HELD = "held"


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _printable(text: str) -> str:
    if has_control_characters(text):
        raise ValueError("holds control characters")
    return text


_Name = Annotated[str, Field(max_length=1_024), AfterValidator(_printable)]
"""A type for names from outside that messages show. Such a name has no control characters."""


class Holder(_Persisted):
    """The holder of a job: enough to name it to a user, and to find out whether it is alive."""

    host: _Name
    pid: int = Field(ge=0, lt=2**32)
    started: _Name
    """When this process started, as the operating system says. A pid alone is not enough, since pids are reused."""
    dagster_run: _Name | None = None

    def __str__(self) -> str:
        """Return the holder in words for a user."""
        run = f", Dagster run {self.dagster_run}" if self.dagster_run else ""
        return f"process {self.pid} on {self.host}{run}"


class Claim(_Persisted):
    """A tick's claim on the job: its generation, its holder, and the ids that it may use (A6)."""

    format: Literal[7] = FORMAT
    generation: Generation
    holder: Holder
    first_id: CheckpointId
    last_id: CheckpointId
    at_ms: int
    nonce: str


class CheckpointFailure(_Persisted):
    """A checkpoint of a tick that failed or was declined, and why. Commands and Dagster list such checkpoints (E6)."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason
    message: str
    at_ms: int


class TickEnd(_Persisted):
    """How a tick ended: an outcome of `TickOutcome`, and why it failed, if it did.

    `failed` lists its last failed checkpoints. No decision depends on this record.
    """

    outcome: str = Field(pattern=r"^[a-z_]{1,40}$")
    reason: CheckpointFailureReason | None = None
    message: str = ""
    failed: tuple[CheckpointFailure, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether the tick failed."""
        return self.outcome == "failed"


class Release(_Persisted):
    """A normal end: the job is free, and `next_id` is the first id that was not used."""

    format: Literal[7] = FORMAT
    generation: Generation
    next_id: CheckpointId
    at_ms: int
    nonce: str
    ended: TickEnd | None = None
    """How the tick ended. None: the process was not a tick, or the entry is older than this field."""

    @property
    def why_free(self) -> str:
        """Why the job is free, in words for a user."""
        failed = self.ended is not None and self.ended.has_failed
        return "the last tick failed and released the job" if failed else "the last tick ended normally"


class TableKeys(_Persisted):
    """The key columns of an upsert table, or the version column of an overwrite table."""

    table: TableName
    columns: tuple[str, ...]
    mode: TableMode = TableMode.UPSERT
    """Whether it is an upsert or an overwrite table. Entries older than this field have only upsert tables."""


class InputTimeRecord(_Persisted):
    """How far in event time one input of a vertex was, from one split or from one upstream vertex (N1).

    `active_ms` is the clock time of the last barrier at which the split was active: rows of the split had run since the
    barrier before, or the split still had rows to read. `delay_ms`, `idle_after_ms` and `close_after_ms` are what the
    pipeline declared for the split at that time. No decision depends on these three.
    """

    input: int = Field(ge=0)
    upstream: VertexId
    split: str = ""
    watermark_ms: int = Field(ge=-(2**63), lt=2**63)
    idle: bool = False
    active_ms: int | None = None
    delay_ms: int | None = None
    idle_after_ms: int | None = None
    close_after_ms: int | None = None


class VertexTimeRecord(_Persisted):
    """How far in event time a vertex is: its watermark, in ms since 1970, and the watermarks of its inputs (N1).

    A row of the next epoch is late if its time is not after the watermark. `tables` are the output tables of the vertex
    that have all rows up to the watermark less `behind_ms`, as far as anybody knows.
    """

    watermark_ms: int = Field(ge=-(2**63), lt=2**63)
    idle: bool = False
    rows_ms: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """If the watermark is the end of time: the watermark of the rows.

    A job that goes on after a drain begins with it.
    """
    drained: bool = False
    """True if a drain brought the end of time, so that more rows may come.

    Tables are then complete only until `rows_ms`. In entries that are older than this field it is False, and their
    tables are complete for ever.
    """
    inputs: tuple[InputTimeRecord, ...] = ()
    tables: tuple[TableName, ...] = ()
    behind_ms: int = 0


class SplitPosition(_Persisted):
    """The position of a source's split."""

    source: VertexId
    split: str
    position: str | None = None


class VertexWatermark(_Persisted):
    """How far in event time a vertex was (N1)."""

    vertex: VertexId
    watermark_ms: int = Field(ge=-(2**63), lt=2**63)


class PassedBarrier(_Persisted):
    """A barrier since the parent's cut that led to no cut: its checkpoint failed, or it was a savepoint (N1).

    Each vertex that passed the barrier had a watermark there, which decides which later rows are late. So a replay from
    cut to cut needs this barrier too. `clock_ms` is when the sources sent it, and `positions` are their positions then.
    """

    checkpoint: CheckpointId
    clock_ms: int
    positions: tuple[SplitPosition, ...] = ()
    watermarks: tuple[VertexWatermark, ...] = ()
    """The vertices that passed the barrier. Its checkpoint had ended before it reached the other vertices."""


class ExpiryRecord(_Persisted):
    """How rows of a vertex's state expire, and `now_ms`, the time by which they had expired. None: no time yet (N5)."""

    ttl_ms: int
    by_clock: bool = False
    now_ms: int | None = None


class VertexRecord(_Persisted):
    """One vertex of a cut: its last micro-batch before the barrier, and a snapshot of each subtask."""

    vertex: VertexId
    micro_batch: int
    subtasks: tuple[SubtaskSnapshot, ...]
    splits: tuple[str, ...] = ()
    """The split of each subtask, for a source."""
    meanings: tuple[ColumnMeaning, ...] | None = None
    """How the columns of its state were computed. None: that was not recorded."""

    table_keys: tuple[TableKeys, ...] = ()
    """The keys of the upsert and overwrite tables that it writes."""
    coordinator: str | None = None
    """The state of a source's coordinator as JSON (A7). None: no such state, or the entry is older than this field."""
    outputs_read: tuple[str | None, ...] | None = None
    """The named output that each input reads, None for the upstream vertex's own output. Empty: no input reads a named
    output. None: the entry is older than this field."""
    time: VertexTimeRecord | None = None
    """How far in event time it was. None: it keeps no event time, or the entry is older than this field."""
    expiry: ExpiryRecord | None = None
    """How its state expires. None: it never does, or the entry is older than this field (N5)."""


class FileCompaction(_Persisted):
    """A file `into` which the rows of small files of an append table were written, and the paths `of` these files."""

    into: FileHandle
    of: tuple[str, ...]


class ErasedFile(_Persisted):
    """A file of a table or of state from which rows were erased, and the file that takes its place everywhere (K6).

    `path` is relative to the warehouse. `into` is None if no row of the file is left, and the name of the file's folder
    has a value that was erased.
    """

    table: TableName
    path: str
    into: FileHandle | None


class TableRecord(_Persisted):
    """What publishing this entry means for one table. `parent_version` is the table's version at the parent's cut.

    For a rollback it is the version for which the rollback was planned.
    """

    table: TableName
    mode: TableMode
    adds: tuple[FileHandle, ...] = ()
    files: tuple[FileHandle, ...] = ()
    removes: tuple[FileHandle, ...] = ()
    """The job's own files that leave an append table: by a rollback, or when a renamed table takes the name.

    A restore of this entry does not need these files.
    """
    leaving: tuple[str, ...] = ()
    """The job's own columns that leave the table: the table has them at its present cut and not at this cut (D6)."""
    parent_version: int
    planned_on: CheckpointId | None = None
    """The checkpoint that an append table showed when the files to leave it were chosen.

    The entry is published only onto it. None: nothing was chosen by the table's log, or the entry is older than this
    field.
    """
    renamed: tuple[tuple[str, str], ...] = ()
    """The new and the old name of each renamed column of an append table.

    Publishing the entry writes each file of the table again that has only the old name.
    """
    in_order: bool = False
    """Whether publishing the entry puts the table's columns in the entry's order. Otherwise new columns come last."""
    compactions: tuple[FileCompaction, ...] = ()
    """Files that replace an append table's small files with the same rows, if the table still shows these."""
    of_snapshots: bool = False
    """True only in the stored form of an entry: the snapshots name the table's files, so `files` is empty."""


class RenameKind(Enum):
    """What kind of thing was renamed."""

    VERTEX = "vertex"
    TABLE = "table"
    COLUMN = "column"


class Rename(_Persisted):
    """A rename that the pipeline declared: older entries have the name `was`, and this entry has `now`.

    For a column, `vertex` is its vertex. For a vertex or a table it is empty.
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
    """The measurements of a vertex's subtasks in an epoch, a column for each. The i-th item is subtask i's (E6).

    A column is empty if no subtask measured it. An item is None if this
    subtask did not measure it. A subtask takes some forty bytes here, and at least ten times as many for its snapshot.
    So the entry grows by a tenth at any parallelism. The fields mean the same as those of `SnapshotMetrics`.
    """

    task_ms: tuple[int | None, ...] = ()
    sync_ms: tuple[int | None, ...] = ()
    rows_in: tuple[int | None, ...] = ()
    rows_out: tuple[int | None, ...] = ()
    bytes_out: tuple[int | None, ...] = ()
    checkpointed_bytes: tuple[int | None, ...] = ()


class VertexStatistics(_Persisted):
    """The life of the epoch at one vertex (E6, C7). Times are in ms since 1970, durations in ms."""

    vertex: VertexId
    barriers: tuple[BarrierRecord, ...] = ()
    aligned_ms: int = 0
    """When the snapshot was taken: at the last barrier, or before it if the checkpoint is unaligned."""
    alignment: AlignmentType = AlignmentType.ALIGNED
    """How the barrier finally passed. A checkpoint that began aligned may have turned unaligned (C6)."""
    alignment_ms: int = 0
    """The time from the first barrier to the last, even if no row waited in that time."""
    bytes_held: int = 0
    """Bytes that waited behind the barriers when the snapshot was taken."""
    acknowledged_ms: int = 0
    micro_batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    busy_ms: int = 0
    start_delay_ms: int | None = None
    """The time from the trigger to the vertex's first barrier. None here and in the next two fields: not measured."""
    bytes_processed: int | None = None
    """Bytes that the gate let through between the first barrier and the last."""
    async_ms: int | None = None
    """The time from the snapshot to the last acknowledgement.

    Suites are judged and channel state is collected in it.
    """
    subtasks: SubtaskStatistics = SubtaskStatistics()


class CheckpointCounts(_Persisted):
    """How many checkpoints a generation had. `total` is the sum of `in_progress`, `completed` and `failed` (E6).

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
    """The measurements of the epoch when its entry is written. No decision depends on them."""

    triggered_ms: int
    committed_ms: int
    rows: int
    """Rows that the sources sent between the parent's barrier and this one, including those of failed checkpoints."""
    rows_estimated: int = 0
    """How many of `rows` a source has estimated.

    Rows that the tasks received are counted (`SubtaskStatistics.rows_in`).
    """
    vertices: tuple[VertexStatistics, ...] = ()
    verdicts: tuple[str, ...] = ()
    """The suites' verdicts, as the judge's JSON (J3)."""
    counts: CheckpointCounts | None = None
    """The checkpoints of its generation when the entry was written, including itself. None: they were not counted."""
    failed: tuple[CheckpointFailure, ...] = ()
    """The last failed checkpoints of its tick when the entry was written. Version 0.1.0 did not list them."""


class HookState(_Persisted):
    """A master hook's answer for this cut: its state as a JSON text (A8)."""

    hook: str
    state: str


class ManifestReference(_Persisted):
    """A manifest that holds handles of an entry, and which of these handles the entry leaves out.

    Its name is the generation that wrote it, and the SHA-256 of its content. `left_out` is a bit for each handle, as a
    hexadecimal number: bit i is set if handle i belongs only to older entries.
    """

    generation: Generation = Field(ge=1, lt=2**53)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    handles: int = Field(ge=1)
    left_out: str = Field(default="", pattern=r"^([1-9a-f][0-9a-f]*)?$")


class CheckpointRecord(_Persisted):
    """One consistent cut: positions, state handles and the net files of every table.

    An entry with many handles is stored without most of them, which are in manifests (`commit.manifests`). In the
    stored form, `manifests` names the manifests. Once the entry is whole, `manifests` is empty, and `held_in` has their
    paths.
    """

    format: Literal[7] = FORMAT
    job: str
    kind: RowKind = RowKind.CHECKPOINT
    pinned: bool = False
    """True for every savepoint and every held cut. The entry and all its files stay until somebody disposes of the
    savepoint, or settles the held cut (A9, F4)."""
    abandoned: bool = False
    """True if a rollback took the job back to before this entry.

    The entry is off the line, and exists only as pinned (K2).
    """
    checkpoint: CheckpointId
    parent: CheckpointId
    generation: Generation
    nonce: str
    max_parallelism: int
    vertices: tuple[VertexRecord, ...]
    tables: tuple[TableRecord, ...]
    columns: tuple[TableColumns, ...] = ()
    """The columns of every table at this cut (D6)."""
    renames: tuple[Rename, ...] = ()
    """The renames that the pipeline declared when the entry was written. They are done, and are not done again.
    """
    hooks: tuple[HookState, ...] = ()
    """The state of every master hook that has a state."""
    outside: tuple[TableName, ...] = ()
    """The tables that had an outside sink. A sink gets the rows that a checkpoint adds, or shows an upsert table."""
    manifests: tuple[ManifestReference, ...] = ()
    """The manifests, in order. Their handles come before the handles in the snapshots."""
    held_in: tuple[str, ...] = Field(default=(), exclude=True, max_length=0)
    """The paths of a whole entry's manifests. This field is not stored: only `commit.manifests` fills it in."""
    erased: tuple[ErasedFile, ...] = ()
    """The files that the commit of this entry replaced in all other entries. Publishing it replaces them in the logs.

    Only an entry of kind FORGET has such files.
    """
    barriers: tuple[PassedBarrier, ...] = ()
    """The barriers since the parent's cut that led to no cut, oldest first. Only jobs that keep event time record them.
    """
    statistics: Statistics

    @property
    def is_savepoint(self) -> bool:
        """True if only a user disposes of it. It is never subsumed, and does not count as retained (A9, E4).

        So a held cut is treated like a savepoint here.
        """
        return self.pinned or not self.commits

    @property
    def is_whole(self) -> bool:
        """Whether the entry names all its files itself. The stored form of a large entry does not."""
        return not self.manifests and not any(table.of_snapshots for table in self.tables)

    @property
    def has_rows_in_flight(self) -> bool:
        """Whether it holds rows that an unaligned barrier overtook, and that no table downstream shows yet (C5)."""
        return any(held.segments for vertex in self.vertices for each in vertex.subtasks for held in each.in_flight)

    @property
    def finished(self) -> bool:
        """True if no row is left: every split had ended, and no operator held rows back (B4).

        Flink: a checkpoint in which all tasks are finished.
        """
        subtasks = (subtask for vertex in self.vertices for subtask in vertex.subtasks)
        return bool(self.vertices) and not self.has_rows_in_flight and all(each.finished for each in subtasks)

    @property
    def commits(self) -> bool:
        """True if tables show it and ticks begin from it. So do all cuts but plain savepoints and held cuts."""
        return self.kind not in (RowKind.SAVEPOINT, RowKind.HELD)


Row = CheckpointRecord | Claim | Release
