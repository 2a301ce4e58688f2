"""Tests that tasks read the slices of a file source exactly as Spark does, and leave to Spark what they cannot."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource, TickOutcome
from jobs.operators.spec import arrow_schema
from jobs.pipeline import Pipeline, count
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.reading import Cuts
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("moment", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(20, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
FIRST = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)


def laid_out(root, stored=SCHEMA, **written):
    """Write files of two splits. Their columns are stored in another order than the schema's, with small row groups."""
    for split, files in {"EWR": (7, 5), "JFK": (9,)}.items():
        (root / split).mkdir(parents=True)
        for number, rows in enumerate(files):
            columns = {
                "number": [None, *range(1, rows)],
                "text": [f"{split} {row}" for row in range(rows)],
                "moment": [FIRST + dt.timedelta(seconds=row) for row in range(rows)],
                "day": [dt.date(1583, 1, 1) + dt.timedelta(row) for row in range(rows)],
                "price": [Decimal(row) / 4 for row in range(rows)],
                "tags": [["a", None], [], None, *[["b"]] * (rows - 3)],
            }
            names = list(reversed(stored.names))
            table = pa.table({name: pa.array(columns[name], stored.field(name).type) for name in names})
            pq.write_table(table, root / split / f"{number}.parquet", row_group_size=2, **written)


def slices_of(source, max_rows):
    """Return all slices of a source, of so many rows each."""
    found = []
    for split in source.splits():
        position = None
        while piece := source.poll(PollSource(VertexId("s"), SplitId(split), position, max_rows)):
            found.append(piece)
            position = piece.end
    return found


def scanned(scans, schema):
    """Return the rows that tasks read."""
    return pa.Table.from_batches([batch for scan in scans for batch in scan.batches(schema)], schema)


@pytest.mark.parametrize("max_rows", [1, 3, 100])
def test_tasks_read_the_rows_that_spark_reads(spark, tmp_path, max_rows):
    """Values, splits and positions are equal, for all slices and for some of them."""
    laid_out(tmp_path)
    source = FileSource(tmp_path, from_arrow_schema(SCHEMA))
    slices = slices_of(source, max_rows)
    for some in (slices, slices[:1], slices[1::2] or slices):
        _equal(source, some, spark)


def test_tasks_read_the_parts_of_a_source_as_spark_reads_them(spark, tmp_path):
    """Splits have the names of their parts, and a column that one part lacks is null in its rows."""
    noted = SCHEMA.append(pa.field("_note", pa.string()))
    laid_out(tmp_path / "old")
    laid_out(tmp_path / "new")
    for path in (tmp_path / "new").rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.append_column("_note", pa.array(["new"] * table.num_rows)), path)
    first = FileSource(tmp_path / "old", from_arrow_schema(SCHEMA), bounded=True)
    source = first.then(FileSource(tmp_path / "new", from_arrow_schema(noted)))
    slices = slices_of(source, 3)
    assert {"1.", "2."} == {piece.split[:2] for piece in slices}
    for some in (slices, [piece for piece in slices if piece.split.startswith("1.")], slices[1::2]):
        _equal(source, some, spark)


def _equal(source, some, spark):
    """Compare the rows that tasks and Spark read."""
    theirs = source.read(spark, some)
    schema = arrow_schema(theirs.schema)
    order = [(SPLIT_COLUMN, "ascending"), (POSITION_COLUMN, "ascending")]
    ours = scanned(source.scans(some), schema).sort_by(order)
    assert ours.to_pylist() == theirs.toArrow().cast(schema).sort_by(order).to_pylist()
    assert ours.num_rows == sum(piece.rows for piece in some)


class DoubledSource(FileSource):
    """A user's source, which changes the rows when they are read."""

    def read(self, spark, slices):
        """Return each row twice."""
        rows = super().read(spark, slices)
        return rows.unionAll(rows)


