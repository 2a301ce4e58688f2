"""Tests finding a cut by number and by time, reading its tables, and the error if there is no such cut."""

import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import polars as pl
import pytest

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import InvalidNameError
from checkpointing.messages import TickOutcome
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.reading import (
    CutGoneError,
    Cuts,
    CutUnreadableError,
    InvalidMomentError,
    NoSuchCutError,
    NoSuchOperatorError,
    NoSuchTableError,
)
from jobs.reading.cut_sql import cut_sql, view_name
from jobs.state.backend import FullBackend, MemoryBackend
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.refusals import NeverRunError
from tests.scenarios.reading.keyed_job import INCREMENTAL, JOB, OPERATOR, KeyedJob, a_life, ordered
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, LocalEngine, at, build, run
from tests.scenarios.runtime.sequence_job import JOB as NUMBERS


@pytest.fixture
def job(tmp_path):
    """Return a job with cuts 1, 2 and 3, published 1, 2 and 3 seconds after the epoch."""
    counts = KeyedJob(tmp_path)
    for number in (1, 2, 3):
        counts.epoch({("a", number): (number, [])})
    return counts


@pytest.mark.parametrize(
    ("moment", "checkpoint"),
    [
        ("1970-01-01T00:00:01Z", 1),
        ("1970-01-01T00:00:02.999+00:00", 2),
        ("1970-01-01T02:00:03+02:00", 3),
        ("2100-01-01", 3),
    ],
)
def test_a_time_means_the_newest_cut_that_was_published_by_then(job, moment, checkpoint):
    """The time is exact to the millisecond, and may be written in any time zone."""
    cuts = Cuts(job.root, JOB)
    assert checkpoint == cuts.as_of(moment).checkpoint == cuts.find(moment).checkpoint
    found = cuts.at(checkpoint)
    assert checkpoint == cuts.as_of(found.published_at).checkpoint == found.published_at.timestamp()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "1970-01-01T00:00:00.999Z",
            r"no cut of counts that is kept was published by .*: the oldest is cut 1 \(.*\), ",
        ),
        (
            "9",
            r"checkpoint 9 of counts is not retained: the oldest is cut 1 \(.*\), the newest cut 3 \(.*\); 'retained'",
        ),
    ],
)
def test_a_cut_that_is_not_there_is_answered_with_what_there_is(job, words, said):
    """The error names the oldest and the newest cut and their times, in a form that a user can type."""
    with pytest.raises(NoSuchCutError, match=said):
        Cuts(job.root, JOB).find(words)


def test_before_its_first_cut_a_job_says_so(tmp_path):
    """A warehouse without the job is left unchanged. For a job without a cut, the error says how to get one."""
    with pytest.raises(NeverRunError, match=r"counts has never run in .*start it with 'tidemark run counts'"):
        Cuts(tmp_path / "none", JOB).latest()
    assert not (tmp_path / "none").exists()
    job = KeyedJob(tmp_path)
    with pytest.raises(NoSuchCutError, match="counts has published no cut yet: run 'tidemark run counts' until it has"):
        Cuts(tmp_path, JOB).latest()
    assert () == Cuts(tmp_path, JOB).all()
    job.commit({})
    with pytest.raises(NoSuchCutError, match="counts has published no cut yet"):
        Cuts(tmp_path, JOB).at(1)


def test_a_checkpoint_that_is_committed_only_is_not_read(job):
    """The newest readable cut is the newest published one. The error for the committed one says how to publish it."""
    job.commit({("a", 1): (9, [])})
    cuts = Cuts(job.root, JOB)
    assert 3 == cuts.latest().checkpoint
    with pytest.raises(NoSuchCutError, match=r"4 of counts is committed, .*'tidemark run counts' rolls it forward"):
        cuts.at(4)


def test_words_and_names_that_mean_nothing_are_refused(job):
    with pytest.raises(
        InvalidMomentError, match="'yesterday' names no cut: write a checkpoint id like 7, 'latest', or"
    ):
        Cuts(job.root, JOB).find("yesterday")
    with pytest.raises(InvalidNameError, match=r"job name '\.\./x'"):
        Cuts(job.root, "../x")


