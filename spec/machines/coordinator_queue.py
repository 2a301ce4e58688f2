"""What a coordinator must do with requests that wait, and with its timer: told from facts and effects (A1 to A3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from checkpointing.coordinator import messages as told
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.failures import CheckpointFailureReason as Reason
from spec.flink import messages as flink
from spec.machines.judging import expect

Urgency = tuple[bool, bool, bool, int]


@dataclass(slots=True)
class QueueModel:
    """Knows the requests that have a name. The periodic timer's have none, and are less urgent than any user's."""

    settings: CoordinatorSettings
    waiting: dict[str, Urgency] = field(default_factory=dict)
    """The requests that are unanswered and not pending, with their urgency. The id of one may be on its way."""
    is_fetching: bool = False
    chosen: str | None = None
    """The request that must begin next; None: it may be the timer's."""
    asked: int = 0
    is_over: bool = False
    """True after the shutdown. A second one changes nothing."""
    deleting: int = 0
    """How many deletions were asked for and are not done."""

    def take(
        self, fact: flink.FlinkFact, effects: Sequence[flink.FlinkEffect], pending: Iterable[PendingCheckpoint]
    ) -> None:
        """Judge one step; `pending` are the checkpoints that have not ended after it."""
        if isinstance(fact, told.CheckpointRequested):
            self.asked += 1
            self.waiting[fact.request] = _urgency(fact.properties, periodic=fact.periodic, place=self.asked)
        if isinstance(fact, told.CheckpointIdFetched | flink.CheckpointIdFailed):
            self.is_fetching = False
        self.deleting -= isinstance(fact, told.StateDiscarded) and self.deleting > 0
        begun = {each.request for each in pending}
        for effect in effects:
            match effect:
                case told.RequestFailed(request, Reason.TOO_MANY_CHECKPOINT_REQUESTS):
                    self._refused(request)
                case told.CreateLocation():
                    right = self.chosen is None or self.chosen in begun
                    expect(right, "queue", f"{effect.checkpoint} is of {begun}, {self.chosen} is more urgent")
                case told.DiscardState():
                    self.deleting += 1
                case told.FetchCheckpointId():
                    expect(
                        not self._deletes_too_much, "queue-held", f"a request begins beside {self.deleting} deletions"
                    )
                case _:
                    pass
            if isinstance(effect, told.RequestFailed | told.RequestSucceeded):
                self.waiting.pop(effect.request, None)
        self.waiting = {name: urgency for name, urgency in self.waiting.items() if name not in begun}
        if any(isinstance(effect, told.FetchCheckpointId) for effect in effects):
            self._chooses()
        self._bounded(fact)

    @property
    def _deletes_too_much(self) -> bool:
        """Whether more deletions are outstanding than checkpoints may be in progress. One more than needed may be."""
        most = self.settings.max_concurrent
        return most is not None and self.deleting > most

    def rested(self, pending: int, *, is_asking: bool) -> None:
        """Judge a coordinator that has nothing more to do: a request waits only if something holds it (A3).

        Either a trigger is under way (`is_asking`), or too many checkpoints are `pending`, or too many deletions are
        outstanding. A forced request does not wait for pending checkpoints. If the first request is periodic, it may
        also wait for the end of the minimum pause.
        """
        most = self.settings.max_concurrent
        first = min(self.waiting.values(), default=None)
        if first is None or first[2] or is_asking or self._deletes_too_much:
            return
        is_forced = not first[1]
        held = most is not None and pending >= most and not is_forced
        expect(held, "queue-held", f"{[*self.waiting]} wait for {pending} pending ones and {self.deleting} deletions")

    def judge_next(self, next_ms: int | None, now_ms: int, *, runs: bool) -> None:
        """Judge the time of the next checkpoint. It is due at once if a request waits, and else by the interval."""
        if len(self.waiting) > self.is_fetching:
            expect(next_ms == now_ms, "queue-held", f"{[*self.waiting]} wait at {now_ms}, the next is due at {next_ms}")
        elif not self.waiting:
            expect((next_ms is not None) == runs, "queue-held", f"the timer runs: {runs}, the next is due at {next_ms}")

    def _chooses(self) -> None:
        self.is_fetching = True
        first = min(self.waiting, key=lambda name: self.waiting[name], default=None)
        is_users = first is not None and not self.waiting[first][2]
        self.chosen = first if is_users else None

    def _refused(self, request: str) -> None:
        """Judge whom a full queue refuses: the newest periodic request, or the new one if no periodic one waits."""
        periodic = [name for name, (_, _, is_periodic, _) in self.waiting.items() if is_periodic]
        if len(periodic) > self.is_fetching:
            newest = max(periodic, key=lambda name: self.waiting[name])
            expect(request == newest, "queue", f"{request} is refused, {newest} can wait for the next interval")

    def _bounded(self, fact: flink.FlinkFact) -> None:
        most = (self.settings.queue_max or 0) + self.is_fetching
        limited = self.settings.queue_max is not None
        expect(not limited or len(self.waiting) <= most, "queue", f"{len(self.waiting)} requests wait, {most} may")
        if isinstance(fact, told.SchedulerStarted | told.SchedulerStopped | told.ShutDown) and not self.is_over:
            left = len(self.waiting) <= self.is_fetching
            expect(left, "queue", f"{fact} leaves {[*self.waiting]} in the queue")
            self.is_over = isinstance(fact, told.ShutDown)


