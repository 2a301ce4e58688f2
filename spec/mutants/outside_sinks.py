"""Plants bugs in what outside sinks get, and when."""

from dataclasses import replace

from checkpointing.commit import recovery, two_phase
from checkpointing.commit.behind import Doubt
from checkpointing.commit.two_phase import CommitEffect, TwoPhaseCommit
from checkpointing.messages import Publication, PublishTable, TablesChecked
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick import recovering
from checkpointing.tick.asking import Steps
from checkpointing.tick.claiming import Held
from checkpointing.tick.errand import Terms
from spec.mutants.judges import COMMIT, OUTSIDE, REPAIRS
from spec.mutants.planting import Patch, mutant


def _nothing(record: CheckpointRecord) -> tuple[Publication, ...]:
    del record
    return ()


@mutant("outside-follows", OUTSIDE)
def rows_go_outside_before_the_commit_point(patch: Patch) -> None:
    real = TwoPhaseCommit._checked

    def checked(self: TwoPhaseCommit, fact: TablesChecked) -> tuple[CommitEffect, ...]:
        effects = real(self, fact)
        record = self._record
        if record is None:
            return effects
        due = recovery.outside_publications(record)
        return (*(PublishTable(record.checkpoint, each) for each in due), *effects)

    patch.put(TwoPhaseCommit, "_checked", checked)


@mutant("outside-completely", OUTSIDE)
def a_cut_does_not_wait_for_outside_sinks(patch: Patch) -> None:
    patch.put(two_phase, "outside_publications", _nothing)


@mutant("outside-completely", OUTSIDE)
def roll_forward_forgets_outside_sinks(patch: Patch) -> None:
    patch.put(recovering, "outside_publications", _nothing)


@mutant("outside-follows", OUTSIDE)
def outside_sinks_miss_a_file(patch: Patch) -> None:
    real = recovery.outside_publications

    def fewer(record: CheckpointRecord) -> tuple[Publication, ...]:
        return tuple(replace(each, adds=each.adds[1:]) for each in real(record))

    patch.function(recovery, "outside_publications", fewer)


@mutant("outside-follows", OUTSIDE)
def a_table_without_a_sink_goes_outside_too(patch: Patch) -> None:
    real = recovery.outside_publications

    def all_tables(record: CheckpointRecord) -> tuple[Publication, ...]:
        return real(record.model_copy(update={"outside": tuple(table.table for table in record.tables)}))

    patch.function(recovery, "outside_publications", all_tables)


@mutant("outside-completely", OUTSIDE)
def a_cut_waits_for_the_first_outside_sink_only(patch: Patch) -> None:
    real = recovery.outside_publications
    patch.put(two_phase, "outside_publications", lambda record: real(record)[:1])


@mutant("outside-exact", COMMIT)
def roll_forward_leaves_the_rows_of_a_dead_coordinator_inside(patch: Patch) -> None:
    patch.put(recovering, "outside_publications", _nothing)


@mutant("outside-exact", COMMIT)
def a_commit_leaves_its_rows_inside(patch: Patch) -> None:
    patch.put(two_phase, "outside_publications", _nothing)


@mutant("outside-exact", COMMIT)
def a_sink_gets_the_newest_file_of_a_checkpoint_only(patch: Patch) -> None:
    real = recovery.outside_publications

    def newest(record: CheckpointRecord) -> tuple[Publication, ...]:
        return tuple(replace(each, adds=each.adds[-1:]) for each in real(record))

    patch.function(recovery, "outside_publications", newest)


@mutant("repaired", REPAIRS)
def a_lost_cut_is_rebuilt_although_a_sink_may_lack_its_rows(patch: Patch) -> None:
    def given_to_sinks(terms: Terms, held: Held, doubt: Doubt) -> Steps[None]:
        del terms, held, doubt
        yield from ()

    patch.put(recovering, "given_to_sinks", given_to_sinks)
