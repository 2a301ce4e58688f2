"""Tests that Tidemark's own sources keep the promises of a source, and that the contract finds sources that do not."""

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.pipeline import Pipeline
from jobs.sources.committed_positions import CommitsToFile
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_source import DeltaSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.generator import GeneratorSource
from jobs.sources.hybrid import HybridSource, SequenceSource, SequenceSplit
from jobs.sources.port import SPLIT_COLUMN, read_schema
from jobs.sources.python.data_source import SPLIT, SparkSource
from jobs.testing.contract import BrokenPromiseError
from tests import python_data_sources as examples
from tests.python_data_sources import PartitionedNumbers, SimpleNumbers
from tests.scenarios.runtime import cut_jobs
from tests.unit.sources.gaps import Gaps
from tests.unit.sources.remembering import Remembering
from tidemark.testing import SourceContract, SurvivesKills, Trial

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
STEPS = ("Claim", "PollSource#2", "RunMicroBatch", "CheckTables", "AppendRow", "PublishTable", "RecordCut")
SCHEMA = StructType().add("n", LongType()).add("name", StringType())


def sequence(folder: Path) -> SequenceSource:
    """Return numbers in two splits, one of which gives only a few at a time."""
    return SequenceSource({"a": 11, "b": SequenceSplit(7, poll_rows_max=2), "empty": 0}, keys=3)


def files(folder: Path, *, bounded: bool = False) -> FileSource:
    for split, sizes in {"berlin": (4, 1, 6), "paris": (5,)}.items():
        for number, rows in enumerate(sizes):
            path = folder / split / f"{number}.parquet"
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                values = {"n": list(range(rows)), "name": [f"{split} {number}"] * rows}
                pq.write_table(pa.table(values), path)
    return FileSource(folder, SCHEMA, bounded=bounded)


def json_lines(folder: Path) -> FileSource:
    """Return small files of JSON lines in two folders. Such files are read whole."""
    for split, sizes in {"berlin": (4, 1, 6), "paris": (5,)}.items():
        for number, rows in enumerate(sizes):
            path = folder / split / f"{number}.json"
            path.parent.mkdir(exist_ok=True)
            if path.exists():
                continue
            path.write_text("".join(f'{{"n": {row}, "name": "{split} {number}"}}\n' for row in range(rows)))
    return FileSource(folder, SCHEMA, format="json")


def consumed(folder: Path) -> FileSource:
    if not (written := folder.parent / "written").exists():
        files(folder)
        written.touch()
    return FileSource(folder, SCHEMA, after_reading="delete")


def committed(folder: Path) -> CommitsToFile:
    return CommitsToFile(files(folder), folder.parent / "committed.json")


def hybrid(folder: Path) -> HybridSource:
    return HybridSource(files(folder, bounded=True), Numbered({"more": 11}))


class Numbered(SequenceSource):
    def schema(self) -> StructType:
        return SCHEMA

    def read(self, spark, slices):
        found = super().read(spark, slices)
        return found.select("n", found["key"].cast("string").alias("name"), "_split", "_position")


def gaps(folder: Path) -> Gaps:
    return Gaps({"a": (3, 4, 700, 701, 702, 70_000, 70_001), "b": (0, 2**40)})


def remembering(folder: Path) -> Remembering:
    return Remembering(gaps(folder), folder)


def delta(folder: Path) -> DeltaSource:
    for version, rows in enumerate((4, 1, 6)):
        if not (folder / "table" / "_delta_log" / f"{version:020}.json").exists():
            values = {"n": list(range(rows)), "name": [f"version {version}"] * rows}
            write_deltalake(folder / "table", pa.table(values), mode="append")
    return DeltaSource(folder / "table", schema=SCHEMA)


def cuts(folder: Path) -> CutSource:
    if not (folder / cut_jobs.SHOP).exists():
        cut_jobs.tick(cut_jobs.SHOP, folder, 30)
    return CutSource(folder / cut_jobs.SHOP, cut_jobs.SHOP, "silver/orders", schema=cut_jobs.schema())


@pytest.mark.dear
class TestSequence(SourceContract):
    """A source of computed numbers."""

    source = staticmethod(sequence)


@pytest.mark.dear
class TestGenerator(SourceContract):
    """A source of made-up rows."""

    source = staticmethod(lambda folder: GeneratorSource(rows=11, seed=3, splits=2))


@pytest.mark.dear
class TestGeneratorSurvives(SurvivesKills):
    """Made-up rows in real ticks."""

    source = staticmethod(lambda folder: GeneratorSource(rows=11, seed=3, splits=2))
    kills = ("after:AppendRow", "before:PublishTable:bronze/rows")


