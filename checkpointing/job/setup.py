"""What the job door is built from, once a tick has claimed the job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpointing.commit.net import Renamed
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph
from checkpointing.identifiers import JobName, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class TickLimits:
    """When a tick ends by itself; the first limit that is met ends it, after a last checkpoint."""

    until_caught_up: bool = True
    """End when every split has been found idle and everything read is committed."""
    checkpoints: int | None = None
    """End after this many completed checkpoints."""
    duration_ms: int | None = None
    """End this long after the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """One tick's job. `retained` are the rows of all cuts that are there, savepoints too: what those name is kept.

    `restored` is the newest checkpoint among them, under the names of the graph, or None: from the start. `versions`
    are the tables' Delta versions at that cut; `renamed` are the tables that no row has published under their names.
    `rows_per_epoch` caps what a source sends between two barriers (ids left out: no cap).
    `seed` draws the first periodic trigger's delay.
    """

    graph: JobGraph
    config: CheckpointConfig
    job: JobName
    claim: Claim
    at_version: int
    restored: CheckpointRecord | None = None
    retained: tuple[CheckpointRecord, ...] = ()
    versions: Mapping[TableName, int] = field(default_factory=dict)
    renamed: Mapping[TableName, Renamed] = field(default_factory=dict)
    rows_per_epoch: Mapping[VertexId, int] = field(default_factory=dict)
    limits: TickLimits = TickLimits()
    allow_non_restored_state: bool = False
    """Whether state of the cut that no vertex of the graph takes is left behind (G2)."""
    seed: int = 0
    idle_poll_ms: int = 500
    """How long an idle split is left alone before it is asked again."""
    linger_ms: int = 1_000
    """How long segments may wait for company while more is on its way: fewer, larger micro-batches."""
    credit_bytes: int = 64 * 1024 * 1024
    """Back-pressure: what may lie in one channel, sent and not yet processed."""
