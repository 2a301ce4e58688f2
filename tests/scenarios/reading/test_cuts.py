"""Finding a cut by number and by time, reading its tables, and what is said when there is none."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake.exceptions import TableNotFoundError

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import InvalidNameError
from checkpointing.messages import TickOutcome
from jobs.reading import (
    Cut,
    CutGoneError,
    Cuts,
    CutUnreadableError,
    InvalidMomentError,
    NoSuchCutError,
    NoSuchOperatorError,
    NoSuchTableError,
)
from jobs.state.backend import FullBackend, MemoryBackend
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.refusals import NeverRunError
from tests.scenarios.reading.keyed_job import INCREMENTAL, JOB, OPERATOR, KeyedJob, a_life, ordered
from tests.scenarios.runtime.savepoint_job import at, run
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, LocalEngine, build
from tests.scenarios.runtime.sequence_job import JOB as JOB_OF_TWO_READERS
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
    """To the millisecond, in whatever zone it is written."""
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
    """The answer has the oldest and the newest cut with their times, in a form that can be typed."""
    with pytest.raises(NoSuchCutError, match=said):
        Cuts(job.root, JOB).find(words)


def test_before_its_first_cut_a_job_says_so(tmp_path):
    """A warehouse without the job stays as it is. A job without a cut says how to get one."""
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
    """The newest readable cut is the newest published one. For the other, the error says how to publish it."""
    job.commit({("a", 1): (9, [])})
    cuts = Cuts(job.root, JOB)
    assert 3 == cuts.latest().checkpoint
    with pytest.raises(NoSuchCutError, match=r"4 of counts is committed, .*'tidemark run counts' rolls it forward"):
        cuts.at(4)


def test_words_and_names_that_mean_nothing_are_refused(job):
    """Before anything is read."""
    with pytest.raises(
        InvalidMomentError, match="'yesterday' names no cut: write a checkpoint id like 7, 'latest', or"
    ):
        Cuts(job.root, JOB).find("yesterday")
    with pytest.raises(InvalidNameError, match=r"job name '\.\./x'"):
        Cuts(job.root, "../x")


def test_a_cut_in_hand_outlives_its_retention_until_its_files_go(tmp_path):
    """A cut that was dropped from `cuts` reads as before. Once clean-up has deleted a file, an error says so."""
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
    """No clean-up did that: the message names the file and the way out."""
    (file, *_) = job.row.vertices[0].subtasks[0].state
    (job.root / file.file.path).unlink()
    with pytest.raises(CutUnreadableError, match=r"is damaged: table .*by_key.*is missing.*restore the folder"):
        Cuts(job.root, JOB).latest().state(OPERATOR)


def test_a_cut_says_what_it_holds_and_reads_every_table_at_its_version(tmp_path):
    """It has the tables, operators, versions and rows of its checkpoint, though newer ones are published."""
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
    """A process of its own shows what is imported, and what lies in the warehouse."""
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


def test_a_cut_is_shown_in_a_line_and_without_its_rows(tmp_path):
    """This holds in a notebook and in an error, for a cut, for all cuts of a pipeline, and for a state."""
    job = KeyedJob(tmp_path)
    job.epoch({("LAX", 1): (1, [7])})
    cut = Cuts(tmp_path, JOB).latest()
    assert f"<Cut 1 of counts in {tmp_path}, published 1970-01-01T00:00:01+00:00, 0 tables>" == repr(cut)
    assert f"<Cuts of counts in {tmp_path}>" == repr(Cuts(tmp_path, JOB))
    assert repr(cut.state("by_key")).startswith("<State of by_key at cut 1 of counts: place: ")
    assert 200 > len(repr(cut.state("by_key")))


# ------------------------------------------------------------------
# An operator's state at a cut is what the operator itself would load: one row per key, for every reader.


BACKENDS = {"memory": MemoryBackend(1_000_000), "full": FullBackend(), "incremental": INCREMENTAL}


@pytest.mark.parametrize(
    ("backend", "seed"), [("memory", 1), ("full", 2), ("incremental", 3), ("incremental", 4), ("incremental", 5)]
)
def test_every_cut_shows_the_state_as_it_was(tmp_path, backend, seed):
    """Bases, deltas and tombstones of every backend, through changes of parallelism: Polars and DuckDB say the same."""
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
    """After a rescale, the old and wider base still counts for other ranges.

    Its row of a deleted key must not be the newest.
    """
    job = KeyedJob(tmp_path, FullBackend(), parallelism=1)
    job.epoch({("a", day): (day, []) for day in range(8)})
    job.parallelism = 2
    gone = next(("a", day) for day in range(8) if (day * 3 + 1) % 8 < 4)  # of the lower range
    job.epoch({gone: None})
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert 2 == state.files
    assert 7 == state.polars().collect().height == len(job.state)
    assert 7 == len(duckdb.connect().sql(state.sql("duckdb")).fetchall())


def test_the_query_needs_nothing_from_the_network(tmp_path):
    """DuckDB answers without loading an extension, wherever the warehouse lies."""
    root = tmp_path / "it's a warehouse"
    root.mkdir()
    job = a_life(KeyedJob(root), seed=4)
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    state = Cuts(root, JOB).latest().state(OPERATOR)
    assert job.model[job.checkpoint] == ordered(connection.sql(state.sql("duckdb")).fetchall())


@pytest.mark.spark
def test_sparks_query_reads_the_state_of_a_cut(spark, tmp_path):
    """Plain SQL on the state table at its version gives the newest row of each key, though newer checkpoints exist."""
    job = a_life(KeyedJob(tmp_path, INCREMENTAL), seed=5, epochs=6)
    cut = Cuts(tmp_path, JOB).latest()
    job.epoch({("a", 0): (99, [])})
    assert cut.arrow(job.table).num_rows == cut.spark(spark, job.table).count()
    shown = cut.state(OPERATOR).spark(spark)
    assert ["place", "day", "rows", "seen"] == shown.columns
    assert job.model[cut.checkpoint] == ordered(tuple(row) for row in shown.collect())


def test_a_state_without_rows_has_its_columns(tmp_path):
    """An operator without keys has an empty state with columns, however it is read."""
    job = KeyedJob(tmp_path)
    job.epoch({})
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert (0, ["place", "day", "rows", "seen"]) == (state.polars().collect().height, state.arrow().schema.names)
    found = duckdb.connect().sql(state.sql("duckdb"))
    assert (["place", "day", "rows", "seen"], []) == (found.columns, found.fetchall())
    assert ["VARCHAR", "BIGINT", "BIGINT", "BIGINT[]"] == [str(kind) for kind in found.types]


def test_rows_in_flight_are_counted_and_not_mixed_in(tmp_path):
    """An unaligned checkpoint's rows belong to the cut, and to no key's state yet."""
    job = KeyedJob(tmp_path, parallelism=2)
    job.epoch({("a", 1): (1, [])}, on_their_way=1_200)
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert 1_200 == state.rows_on_their_way
    assert [("a", 1, 1, [])] == state.polars().collect().rows()


def test_a_cut_in_hand_keeps_its_state_while_its_row_is_subsumed(tmp_path):
    """While the next checkpoint is committed and not recorded, the state is still the cut's."""
    job = a_life(KeyedJob(tmp_path, retained=1), seed=6, epochs=3)
    cuts = Cuts(tmp_path, JOB)
    before = cuts.latest()
    job.commit({("a", 1): (77, [])})  # subsumes the row of cut 3, whose tables readers still get
    between = cuts.latest()
    job.publish()
    assert 3 == before.checkpoint == between.checkpoint
    assert job.model[3] == ordered(before.state(OPERATOR).polars().collect().rows())
    assert job.model[3] == ordered(between.state(OPERATOR).polars().collect().rows())
    assert job.model[4] == ordered(cuts.latest().state(OPERATOR).polars().collect().rows())


