"""Plants bugs in the tick door: when a tick claims and releases, and the order of recovery."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.commit.at_rest import Rollback, Stamp
from checkpointing.commit.fencing import newest_claim
from checkpointing.commit.recovery import Observed
from checkpointing.messages import RowAppended, RowRefused, RowUnknown
from checkpointing.metadata.record import CheckpointRecord, Claim, Release
from checkpointing.tick import asking, recovering
from checkpointing.tick.asking import Steps
from checkpointing.tick.claiming import Held
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.holding import Holding
from checkpointing.tick.messages import AppendClaim, AppendEntry, AppendRelease, Observe, Recovered
from spec.mutants.judges import RESTARTS, ROLLBACKS
from spec.mutants.planting import Patch, mutant

_Answer = RowAppended | RowRefused | RowUnknown

# ------------------------------------------------------------------ the claim and the release


@mutant("one-generation")
def a_claim_that_was_beaten_is_appended_behind_the_winner(patch: Patch) -> None:
    real = asking.appended

    def appended(effect: AppendClaim | AppendEntry) -> Steps[_Answer]:
        answer = yield from real(effect)
        while isinstance(effect, AppendClaim) and isinstance(answer, RowRefused):
            effect = replace(effect, at_version=effect.at_version + 1)
            answer = yield from real(effect)
        return answer

    patch.function(asking, "appended", appended)


@mutant("held")
def a_claim_that_was_beaten_is_released(patch: Patch) -> None:
    real = asking.appended

    def appended(effect: AppendClaim | AppendEntry) -> Steps[_Answer]:
        answer = yield from real(effect)
        if isinstance(effect, AppendClaim) and isinstance(answer, RowRefused):
            seen = yield Observe()
            claim = effect.row
            lost = Release(generation=claim.generation, next_id=claim.first_id, at_ms=0, nonce=f"{claim.nonce} lost")
            yield AppendRelease(lost, seen.version if isinstance(seen, Observed) else 0)
        return answer

    patch.function(asking, "appended", appended)


@mutant("held")
def a_release_is_appended_twice(patch: Patch) -> None:
    real = Holding._released

    def released(self: Holding) -> Steps[None]:
        yield from real(self)
        seen = yield Observe()
        yield self._release(seen.version if isinstance(seen, Observed) else 0)

    patch.put(Holding, "_released", released)


@mutant("held")
def a_release_gives_the_ids_of_its_claim_away(patch: Patch) -> None:
    real = Holding._release

    def release(self: Holding, at_version: int) -> AppendRelease:
        said = real(self, at_version)
        row = said.row.model_copy(update={"next_id": self._held.claim.first_id})
        return replace(said, row=row)

    patch.put(Holding, "_release", release)


@mutant("held")
def the_job_is_released_before_its_work(patch: Patch) -> None:
    real = Holding._worked

    def worked(self: Holding) -> Steps[object]:
        yield self._release(self._at_version)
        return (yield from real(self))

    patch.put(Holding, "_worked", worked)


# ------------------------------------------------------------------ recovery


Recovery = Callable[[Errand, Terms, Held], Steps[Recovered]]


def _recover_otherwise(patch: Patch, otherwise: Callable[[Recovery], Recovery]) -> None:
    patch.function(recovering, "recovered", otherwise(recovering.recovered))


@mutant("recovered-in-order")
def leftovers_are_deleted_before_an_entry_is_rolled_forward(patch: Patch) -> None:
    def otherwise(real: Recovery) -> Recovery:
        def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
            if errand.discards:
                yield from recovering.discarded(held.claim, held.seen)
            return (yield from real(replace(errand, discards=False), terms, held))

        return recovered

    _recover_otherwise(patch, otherwise)


@mutant("recovered-in-order")
def a_start_behind_a_release_deletes_no_leftovers(patch: Patch) -> None:
    def otherwise(real: Recovery) -> Recovery:
        def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
            orderly = isinstance(held.seen.rows[-1], Release) if held.seen.rows else False
            return (yield from real(replace(errand, discards=errand.discards and not orderly), terms, held))

        return recovered

    _recover_otherwise(patch, otherwise)


@mutant("recovered-in-order", ROLLBACKS)
def a_rollback_leaves_leftovers_behind_its_entry(patch: Patch) -> None:
    def otherwise(real: Recovery) -> Recovery:
        def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
            discards = errand.discards and terms.leaves_behind is None
            return (yield from real(replace(errand, discards=discards), terms, held))

        return recovered

    _recover_otherwise(patch, otherwise)


def _restarts(terms: Terms, held: Held) -> bool:
    """Return whether this attempt follows an earlier attempt of the same process."""
    before = newest_claim(held.seen.rows)
    return before is not None and before.holder == terms.holder


@mutant("recovered-in-order", RESTARTS)
def a_restart_rolls_nothing_forward(patch: Patch) -> None:
    def otherwise(real: Recovery) -> Recovery:
        def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
            rolls = errand.rolls_forward and not _restarts(terms, held)
            return (yield from real(replace(errand, rolls_forward=rolls), terms, held))

        return recovered

    _recover_otherwise(patch, otherwise)


@mutant("recovered-in-order", RESTARTS)
def a_restart_deletes_no_leftovers(patch: Patch) -> None:
    def otherwise(real: Recovery) -> Recovery:
        def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
            discards = errand.discards and not _restarts(terms, held)
            return (yield from real(replace(errand, discards=discards), terms, held))

        return recovered

    _recover_otherwise(patch, otherwise)


# ------------------------------------------------------------------ entries that no tick writes


@mutant("gone-back", ROLLBACKS)
def a_rollback_builds_on_the_entry_before_its_target(patch: Patch) -> None:
    real = Rollback.row

    def row(self: Rollback, claim: Claim, at: Stamp) -> CheckpointRecord:
        return real(self, claim, at).model_copy(update={"parent": self.target.parent})

    patch.put(Rollback, "row", row)
