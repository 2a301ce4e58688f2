"""Plants bugs in master hooks: when they are restored, with which state, and what an entry keeps of their answers."""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.commit.draft import Draft
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.coordinator.messages import HookAnswered, HookFailed, ResetHook, RestoreHook
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.job import hooks
from checkpointing.job.hooks import MasterHooks
from checkpointing.job.wiring import Wiring
from checkpointing.messages import EndTick
from checkpointing.metadata.record import CheckpointRecord
from spec.mutants.judges import HOOKS
from spec.mutants.planting import Patch, mutant

Calls = tuple[RestoreHook | ResetHook, ...]


@mutant("hooks-restored", HOOKS)
def the_job_reads_before_its_hooks_are_restored(patch: Patch) -> None:
    patch.put(MasterHooks, "restoring", property(lambda _: False))


@mutant("hooks-restored", HOOKS)
def a_hook_is_restored_without_its_state(patch: Patch) -> None:
    real = hooks._restored_from

    def restored_from(record: CheckpointRecord | None, names: tuple[str, ...]) -> Calls:
        calls = real(record, names)
        return tuple(replace(call, state=None) if isinstance(call, RestoreHook) else call for call in calls)

    patch.put(hooks, "_restored_from", restored_from)


@mutant("hooks-restored", HOOKS)
def only_a_hook_with_state_is_restored(patch: Patch) -> None:
    real = hooks._restored_from

    def restored_from(record: CheckpointRecord | None, names: tuple[str, ...]) -> Calls:
        return tuple(call for call in real(record, names) if isinstance(call, RestoreHook) and call.state is not None)

    patch.put(hooks, "_restored_from", restored_from)


@mutant("hooks-restored", HOOKS)
def a_savepoint_is_begun_when_the_restore_has_failed(patch: Patch) -> None:
    real = Wiring.shut_down

    def shut_down(self: Wiring, end: EndTick) -> None:
        self.bystanders.give_up()
        real(self, end)

    patch.put(Wiring, "shut_down", shut_down)


@mutant("hook-states", HOOKS)
def a_row_forgets_what_its_hooks_answered(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        return real(self, replace(draft, hooks=()))

    patch.put(TwoPhaseCommit, "_compose", compose)


@mutant("hook-states", HOOKS)
def a_hook_without_state_keeps_its_old_state(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        now = {held.hook for held in draft.hooks}
        before = () if self._parent is None else self._parent.hooks
        return real(self, replace(draft, hooks=(*draft.hooks, *(held for held in before if held.hook not in now))))

    patch.put(TwoPhaseCommit, "_compose", compose)


@mutant("hook-states", HOOKS)
def a_checkpoint_goes_on_without_a_hook_that_is_late(patch: Patch) -> None:
    real = MasterHooks.late

    def late(self: MasterHooks, now_ms: int) -> Iterator[HookAnswered]:
        return (HookAnswered(failed.hook, failed.checkpoint) for failed in real(self, now_ms))

    patch.put(MasterHooks, "late", late)


@mutant("hook-states", HOOKS)
def a_hook_that_failed_has_nothing_to_keep(patch: Patch) -> None:
    real = MasterHooks.answered

    def answered(self: MasterHooks, fact: HookAnswered | HookFailed) -> HookAnswered | HookFailed | None:
        told = real(self, fact)
        return HookAnswered(told.hook, told.checkpoint) if isinstance(told, HookFailed) else told

    patch.put(MasterHooks, "answered", answered)


@mutant("hook-states", HOOKS)
def a_checkpoint_waits_for_its_first_hook_only(patch: Patch) -> None:
    real = PendingCheckpoint.answer_hook

    def answer_hook(self: PendingCheckpoint, hook: str, state: str | None) -> None:
        real(self, hook, state)
        self.unanswered_hooks.clear()

    patch.put(PendingCheckpoint, "answer_hook", answer_hook)
