"""Plants bugs of the kinds that random slips have shown: what is measured, said and given, and changes no table.

Tables and state stay right with each of them. Only a rule about the thing itself finds it.
"""

from collections.abc import Collection
from dataclasses import replace

from checkpointing.commit import table_changes
from checkpointing.commit.fencing import Refused
from checkpointing.commit.live_files import Lists
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.graph import JobGraph
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import Generation, TableName
from checkpointing.job import restoring
from checkpointing.job.epochs import EpochLog
from checkpointing.key_groups import KeyGroupRange
from checkpointing.messages import MicroBatchFinished, Publication
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick import claiming
from checkpointing.tick.messages import GiveLease
from spec.mutants.judges import COORDINATOR, LEASES
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ what a publication says


@mutant("changes-said")
def a_publication_does_not_say_what_changed(patch: Patch) -> None:
    def without(
        graph: JobGraph,  # noqa: ARG001 - the form of the function
        record: CheckpointRecord,
        parent: CheckpointRecord | None,  # noqa: ARG001
        renamed: Collection[TableName],  # noqa: ARG001
    ) -> tuple[Publication, ...]:
        return table_changes.publications(record)

    patch.function(table_changes, "with_changes", without)


@mutant("changes-said")
def a_file_that_leaves_a_table_is_not_said(patch: Patch) -> None:
    real = table_changes.each_changed

    def changed(lists: Lists, were: Lists) -> tuple[tuple[FileHandle, ...], tuple[FileHandle, ...]]:
        new, gone = real(lists, were)
        return new, gone[1:]

    patch.put(table_changes, "each_changed", changed)


# ------------------------------------------------------------------ whose files a subtask has


@mutant("state-in-range")
def a_subtask_is_given_the_files_next_to_its_range_too(patch: Patch) -> None:
    def overlaps(keyed: KeyedFile, own: KeyGroupRange) -> bool:
        return keyed.first_key_group - 1 <= own.last and own.first <= keyed.last_key_group + 1

    patch.put(restoring, "_overlaps", overlaps)


# ------------------------------------------------------------------ leases


@mutant("left-alone", LEASES)
def an_unseen_holder_gets_a_lease_of_the_generation_before(patch: Patch) -> None:
    def give(to: Refused, length_ms: int) -> GiveLease:
        return GiveLease(replace(to, generation=Generation(to.generation - 1)), length_ms)

    patch.put(claiming, "GiveLease", give)


# ------------------------------------------------------------------ what is measured


@mutant("measured")
def a_micro_batch_is_busy_for_a_millisecond(patch: Patch) -> None:
    real = EpochLog.worked

    def worked(self: EpochLog, fact: MicroBatchFinished, rows_in: int) -> None:
        real(self, replace(fact, duration_ms=1), rows_in)

    patch.put(EpochLog, "worked", worked)


@mutant("statistics-add-up", COORDINATOR)
def only_the_first_request_that_began_nothing_counts(patch: Patch) -> None:
    real = StatisticsTracker.failed_before_pending

    def failed(self: StatisticsTracker) -> None:
        if not self.counters.failed:
            real(self)

    patch.put(StatisticsTracker, "failed_before_pending", failed)
