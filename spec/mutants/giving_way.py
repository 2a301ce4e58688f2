"""Mutants of a tick that was taken over and learns of it late (G5)."""

from checkpointing.job.rival import RivalWatch
from checkpointing.messages import LookForRival, NotifyAborted, RivalSeen
from spec.mutants.judges import CLOCKS, DECLINES
from spec.mutants.planting import Patch, mutant


@mutant("gives-way", DECLINES)
def nobody_looks_for_another_claim_after_a_failed_checkpoint(patch: Patch) -> None:
    patch.put(RivalWatch, "failed", lambda self, aborted: ())


@mutant("gives-way", DECLINES)
def another_claim_is_looked_for_after_the_first_failure_only(patch: Patch) -> None:
    def seen(self: RivalWatch, fact: RivalSeen) -> None:
        del self, fact

    patch.put(RivalWatch, "seen", seen)


@mutant("gives-way", CLOCKS)
def a_tick_that_hears_of_another_claim_goes_on(patch: Patch) -> None:
    real = RivalWatch.seen

    def seen(self: RivalWatch, fact: RivalSeen) -> None:
        real(self, fact)

    patch.put(RivalWatch, "seen", seen)


@mutant("gives-way", DECLINES)
def a_tick_looks_for_another_claim_after_every_second_failure(patch: Patch) -> None:
    real = RivalWatch.failed

    def failed(self: RivalWatch, aborted: NotifyAborted) -> tuple[LookForRival, ...]:
        return real(self, aborted) if aborted.checkpoint % 2 else ()

    patch.put(RivalWatch, "failed", failed)
