"""Helps mutants of rollbacks and resets: it makes an entry name another parent than the end of the line."""

from collections.abc import Mapping

from checkpointing.commit.draft import CommitIdentity
from checkpointing.commit.net import Renamed
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.graph import JobGraph
from checkpointing.identifiers import TableName
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
        versions: Mapping[TableName, int],
        at_version: int,
        renamed: Mapping[TableName, Renamed],
    ) -> None:
        if parent is not None and parent.kind is kind:
            parent = parent.model_copy(update={"checkpoint": parent.parent})
        real(self, graph, identity, parent=parent, versions=versions, at_version=at_version, renamed=renamed)

    patch.put(TwoPhaseCommit, "__init__", begin)
