"""What a user writes: a pipeline in some twenty lines, every vertex with an id of its own.

`Pipeline` opens sources, a `Stream` is transformed, kept in tables and keyed, and whatever is wrong is
refused on the line that is wrong. Nothing runs here and no Spark session is needed: schemas are
declared, and the planner makes vertices of what was written.
"""

from jobs.operators.functions import EndsInput, KeyedFunction, Processed
from jobs.pipeline.columns import AggregateColumn, count, max_of, min_of, sum_of
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.listening import CheckpointListener
from jobs.pipeline.pipeline import Pipeline
from jobs.pipeline.streams import ConnectedStreams, KeyedStream, Stream

__all__ = [
    "AggregateColumn",
    "CheckpointListener",
    "ConnectedStreams",
    "EndsInput",
    "InvalidPipelineError",
    "KeyedFunction",
    "KeyedStream",
    "Pipeline",
    "Processed",
    "Stream",
    "count",
    "max_of",
    "min_of",
    "sum_of",
]
