"""Settings of one tick, for any pipeline.

`jobs/settings.py` resolves what a user sets, and `jobs/launch.py` makes these settings of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointCounts, CheckpointFailure, CheckpointRecord
from jobs.catalogs.port import CatalogSettings
from jobs.settings import DEFAULT_READER_GRACE_MS, DEFAULT_TABLE_LOG_KEEP_MS
from jobs.spark.session import SparkConfig
from jobs.storage.address import Root
from jobs.tick.carrier import LEASE_MS
from jobs.tick.trace_files import DEFAULT_BOUNDS, TraceBounds
from jobs.warehouse.warehouse import system_clock_ms

DRAIN_MS: Final = 10_000
"""At its end, a tick waits this long for running effects whose answers it no longer needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReporterSettings:
    """Which reporters a tick has, and where the Prometheus reporter writes to. See `jobs.settings.TickSettings`."""

    names: tuple[str, ...] = ()
    prometheus_folder: Path | None = None
    prometheus_push_url: str | None = None
    catalog: CatalogSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """Says how a tick runs. All processes of the job must be able to reach `warehouse`.

    `dagster_run` is the id of the Dagster run that this tick belongs to. `run_ended` returns whether another Dagster
    run has ended, or None if it does not know. Clean-up deletes unneeded files after `reader_grace_ms`, and log entries
    of output tables after `table_log_keep_ms`, at the earliest. If `reader_grace_ms` is None, this tick deletes
    neither. `clock` returns ms since the epoch.
    """

    warehouse: Root
    limits: TickLimits = field(default_factory=TickLimits)
    take_over: bool = False
    allow_non_restored_state: bool = False
    spark: SparkConfig = field(default_factory=SparkConfig)
    dagster_run: str | None = None
    run_ended: Callable[[str], bool | None] | None = None
    reader_grace_ms: int | None = DEFAULT_READER_GRACE_MS
    table_log_keep_ms: int = DEFAULT_TABLE_LOG_KEEP_MS
    lease_ms: int = LEASE_MS
    trace: TraceBounds = DEFAULT_BOUNDS
    drain_ms: int = DRAIN_MS
    clock: Callable[[], int] = system_clock_ms
    reporters: ReporterSettings = field(default_factory=ReporterSettings)


# ------------------------------------------------------------------
# The report that a tick returns to its caller.


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """Reports how a tick ended. If it failed, `reason` and `message` say why, and `message` names a way out.

    `completed` has the newest checkpoints that the tick completed or rolled forward, oldest first. `generation` and
    `trace` belong to the last attempt. If the job had already finished, they belong to the tick that finished it.
    `restarts` is the number of attempts before the last one. `counts` covers all attempts.
    """

    outcome: TickOutcome
    generation: Generation
    completed: tuple[CheckpointRecord, ...]
    message: str
    reason: CheckpointFailureReason | None
    seconds: float
    trace: Path
    restarts: int = 0
    counts: CheckpointCounts
    failed: tuple[CheckpointFailure, ...] = ()
    """The newest checkpoints of all attempts that failed, oldest first."""

    @property
    def why(self) -> str:
        """Why the tick failed: the reason and the message, or the message alone if it includes the reason."""
        reason = "the tick failed" if self.reason is None else self.reason.message
        said = self.message or f"see the trace {self.trace}"
        return said if reason in said else f"{reason}: {said}"
