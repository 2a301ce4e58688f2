"""Plants bugs by which a checkpoint waits for nothing, until it expires."""

from checkpointing.coordinator import messages as told
from checkpointing.identifiers import SubtaskId
from checkpointing.job.door import JobDoor
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.wiring import Wiring
from spec.mutants.judges import DECLINES
from spec.mutants.planting import Patch, mutant
from spec.pipeline import PAYMENTS

OF_PAYMENTS = tuple(SubtaskId(PAYMENTS, split) for split in range(3))


@mutant("checkpoints-go-on", DECLINES)
def a_full_channel_holds_up_the_barrier_for_which_a_vertex_waits(patch: Patch) -> None:
    def has_credit(self: JobDoor, run: OperatorRun) -> bool:
        waits = run.waits_for_barrier and bool(self._job.coordinator.pending)
        return waits or all(self._job.credit.has(subtask) for subtask in run.vertex.subtasks())

    patch.put(JobDoor, "_has_credit", has_credit)


@mutant("checkpoints-go-on")
def a_source_forgets_the_barrier_of_every_fifth_checkpoint(patch: Patch) -> None:
    real = Wiring._trigger

    def trigger(self: Wiring, effect: told.TriggerTask) -> None:
        if effect.checkpoint % 5 or effect.task not in OF_PAYMENTS:
            real(self, effect)

    patch.put(Wiring, "_trigger", trigger)


@mutant("checkpoints-go-on")
def an_acknowledgement_of_every_fifth_checkpoint_is_lost(patch: Patch) -> None:
    real = Wiring.tell

    def tell(self: Wiring, fact: told.CoordinatorFact) -> None:
        if not (isinstance(fact, told.TaskAcknowledged) and fact.checkpoint % 5 == 0 and fact.task not in OF_PAYMENTS):
            real(self, fact)

    patch.put(Wiring, "tell", tell)
