"""A pipeline in one Dagster project: its definition, its settings and its names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from checkpointing.metadata.paths import ProtocolPaths
from jobs.launch import Launch, launch
from jobs.pipeline.job_plan import JobPlan
from jobs.pipelines.registry import PipelineReference, project_of
from jobs.settings import InvalidSettingsError, Layer, Problem, TickSettings, duration_ms, resolve
from jobs.storage.address import absolute
from jobs.tick.driver import Inbox
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.warehouse import Warehouse
from orchestration.naming import Naming

FRESH_WITHIN: Final = "fresh_within"
WAITING_WITHIN: Final = "waiting_within"
ARGUMENTS: Final = "given to build_definitions"
"""How messages name a setting that comes from a Dagster project's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of the health checks, in ms: the age of a table, and how long a row may wait in a state."""

    fresh_within_ms: int = 24 * 3_600_000
    waiting_within_ms: int = 24 * 3_600_000


def limits_of(given: Mapping[str, Any], default: Limits, origin: str) -> Limits:
    """Return the limits that FRESH_WITHIN and WAITING_WITHIN give as durations. None leaves the default.

    `origin` says where they were set. Raises InvalidSettingsError.
    """

    def ms(name: str, default_ms: int) -> int:
        if given.get(name) is None:
            return default_ms
        try:
            return duration_ms(given[name])
        except ValueError as error:
            raise InvalidSettingsError((Problem(name, str(error), origin),)) from error

    return Limits(
        fresh_within_ms=ms(FRESH_WITHIN, default.fresh_within_ms),
        waiting_within_ms=ms(WAITING_WITHIN, default.waiting_within_ms),
    )


class TickRunner(Protocol):
    """A function that runs a tick: `jobs.tick.tick.run_tick`, or the same with another engine."""

    def __call__(
        self, plan: JobPlan, settings: RuntimeSettings, listener: TickListener | None = None, *, inbox: Inbox
    ) -> TickReport:
        """Run one tick (see `run_tick`)."""
        ...


def arguments(values: Mapping[str, object]) -> Layer:
    """Return the layer of settings from the project's code. None means that an argument was not given."""
    return Layer(ARGUMENTS, {name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The data that all definitions of a pipeline share.

    `given` are the settings of the project's code. They override the environment, and the launchpad overrides them.
    `plan` is the pipeline at the time when the project was loaded.
    """

    reference: PipelineReference
    given: Layer
    naming: Naming
    plan: JobPlan
    limits: Limits
    runner: TickRunner = run_tick

    def launch(self, launchpad: Layer | None = None) -> Launch:
        """Return the pipeline and its present settings. Raises what `jobs.launch.launch` raises."""
        return launch(self.reference, self.given, *(() if launchpad is None else (launchpad,)))

    def resolved(self, launchpad: Layer | None = None) -> TickSettings:
        """Return the present settings, without building the pipeline. Raises InvalidSettingsError."""
        given = () if launchpad is None else (launchpad,)
        return resolve({}, self.given, *given, project=project_of(self.reference))

    def warehouse(self, settings: TickSettings) -> Warehouse:
        """Return the job in the warehouse that these settings name."""
        return Warehouse(absolute(settings.warehouse), ProtocolPaths(self.plan.job))
