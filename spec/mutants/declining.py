"""Plants bugs in failures that decline a checkpoint: the reason of the failure, and whether the failure counts."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.commit.two_phase import CommitEffect, CommitFact, CommitState, TwoPhaseCommit
from checkpointing.coordinator import failure_policy
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import FailJob, RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.job import judgements, pause
from checkpointing.job.door import JobDoor
from checkpointing.job.judgements import Judged
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.pause import Pause
from checkpointing.job.wiring import Wiring
from checkpointing.messages import JudgementFailed, RunMicroBatch, SavepointKind, TableCheckFailed, TablesChecked
from spec.mutants.judges import DECLINES, PAUSE, with_long_runs
from spec.mutants.planting import Patch, mutant

_Answer = RequestSucceeded | RequestFailed


@mutant("declines", DECLINES)
def a_judge_that_failed_is_taken_for_a_rejection(patch: Patch) -> None:
    real = judgements.objection

    def objection(fact: Judged) -> tuple[Reason, str] | None:
        return (Reason.QUALITY, fact.error) if isinstance(fact, JudgementFailed) else real(fact)

    patch.function(judgements, "objection", objection)


@mutant("declines", DECLINES)
def a_judge_that_failed_declines_like_any_subtask(patch: Patch) -> None:
    real = judgements.objection

    def objection(fact: Judged) -> tuple[Reason, str] | None:
        return (Reason.CHECKPOINT_DECLINED, fact.error) if isinstance(fact, JudgementFailed) else real(fact)

    patch.function(judgements, "objection", objection)


@mutant("judgements", DECLINES)
def rows_that_could_not_be_judged_are_let_in(patch: Patch) -> None:
    real = judgements.objection
    patch.function(judgements, "objection", lambda fact: None if isinstance(fact, JudgementFailed) else real(fact))


@mutant("declines", DECLINES)
def a_judge_that_failed_is_waited_for(patch: Patch) -> None:
    real = JobDoor._judged

    def judged(self: JobDoor, fact: Judged) -> None:
        if not isinstance(fact, JudgementFailed):
            real(self, fact)

    patch.put(JobDoor, "_judged", judged)


@mutant("failures-counted", DECLINES)
def a_judge_that_failed_is_not_counted(patch: Patch) -> None:
    patch.put(failure_policy, "COUNTED", failure_policy.COUNTED - {Reason.CHECKPOINT_ASYNC_EXCEPTION})


@mutant("failures-counted", DECLINES)
def a_judge_that_failed_fails_the_job_at_once(patch: Patch) -> None:
    fatal = failure_policy.NEVER_TOLERATED | {Reason.CHECKPOINT_ASYNC_EXCEPTION}
    patch.put(failure_policy, "NEVER_TOLERATED", fatal)


@mutant("failures-counted", DECLINES)
def a_job_survives_one_failed_checkpoint_too_many(patch: Patch) -> None:
    real = FailurePolicy._count

    def count(self: FailurePolicy, reason: Reason, checkpoint: CheckpointId | None, message: str) -> FailJob | None:
        lenient = replace(self, tolerable=None if self.tolerable is None else self.tolerable + 1)
        answer = real(lenient, reason, checkpoint, message)
        self.consecutive = lenient.consecutive
        return answer

    patch.put(FailurePolicy, "_count", count)


@mutant("declines", DECLINES)
def a_check_that_failed_is_taken_for_a_changed_table(patch: Patch) -> None:
    real = TwoPhaseCommit._decline

    def decline(self: TwoPhaseCommit, reason: Reason, message: str) -> tuple[CommitEffect, ...]:
        del reason
        return real(self, Reason.TABLE_CHANGED, message)

    patch.put(TwoPhaseCommit, "_decline", decline)


@mutant("declines", DECLINES)
def tables_are_published_although_the_check_of_them_failed(patch: Patch) -> None:
    real = TwoPhaseCommit.step

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> tuple[CommitEffect, ...]:
        told = TablesChecked(fact.checkpoint, ()) if isinstance(fact, TableCheckFailed) else fact
        return real(self, told, now_ms)

    patch.put(TwoPhaseCommit, "step", step)


@mutant("no-deadlock", DECLINES)
def after_a_check_that_failed_no_commit_begins(patch: Patch) -> None:
    real = TwoPhaseCommit.step

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> tuple[CommitEffect, ...]:
        effects = real(self, fact, now_ms)
        if isinstance(fact, TableCheckFailed):
            self._state = CommitState.CHECKING
        return effects

    patch.put(TwoPhaseCommit, "step", step)


@mutant("failures-counted", DECLINES)
def a_check_that_failed_is_not_counted(patch: Patch) -> None:
    patch.put(failure_policy, "COUNTED", failure_policy.COUNTED - {Reason.FINALIZE_CHECKPOINT_FAILURE})


@mutant("no-deadlock", DECLINES)
def a_pause_after_a_failure_never_ends(patch: Patch) -> None:
    patch.put(Pause, "is_over", lambda self, _: self.until_ms is None)


def _pause_otherwise(patch: Patch, changed: Callable[[Pause, bool], int]) -> None:
    """Let a pause count other failures in a row than there were. `changed` is told whether the request succeeded."""
    real = Pause.answered

    def answered(self: Pause, effect: _Answer, kind: SavepointKind | None, now_ms: int) -> None:
        self._in_a_row = changed(self, isinstance(effect, RequestSucceeded))
        real(self, effect, kind, now_ms)

    patch.put(Pause, "answered", answered)


@mutant("pauses", DECLINES)
def every_pause_takes_a_second(patch: Patch) -> None:
    _pause_otherwise(patch, lambda its, succeeded: 0)


@mutant("pauses", DECLINES)
def the_first_pause_takes_two_seconds(patch: Patch) -> None:
    _pause_otherwise(patch, lambda its, succeeded: max(1, its._in_a_row))


@mutant("pauses", PAUSE)
def a_pause_grows_beyond_a_minute(patch: Patch) -> None:
    patch.put(pause, "LONGEST_MS", 2 * pause.LONGEST_MS)


@mutant("pauses", PAUSE)
def a_savepoint_that_failed_begins_a_pause(patch: Patch) -> None:
    real = Pause.answered

    def answered(self: Pause, effect: _Answer, kind: SavepointKind | None, now_ms: int) -> None:
        real(self, effect, None if isinstance(effect, RequestFailed) else kind, now_ms)

    patch.put(Pause, "answered", answered)


@mutant("pauses", PAUSE)
def a_success_does_not_shorten_the_next_pause(patch: Patch) -> None:
    real = Pause.answered

    def answered(self: Pause, effect: _Answer, kind: SavepointKind | None, now_ms: int) -> None:
        before = self._in_a_row
        real(self, effect, kind, now_ms)
        self._in_a_row = max(self._in_a_row, before)

    patch.put(Pause, "answered", answered)


@mutant("tried-again", DECLINES)
def a_micro_batch_that_could_not_be_written_is_tried_at_once(patch: Patch) -> None:
    real = OperatorRun.not_staged

    def not_staged(self: OperatorRun) -> CheckpointId | None:
        waiting = real(self)
        self.waits_for_barrier = False
        return waiting

    patch.put(OperatorRun, "not_staged", not_staged)


@mutant("tried-again", DECLINES)
def a_micro_batch_that_could_not_be_written_is_tried_with_later_rows(patch: Patch) -> None:
    real = OperatorRun.start

    def start(self: OperatorRun, rows_max: int) -> RunMicroBatch:
        if self.trigger is not None:
            self.collected = self.collected[1:] + self.collected[:1]
        return real(self, rows_max)

    patch.put(OperatorRun, "start", start)


@mutant("tried-again", DECLINES)
def every_barrier_allows_a_second_try(patch: Patch) -> None:
    real = Wiring.not_staged

    def not_staged(self: Wiring, run: OperatorRun, message: str) -> None:
        had_barrier = run.trigger is not None
        real(self, run, message)
        run.waits_for_barrier = not had_barrier

    patch.put(Wiring, "not_staged", not_staged)


@mutant("alignment", DECLINES)
def rows_that_could_not_be_written_are_lost(patch: Patch) -> None:
    real = OperatorRun.not_staged

    def not_staged(self: OperatorRun) -> CheckpointId | None:
        self.running = ()
        return real(self)

    patch.put(OperatorRun, "not_staged", not_staged)


@mutant("alignment", DECLINES)
def a_checkpoint_is_taken_without_the_rows_that_it_waits_for(patch: Patch) -> None:
    def not_staged(self: Wiring, run: OperatorRun, message: str) -> None:
        del message
        held, trigger = run.running, run.trigger
        run.not_staged()
        if trigger is not None:
            rest, run.collected, run.waits_for_barrier = run.collected, [], False
            run.triggered(trigger)
            self.request_snapshots(run)
            run.collected = rest or list(held)

    patch.put(Wiring, "not_staged", not_staged)


@mutant("no-deadlock", DECLINES)
def no_barrier_is_requested_for_a_vertex_that_waits_for_one(patch: Patch) -> None:
    patch.put(JobDoor, "_barrier_wanted", lambda _: False)


@mutant("no-deadlock", with_long_runs(DECLINES))
def a_barrier_waits_for_the_credit_of_a_vertex_that_waits_for_it(patch: Patch) -> None:
    def has_credit(self: JobDoor, run: OperatorRun) -> bool:
        return all(self._job.credit.has(subtask) for subtask in run.vertex.subtasks())

    patch.put(JobDoor, "_has_credit", has_credit)
