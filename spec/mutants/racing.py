"""Plants bugs in the way to a claim, while other processes claim the same job, and in its release."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.tick import claiming
from checkpointing.tick.asking import TRIES, StepFailedError, Steps, asked
from checkpointing.tick.claiming import Claiming, Held
from checkpointing.tick.holding import Holding
from checkpointing.tick.messages import AppendRelease, Observe, Question, Unsettled
from spec.machines.asking import RELEASED
from spec.machines.racing import RACES
from spec.mutants.judges import ATTEMPTS, LOST_ANSWERS, RACING
from spec.mutants.planting import Patch, mutant


@mutant(RACES, RACING)
def only_the_first_question_is_asked(patch: Patch) -> None:
    real = claiming.examined

    def examined(questions: tuple[Question, ...], seen: Observed, plan: RecoveryPlan) -> Any:  # noqa: ANN401 - steps
        return (yield from real(questions[:1], seen, plan))

    patch.function(claiming, "examined", examined)


@mutant(RACES, RACING)
def a_no_counts_although_others_have_written_since(patch: Patch) -> None:
    def seen_again(self: Claiming, seen: Observed, objection: StepFailedError) -> Iterator[Any]:
        del self, seen
        yield from asked(Observe(), Observed)
        raise objection

    patch.put(Claiming, "_seen_again", seen_again)


@mutant(RACES, RACING)
def an_imported_entry_and_a_new_one_may_have_one_id(patch: Patch) -> None:
    patch.put(Claiming, "_above", lambda self, claim: claim)


@mutant(RACES, RACING)
def a_process_takes_the_job_over_from_whoever_was_faster(patch: Patch) -> None:
    real = Claiming._decided

    def decided(self: Claiming, seen: Observed) -> Steps[RecoveryPlan]:
        self._take_over, self._met = self._terms.take_over, None
        return (yield from real(self, seen))

    patch.put(Claiming, "_decided", decided)


# ------------------------------------------------------------------ the release


@mutant(RELEASED, LOST_ANSWERS)
def a_job_is_not_released_after_an_entry_in_doubt(patch: Patch) -> None:
    real = Holding._released

    def released(self: Holding) -> Steps[None]:
        if self._next_id == self._held.claim.first_id:
            yield from real(self)

    patch.put(Holding, "_released", released)


@mutant(RELEASED, LOST_ANSWERS)
def a_refused_release_is_not_tried_again(patch: Patch) -> None:
    def released(self: Holding) -> Steps[None]:
        yield self._release(self._at_version)

    patch.put(Holding, "_released", released)


@mutant(RELEASED, LOST_ANSWERS)
def a_release_follows_the_claim_although_an_entry_is_in_between(patch: Patch) -> None:
    real = Holding._release

    def release(self: Holding, at_version: int) -> AppendRelease:
        return replace(real(self, at_version), at_version=self._held.at_version)

    patch.put(Holding, "_release", release)


# ------------------------------------------------------------------ a list lags behind


@mutant(RACES, RACING)
def a_list_that_lags_behind_counts_as_a_look(patch: Patch) -> None:
    patch.put(Claiming, "_looked", lambda self: asked(Observe(), Observed))


@mutant("attempts", ATTEMPTS)
def an_attempt_forgets_the_claim_of_the_attempt_before(patch: Patch) -> None:
    real = Claiming.claimed

    def claimed(self: Claiming) -> Steps[Held]:
        self._known = 0
        return (yield from real(self))

    patch.put(Claiming, "claimed", claimed)


@mutant(RACES, RACING)
def a_second_look_may_show_less_than_the_first(patch: Patch) -> None:
    real = Claiming._looked

    def looked(self: Claiming) -> Steps[Observed]:
        seen = yield from real(self)
        self._known = 0
        return seen

    patch.put(Claiming, "_looked", looked)


@mutant(RACES, RACING)
def a_list_that_lacks_one_entry_counts_as_a_look(patch: Patch) -> None:
    def looked(self: Claiming) -> Steps[Observed]:
        for _ in range(TRIES):
            seen = yield from asked(Observe(), Observed)
            if seen.version >= self._known - 1:
                break
        self._known = max(self._known, seen.version)
        return seen

    patch.put(Claiming, "_looked", looked)


@mutant("attempts", ATTEMPTS)
def one_list_that_lags_behind_ends_the_attempt(patch: Patch) -> None:
    def looked(self: Claiming) -> Steps[Observed]:
        seen = yield from asked(Observe(), Observed)
        if seen.version < self._known:
            raise StepFailedError(Unsettled("the list lags behind"), is_refusal=True)
        self._known = seen.version
        return seen

    patch.put(Claiming, "_looked", looked)
