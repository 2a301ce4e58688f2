"""Tests which files of a restored checkpoint may be deleted, as in Flink's test cases."""

import pytest

from spec.flink.shared_state import FlinkRegistry, RestoredKind, RestoreMode


@pytest.mark.parametrize(
    ("mode", "discarded"), [(RestoreMode.CLAIM, {"old"}), (RestoreMode.NO_CLAIM, set()), (RestoreMode.LEGACY, set())]
)
def test_unclaimed_files_are_forgotten_but_never_deleted(mode, discarded):
    """The job may delete shared files only after a restore that claimed them (FLINK-26985)."""
    registry = FlinkRegistry()
    registry.register_restored(3, {"old": "old"}, mode)
    registry.register("new", "new", 4)
    assert discarded == set(registry.unregister_unused(4).discarded)
    assert len(registry) == 1


def test_a_native_savepoints_folder_stays_while_its_files_are_used():
    """The shared files lie inside the savepoint's folder. Those of a retained checkpoint do not."""
    for kind, in_use in ((RestoredKind.NATIVE_SAVEPOINT, {3}), (RestoredKind.RETAINED_CHECKPOINT, set())):
        registry = FlinkRegistry()
        registry.register_restored(3, {"k": "h"}, RestoreMode.CLAIM, kind)
        registry.register("k", "h", 5)
        assert in_use == registry.unregister_unused(5).in_use
