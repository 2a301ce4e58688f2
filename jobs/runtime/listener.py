"""Who is told how a tick goes: the command line's progress display, Dagster's metadata, a test.

Listeners are told from one thread, in order, behind the tick's back: a slow one delays nobody, a
failing one fails nothing. What they are told is past and certain.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from checkpointing.channel_items import SourceSlice
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, SplitId, TableName, VertexId
from checkpointing.messages import (
    AppendRow,
    Effect,
    EndTick,
    Fact,
    MicroBatchFailed,
    MicroBatchFinished,
    NotifyAborted,
    NotifyComplete,
    RecordCut,
    RunMicroBatch,
    SavepointFailed,
    SavepointTaken,
    SliceOffered,
    SubtaskOutput,
    TablePublished,
    TimeAdvanced,
)
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord, Claim
from jobs.runtime.input_look import InputLook

_log = structlog.get_logger(__name__)

SLOW_MS: Final = 60_000
"""After this time a micro-batch that still runs is told of, and again whenever that time has doubled."""

COMPLETED_KEPT: Final = 1_000
"""Completed records that a tick remembers for its report; a tick of days completes more."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a tick found and did before it began: where it stands, what it published, what it deleted."""

    restored: CheckpointId | None
    rolled_forward: CheckpointId | None
    leftovers: int
    """Files of older generations that nothing referenced."""
    mended: tuple[str, ...] = ()
    """What was published again because tables showed less than their newest cut, a line a table."""


@dataclass(frozen=True, slots=True)
class SparkStarting:
    """The first micro-batch is due, so Spark is being started."""


@dataclass(frozen=True, slots=True)
class SparkStarted:
    """Spark is there."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class RowsRead:
    """A source has handed on rows of a split."""

    source: VertexId
    split: SplitId
    rows: int


@dataclass(frozen=True, slots=True)
class MicroBatchRan:
    """A vertex has finished a micro-batch; `rows` are those that it wrote."""

    vertex: VertexId
    micro_batch: int
    rows: int
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Restarting:
    """The job failed and goes on by itself: the tick's `restart`-th restart, after `delay_ms` (G4)."""

    restart: int
    reason: CheckpointFailureReason | None
    message: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class MicroBatchSlow:
    """A vertex has been at work on one micro-batch for a long time: its function is slow, or hangs."""

    vertex: VertexId
    micro_batch: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class NoticeFailed:
    """A pipeline's listener or source raised when it was told of a checkpoint, which stays what it is (F1)."""

    told: str
    checkpoint: CheckpointId
    error: str


@dataclass(frozen=True, slots=True)
class InputLooked:
    """The tick has looked at a source's input: what it passes over, and whether it has ever found a file."""

    seen: InputLook


Progress = (
    SparkStarting | SparkStarted | RowsRead | MicroBatchRan | MicroBatchSlow | Restarting | NoticeFailed | InputLooked
)