def test_an_unknown_operator_is_answered_with_those_that_there_are(tmp_path):
    """The message names them."""
    KeyedJob(tmp_path).epoch({})
    with pytest.raises(
        NoSuchOperatorError, match="cut 1 of counts has no state of an operator 'nope': there is only by_key"
    ):
        Cuts(tmp_path, JOB).latest().state("nope")


# ------------------------------------------------------------------
# Two readers while a tick runs: one polls by cut, one takes the newest of each table; only one of them is ever misled.
#
# The tick is held at every checkpoint between the publications of its two tables until both have looked, so the plain
# reader meets every mixture that there is; in between both look whenever the tick has done something.


CHECKPOINTS = 50
PATIENCE_S = 60
CONFIG = CheckpointConfig(every_rows=4, slice_rows_max=4, micro_batch_rows_max=8, retained=2)
ROWS = {"a": 2 * CHECKPOINTS, "b": 2 * CHECKPOINTS}


def gold_of(bronze: pl.DataFrame) -> list:
    """Return the only right content of gold, and of the state behind it, for these rows of bronze."""
    return sorted(bronze.group_by("key").agg(pl.len().cast(pl.Int64), pl.sum("value")).rows())


class ByCut:
    """Reads both tables and the state at the newest cut."""

    def __init__(self, root: Path) -> None:
        """Nothing is there yet."""
        self._cuts = Cuts(root, JOB_OF_TWO_READERS)
        self.seen: Counter[int] = Counter()
        self.mixed: list[int] = []

    def look(self) -> None:
        """Read the newest cut, if there is one."""
        try:
            cut = self._cuts.latest()
        except (NeverRunError, NoSuchCutError):
            return
        self.seen[cut.checkpoint] += 1
        self.mixed += [] if self._is_one(cut) else [cut.checkpoint]

    @staticmethod
    def _is_one(cut: Cut) -> bool:
        expected = gold_of(cut.polars(BRONZE).select("key", "value").collect())
        gold = sorted(cut.polars(GOLD).select("key", "rows", "total").collect().rows())
        state = sorted(cut.state("by_key").polars().select("key", "rows", "total").collect().rows())
        return expected == gold == state


