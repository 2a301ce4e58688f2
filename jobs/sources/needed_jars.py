"""Which jars and settings a source's reading needs, so that the tick's Spark session has them from its start."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, runtime_checkable

from jobs.sources.port import Source, every_layer
from jobs.spark.object_stores import with_store
from jobs.spark.session import SparkConfig
from jobs.storage.address import Root


@runtime_checkable
class NeedsJars(Protocol):
    """Optional for a source that needs jars beyond those of Spark."""

    @property
    def jar_sets(self) -> tuple[str, ...]:
        """Return the names of the sets in `jobs.spark.jar_sets`."""
        ...


@runtime_checkable
class ReadsStores(Protocol):
    """Optional for a source whose files may lie in an object store."""

    @property
    def stores(self) -> tuple[Root, ...]:
        """The folders and URLs that Spark reads."""
        ...


def with_needed_jars(config: SparkConfig, sources: Iterable[Source]) -> SparkConfig:
    """Return the configuration of a session that can read all these sources, and the stores in which they lie."""
    each = [layer for source in sources for layer in every_layer(source)]
    needed = (name for layer in each if isinstance(layer, NeedsJars) for name in layer.jar_sets)
    config = replace(config, jar_sets=tuple(dict.fromkeys([*config.jar_sets, *needed])))
    for layer in each:
        for root in layer.stores if isinstance(layer, ReadsStores) else ():
            config = with_store(config, root)
    return config
