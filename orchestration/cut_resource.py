"""Gives all steps of a Dagster run a pipeline's tables at the same checkpoint.

The run reserves the cut, so that no clean-up deletes it while the run lasts. The metadata of the run's materializations
names the cut.
"""

from contextlib import ExitStack
from threading import Lock
from typing import Any, TypeVar, cast

import dagster as dg
import polars as pl
from dagster._core.errors import DagsterInvariantViolationError
from dagster._core.execution.context.system import StepExecutionContext
from pydantic import Field, PrivateAttr

from jobs.reading import Cut, Cuts
from jobs.reading.frames import read_as
from jobs.settings import duration_ms
from orchestration.tags import PIPELINE

Frame = TypeVar("Frame")


class CutResource(dg.ConfigurableResource[Cut]):
    """Reads the tables of one pipeline at one cut until the run ends. It is the newest cut at the run's first read.

    A run of a partition reads the cut at which the partition was last materialized, if that cut is still kept.

    ```python
    @dg.asset(deps=[dg.AssetKey(["gold", "by_customer"])])
    def report(shop_cut: CutResource) -> None:
        totals = shop_cut.read("gold/by_customer", pl.DataFrame)
        orders = shop_cut.cut().arrow("silver/orders")
    ```
    """

    pipeline: str = Field(description="The pipeline's name.")
    warehouse: str = Field(description="The folder of its tables.")
    keep_for: str = Field(
        default="1h",
        description="How long the cut stays readable after the last sign of life of the run, as 30m or 2h: longer "
        "than the longest time between two of its steps.",
    )

    _run: str | None = PrivateAttr(default=None)
    _cut: Cut | None = PrivateAttr(default=None)
    _open: ExitStack = PrivateAttr(default_factory=ExitStack)
    _lock: Any = PrivateAttr(default_factory=Lock)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Remember the run. Nothing is reserved until a step reads."""
        self._run = context.run.run_id if context.run is not None else None

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop renewing the reservation. It is left to lapse, since other steps of the run can follow."""
        del context
        self._open.close()
        self._cut = None

    def cut(self) -> Cut:
        """Return the run's cut, and name it in the metadata of the asset that reads it.

        Raises ValueError if `keep_for` is not a duration, and what `Cuts.reserved` raises.
        """
        step = _current_step()
        cut = self.reserved(step)
        if step is not None:
            note(step, cut)
        return cut

    def read(self, table: str, kind: type[Frame]) -> Frame:
        """Return a table at the run's cut as a frame of that class, such as `polars.DataFrame` (see `read_as`)."""
        return cast("Frame", read_as(self.cut(), table, kind))

    def reserved(self, step: StepExecutionContext | None) -> Cut:
        """Return the run's cut, reserved by this process too. The first step of the run that reads chooses the cut."""
        with self._lock:
            if self._cut is None:
                cuts = Cuts(self.warehouse, self.pipeline)
                at = None if step is None else _of_partition(step, self.pipeline)
                kept = cuts.reserved(self._run, at=at, lease_ms=duration_ms(self.keep_for))
                self._cut = self._open.enter_context(kept)
            return self._cut


class CutIOManager(dg.ConfigurableIOManager):
    """Loads a pipeline's tables as arguments of downstream assets, at the run's cut, as the annotated class.

    ```python
    @dg.asset(ins={"totals": dg.AssetIn(key=["gold", "by_customer"])})
    def report(totals: pl.DataFrame) -> None: ...
    ```
    `build_definitions` gives each table's asset this manager. An argument without annotation is a `polars.LazyFrame`.
    """

    cuts: dg.ResourceDependency[CutResource]
    key_prefix: list[str] = Field(default=[], description="The prefix of the tables' asset keys.")

    def load_input(self, context: dg.InputContext) -> object:
        """Return the table of the upstream asset. Raises what `CutResource.read` raises."""
        parts = list(context.asset_key.path)[len(self.key_prefix) :]
        wanted = context.dagster_type.typing_type
        cut = self.cuts.reserved(context.step_context)
        loaded = read_as(cut, "/".join(parts), pl.LazyFrame if wanted is Any else wanted)
        context.add_input_metadata(_told(cut) | {"delta_version": cut.version("/".join(parts))})
        note(context.step_context, cut)
        return loaded

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Refuse to write: only ticks write a pipeline's tables."""
        del obj
        raise dg.Failure(
            f"{context.asset_key.to_user_string()} cannot be written by this I/O manager, since only ticks write a "
            "pipeline's tables: give the asset another io_manager_key, such as 'io_manager'",
            allow_retries=False,
        )


def note(step: StepExecutionContext, cut: Cut) -> None:
    """Add the cut to the metadata of all assets that the step materializes."""
    for key in () if step.assets_def is None else step.assets_def.keys:
        step.add_asset_metadata(_told(cut), asset_key=key)


def _of_partition(step: StepExecutionContext, pipeline: str) -> int | None:
    """Return the newest checkpoint at which an upstream table of the step was materialized for the step's partition.

    None: the run has no partition, or no upstream table of this pipeline was materialized for it.
    """
    if not step.has_partition_key or step.assets_def is None:
        return None
    found: list[int] = []
    for key in step.assets_def.dependency_keys:
        wanted = dg.AssetRecordsFilter(key, asset_partitions=[step.partition_key])
        for record in step.instance.fetch_materializations(wanted, 1).records:
            event = record.asset_materialization
            told = {} if event is None else {name: each.value for name, each in event.metadata.items()}
            checkpoint = told.get("checkpoint")
            if told.get(PIPELINE) == pipeline and isinstance(checkpoint, int):
                found.append(checkpoint)
    return max(found, default=None)


def _told(cut: Cut) -> dict[str, Any]:
    return {
        f"{cut.job}_checkpoint": dg.MetadataValue.int(cut.checkpoint),
        f"{cut.job}_cut_of": dg.MetadataValue.timestamp(cut.published_at),
    }


def _current_step() -> StepExecutionContext | None:
    """Return the step that runs in this thread. None outside a run, such as in a unit test that calls an asset."""
    try:
        context = dg.OpExecutionContext.get()
    except DagsterInvariantViolationError:
        return None
    return context.get_step_execution_context()
