"""What the job door needs to begin, once a tick has claimed the job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpointing.commit.net_files import Renamed
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.properties import CHECKPOINT, HELD, CheckpointProperties
from checkpointing.graph import JobGraph
from checkpointing.identifiers import JobName, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class TickLimits:
    """When a tick ends by itself. It takes a last checkpoint when it reaches the first of these limits."""

    until_caught_up: bool = True
    """End the tick when every split is idle and every row that was read is committed."""
    checkpoints: int | None = None
    """End the tick after this many completed checkpoints."""
    duration_ms: int | None = None
    """End the tick this long after its start."""
    hold: bool = False
    """Hold the first checkpoint until a person approves it, and end the tick. No row of it is visible before that."""

    @property
    def checkpoint(self) -> CheckpointProperties:
        """The properties of the checkpoints that the tick itself or its interval requests."""
        return HELD if self.hold else CHECKPOINT


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """The job of one tick. `retained` has the entries of all existing cuts and savepoints. Their files are kept.

    `restored` is the newest checkpoint among them, under the graph's names. None: begin at the start. `versions` are
    the tables' Delta versions at that cut. `renamed` are the tables that no entry has published under their names yet.
    `rows_per_epoch` limits the rows that a source sends between two barriers. Sources that are left out have no limit.
    `cut_groups` names the upstream job of each source that reads another job's cuts. All tables of that job are read at
    one cut (A10). `seed` decides the delay of the first periodic trigger.
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
    cut_groups: Mapping[VertexId, str] = field(default_factory=dict)
    limits: TickLimits = TickLimits()
    allow_non_restored_state: bool = False
    """True if state of the cut for which the graph has no vertex may be left behind (G2)."""
    seed: int = 0
    idle_poll_ms: int = 500
    """How long to wait before an idle split is polled again."""
    linger_ms: int = 1_000
    """How long segments may wait for more segments, so that micro-batches are few and large."""
    credit_bytes: int = 64 * 1024 * 1024
    """Back-pressure: how many bytes may lie in one channel that were sent and not yet processed."""
