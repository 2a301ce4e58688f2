"""Tests which checkpoints and shared files stay when a store is closed, as in Flink's test cases."""

import pytest

from checkpointing.coordinator.completed import DISCARD_UNLESS_STOPPED, CompletedCheckpoint, SharedStateRegistry
from checkpointing.coordinator.properties import CHECKPOINT
from spec.flink.completed_store import FlinkCheckpointStore, JobStatus, StoreShutDownError


def checkpoint(number, **fields):
    """Return a completed checkpoint."""
    return CompletedCheckpoint(id=number, properties=CHECKPOINT, **fields)


def store(*checkpoints):
    """Return a store that keeps one checkpoint, with its own registry."""
    return FlinkCheckpointStore(1, SharedStateRegistry(), checkpoints)


def test_a_final_status_keeps_retained_checkpoints():
    """A checkpoint retained on cancellation stays on disk, with its shared files.

    If the job finished, it is deleted (G3).
    """
    for status, gone in ((JobStatus.CANCELED, []), (JobStatus.FINISHED, ["a"]), (JobStatus.SUSPENDED, [])):
        holding = store(checkpoint(1, discard_on=DISCARD_UNLESS_STOPPED))
        holding.registry.register("a", "a", 1)
        assert gone == list(holding.shut_down(status).shared)


def test_nothing_is_added_to_a_closed_store():
    """A store that was shut down refuses, and stays empty."""
    holding = store()
    holding.shut_down(JobStatus.RUNNING)
    with pytest.raises(StoreShutDownError, match="checkpoint 7"):
        holding.add(checkpoint(7))
    assert holding.checkpoints == ()


def test_suspension_empties_a_store_in_memory_only():
    """Nobody can recover checkpoints that are only in memory, so they are deleted without their shared files.

    A durable store keeps all.
    """
    for durable, cleaned in ((True, []), (False, [1])):
        holding = FlinkCheckpointStore(1, SharedStateRegistry(), durable=durable)
        holding.add(checkpoint(1))
        change = holding.shut_down(JobStatus.SUSPENDED)
        assert cleaned == [each.id for each in change.cleaned]
        assert () == change.shared
