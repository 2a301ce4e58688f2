"""Carries out a restore as Flink's coordinator does: it selects the checkpoint and assigns its state (G1 to G3).

The product restores in `checkpointing.job.restoring`, before it makes a coordinator.
"""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.coordinator.completed import DISCARD_NEVER, CompletedCheckpoint, DiscardCause
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator import (
    RestoreRefusedError,
    check_finished,
    reset_hooks,
    restore_coordinators,
    restore_hooks,
)
from checkpointing.coordinator.coordinator_state import Books
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, SnapshotKind
from checkpointing.identifiers import CheckpointId
from spec.flink.completed_store import shared_handles
from spec.flink.messages import (
    AssignState,
    FlinkEffect,
    RestoreFinished,
    RestoreKind,
    RestoreRequested,
    SetNextCheckpointId,
)
from spec.flink.shared_state import FlinkRegistry, RestoreMode


class Recovery:
    """Restores the job from the newest completed checkpoint, or from a savepoint."""

    __slots__ = ("_books", "_completion")

    def __init__(self, books: Books, completion: Completion) -> None:
        """Work on this bookkeeping. `completion` discards what leaves the store."""
        self._books = books
        self._completion = completion

    def restore(self, fact: RestoreRequested) -> list[FlinkEffect]:
        """Return the effects of a restore.

        Raise RestoreRefusedError if the checkpoint does not fit, or if the coordinator is shut down. A savepoint is
        checked before it enters the store, so a refusal changes nothing.
        """
        if self._books.is_shut_down:
            raise RestoreRefusedError("the coordinator is shut down; a new one must restore the job")
        source = self._source(fact)
        if source is None:
            return self._restart(fact.kind)
        allow = fact.allow_non_restored or fact.kind is RestoreKind.REGION
        effects = self._effects(source, fact.kind, allow_non_restored=allow)
        if fact.kind is RestoreKind.SAVEPOINT:
            self._adopt(source, fact.mode)
        self._books.force_full = source.unclaimed
        self._books.statistics.restored(source.id)
        return effects

    def _source(self, fact: RestoreRequested) -> CompletedCheckpoint | None:
        if fact.kind is not RestoreKind.SAVEPOINT:
            return self._books.store.latest
        if fact.savepoint is None:
            raise RestoreRefusedError("no savepoint was given to restore from; name one")
        return _adopted(fact.savepoint, fact.mode, self._books.settings.discard_on)

    def _effects(
        self, source: CompletedCheckpoint, kind: RestoreKind, *, allow_non_restored: bool
    ) -> list[FlinkEffect]:
        books = self._books
        checked = kind in {RestoreKind.INITIAL, RestoreKind.SAVEPOINT}
        if checked:
            check_finished(source, books.topology)
        effects: list[FlinkEffect] = []
        if kind is RestoreKind.SAVEPOINT:
            effects.append(SetNextCheckpointId(CheckpointId(source.id + 1)))
        effects.extend(assign(source, books.topology, allow_non_restored=allow_non_restored))
        hooks = restore_hooks(source.id, source.master_states, books.hooks, allow_non_restored=allow_non_restored)
        effects.extend(hooks)
        if kind is not RestoreKind.REGION:
            names = books.settings.operator_coordinators
            effects.extend(
                restore_coordinators(source.id, dict.fromkeys(names) | dict(source.coordinator_states), names)
            )
        effects.append(RestoreFinished(source.id, checked))
        return effects

    def _adopt(self, savepoint: CompletedCheckpoint, mode: RestoreMode) -> None:
        store = self._books.store
        if not isinstance(store.registry, FlinkRegistry):
            raise TypeError("a store that takes a savepoint in needs a FlinkRegistry: it says who owns the files")
        store.registry.register_restored(savepoint.id, shared_handles(savepoint), mode)
        self._completion.let_go(savepoint.id, store.add(savepoint))

    def _restart(self, kind: RestoreKind) -> list[FlinkEffect]:
        effects: list[FlinkEffect] = [*reset_hooks(self._books.hooks)]
        if kind is RestoreKind.LATEST:
            effects.extend(restore_coordinators(None, {}, self._books.settings.operator_coordinators))
        return [*effects, RestoreFinished(None, finished_checked=False)]


def _adopted(
    savepoint: CompletedCheckpoint, mode: RestoreMode, discard_on: frozenset[DiscardCause]
) -> CompletedCheckpoint:
    """Return the savepoint as the store keeps it. `mode` says who owns its files (Flink: `restoreSavepoint`)."""
    match mode:
        case RestoreMode.CLAIM:
            return replace(savepoint, properties=CHECKPOINT, discard_on=discard_on)
        case RestoreMode.NO_CLAIM:
            return replace(savepoint, properties=CHECKPOINT, discard_on=DISCARD_NEVER, unclaimed=True)
        case RestoreMode.LEGACY:
            legacy = CheckpointProperties(kind=SnapshotKind.SAVEPOINT)
            return replace(savepoint, properties=legacy, discard_on=DISCARD_NEVER)


def assign(checkpoint: CompletedCheckpoint, topology: Topology, *, allow_non_restored: bool) -> Iterator[AssignState]:
    """Yield each task's own state.

    Raise RestoreRefusedError for state that no task takes, and for changed key groups. The parallelism must be the same
    as the checkpoint's. Redistribution is planned over key groups, where the files are known
    (`checkpointing.job.restoring`).
    """
    _check_takers(checkpoint, topology, allow_non_restored=allow_non_restored)
    _check_key_groups(checkpoint, topology)
    return (AssignState(task, checkpoint.id, checkpoint.states.get(task)) for task in topology.tasks())


def _check_takers(checkpoint: CompletedCheckpoint, topology: Topology, *, allow_non_restored: bool) -> None:
    known = {vertex.name for vertex in topology.vertices}
    for vertex in checkpoint.vertices:
        if vertex.name not in known and not allow_non_restored:
            raise RestoreRefusedError(
                f"checkpoint {checkpoint.id} holds state of operator {vertex.name!r}, which the job no longer has; "
                "put the operator back, or allow non-restored state to lose it"
            )


def _check_key_groups(checkpoint: CompletedCheckpoint, topology: Topology) -> None:
    stored = {vertex.name: vertex for vertex in checkpoint.vertices}
    for vertex in topology.vertices:
        was = stored.get(vertex.name)
        if was is None:
            continue
        if vertex.max_parallelism_set and was.max_parallelism != vertex.max_parallelism:
            raise RestoreRefusedError(
                f"operator {vertex.name!r} has max parallelism {vertex.max_parallelism}, but checkpoint "
                f"{checkpoint.id} was taken with {was.max_parallelism}; set it back to {was.max_parallelism}"
            )
