"""Plants bugs in nonces. A store finds an entry of unknown outcome by its nonce, so each entry needs its own (F3)."""

from checkpointing.commit.at_rest import Rollback, SourceReset, Stamp
from checkpointing.commit.draft import Draft
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.job.ids import CheckpointIds
from checkpointing.metadata.record import CheckpointRecord, Claim
from spec.mutants.judges import RESETS, ROLLBACKS
from spec.mutants.planting import Patch, mutant


@mutant("nonces-differ")
def every_entry_of_a_tick_has_the_nonce_of_its_claim(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        return real(self, draft).model_copy(update={"nonce": self._identity.nonce})

    patch.put(TwoPhaseCommit, "_compose", compose)


@mutant("nonces-differ")
def a_further_block_of_ids_has_the_nonce_of_the_first(patch: Patch) -> None:
    real = CheckpointIds.further

    def further(self: CheckpointIds, now_ms: int) -> Claim:
        nonce = self._claim.nonce
        self._claim = real(self, now_ms).model_copy(update={"nonce": nonce})
        return self._claim

    patch.put(CheckpointIds, "further", further)


@mutant("nonces-differ", ROLLBACKS)
def a_rollback_has_the_nonce_of_its_target(patch: Patch) -> None:
    real = Rollback.row

    def row(self: Rollback, claim: Claim, at: Stamp) -> CheckpointRecord:
        return real(self, claim, at).model_copy(update={"nonce": self.target.nonce})

    patch.put(Rollback, "row", row)


@mutant("nonces-differ", RESETS)
def a_reset_has_the_nonce_of_the_entry_that_it_moves(patch: Patch) -> None:
    real = SourceReset.row

    def row(self: SourceReset, claim: Claim, at: Stamp) -> CheckpointRecord:
        return real(self, claim, at).model_copy(update={"nonce": self.newest.nonce})

    patch.put(SourceReset, "row", row)
