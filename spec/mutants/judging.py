"""Plants bugs in the asynchronous part: the judgement of a checkpoint that ends, and the effect of a verdict."""

from dataclasses import replace

from checkpointing.identifiers import CheckpointId, SubtaskId
from checkpointing.job.door import JobDoor
from checkpointing.job.epochs import EpochLog
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.wiring import Wiring
from checkpointing.messages import CancelJudgement, SuitesJudged
from checkpointing.task.messages import CancelSnapshot, SubtaskEffect
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing
from spec.mutants.planting import Patch, mutant


@mutant("judgements")
def an_abort_lets_its_judgements_go_on(patch: Patch) -> None:
    real = Wiring.from_subtask

    def from_subtask(self: Wiring, subtask: SubtaskId, effects: tuple[SubtaskEffect, ...]) -> None:
        real(self, subtask, tuple(effect for effect in effects if not isinstance(effect, CancelSnapshot)))

    patch.put(Wiring, "from_subtask", from_subtask)


@mutant("judgements")
def every_subtask_cancels_the_judgement_of_its_vertex(patch: Patch) -> None:
    real = Wiring.from_subtask

    def from_subtask(self: Wiring, subtask: SubtaskId, effects: tuple[SubtaskEffect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, CancelSnapshot) and subtask.vertex in self.runs:
                self.effects.append(CancelJudgement(subtask.vertex, effect.checkpoint))
        real(self, subtask, effects)

    patch.put(Wiring, "from_subtask", from_subtask)


@mutant("judgements")
def a_rejected_epoch_is_let_in(patch: Patch) -> None:
    real = JobDoor._judged

    def judged(self: JobDoor, fact: SuitesJudged) -> None:
        real(self, replace(fact, passed=True))

    patch.put(JobDoor, "_judged", judged)


@mutant("judgements")
def a_checkpoint_does_not_wait_for_its_verdict(patch: Patch) -> None:
    real = Wiring.request_snapshots

    def request_snapshots(self: Wiring, run: OperatorRun) -> None:
        real(self, run)
        snapshots = self.judging._waiting.get((run.vertex.id, run.passed))
        if snapshots is not None:
            self.taken(run.vertex.id, run.passed, snapshots)

    patch.put(Wiring, "request_snapshots", request_snapshots)


@mutant("judgements")
def a_verdict_is_not_kept(patch: Patch) -> None:
    def judged(self: EpochLog, checkpoint: CheckpointId, report: str) -> None:
        """Forget it."""

    patch.put(EpochLog, "judged", judged)


@mutant("judgements")
def a_checkpoint_that_has_ended_is_judged(patch: Patch) -> None:
    patch.put(SubtaskCheckpointing, "takes", lambda self, checkpoint: True)
