"""Decides whether a tick makes another attempt (G4).

Another attempt follows a failed one if the restart strategy allows it. It also follows an attempt that ended because
its trace was full. Each attempt ends with its release, and the next attempt claims the next generation. So files and
entries of two attempts cannot be confused, and the next attempt recovers what the last one left unfinished.
"""

from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, assert_never

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import IDS_PER_CLAIM
from checkpointing.config import CheckpointConfig, RestartStrategyKind
from checkpointing.coordinator.failure_policy import NEVER_TOLERATED
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import Vertex
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.metadata.record import Holder
from checkpointing.tick.messages import Question, Recovered, RestartDue

# ------------------------------------------------------------------
# Decides whether and when a failed job restarts inside its tick (G4; Flink: `RestartBackoffTimeStrategy`).
#
# A strategy is an immutable value, and so is its history of earlier failures. The time and the seed for jitter are
# arguments. `CheckpointConfig` checks the numbers of a strategy.


_Number = TypeVar("_Number", int, float)
_MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure ends the tick. The next tick recovers."""


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """At most `attempts` restarts, each after `delay_ms`."""

    attempts: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restart after `delay_ms`, unless more than `failures_max` failures were within `interval_ms`.

    Older versions of Flink gave up at exactly `failures_max`.
    """

    failures_max: int
    interval_ms: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """The delay grows by `multiplier` up to `max_ms`. After a quiet time of `reset_after_ms` the delay starts anew.

    The quiet time is the time between two failures, less the delay between them. `jitter` moves the delay up or down by
    at most this share. `attempts` limits the restarts between two quiet times. None: no limit.
    """

    initial_ms: int
    max_ms: int
    multiplier: float
    reset_after_ms: int
    jitter: float
    attempts: int | None


RestartStrategy = NoRestart | FixedDelay | FailureRate | ExponentialDelay


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """The history of a strategy: the number of restarts, the times of failures, the last delay without jitter."""

    restarts: int = 0
    failures_ms: tuple[int, ...] = ()
    backoff_ms: int = 0


NO_FAILURES = FailureHistory()


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """When to restart, and the history to pass in at the next failure. No restart if `delay_ms` is None."""

    delay_ms: int | None
    history: FailureHistory


def strategy_of(config: CheckpointConfig) -> RestartStrategy:
    """Return the strategy of a configuration. Numbers that the configuration leaves open are Flink's defaults."""
    delay_ms = config.first_restart_delay_ms
    match config.restart_strategy:
        case RestartStrategyKind.NONE:
            return NoRestart()
        case RestartStrategyKind.FIXED_DELAY:
            return FixedDelay(_given(config.restart_attempts, 1), delay_ms)
        case RestartStrategyKind.FAILURE_RATE:
            return FailureRate(
                _given(config.restart_failures_max, 1), _given(config.restart_failures_interval_ms, 60_000), delay_ms
            )
        case RestartStrategyKind.EXPONENTIAL_DELAY:
            return ExponentialDelay(
                initial_ms=delay_ms,
                max_ms=config.longest_restart_delay_ms,
                multiplier=_given(config.restart_multiplier, 2.0),
                reset_after_ms=_given(config.restart_reset_after_ms, 3_600_000),
                jitter=_given(config.restart_jitter, 0.1),
                attempts=config.restart_attempts,
            )
        case _ as unreachable:
            assert_never(unreachable)


def may_restart(reason: CheckpointFailureReason | None) -> bool:
    """Return whether a job that failed for this reason can restart.

    It may not if the next attempt would fail too, after a suite's verdict or a changed table. It may not either if a
    newer claim gave the job to another process (Flink: `SuppressRestartsException`).
    """
    return reason not in NEVER_TOLERATED


def after_failure(strategy: RestartStrategy, history: FailureHistory, now_ms: int, seed: int = 0) -> RestartDecision:
    """Return whether the job restarts after a failure at `now_ms`. `seed` decides the jitter."""
    match strategy:
        case NoRestart():
            return RestartDecision(None, history)
        case FixedDelay():
            allowed = history.restarts < strategy.attempts
            noted = FailureHistory(restarts=history.restarts + 1, failures_ms=(now_ms,))
            return RestartDecision(strategy.delay_ms if allowed else None, noted)
        case FailureRate():
            return _by_rate(strategy, history, now_ms)
        case ExponentialDelay():
            return _by_backoff(strategy, history, now_ms, seed)
        case _ as unreachable:
            assert_never(unreachable)


