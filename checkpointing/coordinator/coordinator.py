"""The coordinator's door: facts in, effects out. It passes each fact to the module with the rule for it (A, E, F1).

The door waits for nothing and reads no clock. A step either raises an error and changes nothing, or returns the effects
in the order in which they must be carried out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import assert_never

from checkpointing.coordinator.completed import CompletedCheckpointStore
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator_state import Books, PeriodicScheduler
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import (
    CheckpointIdFetched,
    CheckpointRequested,
    CloseHook,
    CommitFailed,
    CommitSucceeded,
    CoordinatorEffect,
    CoordinatorFact,
    CoordinatorTimeAdvanced,
    HookAnswered,
    HookFailed,
    LocationCreated,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
    SchedulerStarted,
    SchedulerStopped,
    ShutDown,
    StateDiscarded,
    TaskAcknowledged,
    TaskDeclined,
    WakeCoordinatorAt,
)
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.triggering import Triggering
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId


class CoordinatorShutDownError(ValueError):
    """The coordinator was shut down and can't be started again."""

    def __init__(self) -> None:
        super().__init__("the checkpoint coordinator is shut down; make a new one")


class CheckpointCoordinator:
    """Triggers, follows and completes the checkpoints of one job (Flink: `CheckpointCoordinator`)."""

    __slots__ = ("_books", "_completion", "_triggering", "_wake_at_ms")

    def __init__(
        self,
        settings: CoordinatorSettings,
        topology: Topology,
        store: CompletedCheckpointStore,
        *,
        now_ms: int = 0,
    ) -> None:
        """Begin without pending checkpoints and with the scheduler stopped."""
        self._books = Books(
            settings=settings,
            topology=topology,
            store=store,
            scheduler=PeriodicScheduler(settings.interval_ms, settings.min_pause_ms),
            failures=FailurePolicy(settings.tolerable_failures),
            statistics=StatisticsTracker(settings.history_max),
            hooks=list(settings.hooks),
            now_ms=now_ms,
        )
        self._completion = Completion(self._books)
        self._triggering = Triggering(self._books, self._completion)
        self._wake_at_ms: int | None = None

    # -------------------------------------------------------------- the door

    def step(self, fact: CoordinatorFact) -> tuple[CoordinatorEffect, ...]:
        """Take one fact and return what to do next.

        Raises CoordinatorShutDownError for a start after the shutdown, and SharedStateConflictError for two files under
        one key.
        """
        return self._collect(lambda: self._take(fact))

    def _collect(self, take: Callable[[], None]) -> tuple[CoordinatorEffect, ...]:
        """Return the effects of one step, including the effects of all that follows from it."""
        effects: list[CoordinatorEffect] = []
        self._books.effects = effects
        take()
        self._triggering.settle()
        if self._books.timers_touched:
            self._tell_wake()
        return tuple(effects)

    def _take(self, fact: CoordinatorFact) -> None:  # noqa: C901, PLR0912 - one line a fact
        match fact:
            case TaskAcknowledged():
                self._completion.acknowledge(fact)
            case CoordinatorTimeAdvanced():
                self._advance(fact.now_ms)
            case TaskDeclined():
                self._completion.decline(fact)
            case CheckpointRequested():
                self._triggering.request(fact)
            case CheckpointIdFetched():
                self._triggering.id_fetched(fact.id)
            case LocationCreated():
                self._triggering.location_created(fact.checkpoint)
            case OperatorCoordinatorAnswered():
                self._triggering.coordinator_answered(fact)
            case HookAnswered():
                self._triggering.hook_answered(fact)
            case HookFailed() | OperatorCoordinatorFailed():
                self._triggering.failed(fact.checkpoint, fact.reason, fact.message)
            case CommitSucceeded():
                self._completion.committed(fact)
            case CommitFailed():
                self._completion.commit_failed(fact)
            case StateDiscarded():
                self._books.deleting = max(0, self._books.deleting - 1)
                self._books.queue_stirred = True
            case SchedulerStarted():
                self._start_scheduler(fact.seed)
            case SchedulerStopped():
                self._stop_scheduler()
            case ShutDown():
                self._shut_down()
            case _:
                assert_never(fact)

    # -------------------------------------------------------------- time

    def pass_time(self, now_ms: int) -> None:
        """Set the time to `now_ms`. The caller knows that no timer is due by then."""
        self._books.now_ms = max(self._books.now_ms, now_ms)

    def _advance(self, now_ms: int) -> None:
        """Fire all timers that are due by `now_ms`, in order of their times, each at most once.

        Time never goes back.
        """
        books = self._books
        while (due := self._due_ms()) is not None and due <= now_ms:
            books.now_ms = max(books.now_ms, due)
            self._fire_due(due, now_ms)
        books.now_ms = max(books.now_ms, now_ms)

    def _fire_due(self, due_ms: int, now_ms: int) -> None:
        expired = next((p for p in self._timed() if p.expires_ms == due_ms), None)
        if expired is not None:
            self._completion.expire(expired.id)
        else:
            self._books.now_ms = max(self._books.now_ms, now_ms)
            self._triggering.request_periodically()
        self._triggering.settle()

    def _timed(self) -> list[PendingCheckpoint]:
        return [p for p in self._books.pending.values() if p.expires_ms is not None and not p.is_finalising]

    def _due_ms(self) -> int | None:
        next_ms = self._books.scheduler.next_ms
        if not self._books.pending:
            return next_ms
        expiries = [pending.expires_ms for pending in self._timed() if pending.expires_ms is not None]
        return min(expiries if next_ms is None else [*expiries, next_ms], default=None)

    def _tell_wake(self) -> None:
        self._books.timers_touched = False
        due_ms = self._due_ms()
        if due_ms is not None and due_ms != self._wake_at_ms:
            self._books.emit(WakeCoordinatorAt(due_ms))
        self._wake_at_ms = due_ms

    # -------------------------------------------------------------- life

    def _start_scheduler(self, seed: int) -> None:
        if self._books.is_shut_down:
            raise CoordinatorShutDownError
        self._stop_scheduler()
        self._books.scheduler.start(self._books.now_ms, seed)

    def _stop_scheduler(self) -> None:
        self._books.scheduler.stop()
        self._books.timers_touched = True
        self._abort_all(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    def _shut_down(self) -> None:
        if self._books.is_shut_down:
            return
        self._books.is_shut_down = True
        self._books.scheduler.stop()
        for hook in self._books.hooks:
            self._books.emit(CloseHook(hook))
        self._abort_all(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)

    def _abort_all(self, reason: CheckpointFailureReason) -> None:
        self._triggering.drop_queued(reason)
        self._completion.abort_where(lambda _: True, reason)

    # -------------------------------------------------------------- what can be seen

    @property
    def pending(self) -> tuple[PendingCheckpoint, ...]:
        """The pending checkpoints in order of id. Do not change them."""
        return tuple(sorted(self._books.pending.values(), key=lambda p: p.id))

    @property
    def store(self) -> CompletedCheckpointStore:
        """The store of completed checkpoints."""
        return self._books.store

    @property
    def statistics(self) -> StatisticsTracker:
        """The statistics of each checkpoint (E6)."""
        return self._books.statistics

    @property
    def wake_at_ms(self) -> int | None:
        """When the next timer is due, or None."""
        return self._due_ms()

    @property
    def goes_on(self) -> bool:
        """Whether a checkpoint may still begin or go on: by the interval, from the queue, or because one is pending."""
        under_way = any(not pending.is_finalising for pending in self._books.pending.values())
        return under_way or self.next_due_ms is not None

    @property
    def next_due_ms(self) -> int | None:
        """When the next checkpoint is due: now if a request waits for its turn, otherwise by the interval."""
        return self._books.now_ms if self._triggering.requests_wait else self._books.scheduler.next_ms


# ------------------------------------------------------------------
# Gives the state in a checkpoint back to master hooks and operator coordinators.
#
# The functions take the checkpoint and the job, and return effects or raise RestoreRefusedError (Flink: `MasterHooks`).
# `checkpointing.job.restoring` gives subtasks their state.


class RestoreRefusedError(RuntimeError):
    """A checkpoint does not fit the job. The message names the operator and the way out."""


def restore_hooks(
    checkpoint: CheckpointId, states: Mapping[str, str], hooks: Sequence[str], *, allow_non_restored: bool
) -> Iterator[RestoreHook]:
    """Yield every hook's state, or None for a hook without one.

    Raise RestoreRefusedError for state without a hook (A8).
    """
    orphans = sorted(set(states) - set(hooks))
    if orphans and not allow_non_restored:
        raise RestoreRefusedError(
            f"checkpoint {checkpoint} holds state of master hook {orphans[0]!r}, which is not registered; "
            "register it, or allow non-restored state"
        )
    return (RestoreHook(hook, checkpoint, states.get(hook)) for hook in hooks)


def restore_coordinators(
    checkpoint: CheckpointId | None, states: Mapping[str, str | None], coordinators: Sequence[str]
) -> Iterator[ResetOperatorCoordinator]:
    """Yield the state for each operator coordinator.

    An operator coordinator that the checkpoint does not know is reset to its empty state. Without a checkpoint, all are
    reset (A7).
    """
    for name in coordinators:
        yield ResetOperatorCoordinator(name, checkpoint if name in states else None, states.get(name))


def reset_hooks(hooks: Sequence[str]) -> Iterator[ResetHook]:
    """Yield the reset of every hook, because the job restarts without a checkpoint."""
    return (ResetHook(hook) for hook in hooks)
