"""Collects the jars that the sources need, so that the tick's Spark session has them from its start."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, runtime_checkable

from jobs.sources.port import Source, layers
from jobs.spark.session import SparkConfig


@runtime_checkable
class NeedsJars(Protocol):
    """Optional for a source that needs jars beyond those of Spark."""

    @property
    def jar_sets(self) -> tuple[str, ...]:
        """Return the names of the sets in `jobs.spark.jar_sets`."""
        ...


def with_needed_jars(config: SparkConfig, sources: Iterable[Source]) -> SparkConfig:
    """Return the configuration of a session that can read all these sources."""
    each = (layer for source in sources for layer in layers(source))
    needed = (name for layer in each if isinstance(layer, NeedsJars) for name in layer.jar_sets)
    return replace(config, jar_sets=tuple(dict.fromkeys([*config.jar_sets, *needed])))
