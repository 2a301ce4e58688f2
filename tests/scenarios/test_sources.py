"""Tests that sources on real Spark read exactly the rows of their slices, with exact ordinals."""

import datetime as dt
import os
import shlex
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource, TickOutcome
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.operators.spec import arrow_schema
from jobs.pipeline import Pipeline, count
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.reading import Cuts
from jobs.sources.files.file_source import FileSource
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError, read_schema
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("row", LongType()).add("file", StringType())
ODD_NAMES = ["a=1", "EWR"]
ODD_FILES = ["b [1] {x}*.parquet", "a%20b.parquet", "ü'quote+plus.parquet", "plain.parquet"]


@pytest.fixture
def root(tmp_path):
    """Return a folder with two splits of four files each. Spark, Hadoop or SQL could misread the names.

    Each file has 7 rows, 3 in a row group.
    """
    root = tmp_path / "in put#1"
    for split in ODD_NAMES:
        (root / split).mkdir(parents=True)
        for name in ODD_FILES:
            columns = {"row": pa.array(range(7), pa.int64()), "file": [f"{split}/{name}"] * 7}
            pq.write_table(pa.table(columns), root / split / name, row_group_size=3)
    return root


def polls(source, rows_max):
    for split in source.splits():
        position = None
        while (piece := source.poll(PollSource(VertexId("in"), SplitId(split), position, rows_max))) is not None:
            yield piece
            position = piece.end


def generated_code(frame):
    stages = frame._jdf.queryExecution().debug().codegenToSeq()
    assert stages.size()
    return tuple(stages.apply(index)._2() for index in range(stages.size()))


def shape(schema):
    return [(field.name, field.dataType) for field in schema.fields]


@pytest.mark.parametrize("rows_max", [2, 5, 10, 100])
def test_all_slices_in_one_read_are_all_rows(spark, root, rows_max):
    """This holds for any size of slices and any file names: each row comes once, in order, without a gap."""
    source = FileSource(root, SCHEMA)
    frame = source.read(spark, list(polls(source, rows_max)))
    expected = [
        (row, f"{split}/{name}", split, position * 7 + row)
        for split in sorted(ODD_NAMES)
        for position, name in enumerate(sorted(ODD_FILES))
        for row in range(7)
    ]
    assert shape(read_schema(source)) == shape(frame.schema)
    assert expected == [tuple(row) for row in frame.orderBy("_split", "_position").collect()]


def test_some_slices_are_exactly_their_rows(spark, root):
    """The slices begin and end within files, belong to several splits and are not adjacent.

    One scan reads just their rows.
    """
    source = FileSource(root, SCHEMA)
    chosen = list(polls(source, 5))[1::3]
    found = source.read(spark, chosen).select("_split", "_position").collect()
    expected = set()
    for split in source.splits():
        before = 0
        for piece in [piece for piece in polls(source, 5) if piece.split == split]:
            if piece in chosen:
                expected |= {(split, position) for position in range(before, before + piece.rows)}
            before += piece.rows
    assert sorted(expected) == sorted(tuple(row) for row in found)


def test_the_compiled_code_does_not_depend_on_where_slices_begin(spark, root):
    """Otherwise Spark would compile code for each micro-batch, and the JIT would begin anew."""
    source = FileSource(root, SCHEMA)
    slices = list(polls(source, 5))
    compiled = {generated_code(source.read(spark, chosen)) for chosen in (slices[:1], slices[1:2], slices[2:5])}
    assert 1 == len(compiled)