def test_a_cut_in_hand_outlives_its_retention_until_its_files_go(tmp_path):
    """A cut that was dropped from `cuts` reads as before. Once a clean-up has deleted a file, an error says so."""
    job = KeyedJob(tmp_path, retained=1)
    job.epoch({("a", 1): (1, [])})
    cuts = Cuts(tmp_path, JOB)
    cut = cuts.latest()
    (file,) = job.row.vertices[0].subtasks[0].state
    job.epoch({("a", 1): (2, [])})
    assert [("a", 1, 1, [])] == cut.state(OPERATOR).polars().collect().rows()
    (tmp_path / file.file.path).unlink()
    said = r"cut 1 of counts is no longer retained, .*is missing\): there is only cut 2 \(.*'retained' says how many"
    for read in (cut.polars, cut.arrow):
        with pytest.raises(CutGoneError, match=said):
            read(job.table)
    with pytest.raises(CutGoneError, match=said):
        cut.state(OPERATOR)
    with pytest.raises(NoSuchCutError, match="checkpoint 1 of counts is not retained: there is only cut 2"):
        cuts.at(1)


def test_a_retained_cut_that_has_lost_a_file_is_damaged(job):
    """No clean-up deletes such a file. So the error calls the cut damaged, and names the file and the way out."""
    (file, *_) = job.row.vertices[0].subtasks[0].state
    (job.root / file.file.path).unlink()
    with pytest.raises(CutUnreadableError, match=r"is damaged: table .*by_key.*is missing.*restore the folder"):
        Cuts(job.root, JOB).latest().state(OPERATOR)


def test_a_cut_says_what_it_holds_and_reads_every_table_at_its_version(tmp_path):
    """A cut has the tables, operators, versions and rows of its checkpoint, even if newer ones are published."""
    run(tmp_path, 1)
    cut = Cuts(tmp_path, NUMBERS).latest()
    run(tmp_path, 1)
    savepoint = savepoint_at_rest(at(tmp_path))
    cuts = Cuts(tmp_path, NUMBERS)
    newest = cuts.latest().checkpoint
    assert (("bronze/numbers", "gold/by_key"), ("by_key",)) == (cut.tables, cut.operators)
    assert 1 == cut.checkpoint == cut.version(BRONZE) == cut.versions[GOLD]
    assert [100, 200] == [each.polars(BRONZE).collect().height for each in cuts.all()]
    assert [100, 200] == [each.arrow(BRONZE).num_rows for each in cuts.all()]
    assert 100 == cut.polars(BRONZE).collect().height == sum(cut.arrow(GOLD).column("rows").to_pylist())
    with pytest.raises(
        NoSuchTableError, match="cut 1 of numbers has no table 'gold/x': there are bronze/numbers, gold"
    ):
        cut.version("gold/x")
    with pytest.raises(NoSuchCutError, match=f"savepoint {savepoint.checkpoint} .*or read checkpoint {newest}, after"):
        cuts.at(savepoint.checkpoint)


def test_reading_needs_no_spark_and_writes_nothing(job):
    """A new process shows that pyspark is not imported, and that the warehouse's files stay the same."""
    before = sorted(path for path in job.root.rglob("*"))
    program = (
        "import sys; from jobs.reading import Cuts; cut = Cuts(sys.argv[1], sys.argv[2]).latest();"
        "print(cut.state(cut.operators[0]).polars().collect().height, 'pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(job.root), JOB], capture_output=True, text=True, check=True
    )
    assert "3 False" == done.stdout.strip()
    assert before == sorted(path for path in job.root.rglob("*"))


# ------------------------------------------------------------------
# For every reader, an operator's state at a cut is what the operator itself would load: one row per key.


BACKENDS = {"memory": MemoryBackend(1_000_000), "full": FullBackend(), "incremental": INCREMENTAL}