class Plain:
    """Reads the newest version of each table."""

    def __init__(self, root: Path) -> None:
        """Nothing is there yet."""
        self._root = root
        self.mixtures = 0

    def look(self) -> None:
        """Read both tables, if they are there."""
        try:
            bronze = pl.read_delta(str(self._root / BRONZE)).select("key", "value")
            gold = pl.read_delta(str(self._root / GOLD)).select("key", "rows", "total")
        except TableNotFoundError:
            return
        self.mixtures += gold_of(bronze) != sorted(gold.rows())


class Polling:
    """A thread that reads as often as it can, each time that something has happened."""

    def __init__(self, look) -> None:
        """Begin to wait."""
        self._look = look
        self._news = threading.Condition()
        self._asked = self._looked = 0
        self._ended = False
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self) -> int:
        """Say that something has happened; return the number of the look that will see it."""
        with self._news:
            self._asked += 1
            self._news.notify_all()
            return self._asked

    def has_looked(self) -> bool:
        """Wait until a look has ended that began after now."""
        wanted = self.tell()
        with self._news:
            return self._news.wait_for(lambda: self._looked >= wanted, PATIENCE_S)

    def end(self) -> None:
        """Look a last time and stop."""
        assert self.has_looked()
        with self._news:
            self._ended = True
            self._news.notify_all()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._asked > self._looked or self._ended)
                if self._ended:
                    return
                asked = self._asked
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the test says what it was
                self.errors.append(error)
            with self._news:
                self._looked = asked
                self._news.notify_all()


class HeldBetweenTables:
    """A boundary that lets gold be published only when bronze is, and both readers have looked in between."""

    def __init__(self, readers: list[Polling]) -> None:
        """Hold for these readers."""
        self._readers = readers
        self._bronze_is_out = threading.Event()
        self.holds = 0

    def __call__(self, name: str) -> None:
        """Cross a boundary."""
        if name == f"after:PublishTable:{BRONZE}":
            self._bronze_is_out.set()
        elif name == f"before:PublishTable:{GOLD}":
            assert self._bronze_is_out.wait(PATIENCE_S)
            self._bronze_is_out.clear()
            assert all(reader.has_looked() for reader in self._readers)
            self.holds += 1
        elif name in ("after:AppendRow", "after:RecordCut"):
            self._readers[self.holds % 2].tell()  # one at a time: the tick goes on meanwhile


def test_by_cut_nothing_is_ever_mixed_and_plainly_it_is(tmp_path):
    """At each of 50 cuts, gold and the state are the sums of bronze.

    The newest versions of the tables sometimes are not.
    """
    by_cut, plain = ByCut(tmp_path), Plain(tmp_path)
    readers = [Polling(by_cut.look), Polling(plain.look)]
    held = HeldBetweenTables(readers)
    report = run_tick(
        build(ROWS, config=CONFIG), RuntimeSettings(warehouse=tmp_path), engine=LocalEngine(), boundary=held
    )
    for reader in readers:
        reader.end()
    completed = [record.checkpoint for record in report.completed]
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert [[], []] == [reader.errors for reader in readers]
    assert len(completed) == held.holds >= CHECKPOINTS
    assert completed == sorted(by_cut.seen)
    assert [] == by_cut.mixed
    assert plain.mixtures >= held.holds
    assert 2 == len(Cuts(tmp_path, JOB_OF_TWO_READERS).all())