@pytest.mark.dear
class TestStateOfItsOwn(SourceContract):
    """A source with state of its own: a word, besides its positions."""

    source = staticmethod(remembering)


class TestStateOfItsOwnSurvives(SurvivesKills):
    """Each tick restores the word that the job's first tick chose, wherever the tick before died."""

    source = staticmethod(remembering)
    kills = (
        "before:AskOperatorCoordinator:source#2",
        "after:AskOperatorCoordinator:source#2",
        "after:AppendRow",
        "before:ResetOperatorCoordinator:source",
    )


class TestFiles(SourceContract):
    source = staticmethod(files)


@pytest.mark.dear
class TestJsonLines(SourceContract):
    """Files whose rows have no addresses. A slice never ends within such a file."""

    source = staticmethod(json_lines)
    may_exceed = True


@pytest.mark.dear
class TestJsonLinesSurvive(SurvivesKills):
    """Files of JSON lines in real ticks."""

    source = staticmethod(json_lines)
    kills = ("after:PollSource#2", "before:AppendRow", "after:AppendRow")


@pytest.mark.dear
class TestCommitsToFile(SourceContract):
    """A source that wraps another one."""

    source = staticmethod(committed)


@pytest.mark.dear
class TestGaps(SourceContract):
    source = staticmethod(gaps)


@pytest.mark.dear
class TestHybrid(SourceContract):
    """A source that reads two others, one after the other."""

    source = staticmethod(hybrid)


@pytest.mark.dear
class TestHybridSurvives(SurvivesKills):
    """Two sources in real ticks, one after the other."""

    source = staticmethod(hybrid)
    kills = ("before:AppendRow#4", "after:AppendRow#4")


@pytest.mark.dear
class TestDelta(SourceContract):
    source = staticmethod(delta)


@pytest.mark.dear
class TestDeltaSurvives(SurvivesKills):
    """A Delta table in real ticks."""

    source = staticmethod(delta)
    kills = ("after:AppendRow",)


@pytest.mark.dear
class TestCuts(SourceContract):
    """A table of another job, read cut by cut."""

    source = staticmethod(cuts)


@pytest.mark.dear
class TestCutsSurvive(SurvivesKills):
    """Another job's cuts in real ticks."""

    source = staticmethod(cuts)
    kills = ("after:AppendRow",)


@pytest.mark.dear
class TestGapsSurvive(SurvivesKills):
    """A source whose positions have gaps, in real ticks."""

    source = staticmethod(gaps)
    kills = ("after:AppendRow",)


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestFilesSurvive(SurvivesKills):
    """Files in a tick that dies before and after each of its steps."""

    source = staticmethod(files)
    kills = (
        *(f"{side}:{step}" for step in STEPS for side in ("before", "after")),
        *("before:NotifyComplete", "before:RollForward", "after:DiscardLeftovers", "before:Release", "after:Release"),
    )


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestDeletedFilesSurvive(SurvivesKills):
    """In unaligned mode too, no file is deleted while a restored tick could still need it."""

    source = staticmethod(consumed)
    kills = ("before:AppendRow", "after:AppendRow", "before:NotifyComplete", "after:NotifyComplete")
    settings: ClassVar = SurvivesKills.settings | {"unaligned": True}

    def test_nothing_is_lost_or_doubled_by_a_kill(self, tmp_path: Path) -> None:
        """At the end, every file that was read whole is deleted."""
        super().test_nothing_is_lost_or_doubled_by_a_kill(tmp_path)
        assert ["_consumed.json"] * 2 == [path.name for path in sorted(tmp_path.glob("data/*/*"))]


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestCommitsToFileSurvives(SurvivesKills):
    """The source commits positions after each checkpoint, and never before it."""

    source = staticmethod(committed)
    kills = ("before:NotifyComplete", "after:NotifyComplete", "after:AppendRow", "after:PublishTable")


def test_a_generator_makes_the_same_rows_from_the_same_seed(spark):
    """Another seed makes other rows. Keys and values lie within their bounds."""

    def made(seed):
        source = GeneratorSource(rows=300, seed=seed, keys=7)
        piece = source.poll(PollSource(VertexId("made"), SplitId("0"), None, 300))
        return [(row["key"], row["value"]) for row in source.read(spark, [piece]).orderBy("n").collect()]

    rows = made(1)
    assert rows == made(1) != made(2)
    assert set(range(7)) == {key for key, _ in rows}
    assert all(0 <= value < 1_000 for _, value in rows)
    assert len({value for _, value in rows}) > 100