def test_a_late_file_does_not_change_the_ordinals_of_earlier_ones(spark, tmp_path):
    """Ordinals follow the order of discovery. A late file with an earlier name continues the count."""
    (tmp_path / "EWR").mkdir()
    write = lambda name, rows: pq.write_table(  # noqa: E731 - two calls
        pa.table({"row": pa.array(range(rows), pa.int64()), "file": [name] * rows}), tmp_path / "EWR" / name
    )
    source = FileSource(tmp_path, SCHEMA)
    write("b.parquet", 2)
    first = next(polls(source, 10))
    write("a.parquet", 2)
    second = source.poll(PollSource(VertexId("in"), SplitId("EWR"), first.end, 10))
    found = source.read(spark, [second, first]).select("file", "_position").orderBy("_position").collect()
    assert [("b.parquet", 0), ("b.parquet", 1), ("a.parquet", 2), ("a.parquet", 3)] == [tuple(row) for row in found]


def test_a_sequence_has_the_same_rows_in_slices_of_any_size(spark):
    source = SequenceSource({"a": 5, "b": 3}, keys=2, step=10, offset=1)
    for rows_max in (1, 2, 100):
        frame = source.read(spark, list(polls(source, rows_max)))
        assert shape(read_schema(source)) == shape(frame.schema)
        expected = [(s, n, n % 2, n * 10 + 1, s, n) for s, rows in (("a", 5), ("b", 3)) for n in range(rows)]
        assert expected == [tuple(row) for row in frame.orderBy("split", "n").collect()]


# ------------------------------------------------------------------
# Tests files that change after they were read, as a user meets them: a touched file, and a replaced one.


PIPELINE = f"{__name__}:orders"


def orders(data: Path) -> Pipeline:
    pipeline = Pipeline("orders")
    source = FileSource(data / "orders", StructType().add("n", LongType()))
    pipeline.source("orders", source).table("bronze/orders", id="bronze")
    return pipeline


def test_a_touched_file_is_accepted_and_a_changed_one_has_a_way_out(spark, tmp_path, capsys):
    data, warehouse = tmp_path, tmp_path / "warehouse"
    split = data / "orders" / "EWR"
    split.mkdir(parents=True)

    def write(name, *numbers):
        pl.DataFrame({"n": numbers}).write_parquet(split / name)

    def tick():
        return run_tick(plan(orders(data)), RuntimeSettings(warehouse=warehouse), spark=spark)

    def typed(*words):
        where = ["--warehouse", str(warehouse), "--data", str(data)]
        return execute([*words, *where])

    def numbers():
        return sorted(Cuts(warehouse, "orders").latest().polars("bronze/orders").collect()["n"].to_list())

    write("1.parquet", 1, 2)
    write("2.parquet", 3)
    assert TickOutcome.CAUGHT_UP is tick().outcome
    for file in split.iterdir():
        os.utime(file, ns=(7, 7))
    write("3.parquet", 4)
    assert (TickOutcome.CAUGHT_UP, [1, 2, 3, 4]) == (tick().outcome, numbers())
    assert ExitCode.DONE is typed("reset", PIPELINE, "orders", "--to", "1.parquet:1", "--dry-run")

    write("2.parquet", 30, 31)
    capsys.readouterr()
    assert ExitCode.FAILED is typed("run", PIPELINE)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "2.parquet has been read, and its contents have changed" in said
    assert ExitCode.FAILED is typed("doctor", PIPELINE)
    command = said.rpartition("tidemark ")[2]
    assert f"tidemark {command}" in capsys.readouterr().out
    assert ExitCode.DONE is typed(*shlex.split(command)), capsys.readouterr().err
    assert (TickOutcome.CAUGHT_UP, [1, 2, 3, 4, 4, 30, 31]) == (tick().outcome, numbers())


# ------------------------------------------------------------------
# Tests pipelines in real ticks that read CSV, get new columns from files, or archive files after reading.


WORDS = StructType().add("n", LongType()).add("word", StringType())
BROKEN = "n,word\n1,one\nmany,two\n3,three\n"


def of_csv(data: Path) -> Pipeline:
    pipeline = Pipeline("files")
    source = FileSource(data, WORDS, format="csv", options={"header": "true"}, corrupt_column="unreadable")
    rows = pipeline.source("rows", source).check_rows(
        Expectation("expect_column_values_to_be_null", {"column": "unreadable"}),
        quarantine="quarantine/rows",
        id="records",
    )
    rows.drop("unreadable").table("bronze/rows", id="bronze")
    return pipeline