@pytest.mark.parametrize(
    ("backend", "seed"), [("memory", 1), ("full", 2), ("incremental", 3), ("incremental", 4), ("incremental", 5)]
)
def test_every_cut_shows_the_state_as_it_was(tmp_path, backend, seed):
    """Backends write bases, deltas and tombstones, and parallelism changes. Polars and DuckDB read the same."""
    job = a_life(KeyedJob(tmp_path, BACKENDS[backend]), seed)
    cuts = Cuts(tmp_path, JOB).all()
    duck = duckdb.connect()
    assert list(job.model) == [cut.checkpoint for cut in cuts]
    for cut in cuts:
        state = cut.state(OPERATOR)
        assert job.model[cut.checkpoint] == ordered(state.polars().collect().rows())
        assert job.model[cut.checkpoint] == ordered(duck.sql(state.sql("duckdb")).fetchall())
        assert job.model[cut.checkpoint] == ordered(tuple(row.values()) for row in state.arrow().to_pylist())
        assert ["place", "day", "rows", "seen"] == state.arrow().schema.names


def test_a_key_that_a_narrower_base_dropped_does_not_come_back(tmp_path):
    """After a rescale, the old and wider base is still used for other ranges.

    Its row of a deleted key must not be the newest.
    """
    job = KeyedJob(tmp_path, FullBackend(), parallelism=1)
    job.epoch({("a", day): (day, []) for day in range(8)})
    job.parallelism = 2
    gone = next(("a", day) for day in range(8) if (day * 3 + 1) % 8 < 4)  # a key of the lower range
    job.epoch({gone: None})
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert 2 == state.files
    assert 7 == state.polars().collect().height == len(job.state)
    assert 7 == len(duckdb.connect().sql(state.sql("duckdb")).fetchall())


@pytest.mark.spark
@pytest.mark.jars("delta")
def test_sparks_query_reads_the_state_of_a_cut(spark, tmp_path):
    """Plain SQL on the state table at its version gives the newest row of each key, though newer checkpoints exist."""
    job = a_life(KeyedJob(tmp_path, INCREMENTAL), seed=5, epochs=6)
    cut = Cuts(tmp_path, JOB).latest()
    job.epoch({("a", 0): (99, [])})
    assert cut.arrow(job.table).num_rows == cut.spark(spark, job.table).count()
    shown = cut.state(OPERATOR).spark(spark)
    assert ["place", "day", "rows", "seen"] == shown.columns
    assert job.model[cut.checkpoint] == ordered(tuple(row) for row in shown.collect())


@pytest.mark.spark
@pytest.mark.jars("delta")
def test_sparks_views_show_the_tables_of_a_cut(spark, tmp_path):
    """The views are in Spark's catalog, and stay at the cut when newer checkpoints come."""
    run_tick(build(), RuntimeSettings(warehouse=tmp_path), engine=LocalEngine())
    cut = Cuts(tmp_path, NUMBERS).latest()
    run_tick(build({"a": 300, "b": 300}), RuntimeSettings(warehouse=tmp_path), engine=LocalEngine())
    for statement in cut_sql(cut, "spark", "then").split(";\n")[:-1]:
        spark.sql(statement)
    try:
        for table in cut.tables:
            assert cut.arrow(table).num_rows == spark.table(f"then.{view_name(table)}").count()
    finally:
        spark.sql("DROP SCHEMA then CASCADE")


def test_a_state_without_rows_has_its_columns(tmp_path):
    """The state of an operator without keys is empty and has columns, in every reader."""
    job = KeyedJob(tmp_path)
    job.epoch({})
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert (0, ["place", "day", "rows", "seen"]) == (state.polars().collect().height, state.arrow().schema.names)
    found = duckdb.connect().sql(state.sql("duckdb"))
    assert (["place", "day", "rows", "seen"], []) == (found.columns, found.fetchall())
    assert ["VARCHAR", "BIGINT", "BIGINT", "BIGINT[]"] == [str(kind) for kind in found.types]


