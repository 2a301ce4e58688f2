"""Plants bugs in keeping and deleting: retention, the registry of shared files, leftovers, private state."""

from collections.abc import Sequence
from dataclasses import replace

from checkpointing.commit import leftovers
from checkpointing.commit.two_phase import CommitEffect, CommitEnded
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator import completed as store
from checkpointing.coordinator.completed import CompletedCheckpoint, CompletedCheckpointStore, StoreChange
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.messages import CommitSucceeded, TaskAcknowledged
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.coordinator.shared_state import Handle, SharedStateRegistry
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.wiring import Wiring
from checkpointing.messages import DiscardFiles, MicroBatchFinished
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import StagedName
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import SubtaskSnapshot
from spec.flink.completed_store import shared_handles
from spec.mutants import scenes
from spec.mutants.judges import COORDINATOR, directed
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ retention

_Checkpoints = tuple[CompletedCheckpoint, ...]


@mutant("retention")
def one_checkpoint_too_many_is_kept(patch: Patch) -> None:
    real = store.subsume

    def subsume(checkpoints: Sequence[CompletedCheckpoint], retained: int) -> _Checkpoints:
        return real(checkpoints, retained + 1)

    patch.function(store, "subsume", subsume)


@mutant("way-back-stays")
def the_entry_before_an_unpublished_one_is_dropped(patch: Patch) -> None:
    patch.put(CheckpointConfig, "kept", property(lambda self: self.retained))


@mutant("retention")
def the_newest_of_the_old_checkpoints_goes_first(patch: Patch) -> None:
    def subsume(checkpoints: Sequence[CompletedCheckpoint], retained: int) -> _Checkpoints:
        excess = max(0, len(checkpoints) - retained)
        return tuple(checkpoints[len(checkpoints) - 1 - excess : -1])

    patch.function(store, "subsume", subsume)


@mutant("retention")
def a_subsumed_checkpoint_keeps_its_entry(patch: Patch) -> None:
    def will_subsume(self: Completion, pending: PendingCheckpoint) -> tuple[CheckpointId, ...]:
        return ()

    patch.put(Completion, "_will_subsume", will_subsume)


# ------------------------------------------------------------------ files that are needed


@mutant("discarded-is-unreferenced", flink=("FLINK-25395", "FLINK-24611"))
def an_abort_deletes_shared_state(patch: Patch) -> None:
    def all_handles(self: PendingCheckpoint) -> tuple[str, ...]:
        return tuple(handle for state in self.states.values() for handle in state.handles)

    patch.put(PendingCheckpoint, "private_handles", property(all_handles))


@mutant("discarded-is-unreferenced")
def subsumed_state_is_deleted_although_others_share_it(patch: Patch) -> None:
    real = CompletedCheckpointStore._let_go

    def let_go(self: CompletedCheckpointStore, leaving: _Checkpoints) -> StoreChange:
        handles = tuple(handle for checkpoint in leaving for handle in shared_handles(checkpoint).values())
        return replace(real(self, leaving), shared=handles)

    patch.put(CompletedCheckpointStore, "_let_go", let_go)


@mutant("discarded-is-unreferenced")
def a_shared_file_goes_with_the_checkpoint_that_made_it(patch: Patch) -> None:
    real = SharedStateRegistry.register

    def register(self: SharedStateRegistry, key: str, handle: Handle, checkpoint: CheckpointId) -> Handle:
        known = self._entries.get(key)
        return real(self, key, handle, checkpoint) if known is None else known.handle

    patch.put(SharedStateRegistry, "register", register)


@mutant("discarded-is-unreferenced")
def the_last_micro_batch_of_the_newest_entry_counts_as_a_leftover(patch: Patch) -> None:
    real = leftovers.is_leftover

    def is_leftover(
        name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
    ) -> bool:
        later = replace(name, micro_batch=name.micro_batch + 1)
        return real(later, generation, current=current, newest=newest)

    patch.function(leftovers, "is_leftover", is_leftover)


@mutant("no-file-is-missed")
def a_file_that_a_snapshot_carries_is_deleted_when_replaced(patch: Patch) -> None:
    real = OperatorRun.take_snapshot

    def take_snapshot(self: OperatorRun, checkpoint: CheckpointId) -> tuple[SubtaskSnapshot, ...]:
        carried = set(self.unsnapshotted)
        snapshots = real(self, checkpoint)
        self.unsnapshotted |= carried
        return snapshots

    patch.put(OperatorRun, "take_snapshot", take_snapshot)


@mutant("no-file-is-missed")
def leftovers_are_recognized_by_their_generation_alone(patch: Patch) -> None:
    def is_leftover(
        name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
    ) -> bool:
        return generation < current and (newest is None or generation >= newest.generation)

    patch.function(leftovers, "is_leftover", is_leftover)


@mutant(
    "discarded-is-unreferenced",
    directed(scenes.a_newer_coordinator_keeps_its_files, "discarded-is-unreferenced"),
)
def an_older_coordinator_deletes_files_that_a_newer_one_staged(patch: Patch) -> None:
    real = leftovers.is_leftover

    def is_leftover(
        name: StagedName, generation: Generation, *, current: Generation, newest: CheckpointRecord | None
    ) -> bool:
        return real(name, generation, current=Generation(current + 1_000), newest=newest)

    patch.put(leftovers, "is_leftover", is_leftover)


@mutant("no-file-is-missed")
def a_new_file_is_deleted_with_the_one_it_replaces(patch: Patch) -> None:
    real = OperatorRun.finish

    def finish(self: OperatorRun, fact: MicroBatchFinished) -> tuple[str, ...]:
        dead = real(self, fact)
        written = tuple(keyed.file.path for output in fact.outputs for keyed in output.state)
        return (*dead, *written) if dead else dead

    patch.put(OperatorRun, "finish", finish)


# ------------------------------------------------------------------ deletion at the right moment


@mutant("discarded-is-unreferenced", flink=("FLINK-22494",))
def state_is_deleted_after_a_commit_of_unknown_outcome(patch: Patch) -> None:
    real = Wiring.from_commit

    def from_commit(self: Wiring, effects: tuple[CommitEffect, ...]) -> None:
        record = self.commit._record
        if record is not None and any(isinstance(effect, CommitEnded) for effect in effects):
            self.effects.append(DiscardFiles(tuple(sorted(files_of(record)))))
        real(self, effects)

    patch.put(Wiring, "from_commit", from_commit)


@mutant("shared", COORDINATOR, ("FLINK-6640",))
def shared_state_is_registered_only_when_its_checkpoint_completes(patch: Patch) -> None:
    real_register, real_committed = Completion._register_shared, Completion.committed

    def register_later(self: Completion, checkpoint: CheckpointId, state: AcknowledgedState) -> None:
        """Wait for the completion."""

    def committed(self: Completion, fact: CommitSucceeded) -> None:
        pending = self._books.pending.get(fact.checkpoint)
        real_committed(self, fact)
        for state in pending.states.values() if pending is not None else ():
            real_register(self, fact.checkpoint, state)

    patch.put(Completion, "_register_shared", register_later)
    patch.put(Completion, "committed", committed)


@mutant("private", COORDINATOR)
def the_private_state_of_a_late_acknowledgement_is_left_behind(patch: Patch) -> None:
    real = Completion._acknowledge_late

    def acknowledge_late(self: Completion, fact: TaskAcknowledged) -> None:
        real(self, replace(fact, state=None))

    patch.put(Completion, "_acknowledge_late", acknowledge_late)