class Forgets(Gaps):
    """Answers a second poll with fewer rows than the first."""

    def poll(self, request):
        found = super().poll(request)
        self.places["a"] = tuple(self.places["a"])[1:]
        return found


class Doubles(Gaps):
    """Gives the last row of a slice again with the next slice."""

    def read(self, spark, slices):
        rows = super().read(spark, slices)
        return rows.unionAll(rows.limit(1))


class Miscounts(Gaps):
    def lag(self, positions):
        return {split: lag for split, lag in super().lag(positions).items() if split == "a"}


PLACES = {"a": (3, 4, 700, 701), "b": (1,)}


@pytest.mark.parametrize(
    ("made", "test", "said"),
    [
        (lambda: Forgets(dict(PLACES)), "test_a_position_names_the_same_rows_for_ever", "polled otherwise"),
        (lambda: Doubles(PLACES), "test_slices_of_any_size_hold_the_same_rows", "two rows have one _position"),
        (lambda: Miscounts(PLACES), "test_its_lag_is_what_is_left_to_read", r"lag\(\) tells of the splits \['a'\]"),
    ],
)
def test_a_source_that_breaks_a_promise_is_found(made, test, said, tmp_path):
    one = made()

    class Broken(SourceContract):
        source = staticmethod(lambda folder: one)

    with pytest.raises(BrokenPromiseError, match=said):
        getattr(Broken(), test)(tmp_path)


# ------------------------------------------------------------------
# Tests SparkSource in Spark: its rows, the contract of sources, and ticks that are killed.


NAME = VertexId("numbers")


def slices(source, most=100):
    found, position = [], None
    while (piece := source.poll(PollSource(NAME, SPLIT, position, most))) is not None:
        found.append(piece)
        position = piece.end
    return found


@pytest.mark.parametrize("form", ["tuple", "row", "arrow"])
def test_rows_of_every_form_are_read_in_tasks(spark, form):
    """Rows are tuples, named rows or Arrow batches. Positions rise from slice to slice, and within a partition."""
    source = SparkSource(examples.PartitionedNumbers, {"form": form})
    rows = source.read(spark, slices(source))
    assert read_schema(source).fieldNames() == rows.columns
    found = rows.orderBy("_position").collect()
    assert [(n, f"row {n}") for n in range(11)] == sorted((row["n"], row["name"]) for row in found)
    assert {SPLIT} == {row[SPLIT_COLUMN] for row in found}
    assert sorted(n for n in range(7)) == sorted(row["n"] for row in found[:7])


@pytest.mark.dear
def test_rows_that_do_not_fit_the_columns_are_named(spark):
    source = SparkSource(examples.PartitionedNumbers, {"form": "short"})
    with pytest.raises(Exception, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
        source.read(spark, slices(source)).collect()


def test_rows_that_are_not_given_again_are_missed(spark):
    """A simple reader gave the rows when it was polled. The read fails, instead of losing the rows silently."""
    source = SparkSource(examples.SimpleNumbers, {"fails": "forgets"})
    with pytest.raises(Exception, match="gave 2 rows when it was polled, and now 1 rows between the same two offsets"):
        source.read(spark, slices(source)[:1]).collect()


def test_an_error_in_a_task_repeats_no_secret(spark, monkeypatch):
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
    """A reader that plans tasks, and whose data has an end."""

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
    trial = Trial(f"tests.scenarios.test_source_contracts:{kind}", tmp_path)
    trial.data.mkdir()
    trial.kill("after:AppendRow#2", spark_connect_url=connect_url)
    words = [
        "run",
        f"tests.scenarios.test_source_contracts:{kind}",
        "--data",
        trial.data,
        "--warehouse",
        trial.warehouse,
    ]
    command = [sys.executable, "-m", "tidemark", *map(str, words), "--spark-connect", connect_url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert 0 == done.returncode, done.stderr
    rows = trial.cuts.latest().polars("bronze/numbers").sort("_position").collect()
    assert list(range(11)) == sorted(rows["n"])
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert "finished" in again.stdout + again.stderr


# ------------------------------------------------------------------
# Defines pipelines that read one of Spark's examples of Python data sources to its end.


def simple(data: Path) -> Pipeline:
    del data
    return _pipeline(SimpleNumbers)


def partitioned(data: Path) -> Pipeline:
    del data
    return _pipeline(PartitionedNumbers)


def _pipeline(kind: type[DataSource]) -> Pipeline:
    pipeline = Pipeline("numbers", config=CheckpointConfig(every_rows=2, slice_rows_max=2))
    pipeline.source("numbers", SparkSource(kind, bounded=True)).table("bronze/numbers", id="bronze")
    return pipeline
