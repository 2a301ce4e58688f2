"""Which files of a restored checkpoint may be deleted, as Flink's cases have it."""

import pytest

from spec.flink.shared_state import FlinkRegistry, RestoredKind, RestoreMode


@pytest.mark.parametrize(
    ("mode", "discarded"), [(RestoreMode.CLAIM, {"old"}), (RestoreMode.NO_CLAIM, set()), (RestoreMode.LEGACY, set())]
)
def test_unclaimed_files_are_forgotten_but_never_deleted(mode, discarded):
    """Only a claimed restore's files are the job's to delete (FLINK-26985)."""
    registry = FlinkRegistry()
    registry.register_restored(3, {"old": "old"}, mode)
    registry.register("new", "new", 4)
    assert discarded == set(registry.unregister_unused(4).discarded)
    assert len(registry) == 1


def test_a_native_savepoints_folder_stays_while_its_files_are_used():
    """Its shared files lie inside it; a retained checkpoint's do not."""
    for kind, in_use in ((RestoredKind.NATIVE_SAVEPOINT, {3}), (RestoredKind.RETAINED_CHECKPOINT, set())):
        registry = FlinkRegistry()
        registry.register_restored(3, {"k": "h"}, RestoreMode.CLAIM, kind)
        registry.register("k", "h", 5)
        assert in_use == registry.unregister_unused(5).in_use
