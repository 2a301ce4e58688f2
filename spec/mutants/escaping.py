"""Plants bugs of the kinds that random slips have shown: what is measured, said and given, and changes no table.

Tables and state stay right with each of them. Only a rule about the thing itself finds it.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from checkpointing.commit import table_changes
from checkpointing.commit.fencing import Refused
from checkpointing.commit.live_files import Lists, each_changed
from checkpointing.commit.recovery import publications
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator import plan
from checkpointing.coordinator.completed import FinishedState
from checkpointing.coordinator.plan import PlannedVertex
from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.coordinator.task import Task
from checkpointing.gate import aligner
from checkpointing.gate.config import GatePolicy
from checkpointing.gate.messages import Ignored
from checkpointing.graph import JobGraph
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import Generation, TableName
from checkpointing.job import restoring
from checkpointing.job.compacting import Compacting
from checkpointing.job.epochs import EpochLog
from checkpointing.key_groups import KeyGroupRange
from checkpointing.messages import CompactFiles, MicroBatchFinished, Publication
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick import claiming
from checkpointing.tick.messages import GiveLease
from spec.mutants.judges import COMPACTIONS, COORDINATOR, GATES, LEASES, SETTINGS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ what a publication says


@mutant("changes-said")
def a_publication_does_not_say_what_changed(patch: Patch) -> None:
    def without(
        graph: JobGraph,
        record: CheckpointRecord,
        parent: CheckpointRecord | None,
        renamed: Collection[TableName],
    ) -> tuple[Publication, ...]:
        return publications(record)

    patch.function(table_changes, "with_changes", without)


@mutant("changes-said")
def a_file_that_leaves_a_table_is_not_said(patch: Patch) -> None:
    real = each_changed

    def changed(lists: Lists, were: Lists) -> tuple[tuple[FileHandle, ...], tuple[FileHandle, ...]]:
        new, gone = real(lists, were)
        return new, gone[1:]

    patch.put(table_changes, "each_changed", changed)


@mutant("changes-said")
def a_file_that_comes_into_a_table_is_not_said(patch: Patch) -> None:
    real = each_changed

    def changed(lists: Lists, were: Lists) -> tuple[tuple[FileHandle, ...], tuple[FileHandle, ...]]:
        new, gone = real(lists, were)
        return new[1:], gone

    patch.put(table_changes, "each_changed", changed)


# ------------------------------------------------------------------ whose files a subtask has


@mutant("state-in-range")
def a_subtask_is_given_all_files_of_its_vertex(patch: Patch) -> None:
    patch.put(restoring, "_overlaps", lambda _keyed, _own: True)


@mutant("state-in-range")
def a_subtask_is_given_the_files_before_its_range_too(patch: Patch) -> None:
    def overlaps(keyed: KeyedFile, own: KeyGroupRange) -> bool:
        return keyed.first_key_group <= own.last

    patch.put(restoring, "_overlaps", overlaps)


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


@mutant("finished-vertices", COORDINATOR)
def a_vertex_counts_as_finished_with_its_first_task(patch: Patch) -> None:
    def state(vertex: PlannedVertex, finished: frozenset[Task]) -> FinishedState:
        return FinishedState.RUNNING if finished.isdisjoint(vertex.tasks) else FinishedState.FULLY_FINISHED

    patch.put(plan, "finished_state", state)


# ------------------------------------------------------------------ settings


@mutant("settings-arrive", SETTINGS)
def the_longest_delay_is_the_first_one(patch: Patch) -> None:
    patch.put(CheckpointConfig, "first_restart_delay_ms", CheckpointConfig.longest_restart_delay_ms)


@mutant("settings-arrive", SETTINGS)
def the_pause_is_added_to_the_interval(patch: Patch) -> None:
    def effective(self: CheckpointConfig) -> int | None:
        return None if self.interval_ms is None else self.interval_ms + self.min_pause_ms

    patch.put(CheckpointConfig, "effective_interval_ms", property(effective))


@mutant("settings-arrive", SETTINGS)
def contradictions_between_restart_settings_are_taken(patch: Patch) -> None:
    patch.put(CheckpointConfig, "_restart_contradictions", lambda _: ())


# ------------------------------------------------------------------ compaction, and what a gate drops


@mutant("compacts-first", COMPACTIONS)
def a_tick_compacts_only_what_it_has_written_itself(patch: Patch) -> None:
    real = Compacting.__init__

    def begin(self: Compacting, graph: JobGraph, config: CheckpointConfig, unpublished: Collection[TableName]) -> None:
        real(self, graph, config, unpublished)
        self._added = Counter(dict.fromkeys(self._added, 0))

    patch.put(Compacting, "__init__", begin)


@mutant("compacts-first", COMPACTIONS)
def a_tick_compacts_one_table_at_a_time(patch: Patch) -> None:
    real = Compacting.rows_read

    def rows_read(self: Compacting) -> tuple[CompactFiles, ...]:
        return tuple(replace(each, tables=each.tables[:1]) for each in real(self))

    patch.put(Compacting, "rows_read", rows_read)


@mutant("compacts-first", COMPACTIONS)
def a_tick_begins_to_compact_with_its_second_slice(patch: Patch) -> None:
    real = Compacting.rows_read
    known: set[int] = set()

    def rows_read(self: Compacting) -> tuple[CompactFiles, ...]:
        if id(self) in known:
            return real(self)
        known.add(id(self))
        return ()

    patch.put(Compacting, "rows_read", rows_read)


@mutant("ignored", GATES[GatePolicy.ALIGNED_BLOCKING])
def a_dropped_barrier_is_told_of_no_channel(patch: Patch) -> None:
    patch.put(aligner, "Ignored", lambda _, item: Ignored(item, item))
