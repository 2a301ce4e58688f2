"""Plants bugs in a holder's first steps: repairs, the roll-forward of an entry that was left, and leftovers."""

from typing import Any

from checkpointing.commit.cut_correcting import Correction
from checkpointing.commit.recovery import Observed
from checkpointing.metadata.record import Claim
from checkpointing.tick import recovering
from checkpointing.tick.claiming import Held
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.messages import Recovered
from spec.machines.recovering import STEPS
from spec.mutants.judges import RECOVERING
from spec.mutants.planting import Patch, mutant


@mutant(STEPS, RECOVERING)
def leftovers_are_deleted_although_an_entry_is_left_behind(patch: Patch) -> None:
    real = recovering.rolled_forward_or_left

    def rolled_forward_or_left(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - steps
        yield from real(*arguments, **options)
        return True

    patch.function(recovering, "rolled_forward_or_left", rolled_forward_or_left)


@mutant(STEPS, RECOVERING)
def a_holder_deletes_leftovers_before_it_rolls_an_entry_forward(patch: Patch) -> None:
    real, delete = recovering.recovered, recovering.discarded

    def recovered(errand: Errand, terms: Terms, held: Held) -> Any:  # noqa: ANN401 - steps
        leftovers = (yield from delete(held.claim, held.seen)) if errand.discards else 0
        done = yield from real(errand, terms, held)
        return Recovered(done.plan, leftovers)

    patch.function(recovering, "recovered", recovered)


@mutant(STEPS, RECOVERING)
def a_rollback_gives_the_rows_that_it_takes_back_to_outside_sinks(patch: Patch) -> None:
    patch.function(recovering, "_may_leave", lambda terms, record: False)


@mutant(STEPS, RECOVERING)
def a_lost_cut_is_rebuilt_and_not_recorded(patch: Patch) -> None:
    real = recovering._correction

    def correction(doubt: Any) -> Any:  # noqa: ANN401 - steps
        found = yield from real(doubt)
        return Correction({each: cut for each, cut in found.changed.items() if each not in doubt.rebuilt}, ())

    patch.function(recovering, "_correction", correction)


@mutant(STEPS, RECOVERING)
def what_this_holder_reserves_is_taken_for_a_leftover(patch: Patch) -> None:
    real = recovering.discarded

    def discarded(claim: Claim, seen: Observed) -> Any:  # noqa: ANN401 - steps
        return real(claim.model_copy(update={"first_id": claim.last_id}), seen)

    patch.function(recovering, "discarded", discarded)
