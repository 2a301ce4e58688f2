"""Tests pipelines in real ticks that read CSV, whose files bring new columns, or whose files go after reading."""

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.messages import TickOutcome
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.reading import Cuts
from jobs.sources.files.file_source import FileSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("n", LongType()).add("word", StringType())
BROKEN = "n,word\n1,one\nmany,two\n3,three\n"


def of_csv(data: Path) -> Pipeline:
    """Return the pipeline: CSV records go to bronze, and unreadable ones to quarantine."""
    pipeline = Pipeline("files")
    source = FileSource(data, SCHEMA, format="csv", options={"header": "true"}, corrupt_column="unreadable")
    rows = pipeline.source("rows", source).check_rows(
        Expectation("expect_column_values_to_be_null", {"column": "unreadable"}),
        quarantine="quarantine/rows",
        id="records",
    )
    rows.drop("unreadable").table("bronze/rows", id="bronze")
    return pipeline


def strict(data: Path) -> Pipeline:
    """Return the pipeline without a corrupt column."""
    pipeline = Pipeline("files")
    source = FileSource(data, SCHEMA, format="csv", options={"header": "true"})
    pipeline.source("rows", source).table("bronze/rows", id="bronze")
    return pipeline


def evolving(data: Path) -> Pipeline:
    """Return the pipeline: files go to bronze, with the columns that they bring."""
    pipeline = Pipeline("files")
    pipeline.source("rows", FileSource(data, SCHEMA, columns="evolve")).table("bronze/rows", id="bronze")
    return pipeline


def archiving(data: Path) -> Pipeline:
    """Return the pipeline: files go to bronze, and then to the archive."""
    pipeline = Pipeline("files", config=CheckpointConfig(retained=5))
    source = FileSource(data, SCHEMA, after_reading="archive", archive=data.parent / "archive")
    pipeline.source("rows", source).table("bronze/rows", id="bronze")
    return pipeline


@pytest.fixture
def tick(spark, tmp_path):
    """Run one tick of a pipeline whose input lies in `in`."""
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
    """Quarantine has them as text. The table has the file's other records."""
    (tmp_path / "in" / "a" / "1.csv").write_text(BROKEN)
    assert TickOutcome.CAUGHT_UP is tick(of_csv).outcome
    assert [(1, "one"), (3, "three")] == rows("bronze/rows", "n", "word")
    assert [("many,two",)] == rows("quarantine/rows", "unreadable")


def test_without_a_corrupt_column_the_file_and_the_ways_out_are_named(tick, tmp_path):
    """The tick ends with a sentence that names them, and nothing is committed."""
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
