"""Plants bugs in the roll-forward of an entry that a dead holder has left."""

from collections.abc import Iterable

from checkpointing.commit.recovery import publications
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import EndTick, PublishFailed, TickOutcome
from checkpointing.metadata.record import CheckpointRecord, Row
from checkpointing.tick import asking, recovering
from checkpointing.tick.errand import Terms
from checkpointing.tick.messages import TickEffect
from spec.mutants.judges import ROLL_FORWARDS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ publications and cuts


@mutant("rolls-forward", ROLL_FORWARDS)
def columns_of_others_leave_every_table(patch: Patch) -> None:
    patch.put(recovering, "_untold", lambda parent, record: frozenset(each.table for each in record.tables))


@mutant("rolls-forward", ROLL_FORWARDS)
def a_table_that_was_removed_keeps_all_its_columns(patch: Patch) -> None:
    patch.put(recovering, "_untold", lambda parent, record: frozenset())


@mutant("rolls-forward", ROLL_FORWARDS)
def the_cut_of_a_rollback_loses_tables(patch: Patch) -> None:
    def versions(parent: dict[str, int], record: CheckpointRecord) -> dict[str, int]:
        return {each.table: parent.get(each.table, each.parent_version) for each in record.tables}

    patch.put(recovering, "_versions_at", versions)


@mutant("rolls-forward", ROLL_FORWARDS)
def outside_sinks_get_nothing_of_an_entry_that_is_rolled_forward(patch: Patch) -> None:
    patch.put(recovering, "outside_publications", lambda record, parent: ())


# ------------------------------------------------------------------ reported failures


@mutant("says-why", ROLL_FORWARDS)
def a_failure_of_a_new_publication_is_that_of_an_old_one(patch: Patch) -> None:
    def said(_: TickEffect, fact: PublishFailed) -> EndTick:
        message = f"checkpoint {fact.checkpoint} could not be published again: {fact.error}"
        return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, message)

    patch.put(asking, "_not_published", said)


@mutant("says-why", ROLL_FORWARDS)
def the_next_checkpoint_is_said_to_be_committed(patch: Patch) -> None:
    real = asking._not_published

    def said(effect: TickEffect, fact: PublishFailed) -> EndTick:
        return real(effect, PublishFailed(CheckpointId(fact.checkpoint + 1), fact.table, fact.error))

    patch.put(asking, "_not_published", said)


@mutant("says-why", ROLL_FORWARDS)
def a_rollback_to_the_entry_itself_leaves_it_behind(patch: Patch) -> None:
    def may_leave(terms: Terms, _: CheckpointRecord) -> bool:
        return terms.leaves_behind is not None

    patch.put(recovering, "_may_leave", may_leave)


@mutant("rolls-forward", ROLL_FORWARDS)
def the_first_of_two_tables_is_passed_over(patch: Patch) -> None:
    real = recovering.rolled_forward

    def forward(record: CheckpointRecord, rows: Iterable[Row]) -> asking.Steps[None]:
        first = publications(record)[:1]
        kept = [each for each in record.tables if not first or each.table != first[0].table or len(record.tables) == 1]
        return real(record.model_copy(update={"tables": tuple(kept)}), rows)

    patch.put(recovering, "rolled_forward", forward)