def strict(data: Path) -> Pipeline:
    pipeline = Pipeline("files")
    source = FileSource(data, WORDS, format="csv", options={"header": "true"})
    pipeline.source("rows", source).table("bronze/rows", id="bronze")
    return pipeline


def evolving(data: Path) -> Pipeline:
    pipeline = Pipeline("files")
    pipeline.source("rows", FileSource(data, WORDS, columns="evolve")).table("bronze/rows", id="bronze")
    return pipeline


def archiving(data: Path) -> Pipeline:
    pipeline = Pipeline("files", config=CheckpointConfig(retained=5))
    source = FileSource(data, WORDS, after_reading="archive", archive=data.parent / "archive")
    pipeline.source("rows", source).table("bronze/rows", id="bronze")
    return pipeline


@pytest.fixture
def tick(spark, tmp_path):
    (tmp_path / "in" / "a").mkdir(parents=True)
    return lambda build: run_tick(
        plan(build(tmp_path / "in")), RuntimeSettings(warehouse=tmp_path / "warehouse"), spark=spark
    )


@pytest.fixture
def rows(tmp_path):
    """Return a table's rows in order, without the columns that the source adds."""

    def read(table, *columns):
        cut = Cuts(tmp_path / "warehouse", "files").latest()
        return cut.polars(table).collect().sort("_split", "_position").select(*columns).rows()

    return read


def test_unreadable_records_go_to_quarantine(tick, rows, tmp_path):
    """Quarantine has these records as text. The table has the file's other records."""
    (tmp_path / "in" / "a" / "1.csv").write_text(BROKEN)
    assert TickOutcome.CAUGHT_UP is tick(of_csv).outcome
    assert [(1, "one"), (3, "three")] == rows("bronze/rows", "n", "word")
    assert [("many,two",)] == rows("quarantine/rows", "unreadable")


def test_without_a_corrupt_column_the_file_and_the_ways_out_are_named(tick, tmp_path):
    """The tick fails with a sentence that names the file and the ways out. Nothing is committed."""
    (tmp_path / "in" / "a" / "1.csv").write_text(BROKEN)
    report = tick(strict)
    assert TickOutcome.FAILED is report.outcome
    assert "in/a/1.csv has a record that cannot be read" in report.message
    assert "NumberFormatException" in report.message
    assert "give its FileSource a corrupt_column" in report.message


def test_a_new_column_of_a_file_comes_with_the_next_tick(tick, rows, tmp_path):
    """The file waits for that tick. Earlier rows have no value, and earlier cuts have no such column."""

    def write(name, **columns):
        pl.DataFrame(columns).write_parquet(tmp_path / "in" / "a" / name)

    write("1.parquet", n=[1], word=["one"])
    write("2.parquet", n=[2], word=["two"], more=[2.5])
    assert TickOutcome.CAUGHT_UP is tick(evolving).outcome
    assert [(1, "one")] == rows("bronze/rows", "n", "word")
    assert TickOutcome.CAUGHT_UP is tick(evolving).outcome
    assert [(1, "one", None), (2, "two", 2.5)] == rows("bronze/rows", "n", "word", "more")
    (tmp_path / "in" / "a" / "2.parquet").unlink()
    write("3.parquet", n=[3], word=["three"])
    assert TickOutcome.CAUGHT_UP is tick(evolving).outcome
    assert [None, 2.5, None] == [more for (more,) in rows("bronze/rows", "more")]