def test_rows_in_flight_are_counted_and_not_mixed_in(tmp_path):
    """Rows in flight of an unaligned checkpoint belong to the cut. They are not in the state of any key yet."""
    job = KeyedJob(tmp_path, parallelism=2)
    job.epoch({("a", 1): (1, [])}, on_their_way=1_200)
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert 1_200 == state.rows_on_their_way
    assert [("a", 1, 1, [])] == state.polars().collect().rows()


def test_a_cut_in_hand_keeps_its_state_while_its_row_is_subsumed(tmp_path):
    job = a_life(KeyedJob(tmp_path, retained=1), seed=6, epochs=3)
    cuts = Cuts(tmp_path, JOB)
    before = cuts.latest()
    job.commit({("a", 1): (77, [])})  # subsumes the entry of cut 3, whose tables can still be read
    between = cuts.latest()
    job.publish()
    assert 3 == before.checkpoint == between.checkpoint
    assert job.model[3] == ordered(before.state(OPERATOR).polars().collect().rows())
    assert job.model[3] == ordered(between.state(OPERATOR).polars().collect().rows())
    assert job.model[4] == ordered(cuts.latest().state(OPERATOR).polars().collect().rows())


def test_an_unknown_operator_is_answered_with_those_that_there_are(tmp_path):
    KeyedJob(tmp_path).epoch({})
    with pytest.raises(
        NoSuchOperatorError, match="cut 1 of counts has no state of an operator 'nope': there is only by_key"
    ):
        Cuts(tmp_path, JOB).latest().state("nope")


# ------------------------------------------------------------------
# Two readers while a tick runs: one reads by cut, the other reads the newest version of each table and sees mixtures.


CHECKPOINTS = 12
PATIENCE_S = 60
CONFIG = CheckpointConfig(every_rows=4, slice_rows_max=4, micro_batch_rows_max=8, retained=2)
ROWS = {"a": 2 * CHECKPOINTS, "b": 2 * CHECKPOINTS}


def gold_of(bronze: pl.DataFrame) -> list:
    """Return the only right content of gold for these rows of bronze. The operator's state has the same content."""
    return sorted(bronze.group_by("key").agg(pl.len().cast(pl.Int64), pl.sum("value")).rows())


