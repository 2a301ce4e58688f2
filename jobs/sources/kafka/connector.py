"""Reads ranges of offsets with Spark's Kafka connector, as a batch: one task for each Kafka partition.

The connector fails if a record of a range is gone (`failOnDataLoss`). It skips offsets that hold no committed record:
markers of transactions, aborted records, and records that compaction removed.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from jobs.sources.kafka.position import PlacedRange, TopicPartition, split_of
from jobs.sources.port import SourceError
from jobs.spark.jar_sets import KAFKA
from jobs.spark.jars import fetch_command

FORMAT: Final = "kafka"


def records(spark: SparkSession, ranges: Sequence[PlacedRange], options: Mapping[str, str]) -> DataFrame:
    """Return the connector's records of these ranges, at least one. Ranges of one Kafka partition do not overlap."""
    by_place: dict[TopicPartition, list[PlacedRange]] = defaultdict(list)
    for one in ranges:
        by_place[one.place].append(one)
    # One read has one range of a Kafka partition, which rarely has several that do not adjoin.
    reads = [[one for one in layer if one is not None] for layer in zip_longest(*by_place.values())]
    return reduce(DataFrame.unionAll, [_read(spark, layer, options) for layer in reads])


def _read(spark: SparkSession, ranges: Sequence[PlacedRange], options: Mapping[str, str]) -> DataFrame:
    partitions: dict[str, list[int]] = defaultdict(list)
    first: dict[str, dict[str, int]] = defaultdict(dict)
    end: dict[str, dict[str, int]] = defaultdict(dict)
    for one in ranges:
        topic, partition = one.place
        partitions[topic].append(partition)
        first[topic][str(partition)] = one.range.first
        end[topic][str(partition)] = one.range.end
    own = {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(first),
        "endingOffsets": json.dumps(end),
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
    }
    try:
        read = spark.read.format(FORMAT).options(**{**options, **own}).load()
        _ = read.schema  # Spark Connect looks for the connector only now
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_NOT_FOUND" and FORMAT not in str(error):
            raise
        raise SourceError(
            f"this Spark session has no Kafka connector: fetch it with '{fetch_command(KAFKA)}', and start the session "
            "with SparkConfig(jar_sets=('kafka',)), or the Connect server with its jars in spark.jars"
        ) from error
    return read


def split_column(topics: Sequence[str]) -> Column:
    """Return the expression of the split's name of a record from one of these topics."""
    begins = {topic: str(split_of(TopicPartition(topic, 0))).removesuffix("0") for topic in sorted(topics)}
    prefix: Column = F.lit(None).cast("string")
    for topic, text in begins.items():
        prefix = F.when(F.col("topic") == topic, F.lit(text)).otherwise(prefix)
    return F.concat(prefix, F.col("partition").cast("string"))
