"""The master hooks of one job: restored before anything runs, and asked at each checkpoint within a time limit (A8).

A hook is a user's code outside the job. Its state is part of a checkpoint, so a checkpoint that lacks the state of a
hook must never complete. Invariants: before every hook has been restored to the job's cut, no row is read and no
checkpoint is triggered. An entry holds exactly what its hooks answered for it.
"""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.coordinator.messages import AskHook, CloseHook, HookAnswered, HookFailed, ResetHook, RestoreHook
from checkpointing.coordinator.restoring import reset_hooks, restore_hooks
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import Hook
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.inline_state import InvalidInlineStateError, must_be_inline_state
from checkpointing.metadata.record import CheckpointRecord


class MasterHooks:
    """Knows which hooks have not answered yet, and when they are late."""

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        """Begin without a question to any hook."""
        self.names: tuple[str, ...] = tuple(hook.name for hook in hooks)
        self._limits_ms: dict[str, int] = {hook.name: hook.timeout_ms for hook in hooks}
        self._restoring: dict[str, int] = {}
        self._asked: dict[tuple[str, CheckpointId], int] = {}

    # -------------------------------------------------------------- the restore

    def restore(self, record: CheckpointRecord | None, now_ms: int) -> tuple[RestoreHook | ResetHook, ...]:
        """Return the calls that bring each hook to the cut. Without a cut, every hook is reset."""
        calls = _restored_from(record, tuple(self._limits_ms))
        self._restoring = {call.hook: now_ms + self._limits_ms[call.hook] for call in calls}
        return calls

    @property
    def restoring(self) -> bool:
        """True while a hook has not been restored yet. Until then the job stands still."""
        return bool(self._restoring)

    def restored(self, hook: str) -> None:
        """Note that a hook is restored."""
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
        """Note a call to a hook. The time of a hook that is asked begins to run."""
        if isinstance(effect, AskHook):
            self._asked[effect.hook, effect.checkpoint] = now_ms + self._limits_ms[effect.hook]

    def answered(self, fact: HookAnswered | HookFailed) -> HookAnswered | HookFailed | None:
        """Return what the coordinator must hear of an answer, or None if nobody waits for it.

        Any failure of a hook declines the checkpoint, and `tolerable_failures` counts it. Flink would try again at the
        next interval and count nothing. But here a tick that is about to end needs its last checkpoint.
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
        """Yield a failure for every hook whose time is over. A later answer is ignored."""
        for hook, checkpoint in [asked for asked, due_ms in self._asked.items() if due_ms <= now_ms]:
            del self._asked[hook, checkpoint]
            message = f"master hook {hook!r} did not answer {self._within(hook)}"
            yield HookFailed(hook, checkpoint, message, CheckpointFailureReason.CHECKPOINT_EXPIRED)

    def forget(self, checkpoint: CheckpointId) -> None:
        """Wait no longer for the hooks of a checkpoint that has ended."""
        self._asked = {asked: due_ms for asked, due_ms in self._asked.items() if asked[1] != checkpoint}

    # -------------------------------------------------------------- time

    @property
    def wake_at_ms(self) -> int | None:
        """When the next hook is late, or None if no answer is awaited."""
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