class Readers:
    """A boundary at which two readers read: after each step, and when bronze is published and gold is not.

    One reads by cut, the other reads the newest version of each table.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cuts = Cuts(root, NUMBERS)
        self._bronze_is_out = threading.Event()
        self.seen: set[int] = set()
        self.mixed: list[int] = []
        self.holds = self.mixtures = 0

    def __call__(self, name: str) -> None:
        if name == f"after:PublishTable:{BRONZE}":
            self._bronze_is_out.set()
        elif name == f"before:PublishTable:{GOLD}":
            assert self._bronze_is_out.wait(PATIENCE_S)
            self._bronze_is_out.clear()
            self.holds += 1
            self.look()
            bronze = pl.read_delta(str(self._root / BRONZE)).select("key", "value")
            gold = pl.read_delta(str(self._root / GOLD)).select("key", "rows", "total")
            self.mixtures += gold_of(bronze) != sorted(gold.rows())
        elif name in ("after:AppendRow", "after:RecordCut"):
            self.look()

    def look(self) -> None:
        try:
            cut = self._cuts.latest()
        except (NeverRunError, NoSuchCutError):
            return
        self.seen.add(cut.checkpoint)
        expected = gold_of(cut.polars(BRONZE).select("key", "value").collect())
        gold = sorted(cut.polars(GOLD).select("key", "rows", "total").collect().rows())
        state = sorted(cut.state("by_key").polars().select("key", "rows", "total").collect().rows())
        self.mixed += [] if expected == gold == state else [cut.checkpoint]


def test_by_cut_nothing_is_ever_mixed_and_plainly_it_is(tmp_path):
    """At each cut, gold and the state are the sums of bronze. In the newest versions of the tables they may not be."""
    readers = Readers(tmp_path)
    settings = RuntimeSettings(warehouse=tmp_path)
    report = run_tick(build(ROWS, config=CONFIG), settings, engine=LocalEngine(), boundary=readers)
    completed = [record.checkpoint for record in report.completed]
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert len(completed) == readers.holds >= CHECKPOINTS
    assert completed == sorted(readers.seen)
    assert [] == readers.mixed
    assert readers.mixtures == readers.holds
    assert 2 == len(Cuts(tmp_path, NUMBERS).all())


# ------------------------------------------------------------------
# `tidemark cut` and `tidemark state` as a user types them.


@pytest.fixture
def typed(tmp_path, capsys):
    job = KeyedJob(tmp_path)
    job.epoch({("LAX", 1): (1, [7]), ("SFO", 2): (5, []), (None, 3): (2, [])})
    job.epoch({("LAX", 1): (2, [7, 8]), ("SFO", 2): None}, on_their_way=40)

    def execute_and_show(*words):
        where = ["--warehouse", str(tmp_path)]
        command, *rest = words
        code = execute([command, *rest, *where] if command == "cut" else [command, JOB, *rest, *where])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    execute_and_show.job = job
    return execute_and_show


def cells(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_the_newest_state_is_a_table_of_real_columns(typed):
    """The table has a row for each key, in order.

    The command prints null as null, and of a list the first item. It also mentions rows in flight.
    """
    code, out, _ = typed("state", "by_key")
    assert ExitCode.DONE == code
    assert [["null", "3", "2", "[]"], ["LAX", "1", "2", "7 and 1 more"]] == cells(out)
    assert "state of by_key at cut 2 of counts" in out
    assert "40 rows in flight to by_key belong to this cut and are not in the state yet" in out


def test_an_older_state_and_single_keys_can_be_asked_for(typed):
    """A cut is named by its number or a time, and keys by any key column. The output says what the limit left out."""
    assert [["SFO", "2", "5", "[]"]] == cells(typed("state", "by_key", "--at", "1", "--key", "place=SFO")[1])
    at = ["--at", "1970-01-01T00:00:01.500Z"]
    assert [["LAX", "1", "1", "[7]"]] == cells(typed("state", "by_key", *at, "--key", "place=LAX", "--key", "day=1")[1])
    assert [] == cells(typed("state", "by_key", "--key", "place=SFO")[1])
    out = typed("state", "by_key", "--at", "1", "--limit", "2")[1]
    assert 2 == len(cells(out))
    assert "2 of 3 keys: --limit shows more" in out


def test_without_an_operator_those_with_state_are_listed(typed):
    assert [["by_key", "place, day", "rows, seen", "2"]] == cells(typed("state")[1])


def test_the_printed_query_is_all_that_duckdb_needs(typed):
    code, out, err = typed("state", "by_key", "--sql", "duckdb", "--at", "1")
    assert (ExitCode.DONE, "") == (code, err)
    assert typed.job.model[1] == ordered(duckdb.connect().sql(out).fetchall())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("state by_key --key LAX", "the key of by_key is place, day; write --key place=VALUE --key day=VALUE"),
        ("state by_key --key day=x", "--key day=x: day of by_key is Int64, and 'x' is none"),
        ("state by_key --key rows=1", "--key rows=1: the key of by_key is place, day"),
        ("state by_key --limit 0", "'tidemark state --help' shows what can be given"),
    ],
)
def test_what_was_typed_wrong_is_said_with_what_there_is(typed, words, said):
    code, out, err = typed(*words.split())
    assert (ExitCode.USAGE, "", 1) == (code, out, len(err.splitlines()))
    assert said in err


def test_a_cut_by_time_shows_the_versions_of_that_time(typed):
    code, out, _ = typed("cut", JOB, "1970-01-01T00:00:01Z")
    assert (ExitCode.DONE, [["_tidemark/counts/state/by_key", "1"]]) == (code, cells(out))
    assert "tidemark state counts by_key --at 1 --warehouse" in out


def test_a_time_before_the_first_cut_names_the_first_and_the_last(typed):
    code, _, err = typed("cut", JOB, "1969-12-31T00:00:00Z")
    assert ExitCode.NOT_THERE == code
    assert "no cut of counts that is kept was published by 19" in err
    assert "the oldest is cut 1 (19" in err
    assert "the newest cut 2 (19" in err
