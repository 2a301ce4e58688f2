"""The classes with which a user describes a pipeline.

`Pipeline` opens sources. A `Stream` is transformed, written to tables and keyed. A mistake raises an error on the line
that contains it. Nothing runs here. No Spark session is needed, because users declare the schemas. The planner turns
the description into vertices.
"""

from jobs.operators.process import EndsInput, KeyedFunction, Processed
from jobs.pipeline.aggregates import (
    AggregateColumn,
    aggregate_of,
    approx_count_distinct,
    approx_percentile,
    avg_of,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first_of,
    last_of,
    max_by,
    max_of,
    min_by,
    min_of,
    stddev_of,
    sum_of,
    var_of,
)
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.pipeline import CheckpointListener, MasterHook, Pipeline
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
    "aggregate_of",
    "approx_count_distinct",
    "approx_percentile",
    "avg_of",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first_of",
    "last_of",
    "max_by",
    "max_of",
    "min_by",
    "min_of",
    "stddev_of",
    "sum_of",
    "var_of",
]
