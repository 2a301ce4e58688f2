"""The ways in which rows reach an operator: who reads them, and through what."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, TimestampNTZType

from jobs.operators import keyed_job
from jobs.operators.schemas import quoted
from tests.scenarios.kafka.topics import TopicMaker
from tests.values.servers import kafka
from tidemark import FileSource, KafkaSource, Pipeline, Stream

SPLITS: Final = ("a", "b")


def every(kind: DataType) -> bool:
    del kind
    return True


def as_is(stream: Stream) -> Stream:
    return stream


@dataclass(frozen=True)
class Way:
    """A way: how files are written, who may read them, and what is done before an operator gets the rows."""

    takes: Callable[[DataType], bool] = every
    file_format: str = "parquet"
    first: Callable[[Stream], Stream] = as_is
    without: tuple[str, ...] = ()
    """The limits under which few tasks do all: the case does without them."""

    def deliver(self, rows: pa.Table, folder: Path, files: int, spark: SparkSession, columns: StructType) -> None:
        """Write the rows to files of two splits, in turn."""
        size = -(-rows.num_rows // files)
        for number, start in enumerate(range(0, rows.num_rows, size)):
            place = folder / SPLITS[number % len(SPLITS)]
            place.mkdir(parents=True, exist_ok=True)
            path = place / f"{number}.{self.file_format}"
            part = rows.slice(start, size)
            match self.file_format:
                case "parquet":
                    pq.write_table(part, path)
                case "orc":
                    pa.orc.write_table(part, str(path))
                case _:
                    stored = folder.parent.parent / f"{number}.parquet"
                    pq.write_table(part, stored)
                    self._by_spark(spark.read.schema(columns).parquet(str(stored)), path)

    def _by_spark(self, rows: DataFrame, path: Path) -> None:
        written = path.with_name(f"_{path.name}")
        rows.coalesce(1).write.format(self.file_format).options(**OPTIONS.get(self.file_format, {})).save(str(written))
        (made,) = [each for each in written.iterdir() if each.name.startswith("part-")]
        made.rename(path)

    def raw(self, spark: SparkSession, folder: Path, columns: StructType) -> DataFrame:
        """Return all rows at once, as Spark reads them."""
        reader = spark.read.schema(columns).format(self.file_format).options(**OPTIONS.get(self.file_format, {}))
        return reader.load([str(each) for each in sorted(folder.iterdir()) if not each.name.startswith("_")])

    def stream(self, pipeline: Pipeline, folder: Path, columns: StructType) -> Stream:
        """Return the stream of these rows, without the columns that a source adds."""
        source = FileSource(folder, columns, format=self.file_format, options=OPTIONS.get(self.file_format))
        return self.first(pipeline.source("in", source).drop("_split", "_position"))

    @contextmanager
    def forced(self) -> Iterator[None]:
        """Take the limits away for a while."""
        before = {name: getattr(keyed_job, name) for name in self.without}
        try:
            for name in self.without:
                setattr(keyed_job, name, -1)
            yield
        finally:
            for name, value in before.items():
                setattr(keyed_job, name, value)


class KafkaWay(Way):
    """Rows are JSON records of a topic with two Kafka partitions."""

    def deliver(self, rows: pa.Table, folder: Path, files: int, spark: SparkSession, columns: StructType) -> None:
        """Write the rows to files of JSON, and their lines to a topic that is called after the case's folder."""
        super().deliver(rows, folder, files, spark, columns)
        topic = TopicMaker(kafka().servers).made(_named(folder), len(SPLITS), {})
        for partition, split in enumerate(SPLITS):
            for path in sorted((folder / split).glob("[!_]*.json")):
                topic.write(path.read_bytes().splitlines(), partition)

    def stream(self, pipeline: Pipeline, folder: Path, columns: StructType) -> Stream:
        """Return the stream of the topic's records."""
        source = KafkaSource(kafka().servers, _named(folder), columns)
        return self.first(pipeline.source("in", source).drop("_split", "_position"))


OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"csv": {"header": "true", "multiLine": "true", "escape": '"'}}


def flat(kind: DataType) -> bool:
    return not isinstance(kind, BinaryType | StructType | ArrayType | MapType)


def not_ntz(kind: DataType) -> bool:
    """Return whether pyarrow writes the type to ORC as Spark reads it: it has no time without a zone there."""
    return not isinstance(kind, TimestampNTZType | MapType | StructType | ArrayType)


def _named(folder: Path) -> str:
    """Return the name of the case's folder: that of its topic and of its database."""
    return folder.parent.parent.name.lower()


def _through_spark(stream: Stream) -> Stream:
    return stream.transform(lambda rows: rows)


def _by_sql(stream: Stream) -> Stream:
    name = stream.schema.names[2]
    return stream.with_column(name, quoted([name]), stream.schema[name].dataType)


def _kept(stream: Stream) -> Stream:
    return stream.table("bronze/rows", id="bronze")


_FEW, _ALL = "_FEW_ROWS", "_READ_BY_ALL_ROWS"
WAYS: Final[Mapping[str, Way]] = {
    "one task reads": Way(),
    "each task reads": Way(without=(_FEW,)),
    "tasks exchange": Way(without=(_FEW, _ALL)),
    "Spark reads": Way(first=_through_spark),
    "Spark reads, tasks exchange": Way(first=_through_spark, without=(_FEW, _ALL)),
    "task, Spark, task": Way(first=_by_sql),
    "a table first": Way(first=_kept),
    "csv": Way(flat, "csv"),
    "json": Way(every, "json"),
    "orc": Way(not_ntz, "orc"),
    "Kafka in tasks": KafkaWay(file_format="json"),
    "Kafka by the connector": KafkaWay(file_format="json", first=_through_spark),
}
