"""Plants bugs in how the door notices late hooks, sets timers, compacts files, ends, and reports failures.

Most of them change no table. The tick acts later than it should, or reports a wrong reason.
"""

from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.messages import AskHook, CloseHook, HookAnswered, HookFailed
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.job import judgements
from checkpointing.job.compacting import Compacting
from checkpointing.job.door import JobDoor
from checkpointing.job.drafts import Drafts
from checkpointing.job.ending import Ending
from checkpointing.job.hooks import MasterHooks
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.waking import Waking
from checkpointing.job.wiring import Wiring
from checkpointing.messages import CompactFiles, FilesCompacted, WakeAt
from checkpointing.metadata.record import CheckpointRecord
from spec.mutants.judges import COMPACTIONS, DECLINES, DRAWN, HOOKS, SIMULATOR
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ hooks


@mutant("hooks-in-time", HOOKS)
def a_hook_has_a_second_more(patch: Patch) -> None:
    real = MasterHooks.told

    def told(self: MasterHooks, effect: AskHook | CloseHook, now_ms: int) -> None:
        real(self, effect, now_ms + 1_000)

    patch.put(MasterHooks, "told", told)


@mutant("hooks-in-time", HOOKS)
def all_hooks_have_the_time_of_the_shortest(patch: Patch) -> None:
    real = MasterHooks.told

    def told(self: MasterHooks, effect: AskHook | CloseHook, now_ms: int) -> None:
        if isinstance(effect, AskHook):
            now_ms += min(self._limits_ms.values()) - self._limits_ms[effect.hook]
        real(self, effect, now_ms)

    patch.put(MasterHooks, "told", told)


@mutant("hooks-in-time", HOOKS)
def a_hook_that_is_late_fails_the_checkpoint_before(patch: Patch) -> None:
    real = Wiring.from_bystander

    def from_bystander(self: Wiring, fact: HookAnswered | HookFailed) -> None:
        if isinstance(fact, HookFailed) and fact.reason is Reason.CHECKPOINT_EXPIRED:
            fact = HookFailed(fact.hook, CheckpointId(fact.checkpoint - 1), fact.message, fact.reason)
        real(self, fact)

    patch.put(Wiring, "from_bystander", from_bystander)


@mutant("hooks-in-time", HOOKS)
def a_late_hook_is_not_named(patch: Patch) -> None:
    patch.put(MasterHooks, "_within", lambda _self, _hook: "")
    real = MasterHooks.late

    def late(self: MasterHooks, now_ms: int) -> list[HookFailed]:
        return [HookFailed(each.hook, each.checkpoint, "a hook is late", each.reason) for each in real(self, now_ms)]

    patch.put(MasterHooks, "late", late)


# ------------------------------------------------------------------ timers


@mutant("wakes-in-time", HOOKS)
def the_door_sleeps_through_late_hooks(patch: Patch) -> None:
    patch.put(MasterHooks, "wake_at_ms", property(lambda _: None))


@mutant("wakes-in-time", SIMULATOR)
def the_door_asks_only_once_to_be_woken(patch: Patch) -> None:
    real = Waking.asked

    def asked(self: Waking, job: Wiring) -> tuple[WakeAt, ...]:
        known = self._at_ms is not None
        found = real(self, job)
        return () if known else found

    patch.put(Waking, "asked", asked)


@mutant("wakes-in-time", SIMULATOR)
def the_door_wakes_at_its_last_timer(patch: Patch) -> None:
    real = Waking.asked

    def asked(self: Waking, job: Wiring) -> tuple[WakeAt, ...]:
        return tuple(WakeAt(each.at_ms + 300) for each in real(self, job))

    patch.put(Waking, "asked", asked)


@mutant("at-rest")
def the_door_makes_one_pass_after_a_fact(patch: Patch) -> None:
    patch.put(JobDoor, "_work", JobDoor._pass)


