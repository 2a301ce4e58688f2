"""Reports a tick's progress to listeners, such as the command line's display, Dagster's reporter, or a test.

Each listener is called from a thread of its own, in order. So a slow listener does not delay the tick, and an error in
a listener does not fail the tick. Events report what has already happened.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

from checkpointing.channel_items import SourceSlice
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, SplitId, TableName, VertexId
from checkpointing.messages import (
    AppendRow,
    Effect,
    EndTick,
    Fact,
    JudgementFailed,
    MicroBatchFailed,
    MicroBatchFinished,
    MicroBatchNotStaged,
    NotifyAborted,
    NotifyComplete,
    RecordCut,
    RunMicroBatch,
    SavepointFailed,
    SavepointTaken,
    SliceOffered,
    SubtaskOutput,
    SuitesJudged,
    TablePublished,
    TimeAdvanced,
)
from checkpointing.metadata.record import CheckpointCounts, CheckpointFailure, CheckpointRecord, Claim
from checkpointing.metadata.row_validity import MESSAGE_MAX
from jobs.credentials import without_credentials
from jobs.state.worker_copy import CopyUses
from jobs.tick.discovery import InputLook

_log = structlog.get_logger(__name__)

SLOW_MS: Final = 60_000
"""A micro-batch that has run for this long is reported, and again each time that its running time has doubled."""

COMPLETED_KEPT: Final = 1_000
"""A tick remembers so many of its newest checkpoints for its report."""


FAILED_KEPT: Final = 10
"""A tick remembers so many of its newest failed checkpoints for its entries and its release."""

_ENDS: Final = frozenset(
    {
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        CheckpointFailureReason.CHECKPOINT_SUBSUMED,
    }
)


def kept_message(message: str) -> str:
    """Return a message as an entry may keep it: its beginning, without control characters except line ends."""
    shown = without_credentials(message)
    plain = "".join(each if each == "\n" or each.isprintable() else "?" for each in shown)
    return plain if len(plain) <= MESSAGE_MAX else f"{plain[: MESSAGE_MAX - 1]}…"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a tick found and did before its first epoch: the restored checkpoint, and what was published and deleted."""

    restored: CheckpointId | None
    rolled_forward: CheckpointId | None
    leftovers: int
    """How many files of older generations were deleted, because nothing referred to them."""
    repaired: tuple[str, ...] = ()
    """A message for each table that was published again because it showed less than its newest cut."""


@dataclass(frozen=True, slots=True)
class JarsFetching:
    """A set of jars that the sources need is missing, so the tick fetches it before it begins."""

    serves: str
    """What needs the jars, such as "Kafka"."""


@dataclass(frozen=True, slots=True)
class SparkStarting:
    """The first micro-batch is due, so the tick starts Spark."""


@dataclass(frozen=True, slots=True)
class SparkStarted:
    """Spark has started."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class RowsRead:
    """A source has sent rows of a split."""

    source: VertexId
    split: SplitId
    rows: int


@dataclass(frozen=True, slots=True)
class MicroBatchRan:
    """A vertex has finished a micro-batch, and has written `rows` rows."""

    vertex: VertexId
    micro_batch: int
    rows: int
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Restarting:
    """The job failed, and the tick restarts it for the `restart`-th time, after `delay_ms` (G4)."""

    restart: int
    reason: CheckpointFailureReason | None
    message: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class MicroBatchSlow:
    """A vertex has worked on one micro-batch for a long time. The vertex's function is slow, or hangs."""

    vertex: VertexId
    micro_batch: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class MicroBatchHeldBack:
    """The files of a vertex's micro-batch could not be written. The micro-batch's rows wait for the next barrier."""

    vertex: VertexId
    error: str


@dataclass(frozen=True, slots=True)
class NoticeFailed:
    """A pipeline's listener or source raised an error when it was notified. The checkpoint stays as it is (F1)."""

    told: str
    checkpoint: CheckpointId
    error: str


@dataclass(frozen=True, slots=True)
class InputLooked:
    """The tick has looked at the files that a source skips, and at sources that have never found a file."""

    seen: InputLook


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """A tick on a cluster has run its last micro-batch. `uses` says where tasks found their state (D5)."""

    uses: CopyUses