def test_a_rollback_waits_until_archived_files_are_back(tick, rows, tmp_path, capsys):
    """Without the files their rows would be missing. With the files back, each row comes once."""
    folder, archive = tmp_path / "in" / "a", tmp_path / "archive" / "a"
    for n in (1, 2):
        pl.DataFrame({"n": [n], "word": ["w"]}).write_parquet(folder / f"{n}.parquet")
        assert TickOutcome.CAUGHT_UP is tick(archiving).outcome
    assert ["1.parquet", "2.parquet"] == sorted(path.name for path in archive.iterdir())
    back = ["rollback", "files", "1", "--warehouse", str(tmp_path / "warehouse")]
    assert ExitCode.DONE is execute(back), capsys.readouterr()
    refused = tick(archiving)
    assert TickOutcome.FAILED is refused.outcome
    assert f"bring them back from {tmp_path / 'archive'} and delete" in refused.message
    for path in archive.iterdir():
        path.rename(folder / path.name)
    (folder / "_consumed.json").unlink()
    assert TickOutcome.CAUGHT_UP is tick(archiving).outcome
    assert [(1,), (2,)] == rows("bronze/rows", "n")


# ------------------------------------------------------------------
# Tests that tasks read the slices of a file source exactly as Spark does, and leave to Spark what they cannot.


STORED = pa.schema(
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


def laid_out(root, stored=STORED, **written):
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
    found = []
    for split in source.splits():
        position = None
        while piece := source.poll(PollSource(VertexId("s"), SplitId(split), position, max_rows)):
            found.append(piece)
            position = piece.end
    return found


def scanned(scans, schema):
    return pa.Table.from_batches([batch for scan in scans for batch in scan.batches(schema)], schema)


@pytest.mark.parametrize("max_rows", [1, 3, 100])
def test_tasks_read_the_rows_that_spark_reads(spark, tmp_path, max_rows):
    laid_out(tmp_path)
    source = FileSource(tmp_path, from_arrow_schema(STORED))
    slices = slices_of(source, max_rows)
    for some in (slices, slices[:1], slices[1::2] or slices):
        _equal(source, some, spark)


def test_tasks_read_the_parts_of_a_source_as_spark_reads_them(spark, tmp_path):
    noted = STORED.append(pa.field("_note", pa.string()))
    laid_out(tmp_path / "old")
    laid_out(tmp_path / "new")
    for path in (tmp_path / "new").rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.append_column("_note", pa.array(["new"] * table.num_rows)), path)
    first = FileSource(tmp_path / "old", from_arrow_schema(STORED), bounded=True)
    source = first.then(FileSource(tmp_path / "new", from_arrow_schema(noted)))
    slices = slices_of(source, 3)
    assert {"1.", "2."} == {piece.split[:2] for piece in slices}
    for some in (slices, [piece for piece in slices if piece.split.startswith("1.")], slices[1::2]):
        _equal(source, some, spark)


def _equal(source, some, spark):
    theirs = source.read(spark, some)
    schema = arrow_schema(theirs.schema)
    order = [(SPLIT_COLUMN, "ascending"), (POSITION_COLUMN, "ascending")]
    ours = scanned(source.scans(some), schema).sort_by(order)
    assert ours.to_pylist() == theirs.toArrow().cast(schema).sort_by(order).to_pylist()
    assert ours.num_rows == sum(piece.rows for piece in some)


class DoubledSource(FileSource):
    """A user's source, which changes the rows when they are read."""

    def read(self, spark, slices):
        rows = super().read(spark, slices)
        return rows.unionAll(rows)


@pytest.mark.parametrize("case", ["nanoseconds", "96 bits", "old calendar", "options", "corrupt column", "own read"])
def test_what_arrow_reads_in_another_way_is_left_to_spark(tmp_path, case):
    """In a task, the rows would have other values, or the source's own steps would be missing."""
    moments = pa.timestamp("ns" if case in {"nanoseconds", "96 bits"} else "us", "UTC")
    stored = STORED.set(2, pa.field("moment", moments))
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
    source = made(tmp_path, from_arrow_schema(STORED), **given.get(case, {}))
    assert source.scans(slices_of(source, 3)) is None


@pytest.mark.parametrize("one_split", [False, True])
def test_a_file_column_names_the_file_of_each_row(tmp_path, spark, one_split):
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
