"""Plants bugs in the attempts of one tick: in what is left of its limits, and in how often it restarts."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.commit.at_rest import Recipe, Stamp
from checkpointing.coordinator import restart
from checkpointing.coordinator.restart import (
    ExponentialDelay,
    FailureHistory,
    FailureRate,
    FixedDelay,
    RestartDecision,
    RestartStrategy,
)
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, RowAppended, RowRefused, RowUnknown
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick import asking, door
from checkpointing.tick.asking import StepFailedError, Steps
from checkpointing.tick.attempts import Attempts
from checkpointing.tick.holding import Holding
from checkpointing.tick.messages import AppendClaim, AppendEntry, Outcome, Recovered, RestartDue
from spec.machines.asking import ASKED_AGAIN
from spec.mutants.judges import ATTEMPTS, LOST_ANSWERS, RESTARTS
from spec.mutants.planting import Patch, mutant


@mutant("attempts", RESTARTS)
def each_attempt_has_all_limits(patch: Patch) -> None:
    patch.put(Attempts, "limits", lambda self, at: self._limits)


@mutant("attempts", RESTARTS)
def restarts_are_not_counted(patch: Patch) -> None:
    real = Attempts.follows

    def follows(self: Attempts, end: EndTick, at: Stamp, seed: int) -> RestartDue | EndTick:
        decided = real(self, end, at, seed)
        self.restarts = 0
        return decided

    patch.put(Attempts, "follows", follows)


@mutant("attempts", RESTARTS)
def publications_of_a_later_attempt_are_not_counted(patch: Patch) -> None:
    def recovered(self: Attempts, done: Recovered, by: Generation) -> None:
        """Count nothing."""

    patch.put(Attempts, "recovered", recovered)


@mutant("attempts", RESTARTS)
def the_duration_begins_anew_with_each_attempt(patch: Patch) -> None:
    real = Attempts.limits

    def limits(self: Attempts, at: Stamp) -> TickLimits:
        return replace(real(self, at), duration_ms=self._limits.duration_ms)

    patch.put(Attempts, "limits", limits)


@mutant("attempts", RESTARTS)
def one_restart_too_many_is_allowed(patch: Patch) -> None:
    real = restart.after_failure

    def after_failure(
        strategy: RestartStrategy, history: FailureHistory, now_ms: int, seed: int = 0
    ) -> RestartDecision:
        allowed = replace(strategy, attempts=strategy.attempts + 1) if isinstance(strategy, FixedDelay) else strategy
        return real(allowed, history, now_ms, seed)

    patch.function(restart, "after_failure", after_failure)


@mutant("attempts", RESTARTS)
def a_rejected_suite_restarts_the_job(patch: Patch) -> None:
    fatal = CheckpointFailureReason.FENCED
    patch.function(restart, "may_restart", lambda reason: reason is not fatal)


@mutant("attempts", RESTARTS)
def a_failure_that_is_counted_ends_the_tick(patch: Patch) -> None:
    counted = CheckpointFailureReason.TASK_FAILURE
    patch.function(restart, "may_restart", lambda reason: reason is not counted)


@mutant("attempts", ATTEMPTS)
def a_tick_that_has_done_its_work_goes_on_in_another_trace(patch: Patch) -> None:
    def renews(self: Attempts, at: Stamp) -> bool:
        self._renewals += not at.stopping
        return not at.stopping

    patch.put(Attempts, "renews", renews)


@mutant("attempts", ATTEMPTS)
def a_later_claim_without_an_answer_ends_the_tick(patch: Patch) -> None:
    def ended(refused: StepFailedError) -> Outcome:
        return refused.outcome

    patch.put(door, "_as_failed", ended)


@mutant("attempts", ATTEMPTS)
def another_trace_begins_with_all_limits(patch: Patch) -> None:
    real = Attempts.renews

    def renews(self: Attempts, at: Stamp) -> bool:
        goes_on = real(self, at)
        self._renewals = 0
        return goes_on

    patch.put(Attempts, "renews", renews)


@mutant("attempts", ATTEMPTS)
def another_trace_counts_as_a_restart(patch: Patch) -> None:
    real = Attempts.renews

    def renews(self: Attempts, at: Stamp) -> bool:
        goes_on = real(self, at)
        self.restarts += goes_on
        return goes_on

    patch.put(Attempts, "renews", renews)


@mutant("attempts", ATTEMPTS)
def a_restart_comes_although_the_time_is_over(patch: Patch) -> None:
    patch.put(Attempts, "_left_ms", lambda self, at: None)


@mutant("attempts", ATTEMPTS)
def a_delay_never_begins_anew(patch: Patch) -> None:
    real = restart._by_backoff

    def by_backoff(strategy: ExponentialDelay, history: FailureHistory, now_ms: int, seed: int) -> RestartDecision:
        never = replace(strategy, reset_after_ms=strategy.reset_after_ms * 1_000)
        return real(never, history, now_ms, seed)

    patch.put(restart, "_by_backoff", by_backoff)


@mutant("attempts", ATTEMPTS)
def failures_of_any_time_count_in_a_rate(patch: Patch) -> None:
    real = restart._by_rate

    def by_rate(strategy: FailureRate, history: FailureHistory, now_ms: int) -> RestartDecision:
        return real(replace(strategy, interval_ms=now_ms), history, now_ms)

    patch.put(restart, "_by_rate", by_rate)


@mutant("attempts", ATTEMPTS)
def a_delay_counts_as_quiet_time(patch: Patch) -> None:
    real = restart._by_backoff

    def by_backoff(strategy: ExponentialDelay, history: FailureHistory, now_ms: int, seed: int) -> RestartDecision:
        sooner = replace(strategy, reset_after_ms=strategy.reset_after_ms - history.backoff_ms)
        return real(sooner, history, now_ms, seed)

    patch.put(restart, "_by_backoff", by_backoff)


@mutant("attempts", ATTEMPTS)
def the_last_moment_of_an_interval_does_not_count(patch: Patch) -> None:
    real = restart._by_rate

    def by_rate(strategy: FailureRate, history: FailureHistory, now_ms: int) -> RestartDecision:
        return real(replace(strategy, interval_ms=strategy.interval_ms - 1), history, now_ms)

    patch.put(restart, "_by_rate", by_rate)


@mutant("attempts", ATTEMPTS)
def jitter_makes_a_delay_longer_than_the_longest(patch: Patch) -> None:
    real = restart._jittered

    def jittered(backoff_ms: int, strategy: ExponentialDelay, seed: int) -> int:
        return real(backoff_ms, replace(strategy, max_ms=2 * strategy.max_ms), seed)

    patch.put(restart, "_jittered", jittered)


# ------------------------------------------------------------------ answers that are lost


@mutant(ASKED_AGAIN, LOST_ANSWERS)
def an_append_is_asked_again_without_end(patch: Patch) -> None:
    real = asking.appended

    def appended(effect: AppendClaim | AppendEntry) -> Steps[RowAppended | RowRefused | RowUnknown]:
        fact = yield from real(effect)
        while isinstance(fact, RowUnknown):
            fact = yield from real(effect)
        return fact

    patch.function(asking, "appended", appended)


@mutant(ASKED_AGAIN, LOST_ANSWERS)
def an_append_of_unknown_outcome_is_taken_for_refused(patch: Patch) -> None:
    _answered_otherwise(patch, lambda effect, unknown: RowRefused(unknown.nonce, unknown.error))


@mutant(ASKED_AGAIN, LOST_ANSWERS)
def an_append_of_unknown_outcome_is_taken_for_done(patch: Patch) -> None:
    _answered_otherwise(patch, lambda effect, unknown: RowAppended(unknown.nonce, effect.at_version + 1))


@mutant(ASKED_AGAIN, LOST_ANSWERS)
def a_claim_is_asked_again_under_another_nonce(patch: Patch) -> None:
    real = asking.appended

    def appended(effect: AppendClaim | AppendEntry) -> Steps[RowAppended | RowRefused | RowUnknown]:
        fact = yield effect
        if isinstance(fact, (RowAppended, RowRefused)):
            return fact
        if isinstance(effect, AppendClaim):
            effect = replace(effect, row=effect.row.model_copy(update={"nonce": f"{effect.row.nonce} again"}))
        return (yield from real(effect))

    patch.function(asking, "appended", appended)


def _answered_otherwise(
    patch: Patch, answer: Callable[[AppendClaim | AppendEntry, RowUnknown], RowAppended | RowRefused]
) -> None:
    real = asking.appended

    def appended(effect: AppendClaim | AppendEntry) -> Steps[RowAppended | RowRefused | RowUnknown]:
        fact = yield from real(effect)
        return answer(effect, fact) if isinstance(fact, RowUnknown) else fact

    patch.function(asking, "appended", appended)


@mutant(ASKED_AGAIN, LOST_ANSWERS)
def the_id_of_an_entry_of_unknown_outcome_is_given_free(patch: Patch) -> None:
    real = Holding._own_entry

    def own_entry(self: Holding, recipe: Recipe) -> Steps[CheckpointRecord]:
        first = self._next_id
        try:
            return (yield from real(self, recipe))
        except StepFailedError:
            self._next_id = first
            raise

    patch.put(Holding, "_own_entry", own_entry)