@dataclass(frozen=True, slots=True)
class SuitesAnswered:
    """The suites of a vertex's tables were judged for a checkpoint. `report` is a JSON array of their verdicts."""

    checkpoint: CheckpointId
    report: str


@dataclass(frozen=True, slots=True)
class ColumnsRenamed:
    """The tick rewrites an append table's files with new column names. `done` of `total` bytes are written."""

    table: TableName
    done: int
    total: int


Progress = (
    JarsFetching
    | SparkStarting
    | SparkStarted
    | RowsRead
    | MicroBatchRan
    | MicroBatchSlow
    | MicroBatchHeldBack
    | Restarting
    | NoticeFailed
    | InputLooked
    | StateLoaded
    | ColumnsRenamed
    | SuitesAnswered
)


class TickListener:
    """Receives the events of a tick. This class ignores them. A subclass overrides the methods that it needs."""

    def claimed(self, claim: Claim, why: str) -> None:
        """The tick has claimed the job. `why` says from which process the tick takes over."""

    def recovered(self, recovery: Recovery) -> None:
        """The tick has recovered, and begins to read."""

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """A checkpoint is complete and published: the notes of its publication, and each table's Delta version."""

    def failed(
        self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str, *, ends_tick: bool
    ) -> None:
        """A checkpoint has failed. Its rows belong to the next one.

        `ends_tick`: the tick's error will contain the reason too.
        """

    def progress(self, progress: Progress) -> None:
        """Something happened between checkpoints, and is not committed yet."""


@dataclass(frozen=True, slots=True)
class Listeners(TickListener):
    """Passes each event on to several listeners."""

    listeners: tuple[TickListener, ...]

    def claimed(self, claim: Claim, why: str) -> None:
        """Pass the event on."""
        for each in self.listeners:
            each.claimed(claim, why)

    def recovered(self, recovery: Recovery) -> None:
        """Pass the event on."""
        for each in self.listeners:
            each.recovered(recovery)

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Pass the event on."""
        for each in self.listeners:
            each.completed(record, notes, versions)

    def failed(
        self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str, *, ends_tick: bool
    ) -> None:
        """Pass the event on."""
        for each in self.listeners:
            each.failed(checkpoint, reason, message, ends_tick=ends_tick)

    def progress(self, progress: Progress) -> None:
        """Pass the event on."""
        for each in self.listeners:
            each.progress(progress)


class OrderedListener(TickListener):
    """Calls another listener from a separate thread, in order. `close` waits until all calls are made."""

    def __init__(self, listener: TickListener) -> None:
        """Call this listener."""
        self._listener = listener
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tick-listener")

    def claimed(self, claim: Claim, why: str) -> None:
        """Pass the event on."""
        self._tell(lambda: self._listener.claimed(claim, why))

    def recovered(self, recovery: Recovery) -> None:
        """Pass the event on."""
        self._tell(lambda: self._listener.recovered(recovery))

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Pass the event on."""
        self._tell(lambda: self._listener.completed(record, notes, versions))

    def failed(
        self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str, *, ends_tick: bool
    ) -> None:
        """Pass the event on."""
        self._tell(lambda: self._listener.failed(checkpoint, reason, message, ends_tick=ends_tick))

    def progress(self, progress: Progress) -> None:
        """Pass the event on."""
        self._tell(lambda: self._listener.progress(progress))

    def close(self) -> None:
        """Wait until all calls are made."""
        self._thread.shutdown(wait=True)

    def _tell(self, call: Callable[[], None]) -> None:
        self._thread.submit(self._guarded, call)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - logged; a listener's error does not fail the tick
            _log.exception("listener failed", listener=type(self._listener).__name__)


def ask_nobody(effect: SavepointTaken | SavepointFailed) -> None:
    """Do nothing, because no process has asked for a savepoint."""
    del effect


