"""Plants bugs in source coordinators: when they are restored, with which state, and what an entry keeps of it (A7)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from checkpointing.coordinator import restoring
from checkpointing.coordinator.messages import (
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetOperatorCoordinator,
)
from checkpointing.identifiers import CheckpointId
from checkpointing.job.source_coordinators import SourceCoordinators
from spec.mutants.judges import HOOKS
from spec.mutants.planting import Patch, mutant

_Change = Callable[[tuple[ResetOperatorCoordinator, ...]], Iterator[ResetOperatorCoordinator]]
_Answer = OperatorCoordinatorAnswered | OperatorCoordinatorFailed


@mutant("hooks-restored", HOOKS)
def rows_are_read_before_a_source_has_its_own_state(patch: Patch) -> None:
    patch.put(SourceCoordinators, "restoring", property(lambda _: False))


@mutant("hooks-restored", HOOKS)
def a_source_is_restored_without_its_own_state(patch: Patch) -> None:
    _restore_otherwise(patch, lambda calls: (replace(call, state=None) for call in calls))


@mutant("hooks-restored", HOOKS)
def the_last_source_is_not_restored(patch: Patch) -> None:
    _restore_otherwise(patch, lambda calls: iter(calls[:-1]))


@mutant("hooks-restored", HOOKS)
def each_source_gets_the_state_of_the_first_one(patch: Patch) -> None:
    _restore_otherwise(patch, lambda calls: (replace(call, state=calls[0].state) for call in calls))


@mutant("hook-states", HOOKS)
def an_entry_forgets_what_its_sources_answered(patch: Patch) -> None:
    patch.put(SourceCoordinators, "states", lambda _, __: {})


@mutant("hook-states", HOOKS)
def a_source_without_state_keeps_its_old_state(patch: Patch) -> None:
    real = SourceCoordinators.states

    def states(self: SourceCoordinators, checkpoint: CheckpointId) -> Mapping[str, str]:
        kept: dict[str, str] = self.__dict__.setdefault("kept", {})
        kept.update(real(self, checkpoint))
        return dict(kept)

    patch.put(SourceCoordinators, "states", states)


@mutant("hook-states", HOOKS)
def a_source_that_failed_has_nothing_to_keep(patch: Patch) -> None:
    real = SourceCoordinators.answered

    def answered(self: SourceCoordinators, fact: _Answer) -> _Answer | None:
        told = real(self, fact)
        if isinstance(told, OperatorCoordinatorFailed):
            return OperatorCoordinatorAnswered(told.coordinator, told.checkpoint)
        return told

    patch.put(SourceCoordinators, "answered", answered)


def _restore_otherwise(patch: Patch, change: _Change) -> None:
    real = restoring.restore_coordinators

    def restore(
        checkpoint: CheckpointId | None, states: Mapping[str, str | None], names: Sequence[str]
    ) -> Iterator[ResetOperatorCoordinator]:
        return change(tuple(real(checkpoint, states, names)))

    patch.function(restoring, "restore_coordinators", restore)
