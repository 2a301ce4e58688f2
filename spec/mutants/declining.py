"""Mutants of failures that decline a checkpoint: for which reason it fails, and whether that counts."""

from dataclasses import replace

from checkpointing.coordinator import failure_policy
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import FailJob
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.job import judgements
from checkpointing.job.door import JobDoor
from checkpointing.job.judgements import Judged
from checkpointing.messages import JudgementFailed
from spec.mutants.judges import DECLINES
from spec.mutants.planting import Patch, mutant


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