def _urgency(properties: CheckpointProperties, *, periodic: bool, place: int) -> Urgency:
    return (not properties.is_savepoint, not properties.forced, periodic, place)


@dataclass(slots=True)
class TimerModel:
    """Knows when the coordinator must be woken at the latest and at the earliest."""

    settings: CoordinatorSettings
    is_running: bool = False
    told_ms: int | None = None
    """What the coordinator has last asked for."""

    def take(
        self, fact: flink.FlinkFact, effects: Sequence[flink.FlinkEffect], wake_ms: int | None, now_ms: int
    ) -> None:
        """Judge one step; `wake_ms` is when the coordinator says that its next timer is due."""
        for effect in effects:
            if isinstance(effect, told.WakeCoordinatorAt):
                self.told_ms = effect.at_ms
        expect(
            wake_ms is None or wake_ms == self.told_ms, "wake", f"it is due at {wake_ms}, it asked for {self.told_ms}"
        )
        expect(wake_ms is None or wake_ms > now_ms, "wake", f"it is {now_ms}, and it is due at {wake_ms}")
        interval_ms, pause_ms = self.settings.interval_ms, self.settings.min_pause_ms
        match fact:
            case told.SchedulerStarted() if interval_ms is not None:
                self.is_running = True
                right = wake_ms is not None and now_ms + pause_ms <= wake_ms <= now_ms + interval_ms
                expect(right, "pause", f"started at {now_ms}, it triggers at {wake_ms}")
            case told.SchedulerStopped() | told.ShutDown():
                self.is_running = False
            case _:
                pass
        if self.is_running:
            late = wake_ms is None or wake_ms > now_ms + max(interval_ms or 0, pause_ms)
            expect(not late, "wake", f"it is {now_ms}, and it triggers only at {wake_ms}")

    def refused(self, wake_ms: int | None, over_ms: int) -> None:
        """Judge a coordinator that has just refused the timer's request, only because of the pause."""
        expect(wake_ms == over_ms, "pause", f"the pause is over at {over_ms}, it triggers again at {wake_ms}")

    def leapt(self, first_ms: int | None, begun: int, due_ms: int | None, wake_ms: int | None) -> None:
        """Judge a timer whose clock has leapt: firings that it missed count as one, and the rate stays fixed.

        `begun` checkpoints have begun since. The timer was due at `first_ms` before the leap, at `due_ms` right after
        it, and is at `wake_ms` now.
        """
        expect(begun <= 1, "fixed-rate", f"{begun} checkpoints began for the firings that the clock leapt over")
        expect(wake_ms == due_ms, "fixed-rate", f"due at {due_ms}, it triggers at {wake_ms}")
        if first_ms is not None and due_ms is not None:
            keeps = (due_ms - first_ms) % (self.settings.interval_ms or 1) == 0
            expect(keeps, "fixed-rate", f"due at {first_ms}, it triggers again at {due_ms}")