@pytest.mark.parametrize("case", ["nanoseconds", "96 bits", "old calendar", "options", "corrupt column", "own read"])
def test_what_arrow_reads_in_another_way_is_left_to_spark(tmp_path, case):
    """The same rows would have other values, or the source's own steps would be missing."""
    moments = pa.timestamp("ns" if case in {"nanoseconds", "96 bits"} else "us", "UTC")
    stored = SCHEMA.set(2, pa.field("moment", moments))
    if case == "old calendar":
        stored = stored.with_metadata({"org.apache.spark.legacyDateTime": ""})
    laid_out(tmp_path, stored, use_deprecated_int96_timestamps=case == "96 bits")
    if case == "old calendar":
        for path in tmp_path.rglob("*.parquet"):
            pq.write_table(pq.read_table(path).replace_schema_metadata(stored.metadata), path)
    given = {
        "options": {"options": {"mergeSchema": "false"}},
        "corrupt column": {"columns": "quarantine", "corrupt_column": "_corrupt"},
    }
    made = DoubledSource if case == "own read" else FileSource
    source = made(tmp_path, from_arrow_schema(SCHEMA), **given.get(case, {}))
    assert source.scans(slices_of(source, 3)) is None


@pytest.mark.parametrize("one_split", [False, True])
def test_a_file_column_names_the_file_of_each_row(tmp_path, spark, one_split):
    """Tasks and Spark write the same name, and the name is as the file is called."""
    names = ["plain.parquet", "a b%20+#ä?.parquet"]
    folder = tmp_path if one_split else tmp_path / "Graz.West"
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        pq.write_table(pa.table({"n": [number, number]}), folder / name)
    schema = from_arrow_schema(pa.schema([("n", pa.int64())]))
    source = FileSource(tmp_path, schema, file_column="_file", one_split=one_split)
    slices = slices_of(source, 3)
    before = "" if one_split else "Graz.West/"
    wanted = {(number, f"{before}{name}") for number, name in enumerate(names)}
    rows = source.read(spark, slices)
    assert ["n", "_file", SPLIT_COLUMN, POSITION_COLUMN] == rows.columns
    assert wanted == {(row["n"], row["_file"]) for row in rows.collect()}
    asked = pa.schema([("_file", pa.string()), ("n", pa.int64()), (POSITION_COLUMN, pa.int64())])
    scanned = pa.Table.from_batches([batch for scan in source.scans(slices) for batch in scan.batches(asked)])
    assert wanted == {(row["n"], row["_file"]) for row in scanned.to_pylist()}
    with pytest.raises(SourceError, match="the files have a column 'n' too: name the file_column otherwise"):
        FileSource(tmp_path, schema, file_column="n")


def as_orders(data, file_column="_file"):
    """Return orders of JSON files, those without an amount in quarantine."""
    schema = StructType.fromDDL("id bigint, amount bigint")
    source = FileSource(data / "orders", schema, format="json", file_column=file_column)
    rule = Expectation("expect_column_values_to_not_be_null", {"column": "amount"})
    pipeline = Pipeline("orders")
    rows = pipeline.source("orders", source).table("bronze/orders", id="bronze")
    rows.check_rows(rule, quarantine="quarantine/orders").key_by("id").aggregate("sums", rows=count()).upsert(
        "gold/sums"
    )
    return pipeline


def test_rows_in_quarantine_name_their_file_also_in_tables_that_are_older(tmp_path, spark):
    """A pipeline that gets a file column later goes on: its tables get the column, null in older rows."""
    folder = tmp_path / "data" / "orders" / "graz"
    folder.mkdir(parents=True)
    warehouse = tmp_path / "warehouse"
    for number, file_column in enumerate((None, "_file")):
        (folder / f"{number}.json").write_text(f'{{"id": {number}}}\n{{"id": 9, "amount": 1}}\n')
        planned = plan(as_orders(tmp_path / "data", file_column))
        report = run_tick(planned, RuntimeSettings(warehouse=warehouse), spark=spark)
        assert TickOutcome.CAUGHT_UP is report.outcome, report.message
    cut = Cuts(warehouse, "orders").latest()
    bad, good = (cut.polars(f"{layer}/orders").select("id", "_file").collect() for layer in ("quarantine", "bronze"))
    assert {(0, None), (1, "graz/1.json")} == set(bad.rows())
    assert 2 == good["_file"].null_count()
