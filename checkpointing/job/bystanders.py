"""Those outside the subtasks whose state a checkpoint holds: coordinators of sources (A7), and master hooks (A8)."""

from typing import assert_never

from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CloseHook,
    HookAnswered,
    HookFailed,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId
from checkpointing.job.hooks import MasterHooks
from checkpointing.job.source_coordinators import SourceCoordinators
from checkpointing.messages import CoordinatorReset, CoordinatorResetFailed, HookRestored, HookRestoreFailed
from checkpointing.metadata.record import CheckpointRecord

Answer = HookAnswered | HookFailed | OperatorCoordinatorAnswered | OperatorCoordinatorFailed
"""What the checkpoint coordinator hears of an answer."""

FromBystander = Answer | HookRestored | HookRestoreFailed | CoordinatorReset | CoordinatorResetFailed


class Bystanders:
    """The source coordinators and the master hooks of one job."""

    def __init__(self, graph: JobGraph) -> None:
        """Begin without a question to anybody."""
        self.coordinators = SourceCoordinators(graph)
        self.hooks = MasterHooks(graph.hooks)

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the hooks, and those of the sources with a coordinator."""
        return self.hooks.names, self.coordinators.names

    def restore(
        self, record: CheckpointRecord | None, now_ms: int
    ) -> tuple[ResetOperatorCoordinator | RestoreHook | ResetHook, ...]:
        """Return the calls that bring everybody to the cut."""
        return *self.coordinators.restore(record), *self.hooks.restore(record, now_ms)

    @property
    def restoring(self) -> bool:
        """True while somebody has not been restored yet. Until then the job stands still."""
        return self.coordinators.restoring or self.hooks.restoring

    def told(self, effect: AskOperatorCoordinator | AskHook | CloseHook, now_ms: int) -> None:
        """Note a call."""
        if isinstance(effect, AskOperatorCoordinator):
            self.coordinators.told(effect)
        else:
            self.hooks.told(effect, now_ms)

    def heard(self, fact: FromBystander) -> Answer | str | None:
        """Return what the checkpoint coordinator must hear. A text says why the job cannot begin.

        None: the answer is late, or somebody has been restored.
        """
        match fact:
            case HookAnswered() | HookFailed():
                return self.hooks.answered(fact)
            case OperatorCoordinatorAnswered() | OperatorCoordinatorFailed():
                return self.coordinators.answered(fact)
            case HookRestored():
                self.hooks.restored(fact.hook)
                return None
            case CoordinatorReset():
                self.coordinators.restored(fact.source)
                return None
            case HookRestoreFailed():
                return fact.error if self.hooks.awaits(fact.hook) else None
            case CoordinatorResetFailed():
                return fact.error if self.coordinators.awaits(fact.source) else None
            case _ as unreachable:
                assert_never(unreachable)

    def give_up(self) -> None:
        """Stop waiting for restores, because the tick ends."""
        self.coordinators.give_up()
        self.hooks.give_up()

    def forget(self, checkpoint: CheckpointId) -> None:
        """Wait no longer for answers about a checkpoint that has ended."""
        self.coordinators.forget(checkpoint)
        self.hooks.forget(checkpoint)