def _by_rate(strategy: FailureRate, history: FailureHistory, now_ms: int) -> RestartDecision:
    failures = (*history.failures_ms, now_ms)[-(strategy.failures_max + 1) :]
    too_many = len(failures) > strategy.failures_max and now_ms - failures[0] <= strategy.interval_ms
    noted = FailureHistory(restarts=history.restarts + 1, failures_ms=failures)
    return RestartDecision(None if too_many else strategy.delay_ms, noted)


def _by_backoff(strategy: ExponentialDelay, history: FailureHistory, now_ms: int, seed: int) -> RestartDecision:
    quiet = not history.failures_ms or (
        now_ms - history.failures_ms[-1] >= strategy.reset_after_ms + history.backoff_ms
    )
    restarts = 0 if quiet else history.restarts
    grown = min(int(history.backoff_ms * strategy.multiplier), strategy.max_ms)
    backoff_ms = strategy.initial_ms if quiet else max(grown, strategy.initial_ms)
    noted = FailureHistory(restarts + 1, (now_ms,), backoff_ms)
    if strategy.attempts is not None and restarts >= strategy.attempts:
        return RestartDecision(None, noted)
    return RestartDecision(_jittered(backoff_ms, strategy, seed), noted)


def _jittered(backoff_ms: int, strategy: ExponentialDelay, seed: int) -> int:
    """Return the delay, moved by a share in [-jitter, jitter], and at most `max_ms`."""
    spread_ms = int(backoff_ms * strategy.jitter)
    mixed = ((seed + 1) * 0x9E37_79B9_7F4A_7C15) & _MASK
    offset_ms = (mixed >> 16) % (2 * spread_ms + 1) - spread_ms
    return min(backoff_ms + offset_ms, strategy.max_ms)


