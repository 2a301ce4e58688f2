"""Plants bugs in what users hear of savepoints, which files these pin, and how a tick ends."""

from collections.abc import Iterator
from typing import Any

from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.job.ending import OWN_REQUEST, Cause, Ending
from checkpointing.job.savepoints import Savepoints
from checkpointing.messages import SavepointFailed, SavepointKind, SavepointTaken
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.machines.ending import ENDS
from spec.machines.savepoints import ANSWERED, PINNED
from spec.mutants.judges import ENDINGS, PINS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ savepoints


@mutant(ANSWERED, PINS)
def a_user_hears_of_a_checkpoint_of_the_tick(patch: Patch) -> None:
    real = Savepoints.answered

    def answered(self: Savepoints, effect: RequestSucceeded | RequestFailed) -> Any:  # noqa: ANN401 - answers, kind
        if effect.request == OWN_REQUEST and isinstance(effect, RequestSucceeded):
            return (SavepointTaken(effect.request, effect.checkpoint),), SavepointKind.PLAIN
        return real(self, effect)

    patch.put(Savepoints, "answered", answered)


@mutant(ANSWERED, PINS)
def only_one_user_hears_that_the_tick_has_ended(patch: Patch) -> None:
    def give_up(self: Savepoints, reason: Reason, message: str) -> Iterator[SavepointFailed]:
        if self._asked:
            request, _ = self._asked.popitem()
            yield SavepointFailed(request, reason, message)

    patch.put(Savepoints, "give_up", give_up)


@mutant(ANSWERED, PINS)
def a_drain_only_suspends(patch: Patch) -> None:
    real = Savepoints._properties

    def properties(self: Savepoints, kind: SavepointKind) -> Any:  # noqa: ANN401 - CheckpointProperties
        return real(self, SavepointKind.SUSPEND if kind is SavepointKind.DRAIN else kind)

    patch.put(Savepoints, "_properties", properties)


@mutant(PINNED, PINS)
def savepoints_of_earlier_ticks_pin_nothing(patch: Patch) -> None:
    real = Savepoints.__init__

    def begin(self: Savepoints, rows: object, *, unaligned: bool) -> None:
        del rows
        real(self, (), unaligned=unaligned)

    patch.put(Savepoints, "__init__", begin)


@mutant(PINNED, PINS)
def a_held_cut_pins_nothing(patch: Patch) -> None:
    real = Savepoints.pin

    def pin(self: Savepoints, row: CheckpointRecord) -> None:
        if row.kind is not RowKind.HELD:
            real(self, row)

    patch.put(Savepoints, "pin", pin)


@mutant(PINNED, PINS)
def a_newer_savepoint_takes_the_pins_of_an_older_one(patch: Patch) -> None:
    def pin(self: Savepoints, row: CheckpointRecord) -> None:
        if row.is_savepoint:
            self._files = set(files_of(row))

    patch.put(Savepoints, "pin", pin)


# ------------------------------------------------------------------ the end


@mutant(ENDS, ENDINGS)
def a_tick_that_fails_does_not_wait_for_an_entry_in_doubt(patch: Patch) -> None:
    real = Ending.failed

    def failed(self: Ending, reason: Reason, message: str) -> None:
        real(self, reason, message)
        self.told(Cause.SETTLED)

    patch.put(Ending, "failed", failed)


@mutant(ENDS, ENDINGS)
def a_split_that_fails_hides_a_failure_of_the_job(patch: Patch) -> None:
    real = Ending.split_failed

    def split_failed(self: Ending, message: str, *, at_once: bool) -> None:
        real(self, message, at_once=at_once)
        if self.settles:
            self._end = self._end.__class__(self._end.outcome, Reason.TASK_FAILURE, message)

    patch.put(Ending, "split_failed", split_failed)


@mutant(ENDS, ENDINGS)
def a_tick_goes_on_after_its_savepoint_failed_behind_the_barrier(patch: Patch) -> None:
    real = Ending.answered

    def answered(
        self: Ending, effect: RequestSucceeded | RequestFailed, kind: SavepointKind | None, *, behind_barrier: bool
    ) -> bool:
        return real(self, effect, kind, behind_barrier=behind_barrier and kind is None)

    patch.put(Ending, "answered", answered)


@mutant(ENDS, ENDINGS)
def savepoints_count_as_checkpoints_of_the_limit(patch: Patch) -> None:
    real = Ending.told

    def told(self: Ending, cause: Cause) -> bool:
        self._completed += cause is Cause.SAVEPOINT_FAILED
        return real(self, cause)

    patch.put(Ending, "told", told)
