"""Helps mutants of rollbacks and resets: it makes an entry name another parent than the end of the line."""

from typing import Any

from checkpointing.commit.draft import CommitIdentity
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.graph import JobGraph
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.mutants.planting import Patch


def build_on_the_row_before(patch: Patch, kind: RowKind) -> None:
    """Let a tick that begins from an entry of that kind continue from the entry from which that one was made."""
    real = TwoPhaseCommit.__init__

    def begin(
        self: TwoPhaseCommit,
        graph: JobGraph,
        identity: CommitIdentity,
        *,
        parent: CheckpointRecord | None,
        **more: Any,  # noqa: ANN401 - all else with which a commit begins
    ) -> None:
        if parent is not None and parent.kind is kind:
            parent = parent.model_copy(update={"checkpoint": parent.parent})
        real(self, graph, identity, parent=parent, **more)

    patch.put(TwoPhaseCommit, "__init__", begin)
