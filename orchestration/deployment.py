"""A pipeline in one Dagster project: its definition, its settings and its names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from jobs.launch import Launch, launch
from jobs.pipelines.registry import PipelineReference
from jobs.planner import JobPlan
from jobs.runtime.driver import Inbox
from jobs.runtime.listener import TickListener
from jobs.runtime.tick import RuntimeSettings, TickReport, run_tick
from jobs.settings import Layer
from orchestration.limits import Limits
from orchestration.naming import Naming

ARGUMENTS: Final = "given to build_definitions"
"""The name, in messages, of the place where a Dagster project's code gives a setting."""


class TickRunner(Protocol):
    """Runs a tick: `jobs.runtime.tick.run_tick`, or the same with another engine."""

    def __call__(
        self, plan: JobPlan, settings: RuntimeSettings, listener: TickListener | None = None, *, inbox: Inbox
    ) -> TickReport:
        """Run one tick; see `run_tick`."""
        ...


def arguments(values: Mapping[str, object]) -> Layer:
    """Return the layer of settings that the project's code gives; None means that an argument was not given."""
    return Layer(ARGUMENTS, {name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What all definitions of a pipeline share.

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
        """Return the pipeline and its settings as they are now; raises what `jobs.launch.launch` raises."""
        return launch(self.reference, self.given, *(() if launchpad is None else (launchpad,)))
