"""Plants bugs in what a process sees: decoded entries, clocks that leap, leases, lists that lag behind (G5, H1)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from checkpointing.commit import fencing
from checkpointing.commit.fencing import HolderObserved, Lease, MayClaim, Refused
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.identifiers import Generation
from checkpointing.job.pause import Pause
from checkpointing.metadata import codec, migrations
from checkpointing.metadata.record import FORMAT, CheckpointRecord, Claim, Row, RowKind
from checkpointing.tick.asking import Steps
from checkpointing.tick.claiming import Claiming, Held
from checkpointing.tick.messages import Examine
from spec.at_the_door import LEASE_MS
from spec.mutants.judges import CLOCKS, CODEC, LEASES, LISTS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ the codec


@mutant("answers-are-true", CODEC)
def an_entry_is_read_without_its_pin(patch: Patch) -> None:
    _decoding(patch, lambda row: row.model_copy(update={"pinned": False}))


@mutant("cut-is-exact", CODEC)
def an_entry_is_read_without_its_rows_in_flight(patch: Patch) -> None:
    def bare(row: CheckpointRecord) -> CheckpointRecord:
        vertices = (
            vertex.model_copy(update={"subtasks": tuple(replace(each, in_flight=()) for each in vertex.subtasks)})
            for vertex in row.vertices
        )
        return row.model_copy(update={"vertices": tuple(vertices)})

    _decoding(patch, bare)


@mutant("held", CODEC)
def a_release_of_an_older_format_names_an_id_that_was_used(patch: Patch) -> None:
    real = migrations.migrate

    def migrate(kind: str, document: dict[str, Any], *, at: int) -> dict[str, Any]:
        moved = real(kind, document, at=at)
        used = kind == RowKind.RELEASE.value and at < FORMAT
        return moved | {"next_id": moved["next_id"] - 1} if used else moved

    patch.function(migrations, "migrate", migrate)


def _decoding(patch: Patch, read: Callable[[CheckpointRecord], CheckpointRecord]) -> None:
    real = codec.decode

    def decode(text: str) -> Row:
        row = real(text)
        return read(row) if isinstance(row, CheckpointRecord) else row

    patch.function(codec, "decode", decode)


# ------------------------------------------------------------------ clocks


@mutant("no-deadlock", CLOCKS)
def a_pause_after_a_failure_ends_only_at_its_very_moment(patch: Patch) -> None:
    patch.put(Pause, "is_over", lambda self, now_ms: self.until_ms in (None, now_ms))


@mutant("not-too-late", CLOCKS)
def a_checkpoint_expires_only_at_its_very_moment(patch: Patch) -> None:
    def advance(self: CheckpointCoordinator, now_ms: int) -> None:
        while (due := self._due_ms()) is not None and due == now_ms:
            self._fire_due(due, now_ms)
        self._books.now_ms = max(self._books.now_ms, now_ms)

    patch.put(CheckpointCoordinator, "_advance", advance)


# ------------------------------------------------------------------ leases


@mutant("left-alone", LEASES)
def a_lease_that_runs_is_taken_for_one_that_has_run_out(patch: Patch) -> None:
    _leased(patch, ends_ms=lambda _: 0)


@mutant("left-alone", LEASES)
def a_lease_ends_before_its_time(patch: Patch) -> None:
    _leased(patch, ends_ms=lambda lease: lease.expires_ms - LEASE_MS // 2)


@mutant("left-alone", LEASES)
def a_holder_that_nobody_sees_is_dead(patch: Patch) -> None:
    _seeing(patch, lambda seen: replace(seen, alive=False) if seen.alive is None else seen)


def _leased(patch: Patch, ends_ms: Callable[[Lease], int]) -> None:
    """Show a process another end of the lease."""

    def otherwise(seen: HolderObserved) -> HolderObserved:
        lease = seen.lease
        return seen if lease is None else replace(seen, lease=replace(lease, expires_ms=ends_ms(lease)))

    _seeing(patch, otherwise)


def _seeing(patch: Patch, otherwise: Callable[[HolderObserved], HolderObserved]) -> None:
    """Show a process another state of the holder."""
    real = fencing._after_silence

    def after_silence(
        held: Claim, generation: Generation, seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        return real(held, generation, otherwise(seen), now_ms, take_over=take_over)

    patch.function(fencing, "_after_silence", after_silence)


# ------------------------------------------------------------------ lists


@mutant("one-generation", LISTS)
def a_refused_claim_is_sent_again_with_what_was_seen_first(patch: Patch) -> None:
    """The process looks again, but takes only the version from what it sees."""
    real = Claiming.claimed

    def claimed(self: Claiming) -> Steps[Held]:
        steps, seen = real(self), list[Observed]()
        effect = next(steps)
        while True:
            answer = yield effect
            if isinstance(answer, Observed):
                seen.append(answer)
                answer = replace(seen[0], version=answer.version)
            try:
                effect = steps.send(answer)
            except StopIteration as over:
                held: Held = over.value
                return held

    patch.put(Claiming, "claimed", claimed)


@mutant("line", LISTS)
def a_process_whose_claim_was_refused_keeps_its_first_plan(patch: Patch) -> None:
    real = Claiming.claimed

    def claimed(self: Claiming) -> Steps[Held]:
        steps, plans = real(self), list[RecoveryPlan]()
        effect = next(steps)
        while True:
            if isinstance(effect, Examine):
                plans.append(effect.plan)
            answer = yield effect
            try:
                effect = steps.send(answer)
            except StopIteration as over:
                held: Held = over.value
                return replace(held, plan=replace(plans[0], claim=held.plan.claim)) if plans else held

    patch.put(Claiming, "claimed", claimed)
