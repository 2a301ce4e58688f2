"""The coordinators of one job's sources: restored before anything is read, and asked at each checkpoint (A7).

A source coordinator is the part of a source that has state of its own, besides the positions in its splits (Flink:
`SourceCoordinator`, which asks a `SplitEnumerator`). The entry itself holds this state, as a JSON text. Invariants:
before every coordinator has been restored to the job's cut, no row is read and no checkpoint is triggered. An entry
holds exactly what the coordinators answered for it.
"""

from collections.abc import Mapping
from dataclasses import replace

from checkpointing.coordinator.messages import (
    AskOperatorCoordinator,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetOperatorCoordinator,
)
from checkpointing.coordinator.restoring import restore_coordinators
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.inline_state import InvalidInlineStateError, must_be_inline_state
from checkpointing.metadata.record import CheckpointRecord


class SourceCoordinators:
    """Knows which coordinators have not answered yet, and their answers for pending checkpoints."""

    def __init__(self, graph: JobGraph) -> None:
        """Begin without a question to any coordinator."""
        self.names: tuple[str, ...] = tuple(vertex.id for vertex in graph.vertices if vertex.coordinated)
        self._restoring: set[str] = set()
        self._asked: set[tuple[str, CheckpointId]] = set()
        self._states: dict[CheckpointId, dict[str, str]] = {}

    def restore(self, record: CheckpointRecord | None) -> tuple[ResetOperatorCoordinator, ...]:
        """Return the calls that bring each coordinator to the cut. The source of a new vertex begins anew."""
        vertices = () if record is None else record.vertices
        held: dict[str, str | None] = {vertex.vertex: vertex.coordinator for vertex in vertices}
        calls = tuple(restore_coordinators(None if record is None else record.checkpoint, held, self.names))
        self._restoring = {call.coordinator for call in calls}
        return calls

    @property
    def restoring(self) -> bool:
        """True while a coordinator has not been restored yet. Until then the job stands still."""
        return bool(self._restoring)

    def restored(self, coordinator: str) -> None:
        """Note that a coordinator is restored."""
        self._restoring.discard(coordinator)

    def awaits(self, coordinator: str) -> bool:
        """Return whether this coordinator has not been restored yet."""
        return coordinator in self._restoring

    def give_up(self) -> None:
        """Stop waiting for restores, because the tick ends. The coordinator aborts its pending checkpoints."""
        self._restoring.clear()

    def told(self, effect: AskOperatorCoordinator) -> None:
        """Note a question."""
        self._asked.add((effect.coordinator, effect.checkpoint))

    def answered(
        self, fact: OperatorCoordinatorAnswered | OperatorCoordinatorFailed
    ) -> OperatorCoordinatorAnswered | OperatorCoordinatorFailed | None:
        """Keep the state, and return what the checkpoint coordinator must hear; None if nobody waits for the answer.

        The checkpoint coordinator hears of no state, because it would delete a state that it drops, like a file. A
        coordinator that fails declines the checkpoint, as a master hook does.
        """
        asked = fact.coordinator, fact.checkpoint
        if asked not in self._asked:
            return None
        self._asked.discard(asked)
        if isinstance(fact, OperatorCoordinatorFailed):
            return replace(fact, reason=CheckpointFailureReason.CHECKPOINT_DECLINED)
        if fact.state is None:
            return fact
        try:
            must_be_inline_state(fact.state)
        except InvalidInlineStateError as error:
            message = f"the state of source {fact.coordinator!r} {error}"
            return OperatorCoordinatorFailed(*asked, message, CheckpointFailureReason.CHECKPOINT_DECLINED)
        self._states.setdefault(fact.checkpoint, {})[fact.coordinator] = fact.state
        return replace(fact, state=None)

    def states(self, checkpoint: CheckpointId) -> Mapping[str, str]:
        """Return the states for a pending checkpoint, by source."""
        return self._states.get(checkpoint, {})

    def forget(self, checkpoint: CheckpointId) -> None:
        """Forget a checkpoint that has ended."""
        self._asked = {asked for asked in self._asked if asked[1] != checkpoint}
        self._states.pop(checkpoint, None)
