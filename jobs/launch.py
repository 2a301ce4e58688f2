"""Turns a pipeline's name and the user's settings into the plan and configuration of a tick.

The command line and Dagster both use it.
"""

from dataclasses import dataclass, replace

from checkpointing.metadata.paths import ProtocolPaths
from jobs.catalogs.port import CatalogSettings
from jobs.pipeline import Pipeline
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.pipelines.registry import PipelineReference, find_pipeline, project_of
from jobs.settings import Layer, TickSettings, folder, resolve
from jobs.spark.session import SparkConfig
from jobs.storage.address import absolute
from jobs.tick.tick_settings import ReporterSettings, RuntimeSettings
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Launch:
    """A pipeline as it will run, with the settings of this tick."""

    settings: TickSettings
    plan: JobPlan

    @property
    def warehouse(self) -> Warehouse:
        """The job in its warehouse, whose folder is an absolute path."""
        return Warehouse(absolute(self.settings.warehouse), ProtocolPaths(self.plan.job))

    def runtime(self) -> RuntimeSettings:
        """Return the settings of the tick's run. Dagster adds its run with `dataclasses.replace`."""
        return RuntimeSettings(
            warehouse=self.settings.warehouse,
            limits=self.settings.limits(),
            take_over=self.settings.take_over,
            allow_non_restored_state=self.settings.allow_non_restored_state,
            spark=spark_config(self.settings),
            reader_grace_ms=self.settings.reader_grace_ms if self.settings.clean_up else None,
            table_log_keep_ms=self.settings.table_log_keep_ms,
            reporters=ReporterSettings(
                names=self.settings.reporters,
                prometheus_folder=self.settings.prometheus_folder,
                prometheus_push_url=self.settings.prometheus_push_url,
                catalog=catalog_settings(self.settings),
            ),
        )


def launch(reference: PipelineReference, *given: Layer) -> Launch:
    """Find the pipeline, resolve its settings, and plan it. Nothing is started or created.

    A later layer of `given` wins over an earlier one.

    Relative paths begin at the pipeline's project (see `project_of`). Raises UnknownPipelineError,
    InvalidProjectError, InvalidSettingsError, and what the pipeline and the planner refuse.
    """
    project = project_of(reference)
    pipeline = find_pipeline(reference, folder("data", *given, project=project), project)
    settings = resolve(_own(pipeline), *given, pipeline=f"pipeline {pipeline.name}", project=project)
    return Launch(settings, plan(pipeline, parallelism=settings.parallelism, config=settings.checkpoint_config()))


def catalog_settings(settings: TickSettings) -> CatalogSettings | None:
    """Return the settings of the catalog, or None if tables are entered into no catalog."""
    if settings.catalog is None:
        return None
    return CatalogSettings(name=settings.catalog, url=settings.catalog_url, schema=settings.catalog_schema or "")


def spark_config(settings: TickSettings) -> SparkConfig:
    """Return the settings for the Spark session."""
    known = SparkConfig(
        master=settings.spark_master,
        connect_url=settings.spark_connect_url,
        memory=settings.spark_memory,
        archive=settings.spark_archive,
    )
    return known if settings.spark_cores is None else replace(known, cores=settings.spark_cores)


def _own(pipeline: Pipeline) -> dict[str, object]:
    """Return the settings that the pipeline itself gives."""
    config = pipeline.config
    set_ = {name: getattr(config, name) for name in config.model_fields_set}
    return set_ | {"parallelism": pipeline.parallelism, "hold": pipeline.hold}
