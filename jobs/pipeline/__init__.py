"""The classes with which a user describes a pipeline.

`Pipeline` opens sources. A `Stream` is transformed, written to tables and keyed. A mistake is refused on the line that
makes it. Nothing runs here, and no Spark session is needed, since users declare the schemas. The planner turns the
description into vertices.
"""

from jobs.operators.functions import EndsInput, KeyedFunction, Processed
from jobs.pipeline.columns import AggregateColumn, count, max_of, min_of, sum_of
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.pipeline import Pipeline
from jobs.pipeline.ports import CheckpointListener, MasterHook
from jobs.pipeline.streams import ConnectedStreams, KeyedStream, Stream

__all__ = [
    "AggregateColumn",
    "CheckpointListener",
    "ConnectedStreams",
    "EndsInput",
    "InvalidPipelineError",
    "KeyedFunction",
    "KeyedStream",
    "MasterHook",
    "Pipeline",
    "Processed",
    "Stream",
    "count",
    "max_of",
    "min_of",
    "sum_of",
]
