"""What differs from tick to tick."""

from dataclasses import dataclass, field

from checkpointing.coordinator.restart import NoRestart, RestartStrategy
from checkpointing.identifiers import SplitId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointRequested, StopRequested
from spec.at_the_door import Eyes
from spec.clocks import Jump
from spec.faults import Faults
from spec.pipeline import ORDERS, SPLITS


@dataclass(frozen=True, slots=True, kw_only=True)
class TickPlan:
    """What differs from tick to tick."""

    number: int
    faults: Faults
    parallelism: int
    limits: TickLimits
    patient: bool
    take_over: bool
    stop: StopRequested | None = None
    stop_after_ms: int = 0
    release: int = 0
    """Which release of the pipeline it runs."""
    strategy: RestartStrategy = field(default_factory=NoRestart)
    """Whether it restarts a job that fails."""
    savepoints: tuple[tuple[int, SavepointRequested], ...] = ()
    """What is asked for, and how long after the start (ms), in order."""
    orders: tuple[SplitId, ...] = SPLITS[ORDERS]
    """The splits that the source of the orders has, besides those of the cut that the tick begins from."""
    audited: bool = False
    """Whether its release has the vertex that comes and goes."""
    eyes: Eyes = field(default_factory=Eyes)
    """How it sees the world when it begins."""
    clock_jump: Jump | None = None
    grace_ms: int | None = None
    """What a clean-up at the end gives readers; None: there is none."""
