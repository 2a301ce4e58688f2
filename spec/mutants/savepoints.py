"""Plants bugs in savepoints: what continues from them, what they publish, and who is notified."""

from collections.abc import Iterable
from dataclasses import replace

from checkpointing.channel_items import ChannelItem, EndOfData
from checkpointing.commit import fencing
from checkpointing.commit.draft import Draft
from checkpointing.commit.recovery import publications
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitFact,
    CommitState,
    Saved,
    TwoPhaseCommit,
)
from checkpointing.coordinator.completed import CompletedCheckpoint, CompletedCheckpointStore, StoreChange
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import (
    FailJob,
    NotifyCheckpointComplete,
    RequestFailed,
    RequestSucceeded,
)
from checkpointing.coordinator.properties import CheckpointProperties
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, SubtaskId
from checkpointing.job import restoring
from checkpointing.job.door import JobDoor
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.savepoints import Savepoints
from checkpointing.job.wiring import Wiring
from checkpointing.messages import (
    PublishTable,
    RowAppended,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    TablePublished,
)
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from spec.machines.savepoints import PINNED
from spec.mutants.judges import COMMIT, COORDINATOR, PINS, SAVEPOINTS
from spec.mutants.planting import Patch, mutant

_Answered = tuple[tuple[SavepointTaken | SavepointFailed, ...], SavepointKind | None]

# ------------------------------------------------------------------ the line of entries


