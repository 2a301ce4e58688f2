"""Judges what a completed checkpoint says of finished tasks: whether a vertex was over, or a part of it (B4).

A task that had not finished has acknowledged the checkpoint.
"""

from typing import Final

from checkpointing.coordinator.completed import CompletedCheckpoint, FinishedState
from spec.machines.coordinator_model import CoordinatorModel
from spec.machines.judging import expect

RULE: Final = "finished-vertices"


def finished_agree(checkpoint: CompletedCheckpoint, model: CoordinatorModel) -> None:
    """Raise BrokenRuleError unless each vertex is said to be as far as its tasks were."""
    acknowledged = model.checkpoints[checkpoint.id].states
    for vertex in checkpoint.vertices:
        running = [task for task in vertex.tasks if task in acknowledged]
        due = FinishedState.PARTIALLY_FINISHED if running else FinishedState.FULLY_FINISHED
        if len(running) == len(vertex.tasks):
            due = FinishedState.RUNNING
        expect(
            vertex.finished is due, RULE, f"checkpoint {checkpoint.id}: {vertex.name} is {vertex.finished}, not {due}"
        )
