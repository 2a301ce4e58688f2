"""The master hooks of one job: restored before anything runs, then asked for each checkpoint within a time limit (A8).

A hook is a user's code outside the job. Its state is part of a checkpoint, so a checkpoint without the state of one of
its hooks must never complete. Invariants: no row is read and no checkpoint is triggered before every hook has been
restored to the cut that the job begins from; a row holds exactly what its hooks answered for it.
"""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.coordinator.messages import AskHook, CloseHook, HookAnswered, HookFailed, ResetHook, RestoreHook
from checkpointing.coordinator.restoring import reset_hooks, restore_hooks
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import Hook
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.hook_state import InvalidHookStateError, must_be_hook_state
from checkpointing.metadata.record import CheckpointRecord


class MasterHooks:
    """Knows which hooks have not answered yet, and until when they may."""

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        """Begin with nobody asked."""
        self._limits_ms: dict[str, int] = {hook.name: hook.timeout_ms for hook in hooks}
        self._restoring: dict[str, int] = {}
        self._asked: dict[tuple[str, CheckpointId], int] = {}

    # -------------------------------------------------------------- the restore

    def restore(self, record: CheckpointRecord | None, now_ms: int) -> tuple[RestoreHook | ResetHook, ...]:
        """Return the call that takes each hook to the cut; without a cut every hook is reset."""
        calls = _restored_from(record, tuple(self._limits_ms))
        self._restoring = {call.hook: now_ms + self._limits_ms[call.hook] for call in calls}
        return calls

    @property
    def restoring(self) -> bool:
        """Whether a hook has not yet answered that it is restored: until then the job stands still."""
        return bool(self._restoring)

    def restored(self, hook: str) -> None:
        """Take a hook's answer that it is restored."""
        self._restoring.pop(hook, None)

    def awaits(self, hook: str) -> bool:
        """Return whether that hook has not yet answered that it is restored."""
        return hook in self._restoring

    def not_restored(self, now_ms: int) -> Iterator[str]:
        """Yield what to say of every hook whose restore takes too long."""
        for hook in [hook for hook, due_ms in self._restoring.items() if due_ms <= now_ms]:
            yield f"master hook {hook!r} was not restored {self._within(hook)}"

    def give_up(self) -> None:
        """The tick ends: nobody waits for any hook any more."""
        self._restoring.clear()
        self._asked.clear()

    # -------------------------------------------------------------- a checkpoint

    def told(self, effect: AskHook | CloseHook, now_ms: int) -> None:
        """Note what goes out to a hook now: the time of one that is asked begins to run."""
        if isinstance(effect, AskHook):
            self._asked[effect.hook, effect.checkpoint] = now_ms + self._limits_ms[effect.hook]

    def answered(self, fact: HookAnswered | HookFailed) -> HookAnswered | HookFailed | None:
        """Return what the coordinator is told of an answer; None if nobody waits for it.

        Whatever a hook fails with, it declines its checkpoint: tolerable_failures counts it. Flink would try again with
        every interval and count nothing, but a tick that is to end has to take its last checkpoint.
        """
        if self._asked.pop((fact.hook, fact.checkpoint), None) is None:
            return None
        if isinstance(fact, HookFailed):
            return replace(fact, reason=CheckpointFailureReason.CHECKPOINT_DECLINED)
        try:
            must_be_hook_state("null" if fact.state is None else fact.state)
        except InvalidHookStateError as error:
            message = f"the state of master hook {fact.hook!r} {error}"
            return HookFailed(fact.hook, fact.checkpoint, message, CheckpointFailureReason.CHECKPOINT_DECLINED)
        return fact

    def late(self, now_ms: int) -> Iterator[HookFailed]:
        """Yield the failure of every hook whose time is over; what it still answers is ignored."""
        for hook, checkpoint in [asked for asked, due_ms in self._asked.items() if due_ms <= now_ms]:
            del self._asked[hook, checkpoint]
            message = f"master hook {hook!r} did not answer {self._within(hook)}"
            yield HookFailed(hook, checkpoint, message, CheckpointFailureReason.CHECKPOINT_EXPIRED)

    def forget(self, checkpoint: CheckpointId) -> None:
        """The checkpoint has ended: nobody waits for its hooks any more."""
        self._asked = {asked: due_ms for asked, due_ms in self._asked.items() if asked[1] != checkpoint}

    # -------------------------------------------------------------- time

    @property
    def wake_at_ms(self) -> int | None:
        """When the next hook is late; None: nobody is awaited."""
        return min((*self._restoring.values(), *self._asked.values()), default=None)

    def _within(self, hook: str) -> str:
        limit_s = self._limits_ms[hook] / 1000
        return f"within {limit_s:g} s: repair it, or give it longer with timeout_s where the pipeline declares it"


def _restored_from(record: CheckpointRecord | None, hooks: tuple[str, ...]) -> tuple[RestoreHook | ResetHook, ...]:
    """State without a hook was refused before, or may be left behind (`check_fits`)."""
    if record is None:
        return tuple(reset_hooks(hooks))
    states = {held.hook: held.state for held in record.hooks}
    return tuple(restore_hooks(record.checkpoint, states, hooks, allow_non_restored=True))
