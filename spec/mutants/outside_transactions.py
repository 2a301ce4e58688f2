"""Plants bugs in the publication into a target with transactions."""

from collections.abc import Callable, Sequence

from checkpointing.commit import outside_transaction
from checkpointing.commit.outside_transaction import (
    STEPS,
    Publishing,
    ReadNewest,
    TakeOverTarget,
    TargetHas,
    TargetLost,
    TargetRefused,
    WriteInTransaction,
)
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from spec.mutants.judges import OUTSIDE_TRANSACTIONS
from spec.mutants.planting import Patch, mutant


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def the_number_is_read_before_the_target_is_taken_over_only(patch: Patch) -> None:
    patch.put(outside_transaction, "STEPS", STEPS[:2])


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def the_number_is_read_while_a_commit_is_on_its_way(patch: Patch) -> None:
    patch.put(outside_transaction, "STEPS", (*STEPS[:2], ReadNewest(settled=False)))


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def the_target_is_taken_over_after_the_number_is_read(patch: Patch) -> None:
    patch.put(outside_transaction, "STEPS", (STEPS[0], STEPS[2], STEPS[1]))


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def a_lost_reply_means_that_nothing_was_written(patch: Patch) -> None:
    def written_again(checkpoint: CheckpointId) -> Publishing:
        for step in (TakeOverTarget(), WriteInTransaction(CheckpointId(checkpoint - 1))):
            answer = yield step
            if isinstance(answer, TargetLost | TargetRefused):
                return answer
        return None

    def believed(checkpoint: CheckpointId) -> Publishing:
        failed = yield from real(checkpoint)
        return (yield from written_again(checkpoint)) if isinstance(failed, TargetLost) else failed

    real = outside_transaction._tried
    patch.put(outside_transaction, "_tried", believed)


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def a_lost_reply_means_that_all_is_written(patch: Patch) -> None:
    real = outside_transaction._tried

    def believed(checkpoint: CheckpointId) -> Publishing:
        failed = yield from real(checkpoint)
        return None if isinstance(failed, TargetLost) else failed

    patch.put(outside_transaction, "_tried", believed)


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def only_the_same_number_is_passed_over(patch: Patch) -> None:
    real = outside_transaction._tried

    def tried(checkpoint: CheckpointId) -> Publishing:
        steps = real(checkpoint)
        step = next(steps)
        while True:
            answer = yield step
            is_newer = isinstance(answer, TargetHas) and answer.checkpoint > checkpoint
            try:
                step = steps.send(TargetHas(NO_CHECKPOINT) if is_newer else answer)
            except StopIteration as end:
                failed: TargetLost | TargetRefused | None = end.value
                return failed

    patch.put(outside_transaction, "_tried", tried)


@mutant("outside-undisturbed", OUTSIDE_TRANSACTIONS)
def a_late_process_takes_over_before_it_reads(patch: Patch) -> None:
    patch.put(outside_transaction, "STEPS", STEPS[1:])


@mutant("outside-undisturbed", OUTSIDE_TRANSACTIONS)
def a_target_is_taken_over_again_before_each_step(patch: Patch) -> None:
    patch.put(outside_transaction, "STEPS", tuple(each for step in STEPS for each in (TakeOverTarget(), step)))


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def changes_are_those_since_the_first_look(patch: Patch) -> None:
    patch.put(outside_transaction, "_tried", _writing_since(lambda looks: looks[0]))


@mutant("outside-once", OUTSIDE_TRANSACTIONS)
def changes_are_those_since_the_beginning(patch: Patch) -> None:
    patch.put(outside_transaction, "_tried", _writing_since(lambda _: NO_CHECKPOINT))


def _writing_since(chosen: Callable[[Sequence[CheckpointId]], CheckpointId]) -> Callable[[CheckpointId], Publishing]:
    """Return the steps of a process that chooses otherwise which changes it writes. `looks` are what it has read."""
    real = outside_transaction._tried

    def tried(checkpoint: CheckpointId) -> Publishing:
        steps = real(checkpoint)
        step = next(steps)
        looks: list[CheckpointId] = []
        while True:
            answer = yield WriteInTransaction(chosen(looks)) if isinstance(step, WriteInTransaction) else step
            if isinstance(answer, TargetHas):
                looks.append(answer.checkpoint)
            try:
                step = steps.send(answer)
            except StopIteration as end:
                failed: TargetLost | TargetRefused | None = end.value
                return failed

    return tried
