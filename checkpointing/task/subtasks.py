"""All subtasks of a job, by name. A fact for a subtask that does not exist is refused (B3)."""

from collections.abc import Iterable, Iterator

from checkpointing.graph import Vertex
from checkpointing.handles import StagedFile
from checkpointing.identifiers import CheckpointId, SubtaskId
from checkpointing.task.messages import RefusedFactError, SubtaskEffect, SubtaskFact
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing


class Subtasks:
    """The subtasks' doors, in the order in which they were given."""

    def __init__(self, doors: Iterable[SubtaskCheckpointing]) -> None:
        """Take the doors of all subtasks."""
        self._doors = {door.subtask: door for door in doors}

    def __iter__(self) -> Iterator[SubtaskCheckpointing]:
        """Yield the doors in order."""
        return iter(self._doors.values())

    def __getitem__(self, subtask: SubtaskId) -> SubtaskCheckpointing:
        """Return the subtask's door. Raise RefusedFactError if there is no such subtask."""
        try:
            return self._doors[subtask]
        except KeyError:
            message = f"there is no subtask {subtask}; known are {', '.join(map(str, self._doors))}"
            raise RefusedFactError(message) from None

    def takes(self, checkpoint: CheckpointId, vertex: Vertex) -> bool:
        """Return whether the checkpoint goes on for a subtask of the vertex."""
        return any(self[subtask].takes(checkpoint) for subtask in vertex.subtasks())

    def staged_for(self, checkpoint: CheckpointId, vertex: Vertex) -> Iterator[StagedFile]:
        """Yield the staged files of the vertex's subtasks, unless the checkpoint has ended for them."""
        for subtask in vertex.subtasks():
            if self[subtask].takes(checkpoint):
                yield from self[subtask].staged

    def step(self, subtask: SubtaskId, fact: SubtaskFact) -> tuple[SubtaskEffect, ...]:
        """Step this subtask's door. Raise RefusedFactError, and change nothing, if there is none."""
        return self[subtask].step(fact)
