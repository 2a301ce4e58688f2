"""The rows of the `checkpoints` table, as they are persisted: versioned pydantic models, JSON, no pickle.

A row of kind CHECKPOINT is one consistent cut; one of kind ROLLBACK is an older cut under a new id, one of kind RESET
the newest cut with other positions (K2); one of kind SAVEPOINT is a cut that no tick begins from unasked. CLAIM and
RELEASE rows carry the fence (`commit.fencing`).
"""

from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from checkpointing.channel_items import Alignment
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


class Rename(_Persisted):
    """A rename that the pipeline declared: what older entries call `was`, this one calls `now`."""

    kind: RenameKind
    was: str
    now: str


class BarrierRecord(_Persisted):
    """When barrier n reached one channel of a vertex."""

    channel: str
    at_ms: int


class VertexStatistics(_Persisted):
    """The epoch's life at one vertex (E6, C7); times in ms since the epoch, durations in ms."""

    vertex: VertexId
    barriers: tuple[BarrierRecord, ...] = ()
    aligned_ms: int = 0
    """When the snapshot was taken: at the last barrier, or of an unaligned checkpoint before it."""
    alignment: Alignment = Alignment.ALIGNED
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


class Statistics(_Persisted):
    """What is known of the epoch when its row is written. Statistics never steer."""

    triggered_ms: int
    committed_ms: int
    rows: int
    """Rows that the sources sent between the barrier of the parent and this one, those of failed checkpoints too."""
    vertices: tuple[VertexStatistics, ...] = ()
    verdicts: tuple[str, ...] = ()
    """The suites' verdicts, JSON as the judge gave them (J3)."""


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
