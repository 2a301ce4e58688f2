"""Tests SparkSource in Spark: its rows, the contract of sources, and ticks that are killed."""

import subprocess
import sys

import pytest

from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.sources.port import SPLIT_COLUMN, read_schema
from jobs.sources.python.data_source import SPLIT, SparkSource
from tests import python_data_sources as examples
from tidemark.testing import SourceContract, SurvivesKills, Trial

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
NAME = VertexId("numbers")


def slices(source, most=100):
    """Return all slices."""
    found, position = [], None
    while (piece := source.poll(PollSource(NAME, SPLIT, position, most))) is not None:
        found.append(piece)
        position = piece.end
    return found


@pytest.mark.parametrize("form", ["tuple", "row", "arrow"])
def test_rows_of_every_form_are_read_in_tasks(spark, form):
    """Tuples, named rows and Arrow batches. Places rise from slice to slice, and with the rows of a partition."""
    source = SparkSource(examples.PartitionedNumbers, {"form": form})
    rows = source.read(spark, slices(source))
    assert read_schema(source).fieldNames() == rows.columns
    found = rows.orderBy("_position").collect()
    assert [(n, f"row {n}") for n in range(11)] == sorted((row["n"], row["name"]) for row in found)
    assert {SPLIT} == {row[SPLIT_COLUMN] for row in found}
    assert sorted(n for n in range(7)) == sorted(row["n"] for row in found[:7])


@pytest.mark.dear
def test_rows_that_do_not_fit_the_columns_are_named(spark):
    """The error says how many columns were expected."""
    source = SparkSource(examples.PartitionedNumbers, {"form": "short"})
    with pytest.raises(Exception, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
        source.read(spark, slices(source)).collect()


def test_rows_that_are_not_given_again_are_missed(spark):
    """A simple reader gave them when it was polled. The tick fails, instead of losing them silently."""
    source = SparkSource(examples.SimpleNumbers, {"fails": "forgets"})
    with pytest.raises(Exception, match="gave 2 rows when it was polled, and now 1 rows between the same two offsets"):
        source.read(spark, slices(source)[:1]).collect()


def test_an_error_in_a_task_repeats_no_secret(spark, monkeypatch):
    """The error of the data source itself does."""
    monkeypatch.setenv("NUMBERS_TOKEN", "hunter2")
    source = SparkSource(examples.SimpleNumbers, {"fails": "read"}, secrets={"token": "NUMBERS_TOKEN"})
    first = source.poll(PollSource(NAME, SPLIT, None, 100))
    later = first.end.replace("2", "4")
    piece = type(first)(NAME, SPLIT, first.end, later, first.end, 2, 2)
    with pytest.raises(Exception, match=r"the server refuses \*\*\*") as raised:
        source.read(spark, [piece]).collect()
    assert "hunter2" not in str(raised.value)


@pytest.mark.dear
class TestSimple(SourceContract):
    """Spark's example of a simple reader."""

    may_exceed = True
    source = staticmethod(lambda folder: SparkSource(examples.SimpleNumbers))


@pytest.mark.dear
class TestPartitioned(SourceContract):
    """Spark's example of a reader that plans tasks."""

    may_exceed = True
    source = staticmethod(lambda folder: SparkSource("tests.python_data_sources.PartitionedNumbers"))


@pytest.mark.dear
class TestBounded(SourceContract):
    """A reader that plans tasks, up to an end."""

    may_exceed = True
    source = staticmethod(lambda folder: SparkSource(examples.PartitionedNumbers, bounded=True))


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestSimpleSurvives(SurvivesKills):
    """A simple reader in real ticks."""

    source = staticmethod(lambda folder: SparkSource(examples.SimpleNumbers))
    kills = ("after:PollSource#2", "after:AppendRow", "before:NotifyComplete")


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestBoundedSurvives(SurvivesKills):
    """A source with an end in real ticks, which finish their job."""

    source = staticmethod(lambda folder: SparkSource(examples.PartitionedNumbers, bounded=True))
    kills = ("before:AppendRow", "after:AppendRow")


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestPartitionedSurvives(SurvivesKills):
    """A reader that plans tasks in real ticks."""

    source = staticmethod(lambda folder: SparkSource(examples.PartitionedNumbers))
    kills = ("before:AppendRow", "after:RecordCut")


@pytest.mark.dear
@pytest.mark.parametrize("kind", ["simple", "partitioned"])
def test_a_tick_on_a_connect_server_reads_a_data_source_to_its_end(connect_url, tmp_path, kind):
    """A tick is killed, the next one goes on, and the job has finished: every row is there once."""
    trial = Trial(f"tests.scenarios.data_source_job:{kind}", tmp_path)
    trial.data.mkdir()
    trial.kill("after:AppendRow#2", spark_connect_url=connect_url)
    words = ["run", f"tests.scenarios.data_source_job:{kind}", "--data", trial.data, "--warehouse", trial.warehouse]
    command = [sys.executable, "-m", "tidemark", *map(str, words), "--spark-connect", connect_url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert 0 == done.returncode, done.stderr
    rows = trial.cuts.latest().polars("bronze/numbers").sort("_position").collect()
    assert list(range(11)) == sorted(rows["n"])
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert "finished" in again.stdout + again.stderr