def _given(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value


class Attempts:
    """The history of one tick's attempts. The tick's limits hold for all attempts together."""

    def __init__(self, strategy: RestartStrategy, limits: TickLimits) -> None:
        """Begin before the first attempt."""
        self._strategy = strategy
        self._limits = limits
        self._history = NO_FAILURES
        self._began_ms = 0
        self._renewals = 0
        """How many attempts followed an attempt whose trace was full."""
        self._generations = set[Generation]()
        """The generations of the attempts whose job has begun."""
        self.restarts = 0
        """How many attempts followed a failed attempt."""
        self.completed = 0
        """How many checkpoints all attempts have completed."""

    def began(self, at: Stamp) -> None:
        """Record when the tick began."""
        self._began_ms = at.now_ms

    def recovered(self, done: Recovered, by: Generation) -> None:
        """Count the checkpoint that attempt `by` rolled forward, if an earlier attempt of this tick committed it."""
        published = done.plan.roll_forward
        self.completed += published is not None and published.generation in self._generations
        self._generations.add(by)

    def renews(self, at: Stamp) -> bool:
        """Return whether an attempt follows the one whose trace is full. If the tick is to stop, no attempt follows."""
        wanted = self._limits.checkpoints
        met = (wanted is not None and self.completed >= wanted) or self._left_ms(at) == 0
        goes_on = not at.stopping and not met
        self._renewals += goes_on
        return goes_on

    def follows(self, end: EndTick, at: Stamp, seed: int) -> RestartDue | EndTick:
        """Return how the tick ends, or when it restarts. `seed` decides the jitter of the delay."""
        if end.outcome is not TickOutcome.FAILED or at.stopping or not may_restart(end.reason):
            return end
        decision = after_failure(self._strategy, self._history, at.now_ms, seed)
        self._history = decision.history
        if decision.delay_ms is None:
            return self._exhausted(end)
        left_ms = self._left_ms(at)
        if left_ms is not None and left_ms <= decision.delay_ms:
            return _noted(end, "(no restart: it would come after the tick's duration)")
        self.restarts += 1
        return RestartDue(self.restarts, end, decision.delay_ms)

    def stopped(self, after: EndTick) -> EndTick:
        """Return the end of a tick that was asked to stop while it waited for a restart."""
        message = f"stopped before restart {self.restarts} after: {after.message}"
        return EndTick(TickOutcome.STOPPED, after.reason, message)

    def limits(self, at: Stamp) -> TickLimits:
        """Return what is left of the tick's limits for the next attempt."""
        if not self.restarts and not self._renewals:
            return self._limits
        wanted = self._limits.checkpoints
        left = None if wanted is None else max(0, wanted - self.completed)
        return replace(self._limits, checkpoints=left, duration_ms=self._left_ms(at))

    def _left_ms(self, at: Stamp) -> int | None:
        limit = self._limits.duration_ms
        return None if limit is None else max(0, limit - (at.now_ms - self._began_ms))

    def _exhausted(self, end: EndTick) -> EndTick:
        if isinstance(self._strategy, NoRestart):
            return end
        return _noted(end, f"(after {self.restarts} restarts the strategy allows no further one)")


def _noted(end: EndTick, note: str) -> EndTick:
    """Return the end with a note after the first line of its message."""
    sentence, newline, below = end.message.partition("\n")
    return replace(end, message=f"{sentence} {note}{newline}{below}")


# ------------------------------------------------------------------
# The purposes for which a process claims a job, and the steps of the tick door that each purpose needs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """The steps of one kind of work. The door decides their order. An errand only says which steps it takes."""

    questions: tuple[Question, ...] = (Question.REPAIRABLE,)
    """The questions to ask before the claim, in this order."""
    repairs: bool = True
    """Repair tables that are behind a recorded cut."""
    ensures: bool = False
    """Create missing output tables. Only a process that has the pipeline knows their columns."""
    rolls_forward: bool = True
    """Publish an entry that is committed and not published."""
    discards: bool = False
    """Delete staged files of dead holders that nothing references."""
    publishes: bool = False
    """Publish the entry that the work appends at once. Otherwise the next tick does that."""
    moves_on: bool = False
    """It moves the job on from its present cut. So it is refused while a held cut waits for approval."""
    runs: bool = False
    """The work is a running job. If it fails, find out whether another process has claimed the job in the meantime."""


TICK: Final = Errand(
    questions=(Question.SOUND, Question.FITS, Question.REPAIRABLE, Question.NOT_AHEAD),
    ensures=True,
    discards=True,
    moves_on=True,
    runs=True,
)
SAVEPOINT: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE))
ROLLBACK: Final = Errand(
    questions=(Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True, moves_on=True
)
RESET: Final = Errand(
    questions=(Question.SOUND, Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True, moves_on=True
)
FORGET: Final = Errand(
    questions=(Question.SOUND, Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True, moves_on=True
)
APPROVAL: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE), discards=True, publishes=True)
REJECTION: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE))
IMPORT: Final = Errand(questions=(Question.POSSIBLE,), repairs=False, rolls_forward=False)
DISPOSAL: Final = Errand(questions=(Question.POSSIBLE, Question.REPAIRABLE))
CANCELLATION: Final = Errand(ensures=True, moves_on=True)
CLEANUP: Final = Errand(rolls_forward=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a process tells the door at the beginning: who it is, and what it may do.

    `leaves_behind` is the entry to which a rollback goes back. If another committed entry cannot be published, the
    rollback abandons that entry. For an import, `above` has the highest generation and id of the other warehouse, so
    that no number is used twice. `ids` is how many ids a claim reserves. `sources` are the pipeline's sources, if the
    errand runs a job.
    """

    holder: Holder
    sources: tuple[Vertex, ...] = ()
    take_over: bool = False
    leaves_behind: CheckpointId | None = None
    above: tuple[Generation, CheckpointId] = (Generation(0), NO_CHECKPOINT)
    limits: TickLimits = field(default_factory=TickLimits)
    strategy: RestartStrategy = field(default_factory=NoRestart)
    waits_ms: int = 0
    """How long a tick that goes on in another trace waits if another process has claimed the job in between."""
    ids: int = IDS_PER_CLAIM
