"""The master hooks of one job are restored before anything runs, and asked at each checkpoint, with a timeout (A8).

A hook runs a user's code outside the job. Its state is part of a checkpoint, so a checkpoint that lacks the state of a
hook must never complete. Invariants: before every hook has been restored to the job's cut, no row is read and no
checkpoint is triggered. An entry holds exactly the states that the hooks answered for its checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from checkpointing.coordinator.coordinator import reset_hooks, restore_coordinators, restore_hooks
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
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import Hook, JobGraph
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import CoordinatorReset, CoordinatorResetFailed, HookRestored, HookRestoreFailed
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.metadata.row_validity import InvalidInlineStateError, must_be_inline_state


class MasterHooks:
    """Keeps track of the hooks that have not answered yet, and when they time out."""

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        """Begin without a question to any hook."""
        self.names: tuple[str, ...] = tuple(hook.name for hook in hooks)
        self._limits_ms: dict[str, int] = {hook.name: hook.timeout_ms for hook in hooks}
        self._restoring: dict[str, int] = {}
        self._asked: dict[tuple[str, CheckpointId], int] = {}

    # -------------------------------------------------------------- the restore

    def restore(self, record: CheckpointRecord | None, now_ms: int) -> tuple[RestoreHook | ResetHook, ...]:
        """Return the calls that restore each hook to the cut. Without a cut, every hook is reset."""
        calls = _restored_from(record, tuple(self._limits_ms))
        self._restoring = {call.hook: now_ms + self._limits_ms[call.hook] for call in calls}
        return calls

    @property
    def restoring(self) -> bool:
        """True while a hook has not been restored yet. Until then the job stands still."""
        return bool(self._restoring)

    def restored(self, hook: str) -> None:
        """Record that a hook is restored."""
        self._restoring.pop(hook, None)

    def awaits(self, hook: str) -> bool:
        """Return whether this hook has not been restored yet."""
        return hook in self._restoring

    def not_restored(self, now_ms: int) -> Iterator[str]:
        """Yield a message for every hook whose restore takes too long."""
        for hook in [hook for hook, due_ms in self._restoring.items() if due_ms <= now_ms]:
            yield f"master hook {hook!r} was not restored {self._within(hook)}"

    def give_up(self) -> None:
        """Stop waiting for restores, because the tick ends. The coordinator aborts its pending checkpoints."""
        self._restoring.clear()

    # -------------------------------------------------------------- a checkpoint

    def told(self, effect: AskHook | CloseHook, now_ms: int) -> None:
        """Record a call to a hook. If the hook is asked for its state, its timeout begins to run."""
        if isinstance(effect, AskHook):
            self._asked[effect.hook, effect.checkpoint] = now_ms + self._limits_ms[effect.hook]

    def answered(self, fact: HookAnswered | HookFailed) -> HookAnswered | HookFailed | None:
        """Return the fact for the coordinator that follows from an answer, or None if nobody waits for the answer.

        Any failure of a hook declines the checkpoint, and counts towards `tolerable_failures`. Flink would count
        nothing and try again at the next interval. But here a tick that is about to end needs its last checkpoint.
        """
        if self._asked.pop((fact.hook, fact.checkpoint), None) is None:
            return None
        if isinstance(fact, HookFailed):
            return replace(fact, reason=CheckpointFailureReason.CHECKPOINT_DECLINED)
        try:
            must_be_inline_state("null" if fact.state is None else fact.state)
        except InvalidInlineStateError as error:
            message = f"the state of master hook {fact.hook!r} {error}"
            return HookFailed(fact.hook, fact.checkpoint, message, CheckpointFailureReason.CHECKPOINT_DECLINED)
        return fact

    def late(self, now_ms: int) -> Iterator[HookFailed]:
        """Yield a failure for every hook that has timed out. A later answer is ignored."""
        for hook, checkpoint in [asked for asked, due_ms in self._asked.items() if due_ms <= now_ms]:
            del self._asked[hook, checkpoint]
            message = f"master hook {hook!r} did not answer {self._within(hook)}"
            yield HookFailed(hook, checkpoint, message, CheckpointFailureReason.CHECKPOINT_EXPIRED)

    def forget(self, checkpoint: CheckpointId) -> None:
        """Stop waiting for the hooks of a checkpoint that has ended."""
        self._asked = {asked: due_ms for asked, due_ms in self._asked.items() if asked[1] != checkpoint}

    # -------------------------------------------------------------- time

    @property
    def wake_at_ms(self) -> int | None:
        """When the next hook times out, or None if no answer is awaited."""
        if not self._restoring and not self._asked:
            return None
        return min((*self._restoring.values(), *self._asked.values()))

    def _within(self, hook: str) -> str:
        limit_s = self._limits_ms[hook] / 1000
        return f"within {limit_s:g} s: repair it, or give it longer with timeout_s where the pipeline declares it"


def _restored_from(record: CheckpointRecord | None, hooks: tuple[str, ...]) -> tuple[RestoreHook | ResetHook, ...]:
    """Return the calls that restore these hooks. `check_fits` has refused or allowed state without a hook."""
    if record is None:
        return tuple(reset_hooks(hooks))
    states = {held.hook: held.state for held in record.hooks}
    return tuple(restore_hooks(record.checkpoint, states, hooks, allow_non_restored=True))


# ------------------------------------------------------------------
# The coordinators of one job's sources are restored before anything is read, and asked at each checkpoint (A7).
#
# A source coordinator is the part of a source that has state of its own, besides the positions in its splits (Flink:
# `SourceCoordinator`, which asks a `SplitEnumerator`). The entry itself holds this state, as a JSON text. Invariants:
# before every coordinator has been restored to the job's cut, no row is read and no checkpoint is triggered. An entry
# holds exactly the states that the coordinators answered for its checkpoint.


class SourceCoordinators:
    """Keeps track of the coordinators that have not answered yet, and of the answers for pending checkpoints."""

    def __init__(self, graph: JobGraph) -> None:
        """Begin without a question to any coordinator."""
        self.names: tuple[str, ...] = tuple(vertex.id for vertex in graph.vertices if vertex.coordinated)
        self._restoring: set[str] = set()
        self._asked: set[tuple[str, CheckpointId]] = set()
        self._states: dict[CheckpointId, dict[str, str]] = {}

    def restore(self, record: CheckpointRecord | None) -> tuple[ResetOperatorCoordinator, ...]:
        """Return the calls that restore each coordinator to the cut.

        A source that the cut does not know begins anew.
        """
        vertices = () if record is None else record.vertices
        held: dict[str, str | None] = {vertex.vertex: vertex.coordinator for vertex in vertices}
        calls = tuple(restore_coordinators(None if record is None else record.checkpoint, held, self.names))
        self._restoring = {call.coordinator for call in calls}
        return calls

    @property
    def restoring(self) -> bool:
        """True while a coordinator has not been restored yet. Until then the job stands still."""
        return bool(self._restoring)

    def restored(self, coordinator: str) -> None:
        """Record that a coordinator is restored."""
        self._restoring.discard(coordinator)

    def awaits(self, coordinator: str) -> bool:
        """Return whether this coordinator has not been restored yet."""
        return coordinator in self._restoring

    def give_up(self) -> None:
        """Stop waiting for restores, because the tick ends. The coordinator aborts its pending checkpoints."""
        self._restoring.clear()

    def told(self, effect: AskOperatorCoordinator) -> None:
        """Record that a coordinator is asked for its state."""
        self._asked.add((effect.coordinator, effect.checkpoint))

    def answered(
        self, fact: OperatorCoordinatorAnswered | OperatorCoordinatorFailed
    ) -> OperatorCoordinatorAnswered | OperatorCoordinatorFailed | None:
        """Keep the state, and return the fact for the checkpoint coordinator, or None if nobody waits for the answer.

        The fact does not have the state, because the checkpoint coordinator would delete a state that it drops as if it
        were a file. A source coordinator that fails declines the checkpoint, as a master hook does.
        """
        asked = fact.coordinator, fact.checkpoint
        if asked not in self._asked:
            return None
        self._asked.discard(asked)
        if isinstance(fact, OperatorCoordinatorFailed):
            return replace(fact, reason=CheckpointFailureReason.CHECKPOINT_DECLINED)
        if fact.state is None:
            return fact
        try:
            must_be_inline_state(fact.state)
        except InvalidInlineStateError as error:
            message = f"the state of source {fact.coordinator!r} {error}"
            return OperatorCoordinatorFailed(*asked, message, CheckpointFailureReason.CHECKPOINT_DECLINED)
        self._states.setdefault(fact.checkpoint, {})[fact.coordinator] = fact.state
        return replace(fact, state=None)

    def states(self, checkpoint: CheckpointId) -> Mapping[str, str]:
        """Return a dict from sources to their states for a pending checkpoint."""
        return self._states.get(checkpoint, {})

    def forget(self, checkpoint: CheckpointId) -> None:
        """Forget a checkpoint that has ended."""
        self._asked = {asked for asked in self._asked if asked[1] != checkpoint}
        self._states.pop(checkpoint, None)


# ------------------------------------------------------------------
# The parts outside the subtasks whose state is in a checkpoint: source coordinators (A7) and master hooks (A8).


Answer = HookAnswered | HookFailed | OperatorCoordinatorAnswered | OperatorCoordinatorFailed
"""The facts for the checkpoint coordinator that follow from an answer."""

FromBystander = Answer | HookRestored | HookRestoreFailed | CoordinatorReset | CoordinatorResetFailed


class Bystanders:
    """The source coordinators and the master hooks of one job."""

    def __init__(self, graph: JobGraph) -> None:
        """Begin without a call to anybody."""
        self.coordinators = SourceCoordinators(graph)
        self.hooks = MasterHooks(graph.hooks)

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the hooks, and the names of the sources with a coordinator."""
        return self.hooks.names, self.coordinators.names

    def restore(
        self, record: CheckpointRecord | None, now_ms: int
    ) -> tuple[ResetOperatorCoordinator | RestoreHook | ResetHook, ...]:
        """Return the calls that restore all coordinators and hooks to the cut."""
        return *self.coordinators.restore(record), *self.hooks.restore(record, now_ms)

    @property
    def restoring(self) -> bool:
        """True while a coordinator or hook has not been restored yet. Until then the job stands still."""
        return self.coordinators.restoring or self.hooks.restoring

    def told(self, effect: AskOperatorCoordinator | AskHook | CloseHook, now_ms: int) -> None:
        """Record a call."""
        if isinstance(effect, AskOperatorCoordinator):
            self.coordinators.told(effect)
        else:
            self.hooks.told(effect, now_ms)

    def heard(self, fact: FromBystander) -> Answer | str | None:
        """Return the fact for the checkpoint coordinator, or a text that says why the job cannot begin.

        None: the answer came too late, or reports that a restore has succeeded.
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
        """Stop waiting for answers about a checkpoint that has ended."""
        self.coordinators.forget(checkpoint)
        self.hooks.forget(checkpoint)
