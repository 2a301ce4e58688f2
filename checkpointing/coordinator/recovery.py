"""Carries out a restore on the books: which checkpoint, who is told, what it changes (G1, G3)."""

from dataclasses import replace

from checkpointing.coordinator.books import Books
from checkpointing.coordinator.completed import (
    DISCARD_NEVER,
    CompletedCheckpoint,
    DiscardCause,
    RestoreMode,
)
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.messages import (
    CoordinatorEffect,
    RestoreFinished,
    RestoreKind,
    RestoreRequested,
    SetNextCheckpointId,
)
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, SnapshotKind
from checkpointing.coordinator.restoring import (
    RestoreRefusedError,
    assign,
    check_finished,
    reset_hooks,
    restore_coordinators,
    restore_hooks,
)
from checkpointing.identifiers import CheckpointId


class Recovery:
    """Restores the job from the newest completed checkpoint, or from a savepoint."""

    __slots__ = ("_books", "_completion")

    def __init__(self, books: Books, completion: Completion) -> None:
        """Work on these books; `completion` discards what leaves the store."""
        self._books = books
        self._completion = completion

    def restore(self, fact: RestoreRequested) -> None:
        """Restore; raise RestoreRefusedError if it does not fit, or the coordinator is shut down.

        A savepoint is checked before it enters the store, so a refusal changes nothing.
        """
        if self._books.is_shut_down:
            raise RestoreRefusedError("the coordinator is shut down; a new one must restore the job")
        source = self._source(fact)
        if source is None:
            self._restart(fact.kind)
            return
        allow = fact.allow_non_restored or fact.kind is RestoreKind.REGION
        effects = self._effects(source, fact.kind, allow_non_restored=allow)
        self._books.effects.extend(effects)
        if fact.kind is RestoreKind.SAVEPOINT:
            self._adopt(source, fact.mode)
        self._books.force_full = source.unclaimed
        self._books.statistics.restored(source.id)

    def _source(self, fact: RestoreRequested) -> CompletedCheckpoint | None:
        if fact.kind is not RestoreKind.SAVEPOINT:
            return self._books.store.latest
        if fact.savepoint is None:
            raise RestoreRefusedError("no savepoint was given to restore from; name one")
        return _adopted(fact.savepoint, fact.mode, self._books.settings.discard_on)

    def _effects(
        self, source: CompletedCheckpoint, kind: RestoreKind, *, allow_non_restored: bool
    ) -> list[CoordinatorEffect]:
        books = self._books
        checked = kind in {RestoreKind.INITIAL, RestoreKind.SAVEPOINT}
        if checked:
            check_finished(source, books.topology)
        effects: list[CoordinatorEffect] = []
        if kind is RestoreKind.SAVEPOINT:
            effects.append(SetNextCheckpointId(CheckpointId(source.id + 1)))
        effects.extend(assign(source, books.topology, allow_non_restored=allow_non_restored))
        effects.extend(restore_hooks(source, books.hooks, allow_non_restored=allow_non_restored))
        if kind is not RestoreKind.REGION:
            effects.extend(restore_coordinators(source, books.settings.operator_coordinators))
        effects.append(RestoreFinished(source.id, checked))
        return effects

    def _adopt(self, savepoint: CompletedCheckpoint, mode: RestoreMode) -> None:
        store = self._books.store
        store.registry.register_restored(savepoint.id, savepoint.shared_handles, mode)
        self._completion.let_go(savepoint.id, store.add(savepoint))

    def _restart(self, kind: RestoreKind) -> None:
        self._books.effects.extend(reset_hooks(self._books.hooks))
        if kind is RestoreKind.LATEST:
            self._books.effects.extend(restore_coordinators(None, self._books.settings.operator_coordinators))
        self._books.emit(RestoreFinished(None, finished_checked=False))


def _adopted(
    savepoint: CompletedCheckpoint, mode: RestoreMode, discard_on: frozenset[DiscardCause]
) -> CompletedCheckpoint:
    """Return the savepoint as it enters the store: the job's own, or somebody else's (Flink: `restoreSavepoint`)."""
    match mode:
        case RestoreMode.CLAIM:
            return replace(savepoint, properties=CHECKPOINT, discard_on=discard_on)
        case RestoreMode.NO_CLAIM:
            return replace(savepoint, properties=CHECKPOINT, discard_on=DISCARD_NEVER, unclaimed=True)
        case RestoreMode.LEGACY:
            legacy = CheckpointProperties(kind=SnapshotKind.SAVEPOINT)
            return replace(savepoint, properties=legacy, discard_on=DISCARD_NEVER)