@mutant("at-rest")
def a_door_rests_as_soon_as_it_has_asked_for_a_checkpoint(patch: Patch) -> None:
    def work(self: JobDoor) -> None:
        asked = self._job.ending.requested
        while self._pass() and self._job.ending.requested == asked:
            pass

    patch.put(JobDoor, "_work", work)


@mutant("at-rest")
def the_door_asks_to_be_woken_too_late(patch: Patch) -> None:
    real = Waking.asked

    def asked(self: Waking, job: Wiring) -> tuple[WakeAt, ...]:
        return tuple(WakeAt(each.at_ms + 5) for each in real(self, job))

    patch.put(Waking, "asked", asked)


@mutant("not-too-late")
def nobody_wakes_the_door_for_segments_that_wait(patch: Patch) -> None:
    real = Waking.asked

    def asked(self: Waking, job: Wiring) -> tuple[WakeAt, ...]:
        linger_ms, self._linger_ms = self._linger_ms, 10_000_000
        found = real(self, job)
        self._linger_ms = linger_ms
        return found

    patch.put(Waking, "asked", asked)


@mutant("not-too-late")
def a_micro_batch_takes_one_segment(patch: Patch) -> None:
    real = OperatorRun.start
    patch.put(OperatorRun, "start", lambda self, _: real(self, 1))


# ------------------------------------------------------------------ compaction, and the end


@mutant("compacts-again", COMPACTIONS)
def a_table_is_compacted_once_a_tick(patch: Patch) -> None:
    patch.put(Compacting, "committed", lambda _self, _record: None)


@mutant("compacts-again", DRAWN)
def a_table_of_which_more_remains_is_left(patch: Patch) -> None:
    real = Compacting.told

    def told(self: Compacting, fact: FilesCompacted) -> None:
        real(self, FilesCompacted(fact.found))

    patch.put(Compacting, "told", told)


@mutant("compacts-again", COMPACTIONS)
def every_checkpoint_makes_its_tables_due(patch: Patch) -> None:
    real = Compacting.committed

    def committed(self: Compacting, record: CheckpointRecord) -> None:
        real(self, record)
        self._added.update({table.table: 1 for table in record.tables if table.table in self._added})

    patch.put(Compacting, "committed", committed)


@mutant("compacts-again", COMPACTIONS)
def compacted_files_may_be_as_large_as_they_are_many(patch: Patch) -> None:
    real = Compacting.rows_read

    def rows_read(self: Compacting) -> tuple[CompactFiles, ...]:
        return tuple(CompactFiles(each.tables, each.files_min, each.files_min) for each in real(self))

    patch.put(Compacting, "rows_read", rows_read)


@mutant("ends-soon")
def a_tick_takes_a_checkpoint_more_than_it_may(patch: Patch) -> None:
    def has_enough(self: Ending) -> bool:
        return self._limits.checkpoints is not None and self._completed > self._limits.checkpoints

    patch.put(Ending, "_has_enough", has_enough)


# ------------------------------------------------------------------ reported failures


@mutant("said-why", DECLINES)
def listeners_hear_only_the_start_of_a_message(patch: Patch) -> None:
    real = Drafts.failed

    def failed(self: Drafts, checkpoint: CheckpointId, message: str) -> None:
        real(self, checkpoint, message[:3])

    patch.put(Drafts, "failed", failed)


@mutant("said-why")
def nobody_hears_which_vertex_was_late(patch: Patch) -> None:
    patch.put(Completion, "_late", lambda _self, _pending: "")


@mutant("said-why", DECLINES)
def a_judgement_that_broke_shows_its_report(patch: Patch) -> None:
    real = judgements.objection

    def objection(fact: judgements.Judged) -> tuple[Reason, str] | None:
        found = real(fact)
        return None if found is None else (found[0], fact.report)

    patch.function(judgements, "objection", objection)


@mutant("said-why")
def a_tick_ends_with_the_words_of_its_reason(patch: Patch) -> None:
    real = Ending.failed

    def failed(self: Ending, reason: Reason, message: str) -> None:
        real(self, reason, reason.message)

    patch.put(Ending, "failed", failed)
