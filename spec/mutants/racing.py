"""Plants bugs in the way to a claim, while other processes claim the same job."""

from collections.abc import Iterator
from typing import Any

from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.tick import claiming
from checkpointing.tick.asking import StepFailedError, Steps, asked
from checkpointing.tick.claiming import Claiming
from checkpointing.tick.messages import Observe, Question
from spec.machines.racing import RACES
from spec.mutants.judges import RACING
from spec.mutants.planting import Patch, mutant


@mutant(RACES, RACING)
def only_the_first_question_is_asked(patch: Patch) -> None:
    real = claiming.examined

    def examined(questions: tuple[Question, ...], seen: Observed, plan: RecoveryPlan) -> Any:  # noqa: ANN401 - steps
        return (yield from real(questions[:1], seen, plan))

    patch.function(claiming, "examined", examined)


@mutant(RACES, RACING)
def a_no_counts_although_others_have_written_since(patch: Patch) -> None:
    def seen_again(seen: Observed, objection: StepFailedError) -> Iterator[Any]:
        del seen
        yield from asked(Observe(), Observed)
        raise objection

    patch.function(claiming, "seen_again", seen_again)


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