class Narrator:
    """Turns facts and effects into a listener's events, and records completed checkpoints. It decides nothing."""

    def __init__(
        self, listener: TickListener, savepoints: Callable[[SavepointTaken | SavepointFailed], None] = ask_nobody
    ) -> None:
        """Send events to this listener. `savepoints` is called at once with the outcome of each requested savepoint."""
        self._listener = listener
        self._savepoints = savepoints
        self._record: CheckpointRecord | None = None
        self._notes: tuple[str, ...] = ()
        self._versions: dict[TableName, int] = {}
        self._completed: deque[CheckpointRecord] = deque(maxlen=COMPLETED_KEPT)
        self._now_ms = 0
        self._running: dict[VertexId, _Running] = {}
        self.count = 0
        """How many checkpoints completed, including those that are no longer kept here."""
        self.failed: tuple[CheckpointFailure, ...] = ()
        """The newest failed checkpoints of this tick. Other threads read it."""
        self.counts = CheckpointCounts()
        """How many checkpoints the ended attempts triggered, and how these checkpoints ended (E6)."""

    @property
    def completed(self) -> tuple[CheckpointRecord, ...]:
        """The newest completed checkpoints of this tick, oldest first."""
        return tuple(self._completed)

    def rolled_forward(
        self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]
    ) -> None:
        """Report a checkpoint of an older generation that this tick has published."""
        self._remember(record)
        self._listener.completed(record, notes, versions)

    def saw_fact(self, fact: Fact) -> None:
        """Take note of a fact before the door gets it."""
        match fact:
            case SliceOffered(slice=SourceSlice() as read):
                self._listener.progress(RowsRead(read.source, read.split, read.rows))
            case TimeAdvanced():
                self._now_ms = fact.now_ms
                self._tell_slow()
            case MicroBatchNotStaged():
                self._running.pop(fact.vertex, None)
                self._listener.progress(MicroBatchHeldBack(fact.vertex, fact.error))
            case MicroBatchFailed():
                self._running.pop(fact.vertex, None)
            case MicroBatchFinished():
                self._running.pop(fact.vertex, None)
                rows = sum(_rows_written(output) for output in fact.outputs)
                self._listener.progress(MicroBatchRan(fact.vertex, fact.micro_batch, rows, fact.duration_ms))
            case SuitesJudged() | JudgementFailed():
                self._listener.progress(SuitesAnswered(fact.checkpoint, fact.report))
            case TablePublished() if fact.note:
                self._notes = (*self._notes, f"{fact.table}: {fact.note}")
            case _:
                return

    def saw_effect(self, effect: Effect) -> None:
        """Take note of an effect before it is carried out."""
        match effect:
            case AppendRow(row=CheckpointRecord() as record):
                self._record, self._notes, self._versions = self.with_failed(record), (), {}
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
                self._fail(effect)
                self._listener.failed(effect.checkpoint, effect.reason, effect.message, ends_tick=effect.ends_tick)
            case _:
                return

    def with_failed(self, record: CheckpointRecord) -> CheckpointRecord:
        """Return the entry with the checkpoints of this tick that have failed.

        So other processes can read about these failures while the tick runs, and after its death.
        """
        if not self.failed:
            return record
        statistics = record.statistics.model_copy(update={"failed": self.failed})
        return record.model_copy(update={"statistics": statistics})

    def _fail(self, effect: NotifyAborted) -> None:
        """Record a failed checkpoint. A checkpoint that the end of the tick aborted has not failed."""
        if effect.reason not in _ENDS:
            message = kept_message(effect.message or effect.reason.message)
            told = CheckpointFailure(
                checkpoint=effect.checkpoint, reason=effect.reason, message=message, at_ms=self._now_ms
            )
            self.failed = (*self.failed, told)[-FAILED_KEPT:]

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
    """A running micro-batch: when it began, and after which running time it is reported next."""

    micro_batch: int
    since_ms: int
    told_after_ms: int = SLOW_MS


def _rows_written(output: SubtaskOutput) -> int:
    """Return the rows of a subtask's new files. A file that is both emitted and staged counts once."""
    files = {file.path: file for file in output.emitted} | {file.path: file for _, file in output.staged}
    files |= {keyed.file.path: keyed.file for entry in output.ranges for keyed in entry.files}
    return sum(file.rows for file in files.values())