@mutant("parent-line", COMMIT)
def the_next_entry_builds_on_a_plain_savepoint(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> tuple[CommitEffect, ...]:
        record = self._record
        effects = real(self, fact)
        if record is not None and record.kind is RowKind.SAVEPOINT:
            self._parent = record
        return effects

    patch.put(TwoPhaseCommit, "_appended", appended)


@mutant("parent-line", COMMIT)
def a_plain_savepoint_is_restored_by_itself(patch: Patch) -> None:
    def newest_row(rows: tuple[Row, ...]) -> CheckpointRecord | None:
        records = [row for row in rows if isinstance(row, CheckpointRecord)]
        return max(records, key=lambda record: record.checkpoint, default=None)

    patch.function(fencing, "newest_checkpoint", newest_row)


@mutant("ids-rise", COMMIT)
def a_savepoint_behind_a_newer_entry_is_saved(patch: Patch) -> None:
    def save(self: TwoPhaseCommit, draft: Draft) -> tuple[CommitEffect, ...]:
        return self._finalise(draft)

    patch.put(TwoPhaseCommit, "_save", save)


@mutant("savepoint-is-silent", SAVEPOINTS)
def a_plain_savepoint_is_published(patch: Patch) -> None:
    real_appended, real_step = TwoPhaseCommit._appended, TwoPhaseCommit.step

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> tuple[CommitEffect, ...]:
        record, effects = self._record, real_appended(self, fact)
        if record is None or record.kind is RowKind.CHECKPOINT or not isinstance(effects[0], Saved):
            return effects
        return (*effects, *(PublishTable(record.checkpoint, each) for each in publications(record)))

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> tuple[CommitEffect, ...]:
        late = isinstance(fact, TablePublished) and self._state is not CommitState.PUBLISHING
        return () if late else real_step(self, fact, now_ms)

    patch.put(TwoPhaseCommit, "_appended", appended)
    patch.put(TwoPhaseCommit, "step", step)


# ------------------------------------------------------------------ the coordinator


@mutant("retention", COORDINATOR, ("FLINK-21351",))
def a_savepoint_subsumes_the_last_checkpoint(patch: Patch) -> None:
    def keep(self: Completion, completed: CompletedCheckpoint) -> StoreChange:
        self._books.force_full = False
        return self._books.store.add(completed)

    patch.put(Completion, "_keep", keep)


@mutant("ends-once", COORDINATOR)
def a_pending_savepoint_is_subsumed(patch: Patch) -> None:
    def subsume_older(self: Completion, checkpoint: CheckpointId) -> None:
        for pending in [each for each in self._books.pending.values() if each.id < checkpoint]:
            self.abort(pending, CheckpointFailureReason.CHECKPOINT_SUBSUMED)

    patch.put(Completion, "_subsume_older", subsume_older)


@mutant("told-truly", COORDINATOR, ("FLINK-10354", "FLINK-25191"))
def the_completion_of_a_plain_savepoint_is_reported(patch: Patch) -> None:
    real = Completion._keep

    def keep(self: Completion, completed: CompletedCheckpoint) -> StoreChange:
        if completed.properties.is_savepoint and not completed.properties.commits:
            self._books.emit(NotifyCheckpointComplete("source/0", completed.id, None))
        return real(self, completed)

    patch.put(Completion, "_keep", keep)


@mutant("failures", COORDINATOR, ("FLINK-12858",))
def the_job_goes_on_after_the_declined_savepoint_of_a_stop(patch: Patch) -> None:
    real = FailurePolicy.failed

    def failed(
        self: FailurePolicy,
        properties: CheckpointProperties,
        reason: CheckpointFailureReason,
        checkpoint: CheckpointId | None,
        *,
        by_task: bool = False,
        message: str = "",
    ) -> FailJob | None:
        stops = properties.is_synchronous
        return None if stops else real(self, properties, reason, checkpoint, by_task=by_task, message=message)

    patch.put(FailurePolicy, "failed", failed)


@mutant("failures", COORDINATOR)
def an_expired_savepoint_counts_as_a_failure_of_the_job(patch: Patch) -> None:
    real = FailurePolicy.failed

    def failed(
        self: FailurePolicy,
        properties: CheckpointProperties,
        reason: CheckpointFailureReason,
        checkpoint: CheckpointId | None,
        *,
        by_task: bool = False,
        message: str = "",
    ) -> FailJob | None:
        plain = properties if properties.is_synchronous else replace(CheckpointProperties(), forced=properties.forced)
        return real(self, plain, reason, checkpoint, by_task=by_task, message=message)

    patch.put(FailurePolicy, "failed", failed)


# ------------------------------------------------------------------ a plain savepoint is silent


# ------------------------------------------------------------------ files that a savepoint names


@mutant("pinned-stays", SAVEPOINTS)
def a_tick_forgets_the_savepoints_of_the_ticks_before(patch: Patch) -> None:
    real = Savepoints.__init__

    def begin(self: Savepoints, rows: Iterable[CheckpointRecord], *, unaligned: bool) -> None:
        real(self, (), unaligned=unaligned)

    patch.put(Savepoints, "__init__", begin)


@mutant("pinned-stays", SAVEPOINTS)
def a_savepoint_counts_among_the_retained_checkpoints(patch: Patch) -> None:
    real = restoring.completed_store

    def completed_store(retained: tuple[CheckpointRecord, ...], keep: int) -> CompletedCheckpointStore:
        owned = {"kind": RowKind.CHECKPOINT, "pinned": False}
        return real(tuple(record.model_copy(update=owned) for record in retained), keep)

    patch.function(restoring, "completed_store", completed_store)


# ------------------------------------------------------------------ one true answer to each request


@mutant("requests-are-answered", SAVEPOINTS)
def a_request_for_a_savepoint_that_fails_gets_no_answer(patch: Patch) -> None:
    real = Savepoints.answered

    def answered(self: Savepoints, effect: RequestSucceeded | RequestFailed) -> _Answered:
        answers, kind = real(self, effect)
        return tuple(answer for answer in answers if isinstance(answer, SavepointTaken)), kind

    patch.put(Savepoints, "answered", answered)


@mutant("requests-are-answered", SAVEPOINTS)
def a_taken_savepoint_is_reported_again_at_the_end(patch: Patch) -> None:
    real = Savepoints.answered

    def answered(self: Savepoints, effect: RequestSucceeded | RequestFailed) -> _Answered:
        before = dict(self._asked)
        answers, kind = real(self, effect)
        self._asked = before if isinstance(effect, RequestSucceeded) else self._asked
        return answers, kind

    patch.put(Savepoints, "answered", answered)
    patch.put(Savepoints, "under_way", property(lambda _: False))


@mutant("requests-are-answered", SAVEPOINTS)
def a_request_while_the_tick_ends_gets_no_answer(patch: Patch) -> None:
    real = JobDoor._asked

    def asked(self: JobDoor, fact: SavepointRequested) -> None:
        if not self._job.ending.stopping:
            real(self, fact)

    patch.put(JobDoor, "_asked", asked)


@mutant("answers-are-true", SAVEPOINTS)
def a_failed_savepoint_is_reported_as_taken(patch: Patch) -> None:
    real = Savepoints.answered

    def answered(self: Savepoints, effect: RequestSucceeded | RequestFailed) -> _Answered:
        if effect.checkpoint is None:
            return real(self, effect)
        return real(self, RequestSucceeded(effect.request, effect.checkpoint))

    patch.put(Savepoints, "answered", answered)


@mutant("answers-are-true", SAVEPOINTS)
def the_savepoint_of_a_stop_is_reported_before_it_is_published(patch: Patch) -> None:
    real_appended, real_recorded = TwoPhaseCommit._appended, TwoPhaseCommit._recorded

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> tuple[CommitEffect, ...]:
        effects = real_appended(self, fact)
        early = self._record is not None and self._record.pinned
        return (CheckpointCommitted(self._committing(), ()), *effects) if early else effects

    def recorded(self: TwoPhaseCommit) -> tuple[CommitEffect, ...]:
        told = self._committing().pinned
        return real_recorded(self)[told:]

    patch.put(TwoPhaseCommit, "_appended", appended)
    patch.put(TwoPhaseCommit, "_recorded", recorded)


# ------------------------------------------------------------------ a drain


@mutant("cut-is-exact", SAVEPOINTS)
def a_drain_leaves_rows_in_the_state_that_it_should_emit(patch: Patch) -> None:
    real = OperatorRun.start

    def start(self: OperatorRun, rows_max: int) -> RunMicroBatch:
        return replace(real(self, rows_max), end_of_input=False)

    patch.put(OperatorRun, "start", start)


@mutant("state-is-exact", SAVEPOINTS)
def a_drain_loses_the_end_of_its_data(patch: Patch) -> None:
    real = Wiring.broadcast

    def broadcast(self: Wiring, subtask: SubtaskId, item: ChannelItem) -> None:
        if not (isinstance(item, EndOfData) and subtask.index):
            real(self, subtask, item)

    patch.put(Wiring, "broadcast", broadcast)


# ------------------------------------------------------------------ the cut that a plain savepoint stands on


@mutant("cut-of-a-savepoint-stays", SAVEPOINTS)
def the_checkpoint_that_a_savepoint_stands_on_is_subsumed(patch: Patch) -> None:
    real = TwoPhaseCommit._finalise

    def finalise(self: TwoPhaseCommit, draft: Draft) -> tuple[CommitEffect, ...]:
        self._stays.clear()
        return real(self, draft)

    patch.put(TwoPhaseCommit, "_finalise", finalise)


@mutant(PINNED, PINS)
def the_state_of_the_cut_that_a_savepoint_stands_on_is_discarded(patch: Patch) -> None:
    def pin(self: Savepoints, row: CheckpointRecord) -> None:
        if row.is_savepoint:
            self._files |= files_of(row)

    patch.put(Savepoints, "pin", pin)
