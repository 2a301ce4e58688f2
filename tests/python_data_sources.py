# ruff: noqa: N802 - the names are those of PySpark
"""Python data sources for tests: the two examples of Spark's documentation, limited to some rows, and wrong ones.

`CALLS` records the calls that data sources got in this process.
"""

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows
except ImportError:  # Spark before 4.2 sets no limit
    ReadMaxRows = None

CALLS: list[tuple[str, object]] = []


class SimpleNumbers(DataSource):
    """Numbers from a simple reader, two at a time. Options: `rows`, and a `token` that errors repeat."""

    @classmethod
    def name(cls):
        return "simple_numbers"

    def schema(self):
        return "n BIGINT, name STRING"

    def simpleStreamReader(self, schema):
        return _Simple(self.options)


class _Simple(SimpleDataSourceStreamReader):
    def __init__(self, options):
        self.rows, self.token = int(options.get("rows", "11")), options.get("token")
        self.fails = options.get("fails")

    def initialOffset(self):
        return {"offset": 0}

    def read(self, start):
        if self.fails == "poll":
            raise ConnectionError(f"the server refuses {self.token}")
        end = {"offset": min(start["offset"] + 2, self.rows)}
        return iter([(n, f"row {n}") for n in range(start["offset"], end["offset"])]), end

    def readBetweenOffsets(self, start, end):
        if self.fails == "read" and start["offset"] > 0:
            raise ConnectionError(f"the server refuses {self.token}")
        last = end["offset"] - (self.fails == "forgets")
        return iter([(n, f"row {n}") for n in range(start["offset"], last)])

    def commit(self, end):
        CALLS.append(("commit", end))


class RangePartition(InputPartition):
    """A range of numbers, as in Spark's documentation."""

    def __init__(self, start, end):
        self.start, self.end = start, end


class PartitionedNumbers(DataSource):
    """Numbers from a reader that plans tasks of three numbers. Options: `rows`, `form`, `backwards`, `offsets`."""

    @classmethod
    def name(cls):
        return "partitioned_numbers"

    def schema(self):
        return "n BIGINT, name STRING"

    def streamReader(self, schema):
        return _Partitioned(self.options)


class _Partitioned(DataSourceStreamReader):
    def __init__(self, options):
        self.rows, self.form = int(options.get("rows", "11")), options.get("form", "tuple")
        self.backwards, self.offsets = options.get("backwards"), options.get("offsets", "good")

    def initialOffset(self):
        return {"topic": {"offset": 0}}

    def getDefaultReadLimit(self):
        return ReadMaxRows(7)

    def latestOffset(self, start=None, limit=None):
        start = start or self.initialOffset()
        if self.backwards:
            return {"topic": {"offset": 1}}
        if self.offsets == "bad":
            return {"topic": {1: 2}}
        most = limit.max_rows if ReadMaxRows and isinstance(limit, ReadMaxRows) else self.rows
        return {"topic": {"offset": min(start["topic"]["offset"] + most, self.rows)}}

    def partitions(self, start, end):
        first, last = start["topic"]["offset"], end["topic"]["offset"]
        return [RangePartition(n, min(n + 3, last)) for n in range(first, last, 3)]

    def read(self, partition):
        rows = [(n, f"row {n}") for n in range(partition.start, partition.end)]
        match self.form:
            case "arrow":
                return iter([pa.RecordBatch.from_pylist([{"n": n, "name": name} for n, name in rows])])
            case "row":
                return iter([Row(name=name, n=n) for n, name in rows])
            case "short":
                return iter([(n,) for n, _ in rows])
            case _:
                return iter(rows)

    def commit(self, end):
        CALLS.append(("commit", end))

    def stop(self):
        CALLS.append(("stop", None))


class OldForm(_Partitioned):
    """A reader for PySpark 4.0, in which `latestOffset` has no parameters."""

    def latestOffset(self):
        return {"topic": {"offset": self.rows}}


class OldNumbers(PartitionedNumbers):
    """A data source with a reader for PySpark 4.0."""

    def streamReader(self, schema):
        return OldForm(self.options)


class BatchOnly(DataSource):
    """A data source without a stream reader."""

    @classmethod
    def name(cls):
        return "batch_only"

    def schema(self):
        return "n BIGINT"


class ReadsOnce(SimpleNumbers):
    """A data source whose simple reader cannot read between two offsets, like some published data sources."""

    def simpleStreamReader(self, schema):
        return _Once()


class _Once(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"offset": 0}

    def read(self, start):
        return iter([]), start


class Silent(DataSource):
    """A data source that does not declare its columns."""

    @classmethod
    def name(cls):
        return "silent"
