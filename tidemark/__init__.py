"""Tidemark's public interface: all names that a pipeline, its tests and readers of its tables import.

```python
from tidemark import CheckpointConfig, Cuts, FileSource, Pipeline, count, sum_of
```

docs/guides/pipelines.md shows each name at work. For Dagster there is `tidemark.dagster`, for
tests of pipelines `tidemark.testing`.

`import tidemark` loads nothing else: each name is imported when you first ask for it. So a program that only reads
tables by cut does not wait for PySpark, and none of the names starts Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tidemark._packages import is_installed, must_be_installed, must_be_ours

if TYPE_CHECKING:
    from checkpointing.channel_items import SourceSlice
    from checkpointing.commit.outside_sinks import SinkTransaction
    from checkpointing.config import CheckpointConfig, CheckpointingMode, RestartStrategyKind, StateBackendKind
    from checkpointing.identifiers import InvalidNameError
    from checkpointing.messages import PollSource
    from jobs.operators.aggregate_functions import AggregateFunction
    from jobs.operators.in_time.timers import HasTimers
    from jobs.operators.process import (
        EndsInput,
        KeyedFunction,
        MergesPartials,
        Processed,
        ReactsToBroadcast,
    )
    from jobs.outside_sinks.kafka.kafka_sink import KafkaSink
    from jobs.outside_sinks.postgres.postgres_sink import PostgresSink
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
    from jobs.pipeline.applied_changes import apply_changes
    from jobs.pipeline.broadcasting import BroadcastConnectedStreams, BroadcastStream, broadcast
    from jobs.pipeline.columns import InvalidPipelineError
    from jobs.pipeline.joins import as_of, join
    from jobs.pipeline.pipeline import CheckpointListener, MasterHook, Pipeline
    from jobs.pipeline.processing import expires
    from jobs.pipeline.rows_in_time import distinct, over
    from jobs.pipeline.streams import ConnectedStreams, KeyedStream, Stream
    from jobs.pipeline.top import deduplicate, newest_rows, top
    from jobs.pipeline.windows import cumulative, hopping, session, tumbling
    from jobs.quality.expectation import Expectation, InvalidExpectationError
    from jobs.reading.cut import Cut
    from jobs.reading.cuts import Cuts
    from jobs.reading.moments import (
        CutGoneError,
        CutUnreadableError,
        InvalidMomentError,
        NoEventTimeError,
        NoSuchCutError,
        NoSuchOperatorError,
        NoSuchTableError,
        NotReservedError,
        ReadingError,
    )
    from jobs.reading.operator_state import OperatorState
    from jobs.reading.pending import PendingCut
    from jobs.sinks.port import Difference, Sink, SinkAwayError, SinkError, TableChanges, TwoPhaseSink, UpsertSink
    from jobs.sources.committed_positions import CommitsToFile
    from jobs.sources.debezium.changes import DebeziumSource
    from jobs.sources.debezium.columns import Encodings
    from jobs.sources.delta.cut_source import CutSource
    from jobs.sources.delta.delta_source import DeltaSource
    from jobs.sources.files.file_source import FileSource
    from jobs.sources.generator import GeneratorSource
    from jobs.sources.hybrid import HybridSource, SequenceSource, SequenceSplit
    from jobs.sources.kafka.kafka_source import KafkaSource
    from jobs.sources.kafka.records import DECODED
    from jobs.sources.kafka.transactions import DebeziumTransactions
    from jobs.sources.port import (
        POSITION_COLUMN,
        SPLIT_COLUMN,
        UNDECODED_COLUMN,
        Closes,
        CommitsPositions,
        CountsRows,
        DescribesItself,
        KnowsLag,
        Lag,
        NamesPositions,
        NoSuchPositionError,
        ReadsCuts,
        SeeksPositions,
        Source,
        SourceDescription,
        SourceError,
        WrappedSource,
        read_schema,
    )
    from jobs.sources.postgres.changes import PostgresChanges
    from jobs.sources.python.data_source import SparkSource
    from jobs.sources.registry.client import SchemaRegistry

__all__ = [
    "DECODED",
    "POSITION_COLUMN",
    "SPLIT_COLUMN",
    "UNDECODED_COLUMN",
    "AggregateColumn",
    "AggregateFunction",
    "BroadcastConnectedStreams",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointingMode",
    "Closes",
    "CommitsPositions",
    "CommitsToFile",
    "ConnectedStreams",
    "CountsRows",
    "Cut",
    "CutGoneError",
    "CutSource",
    "CutUnreadableError",
    "Cuts",
    "DebeziumSource",
    "DebeziumTransactions",
    "DeltaSource",
    "DescribesItself",
    "Difference",
    "Encodings",
    "EndsInput",
    "Expectation",
    "FileSource",
    "GeneratorSource",
    "HasTimers",
    "HybridSource",
    "InvalidExpectationError",
    "InvalidMomentError",
    "InvalidNameError",
    "InvalidPipelineError",
    "KafkaSink",
    "KafkaSource",
    "KeyedFunction",
    "KeyedStream",
    "KnowsLag",
    "Lag",
    "MasterHook",
    "MergesPartials",
    "NamesPositions",
    "NoEventTimeError",
    "NoSuchCutError",
    "NoSuchOperatorError",
    "NoSuchPositionError",
    "NoSuchTableError",
    "NotReservedError",
    "OperatorState",
    "PendingCut",
    "Pipeline",
    "PollSource",
    "PostgresChanges",
    "PostgresSink",
    "Processed",
    "ReactsToBroadcast",
    "ReadingError",
    "ReadsCuts",
    "RestartStrategyKind",
    "SchemaRegistry",
    "SeeksPositions",
    "SequenceSource",
    "SequenceSplit",
    "Sink",
    "SinkAwayError",
    "SinkError",
    "SinkTransaction",
    "Source",
    "SourceDescription",
    "SourceError",
    "SourceSlice",
    "SparkSource",
    "StateBackendKind",
    "Stream",
    "TableChanges",
    "TwoPhaseSink",
    "UpsertSink",
    "WrappedSource",
    "aggregate_of",
    "apply_changes",
    "approx_count_distinct",
    "approx_percentile",
    "as_of",
    "avg_of",
    "broadcast",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "cumulative",
    "deduplicate",
    "distinct",
    "expires",
    "first_of",
    "hopping",
    "join",
    "last_of",
    "max_by",
    "max_of",
    "min_by",
    "min_of",
    "newest_rows",
    "over",
    "read_schema",
    "session",
    "stddev_of",
    "sum_of",
    "top",
    "tumbling",
    "var_of",
]

_MODULES: Final = {
    "checkpointing.channel_items": ("SourceSlice",),
    "checkpointing.config": ("CheckpointConfig", "CheckpointingMode", "RestartStrategyKind", "StateBackendKind"),
    "checkpointing.identifiers": ("InvalidNameError",),
    "checkpointing.messages": ("PollSource",),
    "jobs.operators.aggregate_functions": ("AggregateFunction",),
    "jobs.operators.process": ("EndsInput", "KeyedFunction", "MergesPartials", "Processed", "ReactsToBroadcast"),
    "jobs.pipeline": (
        "AggregateColumn",
        "CheckpointListener",
        "ConnectedStreams",
        "InvalidPipelineError",
        "KeyedStream",
        "MasterHook",
        "Pipeline",
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
    ),
    "jobs.pipeline.broadcasting": ("BroadcastConnectedStreams", "BroadcastStream", "broadcast"),
    "jobs.pipeline.joins": ("as_of", "join"),
    "jobs.pipeline.processing": ("expires",),
    "jobs.pipeline.rows_in_time": ("distinct", "over"),
    "jobs.pipeline.applied_changes": ("apply_changes",),
    "jobs.pipeline.top": (
        "deduplicate",
        "newest_rows",
        "top",
    ),
    "jobs.operators.in_time.timers": ("HasTimers",),
    "jobs.pipeline.windows": ("cumulative", "hopping", "session", "tumbling"),
    "jobs.quality.expectation": ("Expectation", "InvalidExpectationError"),
    "jobs.reading": (
        "Cut",
        "CutGoneError",
        "CutUnreadableError",
        "Cuts",
        "InvalidMomentError",
        "NoEventTimeError",
        "NoSuchCutError",
        "NoSuchOperatorError",
        "NoSuchTableError",
        "NotReservedError",
        "OperatorState",
        "PendingCut",
        "ReadingError",
    ),
    "checkpointing.commit.outside_sinks": ("SinkTransaction",),
    "jobs.sinks.port": (
        "Difference",
        "Sink",
        "SinkAwayError",
        "SinkError",
        "TableChanges",
        "TwoPhaseSink",
        "UpsertSink",
    ),
    "jobs.outside_sinks.kafka.kafka_sink": ("KafkaSink",),
    "jobs.outside_sinks.postgres.postgres_sink": ("PostgresSink",),
    "jobs.sources.committed_positions": ("CommitsToFile",),
    "jobs.sources.debezium.changes": ("DebeziumSource",),
    "jobs.sources.debezium.columns": ("Encodings",),
    "jobs.sources.delta.cut_source": ("CutSource",),
    "jobs.sources.delta.delta_source": ("DeltaSource",),
    "jobs.sources.files.file_source": ("FileSource",),
    "jobs.sources.generator": ("GeneratorSource",),
    "jobs.sources.hybrid": (
        "HybridSource",
        "SequenceSource",
        "SequenceSplit",
    ),
    "jobs.sources.kafka.records": ("DECODED",),
    "jobs.sources.kafka.kafka_source": ("KafkaSource",),
    "jobs.sources.kafka.transactions": ("DebeziumTransactions",),
    "jobs.sources.port": (
        "POSITION_COLUMN",
        "SPLIT_COLUMN",
        "UNDECODED_COLUMN",
        "Closes",
        "CommitsPositions",
        "CountsRows",
        "DescribesItself",
        "KnowsLag",
        "Lag",
        "NamesPositions",
        "NoSuchPositionError",
        "ReadsCuts",
        "SeeksPositions",
        "Source",
        "SourceDescription",
        "SourceError",
        "TableChanges",
        "TwoPhaseSink",
        "UpsertSink",
        "WrappedSource",
        "read_schema",
    ),
    "jobs.sources.postgres.changes": ("PostgresChanges",),
    "jobs.sources.python.data_source": ("SparkSource",),
    "jobs.sources.registry.client": ("SchemaRegistry",),
}
"""The module from which each name is imported."""

_EXTRAS: Final = {
    "jobs.outside_sinks.kafka.kafka_sink": ("confluent_kafka", "kafka"),
    "jobs.sources.debezium.changes": ("jpype", "debezium"),
    "jobs.sources.kafka.kafka_source": ("confluent_kafka", "kafka"),
    "jobs.sources.kafka.transactions": ("confluent_kafka", "kafka"),
    "jobs.outside_sinks.postgres.postgres_sink": ("psycopg", "postgres"),
    "jobs.sources.postgres.changes": ("psycopg", "postgres"),
}
"""The library that a module needs, and the extra that installs it."""

for _module, (_library, _extra) in _EXTRAS.items():
    if not is_installed(_library):  # `from tidemark import *` asks for every name here, and needs no extra
        __all__ = [name for name in __all__ if name not in _MODULES[_module]]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562). Raise AttributeError for any other name.

    Raises HiddenPackageError, an ImportError, if another package hides one of Tidemark's packages. Raises
    MissingExtraError if the name needs a library that is not installed.
    """
    for module, names in _MODULES.items():
        if name in names:
            must_be_ours()
            if module in _EXTRAS:
                must_be_installed(*_EXTRAS[module])
            found: object = getattr(import_module(module), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for completion in an editor or a notebook."""
    return sorted(__all__)
