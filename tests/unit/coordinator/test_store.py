"""The store keeps N checkpoints. A shared file is deleted when nobody uses it, and not earlier."""

import pytest

from checkpointing.coordinator.completed import (
    DISCARD_NEVER,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    SharedStateConflictError,
    SharedStateRegistry,
)
from checkpointing.coordinator.properties import CHECKPOINT, savepoint, synchronous_savepoint
from checkpointing.identifiers import CheckpointId
from spec.explore_branching import digest

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
def test_the_oldest_checkpoints_are_subsumed(retained, added, kept):
    """Never the newest, nor the newest ordinary one unless the job stopped (E4, FLINK-21351)."""
    holding = store(retained)
    for number, properties in enumerate(added, start=1):
        holding.add(checkpoint(number, properties))
    assert kept == [c.id for c in holding.checkpoints]


def test_asking_what_an_addition_would_subsume_changes_nothing():
    """The commit asks before it is sent."""
    holding = store(1, checkpoint(1))
    before = digest([holding])
    assert [1] == [c.id for c in holding.would_subsume(checkpoint(2))]
    assert before == digest([holding])


def test_a_subsumed_savepoints_files_stay():
    """A savepoint may leave the store, but the user owns it, so none of its files is deleted."""
    change = store(1, checkpoint(1, SAVEPOINT, discard_on=DISCARD_NEVER)).add(checkpoint(2))
    assert ([1], []) == ([c.id for c in change.subsumed], [c.id for c in change.cleaned])


def test_the_first_object_stays_under_a_key():
    """An equal copy that is registered later neither replaces nor discards the first one (FLINK-26101)."""
    registry, first, copy = SharedStateRegistry(), ("file", 1), ("file", 1)
    registry.register("k", first, 1)
    assert registry.register("k", copy, 2) is first
    assert registry.unregister_unused(2).discarded == ()


def test_a_conflict_names_key_and_files():
    """Another file under a known key is refused, and the entry stays."""
    registry = SharedStateRegistry()
    registry.register("k", "one", 1)
    with pytest.raises(SharedStateConflictError, match="'k' is 'one'"):
        registry.register("k", "two", 2)
    assert registry.unregister_unused(2).discarded == ("one",)


def test_a_registry_deletes_files_in_the_order_of_their_keys():
    """The order in which they came does not matter.

    So a registry that is rebuilt from the entries deletes in the same order.
    """
    registry = SharedStateRegistry()
    for key in ("b", "c", "a", "d"):
        registry.register(key, key, CheckpointId(1))
    assert ("a", "b", "c", "d") == registry.unregister_unused(CheckpointId(2)).discarded