class TickListener(Protocol):
    """Whoever wants to know; see `SilentListener` for one that does not."""

    def claimed(self, claim: Claim, why: str) -> None:
        """Take note that the job is this tick's; `why` says whose place it takes."""
        ...

    def recovered(self, recovery: Recovery) -> None:
        """Take note of where the tick begins."""
        ...

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Take note of a completed, published checkpoint: what was met, and each table's Delta version."""
        ...

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Take note of a checkpoint that failed; its rows belong to the next one."""
        ...

    def progress(self, progress: Progress) -> None:
        """Take note of what happens between checkpoints; nothing of it is committed yet."""
        ...


class SilentListener:
    """A listener to whom it is all the same."""

    def claimed(self, claim: Claim, why: str) -> None:
        """Do nothing."""

    def recovered(self, recovery: Recovery) -> None:
        """Do nothing."""

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Do nothing."""

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Do nothing."""

    def progress(self, progress: Progress) -> None:
        """Do nothing."""


class OrderedListener:
    """Tells another listener from a thread of its own, in order; close it to be sure that all is told."""

    def __init__(self, listener: TickListener) -> None:
        """Tell this one."""
        self._listener = listener
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tick-listener")

    def claimed(self, claim: Claim, why: str) -> None:
        """Pass it on."""
        self._tell(lambda: self._listener.claimed(claim, why))

    def recovered(self, recovery: Recovery) -> None:
        """Pass it on."""
        self._tell(lambda: self._listener.recovered(recovery))

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Pass it on."""
        self._tell(lambda: self._listener.completed(record, notes, versions))

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Pass it on."""
        self._tell(lambda: self._listener.failed(checkpoint, reason, message))

    def progress(self, progress: Progress) -> None:
        """Pass it on."""
        self._tell(lambda: self._listener.progress(progress))

    def close(self) -> None:
        """Return when everything is told."""
        self._thread.shutdown(wait=True)

    def _tell(self, call: Callable[[], None]) -> None:
        self._thread.submit(self._guarded, call)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - logged; a listener's failure is none of the tick's
            _log.exception("listener failed", listener=type(self._listener).__name__)


def ask_nobody(effect: SavepointTaken | SavepointFailed) -> None:
    """Take note of a savepoint that nobody waits for."""
    del effect


class Narrator:
    """Makes a listener's news of facts and effects, and remembers what completed. It sees, it never steers."""

    def __init__(
        self, listener: TickListener, savepoints: Callable[[SavepointTaken | SavepointFailed], None] = ask_nobody
    ) -> None:
        """Tell this listener; `savepoints` hears at once what became of those that were asked for."""
        self._listener = listener
        self._savepoints = savepoints
        self._record: CheckpointRecord | None = None
        self._notes: tuple[str, ...] = ()
        self._versions: dict[TableName, int] = {}
        self._completed: deque[CheckpointRecord] = deque(maxlen=COMPLETED_KEPT)
        self._now_ms = 0
        self._running: dict[VertexId, _Running] = {}
        self.count = 0
        """How many completed, those that are no longer remembered among them."""
        self.counts = CheckpointCounts()
        """How many checkpoints the attempts that are over had triggered, and how those ended (E6)."""

    @property
    def completed(self) -> tuple[CheckpointRecord, ...]:
        """The newest completed records of this tick, oldest first."""
        return tuple(self._completed)

    def rolled_forward(
        self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]
    ) -> None:
        """Take note of a checkpoint of an older generation that this tick has published."""
        self._remember(record)
        self._listener.completed(record, notes, versions)

    def saw_fact(self, fact: Fact) -> None:
        """Take note of a fact before the door does."""
        match fact:
            case SliceOffered(slice=SourceSlice() as read):
                self._listener.progress(RowsRead(read.source, read.split, read.rows))
            case TimeAdvanced():
                self._now_ms = fact.now_ms
                self._tell_slow()
            case MicroBatchFailed():
                self._running.pop(fact.vertex, None)
            case MicroBatchFinished():
                self._running.pop(fact.vertex, None)
                rows = sum(_rows_written(output) for output in fact.outputs)
                self._listener.progress(MicroBatchRan(fact.vertex, fact.micro_batch, rows, fact.duration_ms))
            case TablePublished() if fact.note:
                self._notes = (*self._notes, f"{fact.table}: {fact.note}")
            case _:
                return

    def saw_effect(self, effect: Effect) -> None:
        """Take note of an effect before it is carried out."""
        match effect:
            case AppendRow(row=CheckpointRecord() as record):
                self._record, self._notes, self._versions = record, (), {}
            case RecordCut():
                self._versions = dict(effect.versions)
            case NotifyComplete() if self._record is not None and self._record.checkpoint == effect.checkpoint:
                self._remember(self._record)
                self._listener.completed(self._record, self._notes, self._versions)
            case EndTick():
                self._running.clear()
            case RunMicroBatch():
                self._running[effect.vertex] = _Running(effect.micro_batch, self._now_ms)
            case SavepointTaken() | SavepointFailed():
                self._savepoints(effect)
            case NotifyAborted():
                self._listener.failed(effect.checkpoint, effect.reason, effect.message)
            case _:
                return

    def _tell_slow(self) -> None:
        for vertex, running in self._running.items():
            for_ms = self._now_ms - running.since_ms
            if for_ms >= running.told_after_ms:
                running.told_after_ms = 2 * for_ms
                self._listener.progress(MicroBatchSlow(vertex, running.micro_batch, for_ms))

    def _remember(self, record: CheckpointRecord) -> None:
        self._completed.append(record)
        self.count += 1


@dataclass(slots=True)
class _Running:
    """A micro-batch that runs: since when, and after which time it is told of next."""

    micro_batch: int
    since_ms: int
    told_after_ms: int = SLOW_MS


def _rows_written(output: SubtaskOutput) -> int:
    """Rows of a subtask's new files; a file that is emitted and staged counts once."""
    files = {file.path: file for file in output.emitted} | {file.path: file for _, file in output.staged}
    files |= {keyed.file.path: keyed.file for entry in output.ranges for keyed in entry.files}
    return sum(file.rows for file in files.values())
