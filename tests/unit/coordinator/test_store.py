"""The store keeps N and the right ones; shared files go when nobody uses them, and no earlier."""

import pytest

from checkpointing.coordinator.completed import (
    DISCARD_NEVER,
    DISCARD_UNLESS_STOPPED,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    JobStatus,
    StoreShutDownError,
)
from checkpointing.coordinator.properties import CHECKPOINT, savepoint, synchronous_savepoint
from checkpointing.coordinator.shared_state import (
    RestoredKind,
    RestoreMode,
    SharedStateConflictError,
    SharedStateRegistry,
)
from checkpointing.identifiers import CheckpointId

SAVEPOINT = savepoint(unaligned=False)
STOP = synchronous_savepoint(unaligned=False, terminate=False)


def checkpoint(number, properties=CHECKPOINT, **fields):
    """Return a completed checkpoint."""
    return CompletedCheckpoint(id=number, properties=properties, **fields)


def store(retained=1, *checkpoints):
    """Return a store with its own registry."""
    return CompletedCheckpointStore(retained, SharedStateRegistry(), checkpoints)


@pytest.mark.parametrize(
    ("retained", "added", "kept"),
    [
        (1, [CHECKPOINT, SAVEPOINT, SAVEPOINT], [1, 3]),
        (1, [CHECKPOINT, CHECKPOINT, STOP], [3]),
        (2, [CHECKPOINT, SAVEPOINT, CHECKPOINT], [2, 3]),
        (1, [SAVEPOINT, CHECKPOINT], [2]),
        (3, [CHECKPOINT] * 5, [3, 4, 5]),
    ],
)
def test_which_checkpoints_are_kept(retained, added, kept):
    """Oldest go first; never the newest, nor the newest ordinary one unless the job stopped (E4, FLINK-21351)."""
    holding = store(retained)
    for number, properties in enumerate(added, start=1):
        holding.add(checkpoint(number, properties))
    assert kept == [c.id for c in holding.checkpoints]


def test_what_an_addition_would_subsume_changes_nothing():
    """The commit asks before it is sent; the store is as before."""
    holding = store(1, checkpoint(1))
    before = holding.snapshot()
    assert [1] == [c.id for c in holding.would_subsume(checkpoint(2))]
    assert before == holding.snapshot()


def test_a_subsumed_savepoints_files_stay():
    """A savepoint may leave the store, but it is the user's: nothing of it is deleted."""
    change = store(1, checkpoint(1, SAVEPOINT, discard_on=DISCARD_NEVER)).add(checkpoint(2))
    assert ([1], []) == ([c.id for c in change.subsumed], [c.id for c in change.cleaned])


def test_a_final_status_keeps_what_is_retained():
    """Retained on cancellation stays on disk with all shared files from it on; a finished job's goes (G3)."""
    for status, gone in ((JobStatus.CANCELED, []), (JobStatus.FINISHED, ["a"]), (JobStatus.SUSPENDED, [])):
        holding = store(1, checkpoint(1, discard_on=DISCARD_UNLESS_STOPPED))
        holding.registry.register("a", "a", 1)
        assert gone == list(holding.shut_down(status).shared)


def test_nothing_is_added_to_a_closed_store():
    """A shut-down store refuses by name and stays empty."""
    holding = store()
    holding.shut_down(JobStatus.RUNNING)
    with pytest.raises(StoreShutDownError, match="checkpoint 7"):
        holding.add(checkpoint(7))
    assert holding.checkpoints == ()


def test_the_first_object_stays_under_a_key():
    """An equal copy registered later neither replaces nor discards the first (FLINK-26101)."""
    registry, first, copy = SharedStateRegistry(), ("file", 1), ("file", 1)
    registry.register("k", first, 1)
    assert registry.register("k", copy, 2) is first
    assert registry.unregister_unused(2).discarded == ()


def test_a_conflict_names_key_and_files():
    """Another file under a known key is refused and the entry stays."""
    registry = SharedStateRegistry()
    registry.register("k", "one", 1)
    with pytest.raises(SharedStateConflictError, match="'k' is 'one'"):
        registry.register("k", "two", 2)
    assert registry.unregister_unused(2).discarded == ("one",)


@pytest.mark.parametrize(
    ("mode", "discarded"), [(RestoreMode.CLAIM, {"old"}), (RestoreMode.NO_CLAIM, set()), (RestoreMode.LEGACY, set())]
)
def test_unclaimed_files_are_forgotten_but_never_deleted(mode, discarded):
    """Only a claimed restore's files are the job's to delete (FLINK-26985)."""
    registry = SharedStateRegistry()
    registry.register_restored(3, {"old": "old"}, mode)
    registry.register("new", "new", 4)
    assert discarded == set(registry.unregister_unused(4).discarded)
    assert len(registry) == 1


def test_a_native_savepoints_folder_stays_while_its_files_are_used():
    """Its shared files lie inside it; a retained checkpoint's do not."""
    for kind, in_use in ((RestoredKind.NATIVE_SAVEPOINT, {3}), (RestoredKind.RETAINED_CHECKPOINT, set())):
        registry = SharedStateRegistry()
        registry.register_restored(3, {"k": "h"}, RestoreMode.CLAIM, kind)
        registry.register("k", "h", 5)
        assert in_use == registry.unregister_unused(5).in_use


def test_a_registry_becomes_its_snapshot():
    """Restoring a snapshot gives an equal registry that forgets the same files."""
    registry, restored = SharedStateRegistry(), SharedStateRegistry()
    registry.register_restored(1, {"k": "h"}, RestoreMode.NO_CLAIM)
    registry.register("l", "i", 2)
    restored.restore(registry.snapshot())
    assert registry.snapshot() == restored.snapshot()
    assert registry.unregister_unused(3) == restored.unregister_unused(3)


def test_a_store_that_is_not_durable_ends_with_a_suspension():
    """Nobody can recover what lies in memory only: it goes, its shared files stay; a durable store keeps all."""
    for durable, cleaned in ((True, []), (False, [1])):
        store = CompletedCheckpointStore(1, SharedStateRegistry(), durable=durable)
        store.add(CompletedCheckpoint(id=CheckpointId(1), properties=CHECKPOINT))
        change = store.shut_down(JobStatus.SUSPENDED)
        assert cleaned == [checkpoint.id for checkpoint in change.cleaned]
        assert () == change.shared


def test_a_restored_registry_lets_files_go_in_the_same_order():
    """The order of deletion is that of the keys: a snapshot need not remember who came first."""
    first, second = SharedStateRegistry(), SharedStateRegistry()
    for key in ("b", "c", "a", "d"):
        first.register(key, key, CheckpointId(1))
    second.restore(first.snapshot())
    expected = ("a", "b", "c", "d")
    assert expected == first.unregister_unused(CheckpointId(2)).discarded
    assert expected == second.unregister_unused(CheckpointId(2)).discarded
