"""A Dagster component: a `defs.yaml` instead of a call of `build_definitions`."""

from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field

from orchestration.deployment import FRESH_WITHIN, WAITING_WITHIN, Limits, limits_of
from orchestration.naming import GROUPS
from orchestration.pipelines import build_definitions
from orchestration.triggers import HOURLY


class PipelineParameters(BaseModel):
    """The parameters of `dg scaffold defs`."""

    model_config = ConfigDict(extra="forbid")

    pipeline: str = Field(description="A registered pipeline, or module:attribute, as in shop.pipeline:build.")
    schedule: str = Field(default=HOURLY, description="When a tick starts, as a cron expression.")


class PipelineScaffolder(dg.Scaffolder[PipelineParameters]):
    """Writes a `defs.yaml` that Dagster can load without further edits."""

    @classmethod
    def get_scaffold_params(cls) -> type[PipelineParameters]:
        """Return the class of the parameters."""
        return PipelineParameters

    def scaffold(self, request: dg.ScaffoldRequest[PipelineParameters]) -> None:
        """Write the file."""
        dg.scaffold_component(request, request.params.model_dump())


@dg.scaffold_with(PipelineScaffolder)
class CheckpointedPipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """A Tidemark pipeline: its sources, tables and states as assets, its checks, jobs, schedules and sensors."""

    pipeline: str = Field(
        description="A registered pipeline, or module:attribute: a Pipeline, or a function of the data folder.",
        examples=["shop.pipeline:build"],
    )
    schedule: str = Field(default=HOURLY, description="When a tick starts, as a cron expression.")
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of every tick, by the names that `tidemark run --help` shows, with _ for -.",
        examples=[{"retained": 5, "interval_ms": "30s"}],
    )
    warehouse: str | None = Field(default=None, description="The folder of the tables.")
    data: str | None = Field(default=None, description="The folder of the input.")
    key_prefix: list[str] = Field(
        default_factory=list, description="The prefix of every asset key and of every name of a job or sensor."
    )
    group_name: str = Field(default=GROUPS, description="The groups' names; may hold {pipeline} and {layer}.")
    show_state: bool = Field(default=True, description="Whether operators' states are assets.")
    upstream_prefixes: dict[str, list[str]] = Field(
        default_factory=dict,
        description="The key prefixes of other pipelines whose cuts this one reads. By default they have the same one.",
    )
    owners: list[str] = Field(default_factory=list, description="E-mail addresses, or teams as team:NAME.")
    fresh_within: str | None = Field(
        default=None, description="How old the newest checkpoint may be while the sources have more: 30m, 24h."
    )
    waiting_within: str | None = Field(
        default=None, description="How long a row may wait in an operator's state for its counterpart: 30m, 24h."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the pipeline's definitions. Raises what `build_definitions` raises."""
        del context
        limits = {FRESH_WITHIN: self.fresh_within, WAITING_WITHIN: self.waiting_within}
        return build_definitions(
            self.pipeline,
            cron=self.schedule,
            owners=self.owners,
            limits=limits_of(limits, Limits(), "set in defs.yaml"),
            key_prefix=self.key_prefix,
            group_name=self.group_name,
            warehouse=self.warehouse,
            data=self.data,
            settings=self.settings,
            show_state=self.show_state,
            upstream_prefixes=self.upstream_prefixes,
        )
