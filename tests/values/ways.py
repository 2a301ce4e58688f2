"""The ways in which rows reach an operator: the reader, and the format or system from which it reads."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import psycopg
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.operators import ways_to_read
from jobs.operators.spec import quoted
from jobs.outside_sinks.postgres.postgres_sink import postgres_type
from tests.values.readers import kafka, postgres, topic
from tidemark import FileSource, KafkaSource, Pipeline, PostgresChanges, Stream

SPLITS: Final = ("a", "b")


@dataclass(frozen=True)
class Way:
    """A way: how files are written, which types it takes, and what happens before an operator gets the rows."""

    takes: Callable[[DataType], bool] = lambda kind: True
    file_format: str = "parquet"
    first: Callable[[Stream], Stream] = lambda stream: stream
    without: tuple[str, ...] = ()
    """Limits under which a few tasks do all the work. The case does not use them."""
    damaged: ClassVar[bool] = False

    def deliver(self, rows: pa.Table, folder: Path, files: int, spark: SparkSession, columns: StructType) -> None:
        size = -(-rows.num_rows // files)
        for number, start in enumerate(range(0, rows.num_rows, size)):
            place = folder / SPLITS[number % len(SPLITS)]
            place.mkdir(parents=True, exist_ok=True)
            path = place / f"{number}.{self.file_format}"
            part = rows.slice(start, size)
            if self.file_format == "orc":
                pa.orc.write_table(part, str(path))
                continue
            stored = path if self.file_format == "parquet" else folder.parent.parent / f"{number}.parquet"
            pq.write_table(part, stored)
            if stored != path:
                written = path.with_name(f"_{path.name}")
                rewritten = spark.read.schema(columns).parquet(str(stored)).coalesce(1).write.format(self.file_format)
                rewritten.options(**OPTIONS.get(self.file_format, {})).save(str(written))
                next(written.glob("part-*")).rename(path)

    def raw(self, spark: SparkSession, folder: Path, columns: StructType) -> DataFrame:
        reader = spark.read.schema(columns).format(self.file_format).options(**OPTIONS.get(self.file_format, {}))
        return reader.load([str(each) for each in sorted(folder.iterdir()) if not each.name.startswith("_")])

    def stream(self, pipeline: Pipeline, folder: Path, columns: StructType) -> Stream:
        source = FileSource(folder, columns, format=self.file_format, options=OPTIONS.get(self.file_format))
        return self.first(pipeline.source("in", source).drop("_split", "_position"))

    @contextmanager
    def forced(self) -> Iterator[None]:
        before = {name: getattr(ways_to_read, name) for name in self.without}
        try:
            for name in self.without:
                setattr(ways_to_read, name, -1)
            yield
        finally:
            for name, value in before.items():
                setattr(ways_to_read, name, value)


class DamagedWay(Way):
    """A file has half of a record, or two records in a line. Its rows are the records as intended."""

    damaged = True

    def deliver(self, rows: pa.Table, folder: Path, files: int, spark: SparkSession, columns: StructType) -> None:
        super().deliver(rows, folder, files, spark, columns)
        path = folder / SPLITS[0] / f"0.{self.file_format}"
        between = b"," if self.file_format == "csv" or path.read_bytes().count(b"\n") < 2 else b"\n"
        first, _, last = path.read_bytes().rstrip().rpartition(between)
        path.write_bytes(first + b"\n" if between == b"," else first + last + b"\n")

    def raw(self, spark: SparkSession, folder: Path, columns: StructType) -> DataFrame:
        return spark.read.schema(columns).parquet(*map(str, folder.parent.parent.glob("*.parquet")))


class KafkaWay(Way):
    """Rows are JSON records of a topic with two Kafka partitions."""

    def deliver(self, rows: pa.Table, folder: Path, files: int, spark: SparkSession, columns: StructType) -> None:
        super().deliver(rows, folder, files, spark, columns)
        for partition, split in enumerate(SPLITS):
            for path in sorted((folder / split).glob("[!_]*.json")):
                topic(_named(folder)).write(path.read_bytes().splitlines(), partition)

    def stream(self, pipeline: Pipeline, folder: Path, columns: StructType) -> Stream:
        source = KafkaSource(kafka().servers, _named(folder), columns)
        return self.first(pipeline.source("in", source).drop("_split", "_position"))


class PostgresWay(Way):
    """The rows are in a PostgreSQL table. Half of them are in its snapshot, and the others are inserted later."""

    def deliver(self, rows: pa.Table, folder: Path, files: int, spark: SparkSession, columns: StructType) -> None:
        name, half = _named(folder), rows.num_rows // 2
        rows = pa.table([pa.array(map(_without_nul, each.to_pylist()), each.type) for each in rows], rows.schema)
        super().deliver(rows, folder, files, spark, columns)
        kinds = [postgres_type(each.name, each.type) for each in rows.schema]
        declared = [
            sql.SQL("{} " + kind).format(sql.Identifier(each)) for each, kind in zip(columns.names, kinds, strict=True)
        ]
        insert = sql.SQL(f"INSERT INTO {{}} VALUES ({', '.join('%s::' + kind for kind in kinds)})")
        insert = insert.format(sql.Identifier(name))
        listed = list(zip(*(each.to_pylist() for each in rows), strict=True))
        with psycopg.connect(postgres().url(), autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
            cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(name), sql.SQL(", ").join(declared)))
            cursor.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL; CREATE PUBLICATION {name} FOR TABLE {name}")  # type: ignore[arg-type] - letters
            cursor.executemany(insert, listed[:half])
            snapshot = _changes(folder)
            snapshot.poll(PollSource(VertexId("in"), SplitId("changes"), None, len(listed)))
            snapshot.close()
            cursor.executemany(insert, listed[half:])

    def stream(self, pipeline: Pipeline, folder: Path, columns: StructType) -> Stream:
        changes = _changes(folder)
        return pipeline.source("in", changes).transform(*changes.of(f"public.{_named(folder)}")).select(*columns.names)


def _changes(folder: Path) -> PostgresChanges:
    return PostgresChanges(postgres().url(), _named(folder), _named(folder), staged=folder / "_staged")


def _without_nul(value: object) -> object:
    return value.replace("\0", "") if isinstance(value, str) else value


OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"csv": {"header": "true", "multiLine": "true", "escape": '"'}}


def flat(kind: DataType) -> bool:
    return not isinstance(kind, BinaryType | StructType | ArrayType | MapType)


def in_orc(kind: DataType) -> bool:
    """Return whether pyarrow writes the type to ORC as Spark reads it.

    It cannot write a time without a zone to ORC. Spark's own reader fails at moments before 1970 with a fraction of a
    second.
    """
    return not isinstance(kind, TimestampNTZType | TimestampType | MapType | StructType | ArrayType)


def in_postgres(kind: DataType) -> bool:
    """Return whether Tidemark reads such a column from PostgreSQL. A list of texts may hold a NUL."""
    if isinstance(kind, ArrayType):
        return in_postgres(kind.elementType) and not isinstance(kind.elementType, ArrayType | StringType)
    return not isinstance(kind, ByteType | StructType | MapType)


def _named(folder: Path) -> str:
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
    "json": Way(file_format="json"),
    "damaged csv": DamagedWay(flat, "csv"),
    "damaged json": DamagedWay(file_format="json"),
    "orc": Way(in_orc, "orc"),
    "Kafka in tasks": KafkaWay(file_format="json"),
    "Kafka by the connector": KafkaWay(file_format="json", first=_through_spark),
    "PostgreSQL changes": PostgresWay(in_postgres),
}
