"""What differs from tick to tick."""

from dataclasses import dataclass, field

from checkpointing.identifiers import SplitId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointRequested, StopRequested
from checkpointing.tick.attempts import NoRestart, RestartStrategy
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
    """The release of the pipeline that it runs."""
    strategy: RestartStrategy = field(default_factory=NoRestart)
    """Whether it restarts a failed job."""
    savepoints: tuple[tuple[int, SavepointRequested], ...] = ()
    """The requests, each with its time after the start (ms), in order."""
    orders: tuple[SplitId, ...] = SPLITS[ORDERS]
    """The splits of the orders' source, in addition to those of the cut from which the tick begins."""
    audited: bool = False
    """True if its release has the vertex that comes and goes."""
    eyes: Eyes = field(default_factory=Eyes)
    """What it sees of the world when it begins."""
    clock_jump: Jump | None = None
    grace_ms: int | None = None
    """The grace for readers of a clean-up at the end. None: there is no clean-up."""
