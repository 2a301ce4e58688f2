"""Plants bugs in held cuts: who may see them, what they stop, and how they are settled."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from checkpointing.commit import at_rest, leftovers
from checkpointing.commit.at_rest import NO_TURN, Approved, Recipe, Stamp
from checkpointing.commit.leftovers import Referenced
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.identifiers import Generation
from checkpointing.job import drafts, ending
from checkpointing.job.ending import Ending
from checkpointing.metadata.paths import StagedName
from checkpointing.metadata.record import CheckpointRecord, Claim, Row, RowKind, Statistics
from checkpointing.tick import claiming, errand
from checkpointing.tick.asking import Steps
from checkpointing.tick.holding import Holding
from spec.mutants.judges import HELD_CUTS, directed
from spec.mutants.planting import Patch, mutant
from spec.mutants.scenes import files_of_a_rejected_cut_are_leftovers


@mutant("held-is-kept", HELD_CUTS)
def a_tick_goes_on_while_a_cut_waits(patch: Patch) -> None:
    patch.put(claiming, "held_cut", lambda rows: None)


@mutant("held-is-kept", HELD_CUTS)
def a_rollback_leaves_the_cut_behind_that_waits(patch: Patch) -> None:
    patch.function(errand, "ROLLBACK", replace(errand.ROLLBACK, moves_on=False))


@mutant("held-is-kept", HELD_CUTS)
def a_reset_moves_a_source_under_the_cut_that_waits(patch: Patch) -> None:
    patch.function(errand, "RESET", replace(errand.RESET, moves_on=False))


@mutant("published-at-once", HELD_CUTS)
def an_approval_leaves_the_publication_to_the_next_tick(patch: Patch) -> None:
    patch.function(errand, "APPROVAL", replace(errand.APPROVAL, publishes=False))


@mutant("published-at-once", HELD_CUTS)
def a_rollback_leaves_the_publication_to_the_next_tick(patch: Patch) -> None:
    patch.function(errand, "ROLLBACK", replace(errand.ROLLBACK, publishes=False))


@mutant("published-at-once", HELD_CUTS)
def a_reset_leaves_the_publication_to_the_next_tick(patch: Patch) -> None:
    patch.function(errand, "RESET", replace(errand.RESET, publishes=False))


@mutant("published-at-once", HELD_CUTS)
def only_errands_that_move_the_job_on_publish(patch: Patch) -> None:
    real = Holding._own_entry

    def own_entry(self: Holding, recipe: Recipe) -> Steps[CheckpointRecord]:
        self._errand = replace(self._errand, publishes=self._errand.moves_on)
        return real(self, recipe)

    patch.put(Holding, "_own_entry", own_entry)


@mutant("held-is-invisible", HELD_CUTS)
def a_held_cut_is_published_at_once(patch: Patch) -> None:
    patch.put(CheckpointRecord, "commits", property(lambda row: row.kind is not RowKind.SAVEPOINT))


@mutant("held-is-invisible", HELD_CUTS)
def a_tick_that_is_to_hold_commits(patch: Patch) -> None:
    def kind_of(properties: CheckpointProperties) -> RowKind:
        del properties
        return RowKind.CHECKPOINT

    patch.put(drafts, "_kind_of", kind_of)


@mutant("held-is-kept", HELD_CUTS)
def leftovers_of_dead_ticks_include_the_files_of_a_held_cut(patch: Patch) -> None:
    real = leftovers.referenced

    def referenced(rows: Iterable[Row]) -> Referenced:
        return real(row for row in rows if not (isinstance(row, CheckpointRecord) and row.kind is RowKind.HELD))

    patch.function(leftovers, "referenced", referenced)


@mutant("held-is-invisible", HELD_CUTS)
def an_approved_cut_continues_from_the_held_one(patch: Patch) -> None:
    real = Approved.row

    def row(self: Approved, claim: Claim, at: Stamp) -> CheckpointRecord:
        return real(self, claim, at).model_copy(update={"parent": self.held.checkpoint})

    patch.put(Approved, "row", row)


@mutant("held-is-kept", HELD_CUTS)
def an_approval_leaves_the_held_entry(patch: Patch) -> None:
    real = at_rest.turn_of
    patch.function(
        at_rest,
        "turn_of",
        lambda recipe, rows: NO_TURN if isinstance(recipe, Approved) else real(recipe, rows),
    )


@mutant("held-is-kept", HELD_CUTS)
def an_approval_forgets_a_table(patch: Patch) -> None:
    real = Approved.row

    def row(self: Approved, claim: Claim, at: Stamp) -> CheckpointRecord:
        approved = real(self, claim, at)
        return approved.model_copy(update={"tables": approved.tables[1:]})

    patch.put(Approved, "row", row)


@mutant("no-deadlock", HELD_CUTS)
def a_tick_waits_for_more_after_it_has_held_a_cut(patch: Patch) -> None:
    def saved(self: Ending, record: CheckpointRecord) -> None:
        del self, record

    patch.put(ending.Ending, "saved", saved)


REJECTED = directed(files_of_a_rejected_cut_are_leftovers, "rejected-leaves-nothing")


@mutant("rejected-leaves-nothing", REJECTED)
def leftovers_of_the_holder_before_stay(patch: Patch) -> None:
    real = leftovers.is_leftover

    def is_leftover(
        name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
    ) -> bool:
        return generation < current - 1 and real(name, generation, current=current, newest=newest)

    patch.function(leftovers, "is_leftover", is_leftover)


@mutant("rejected-leaves-nothing", REJECTED)
def a_newer_generation_is_judged_by_the_micro_batches_of_the_newest_checkpoint(patch: Patch) -> None:
    real = leftovers.is_leftover

    def is_leftover(
        name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
    ) -> bool:
        own = newest.generation if newest is not None else generation
        return generation < current and real(name, min(generation, own), current=current, newest=newest)

    patch.function(leftovers, "is_leftover", is_leftover)


@mutant("rejected-leaves-nothing", REJECTED)
def files_of_a_rejected_cut_stay(patch: Patch) -> None:
    real = leftovers.is_leftover

    def is_leftover(
        name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
    ) -> bool:
        newer = newest is not None and generation > newest.generation
        return not newer and real(name, generation, current=current, newest=newest)

    patch.function(leftovers, "is_leftover", is_leftover)


@mutant("held-is-kept", HELD_CUTS)
def an_approval_counts_the_checkpoints_of_another_generation(patch: Patch) -> None:
    _measure_otherwise(patch, lambda held: held)


@mutant("held-is-kept", HELD_CUTS)
def an_approval_forgets_what_was_measured(patch: Patch) -> None:
    _measure_otherwise(patch, lambda held: held.model_copy(update={"vertices": (), "counts": None}))


def _measure_otherwise(patch: Patch, changed: Callable[[Statistics], Statistics]) -> None:
    """Let an approval say other statistics, computed from those of the held cut."""
    real = Approved.row

    def row(self: Approved, claim: Claim, at: Stamp) -> CheckpointRecord:
        return real(self, claim, at).model_copy(update={"statistics": changed(self.held.statistics)})

    patch.put(Approved, "row", row)
