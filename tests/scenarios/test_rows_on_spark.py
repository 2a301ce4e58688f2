"""Tests features of docs/FLINK_MAP.md on real Spark and Delta, each with the smallest job that can show it."""

import json
from contextlib import suppress
from datetime import date
from itertools import pairwise
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql.types import DateType, StringType

from checkpointing.channel_items import AlignmentType
from checkpointing.config import CheckpointConfig, RestartStrategyKind
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import JobName
from checkpointing.job.restoring import CutDoesNotFitError, in_flight
from checkpointing.job.setup import TickLimits
from checkpointing.messages import NotifyAborted, TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Claim
from checkpointing.partitions import NO_VALUE
from checkpointing.trace import read
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.pipelines import offsets_100_105
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import WrappedSource
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.listener import Restarting, TickListener
from jobs.tick.renaming import RenameFailedError
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores, JobTables
from jobs.warehouse.output_tables import TableMismatchError
from jobs.warehouse.refusals import JobHeldError
from jobs.warehouse.savepoint_copy import copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.hook_job import Notebook, notes, with_hooks
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, JOB, KEYS, ROWS, declared, over, read_cut
from tidemark import CutSource, DeltaSource, count, max_of, sum_of
from tidemark.testing import TickFailedError, Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]

PAUSE_MS = 300


def changed(**changes):
    return type(CONFIG)(**(CONFIG.model_dump() | changes))


@pytest.fixture
def tick(spark, tmp_path):
    def run(pipeline=None, *, listener=None, boundary=None, **settings):
        planned = plan(pipeline or declared())
        how = RuntimeSettings(warehouse=tmp_path, **settings)
        return run_tick(planned, how, listener, spark=spark, boundary=boundary)

    return run


@pytest.fixture(scope="module")
def undisturbed(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    run_tick(plan(declared()), RuntimeSettings(warehouse=root), spark=spark)
    return read_cut(root)


def stores_at(root):
    return JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely)


def checkpoints_at(root):
    rows = (row for row in stores_at(root).entries.rows() if isinstance(row, CheckpointRecord))
    return sorted(rows, key=lambda record: record.checkpoint)


def die(tick, name):
    mortal = Mortal(name)
    with suppress(Dead):
        tick(boundary=mortal, take_over=True)
    assert mortal.dead, name


class LosesReply:
    """Loses the reply to a commit once: the commit is stored, but the tick gets an error."""

    def __init__(self, name):
        self.lost = False
        self._name = name

    def __call__(self, name):
        if name == self._name and not self.lost:
            self.lost = True
            raise OSError("the reply is lost")


class Hears(TickListener):
    """Records the calls of a pipeline's listener and of a tick's listener. The former raises `error`, if given."""

    def __init__(self, error=None):
        self.complete, self.aborted, self.restarts, self._error = [], [], [], error

    def notify_checkpoint_complete(self, checkpoint):
        self.complete.append(checkpoint)
        if self._error is not None:
            raise self._error

    def notify_checkpoint_aborted(self, checkpoint, reason):
        self.aborted.append((checkpoint, reason))
        if self._error is not None:
            raise self._error

    def progress(self, progress):
        if isinstance(progress, Restarting):
            self.restarts.append(progress)


# ------------------------------------------------------------------ triggering


def test_the_interval_triggers_and_the_pause_after_each_checkpoint_is_kept(tick, tmp_path):
    """Only the clock triggers checkpoints, each no sooner than the pause after the last one's commit (A1, A2).

    The first one is triggered no sooner than the pause after the claim. When the job ends, the clock triggers no more.
    """
    by_time = changed(every_rows=None, interval_ms=20, min_pause_ms=PAUSE_MS, retained=4)
    limits = TickLimits(until_caught_up=False, checkpoints=4)
    report = tick(declared(config=by_time), limits=limits)
    assert "" == report.message
    lives = [record.statistics for record in report.completed]
    assert 4 == len(lives)
    assert all(after.triggered_ms - before.committed_ms >= PAUSE_MS for before, after in pairwise(lives))
    (claim,) = [row for row in stores_at(tmp_path).entries.rows() if isinstance(row, Claim)]
    assert lives[0].triggered_ms - claim.at_ms >= PAUSE_MS
    assert (4, 4, 0) == (report.counts.total, report.counts.completed, report.counts.in_progress)


def test_ids_rise_over_ticks_and_deaths_and_none_is_used_twice(tick, tmp_path):
    """Ids of an orderly tick have no gap. After a dead tick, ids go on behind the block that it had reserved (A6)."""
    tick(limits=TickLimits(checkpoints=1))
    die(tick, "before:AppendRow")
    tick(take_over=True)
    first, *rest = [record.checkpoint for record in checkpoints_at(tmp_path)]
    assert first > 2
    assert rest == list(range(first + 1, first + 1 + len(rest)))


# ------------------------------------------------------------------ completion and commit


def test_a_lost_reply_of_the_commit_point_is_read_back(tick, tmp_path, undisturbed):
    """The entry is stored although its reply is lost. The tick finds it by its nonce, and publishes it once (E3)."""
    lost = LosesReply("after:LogCommit:checkpoints")
    assert ("", TickOutcome.CAUGHT_UP) == _told(tick(boundary=lost))
    assert lost.lost
    assert undisturbed == read_cut(tmp_path)


def test_the_newest_checkpoints_are_retained_and_older_ones_subsumed(tick, tmp_path):
    """Three checkpoints complete and two are retained. The entry and the cut of the first are deleted (E4)."""
    report = tick()
    completed = [record.checkpoint for record in report.completed]
    assert 3 == len(completed)
    assert completed[1:] == [record.checkpoint for record in checkpoints_at(tmp_path)]
    assert set(completed[1:]) == set(stores_at(tmp_path).cuts.all())


def test_a_rows_statistics_say_what_the_epoch_was(tick):
    """The rows, bytes, micro-batches and order of times in the entry are those of the epoch (E6)."""
    report = tick()
    for record in report.completed:
        statistics = record.statistics
        bronze = next(each for each in statistics.vertices if each.vertex == "bronze")
        assert (100, 100) == (statistics.rows, bronze.rows_in)
        assert bronze.rows_out == sum(file.rows for table in record.tables for file in table.adds)
        assert bronze.bytes_out >= sum(file.bytes for table in record.tables for file in table.adds)
        assert 0 < bronze.micro_batches
        arrived = [barrier.at_ms for barrier in bronze.barriers]
        assert statistics.triggered_ms <= min(arrived) <= bronze.acknowledged_ms <= statistics.committed_ms


class HearingSource(WrappedSource):
    """A source that records which checkpoints it was told have failed."""

    def __init__(self):
        super().__init__(SequenceSource(ROWS, keys=KEYS))
        self.aborted = []

    def notify_checkpoint_aborted(self, checkpoint, reason):
        self.aborted.append((checkpoint, reason))


def test_every_listener_hears_each_completion_once_though_one_raises(tick, tmp_path, undisturbed, monkeypatch):
    """A listener that raises stops neither others nor the tick. All learn of failed checkpoints too (F1, F2, E5).

    One failure is tolerated, and the next checkpoint has the failed one's rows. Two failures in a row fail the job.
    """
    failing, check = [True, True], JobTables.check

    def away_for_a_while(*given):
        if failing:
            failing.pop()
            raise OSError("the log is away")
        return check(*given)

    def away(hears):
        return [checkpoint for checkpoint, why in hears.aborted if "the log is away" in why]

    monkeypatch.setattr(JobTables, "check", away_for_a_while)
    raises, hears, source = Hears(RuntimeError("I heard nothing")), Hears(), HearingSource()
    pipeline = over(source, changed(tolerable_failures=1))
    pipeline.listen(raises)
    pipeline.listen(hears)
    report = tick(pipeline)
    assert (TickOutcome.FAILED, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE) == (report.outcome, report.reason)
    assert "2 checkpoints failed in a row, tolerable_failures is 1" in report.message
    assert ([1, 2], []) == (away(hears), hears.complete)
    failing[:] = [True]
    report = tick(pipeline)
    assert ("", TickOutcome.CAUGHT_UP) == _told(report)
    first, *_ = completed = [record.checkpoint for record in report.completed]
    assert [1, 2, first - 1] == away(hears)
    assert hears.aborted == raises.aborted == source.aborted
    assert completed == raises.complete == hears.complete
    assert undisturbed == read_cut(tmp_path)


def test_nothing_is_visible_before_the_commit_point_and_a_dead_commit_is_rolled_forward(tick, tmp_path, undisturbed):
    """If a tick dies before its entry, tables stay empty. If it dies later, the next tick publishes once (F3, G1)."""
    die(tick, "before:AppendRow")
    assert 0 == DeltaTable(str(tmp_path / BRONZE)).to_pyarrow_table().num_rows
    die(tick, "after:AppendRow")
    assert 0 == DeltaTable(str(tmp_path / BRONZE)).to_pyarrow_table().num_rows
    die(tick, "after:RollForward:bronze/numbers")
    assert 0 < DeltaTable(str(tmp_path / BRONZE)).to_pyarrow_table().num_rows
    assert ("", TickOutcome.CAUGHT_UP) == _told(tick(take_over=True))
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------ recovery


def test_state_without_an_operator_is_refused_by_name_and_changes_nothing(tick, tmp_path, undisturbed):
    """A pipeline without the aggregate is refused before the claim. With the aggregate back, the job goes on (G2)."""
    tick()
    version = stores_at(tmp_path).observe().version
    smaller = Pipeline(JOB, config=CONFIG, parallelism=2)
    smaller.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    with pytest.raises(CutDoesNotFitError, match="holds state of 'by_key'"):
        tick(smaller)
    assert version == stores_at(tmp_path).observe().version
    tick()
    assert undisturbed == read_cut(tmp_path)


def test_a_failed_job_restarts_in_its_tick_and_ends_with_exact_tables(tick, tmp_path, undisturbed):
    """A micro-batch fails twice and then succeeds. The job restarts twice, each time as a new generation (G4).

    If the strategy allows one restart only, the second failure fails the tick.
    """
    left = [2]

    def fails_twice(name):
        if name == "before:RunMicroBatch" and left[0]:
            left[0] -= 1
            raise OSError("out of paper")

    restarting = changed(
        restart_strategy=RestartStrategyKind.FIXED_DELAY, restart_attempts=3, restart_delay_ms=0, tolerable_failures=0
    )
    hears = Hears()
    once = tick(declared(config=restarting.model_copy(update={"restart_attempts": 1})), boundary=fails_twice)
    assert (TickOutcome.FAILED, 1) == (once.outcome, once.restarts)
    assert "out of paper" in once.message
    assert 0 == DeltaTable(str(tmp_path / BRONZE)).to_pyarrow_table().num_rows
    left[:] = [2]
    report = tick(declared(config=restarting), boundary=fails_twice, listener=hears)
    assert ("", TickOutcome.CAUGHT_UP, 2) == (*_told(report), report.restarts)
    assert 2 == len(hears.restarts)
    assert once.generation + 3 == report.generation
    assert undisturbed == read_cut(tmp_path)


def test_a_tick_that_was_taken_over_commits_nothing_more(tick, tmp_path, undisturbed):
    """A second tick gets an error that names the holder, a third takes over, and the first ends fenced off (G5)."""
    met = []

    def rivals(name):
        if name == "before:AppendRow" and not met:
            with pytest.raises(JobHeldError, match="held by process"):
                tick()
            met.append(tick(take_over=True))

    report = tick(boundary=rivals)
    assert ("", TickOutcome.CAUGHT_UP) == _told(met[0])
    assert (TickOutcome.FAILED, CheckpointFailureReason.FENCED) == (report.outcome, report.reason)
    assert f"generation {met[0].generation}" in report.message
    assert ("", TickOutcome.CAUGHT_UP) == _told(tick())
    assert undisturbed == read_cut(tmp_path)


def _told(report):
    return report.message, report.outcome


# ------------------------------------------------------------------ master hooks


def test_a_master_hooks_state_is_in_the_row_and_comes_back_after_a_death(tick, tmp_path, tmp_path_factory, undisturbed):
    """A tick dies after the hook's answer for checkpoint 2. The next tick restores the hook to checkpoint 1 (A8)."""
    notebook = tmp_path_factory.mktemp("outside") / "notes"
    mortal = Mortal("before:AppendRow", 2)
    with suppress(Dead):
        tick(with_hooks(declared(), ("notebook", Notebook(notebook))), boundary=mortal)
    assert mortal.dead
    assert [["trigger", 1, 1], ["trigger", 2, 2]] == [line for line in notes(notebook) if line[0] == "trigger"]
    before = len(notes(notebook))
    tick(with_hooks(declared(), ("notebook", Notebook(notebook))), take_over=True)
    begins, *asked, closed = notes(notebook)[before:]
    assert (["restore", 1, {"asked": 1}], ["close", None, None]) == (begins, closed)
    assert [json.dumps({"asked": asked[-1][2]})] == [held.state for held in checkpoints_at(tmp_path)[-1].hooks]
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------
# Each mode of alignment on real Spark, with the two splits of the worked example, one of which is slow.
#
# `modes/test_modes.py` kills ticks of the flights job, aligned and unaligned, at the worst moments. Those tests are
# marked `dear`.


EXACT = {"fast": (205, 204), "slow": (200, 199)}
"""For each split, the number of its records and the greatest record."""

BEFORE_BARRIER_1 = sum(offsets_100_105.FIRST_WAVE.values())

KEEPS_ALL = {"retained": 50}


@pytest.fixture
def worked_example(spark, tmp_path):
    """Return a function that runs the worked example to its end with these changes to its configuration."""

    def run(folder=tmp_path, checkpoints=None, **changes):
        config = CheckpointConfig(**(offsets_100_105.CONFIG.model_dump() | KEEPS_ALL | changes))
        planned = plan(offsets_100_105.build(folder), config=config)
        limits = TickLimits(checkpoints=checkpoints)
        report = run_tick(planned, RuntimeSettings(warehouse=folder, limits=limits), spark=spark)
        ends = TickOutcome.CAUGHT_UP if checkpoints is None else TickOutcome.STOPPED
        assert ("", ends) == (report.message, report.outcome)
        return report

    return run


def counts(warehouse) -> dict[str, tuple[int, int]]:
    rows = DeltaTable(str(warehouse / "example" / "counts")).to_pyarrow_table().to_pylist()
    return {row["split"]: (row["records"], row["last"]) for row in rows}


def at_the_count(record):
    return next(vertex for vertex in record.statistics.vertices if vertex.vertex == "counts")


def rows_in_flight(record) -> int:
    return sum(segment.rows for _, segment in in_flight(record))


def test_unaligned_the_barrier_overtakes_records_and_the_checkpoint_holds_them(worked_example, tmp_path):
    """Records before barrier 1 are counted or in flight, each once (C5).

    The table lacks the rows in flight. The next tick begins with them, and none is lost.
    """
    (first,) = worked_example(checkpoints=1, unaligned=True).completed
    vertex = at_the_count(first)
    assert AlignmentType.UNALIGNED is vertex.alignment
    assert 0 < rows_in_flight(first)
    assert BEFORE_BARRIER_1 == vertex.rows_in + rows_in_flight(first)
    assert vertex.rows_in == sum(records for records, _ in counts(tmp_path).values())
    worked_example(unaligned=True)
    assert EXACT == counts(tmp_path)


def test_with_a_timeout_an_alignment_that_takes_too_long_turns_unaligned(worked_example, tmp_path):
    """Checkpoint 1 starts aligned, waits for the slow split, and turns unaligned after the timeout (C6)."""
    first, *_ = worked_example(unaligned=True, alignment_timeout_ms=50).completed
    vertex = at_the_count(first)
    assert AlignmentType.UNALIGNED is vertex.alignment
    assert vertex.aligned_ms - first.statistics.triggered_ms >= 50
    assert 0 < rows_in_flight(first)
    assert EXACT == counts(tmp_path)


def test_buffering_over_the_limit_declines_the_checkpoint_and_the_job_goes_on(worked_example, tmp_path):
    """More bytes wait behind the fast barrier than the limit allows, so checkpoint 1 is declined (C2).

    If Spark is quicker than the polls, nothing waits there, and the test runs another job. This does not happen five
    times in a row.
    """
    aborted = []
    for folder in (tmp_path / str(number) for number in range(5)):
        report = worked_example(folder, max_alignment_bytes=64, tolerable_failures=100)
        assert EXACT == counts(folder)
        entries = read(report.trace.read_bytes().splitlines(keepends=True))
        aborted = [entry.body for entry in entries if isinstance(entry.body, NotifyAborted)]
        if aborted:
            break
    assert {CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED} == {each.reason for each in aborted}
    assert 1 == min(each.checkpoint for each in aborted)


def test_buffering_below_the_limit_completes_aligned(worked_example, tmp_path):
    """If the limit has room for all waiting rows, checkpoint 1 aligns, and records how many bytes it held (C2, C7).

    As above, if nothing waits, the test runs another job.
    """
    for folder in (tmp_path / str(number) for number in range(5)):
        first, *_ = worked_example(folder, max_alignment_bytes=1_000_000).completed
        vertex = at_the_count(first)
        assert (AlignmentType.ALIGNED, 0) == (vertex.alignment, rows_in_flight(first))
        assert EXACT == counts(folder)
        if vertex.bytes_held:
            break
    assert 0 < vertex.bytes_held
    assert 0 < vertex.alignment_ms


def test_two_checkpoints_at_a_time_commit_in_their_order(worked_example, tmp_path):
    """A checkpoint is triggered before the earlier one has committed (E2)."""
    completed = worked_example(max_concurrent=2, every_rows=50).completed
    lives = [record.statistics for record in completed]
    assert any(later.triggered_ms < earlier.committed_ms for earlier, later in pairwise(lives))
    assert [record.parent for record in completed[1:]] == [record.checkpoint for record in completed[:-1]]
    assert EXACT == counts(tmp_path)


# ------------------------------------------------------------------
# Partitioned tables hold the rows of unpartitioned ones at each cut, for all readers, with real Spark and Delta.


ODD = ("a/b", "100 % {x}", "größe=1", "__HIVE_DEFAULT_PARTITION__", "it s %2F", "C:*?")
"""Values that a folder's name cannot hold as they are. Every seventh row has null, and every eleventh an empty text."""

CITY = f"CASE WHEN n % 7 = 0 THEN NULL WHEN n % 11 = 0 THEN '' ELSE array{ODD}[CAST(n % 6 AS int)] END"
TOWN = f"coalesce(nullif(nullif(city, ''), '{NO_VALUE}'), '?')"
DAY = "date_add(DATE'2024-02-28', CAST(n % 3 AS int))"
PAIRS = {
    "bronze/rows": "bronze/plain",
    "silver/towns": "silver/plain_towns",
    "gold/totals": "gold/plain_totals",
    "gold/newest": "gold/plain_newest",
}
"""The partitioned tables, each with the unpartitioned one of the same rows."""

LAYOUT = {
    "bronze/rows": ["day", "city"],
    "silver/towns": ["town"],
    "gold/totals": ["day", "town"],
    "gold/newest": ["latest"],
}
TWO_SLICES = CheckpointConfig(every_rows=40, slice_rows_max=20, retained=20)


def build(data):
    del data
    pipeline = Pipeline("parts", config=TWO_SLICES, parallelism=2)
    rows = pipeline.source("numbers", SequenceSource({"a": 120, "b": 60}, keys=5))
    rows = rows.with_column("city", CITY, StringType()).with_column("day", DAY, DateType())
    rows = rows.select("key", "n", "city", "day")
    for name in ("", "plain_"):

        def by(table, plain=name):
            return [] if plain else LAYOUT[table]

        raw = rows.table(f"bronze/{name.strip('_') or 'rows'}", id=f"{name}rows", partition_by=by("bronze/rows"))
        towns = raw.with_column("town", TOWN, StringType())
        towns = towns.table(f"silver/{name}towns", id=f"{name}towns", partition_by=by("silver/towns"))
        totals = towns.key_by("town", "day").aggregate(f"{name}totals", rows=count(), total=sum_of("n"))
        totals.upsert(f"gold/{name}totals", partition_by=by("gold/totals"))
        newest = towns.key_by("key").aggregate(f"{name}newest", rows=count(), latest=max_of("day"))
        newest.upsert(f"gold/{name}newest", partition_by=by("gold/newest"))
    return pipeline


def follow(data):
    pipeline = Pipeline("follows", config=TWO_SLICES)
    delta = pipeline.source("delta", DeltaSource(data / "rows")).drop("_split", "_position")
    delta.table("copies/delta", id="copied")
    return pipeline


def follow_cuts(data):
    pipeline = Pipeline("follows_cuts", config=TWO_SLICES)
    rows = pipeline.source("cuts", CutSource(data, "parts", "bronze/rows")).drop("_split", "_position")
    rows.table("copies/cuts", id="copied")
    return pipeline


def as_rows(table, columns):
    return sorted(map(repr, zip(*(table.column(name).to_pylist() for name in columns), strict=True)))


def compare(cut, spark):
    for name, other in PAIRS.items():
        plain = cut.arrow(other)
        columns = plain.column_names
        for at, column in enumerate(columns):
            if pa.types.is_string(plain.schema.field(at).type):  # in a partition column of Spark's writer too
                values = [None if text in {"", NO_VALUE} else text for text in plain.column(at).to_pylist()]
                plain = plain.set_column(at, column, pa.array(values, pa.string()))
        expected = as_rows(plain, columns)
        opened = DeltaTable(cut.folder(name), version=cut.version(name))
        query = QueryBuilder().register("t", opened).execute("SELECT * FROM t")
        read = {
            "arrow": cut.arrow(name),
            "polars": cut.polars(name).collect().to_arrow(),
            "datafusion": pa.RecordBatchReader.from_stream(query).read_all(),
            "spark": cut.spark(spark, name).toArrow(),
        }
        assert dict.fromkeys(read, expected) == {how: as_rows(rows, columns) for how, rows in read.items()}, name
        is_laid_out(opened, LAYOUT[name])
    return cut.arrow("bronze/rows").num_rows


def is_laid_out(opened, by):
    assert by == opened.metadata().partition_columns
    for action in pa.table(opened.get_add_actions()).to_pylist():
        assert ["_data"] == action["path"].split("/")[:1]
        rows = pq.ParquetFile(f"{opened.table_uri.removeprefix('file://')}/{unquote(action['path'])}").read()
        assert [action["partition"]] == rows.select(by).group_by(by).aggregate([]).to_pylist()
        stats = {*json.loads(json.dumps(action["min"], default=str) if action["min"] else "{}")}
        assert not set(by) & stats


@pytest.mark.jars("delta")
def test_partitioned_tables_equal_plain_ones(tmp_path, spark):
    """They are equal over checkpoints, a rescale and a rollback, in a copy of a cut, and for jobs that read them."""
    trial = Trial(build, tmp_path)
    first = trial.run(checkpoints=2)
    assert 0 < compare(first, spark) < 180
    last = trial.run(parallelism=3)
    assert 180 == compare(last, spark)
    assert 0 < compare(first, spark) < 180
    _is_followed(tmp_path, last)

    warehouse = Warehouse(trial.warehouse, ProtocolPaths(JobName("parts")))
    copy_savepoint(warehouse, first.checkpoint, tmp_path / "copy")
    copied = DeltaTable(str(tmp_path / "copy" / "gold" / "newest"))
    assert as_rows(first.arrow("gold/newest"), ["key", "rows"]) == as_rows(copied.to_pyarrow_table(), ["key", "rows"])
    is_laid_out(copied, LAYOUT["gold/newest"])

    roll_back(warehouse, first.checkpoint)
    assert first.arrow("bronze/rows").num_rows == compare(trial.cuts.latest(), spark)
    again = trial.run(parallelism=1)
    assert 180 == compare(again, spark)
    _is_pruned(again, spark)


def _is_pruned(cut, spark):
    """Check that Spark and delta-rs read only the files of the partitions that a filter selects."""
    rows = cut.spark(spark, "bronze/rows").filter("day = DATE'2024-02-28' AND city = 'a/b'")
    scanned = rows.inputFiles()
    assert scanned
    assert {"day=2024-02-28/city=a/b"} == {
        unquote(unquote(path)).split("/_data/")[1][2:].rpartition("/")[0] for path in scanned
    }
    assert (
        cut.arrow("bronze/rows")
        .filter((pa.compute.field("day") == date(2024, 2, 28)) & (pa.compute.field("city") == "a/b"))
        .num_rows
        == rows.count()
    )
    opened = DeltaTable(cut.folder("bronze/rows"))
    named = opened.file_uris(partition_filters=[("day", "=", "2024-02-28"), ("city", "=", "a/b")])
    assert len(named) == len(scanned)


def _is_followed(folder, cut):
    of_delta = Trial(follow, folder / "follows")
    of_delta.data.mkdir(parents=True)
    (of_delta.data / "rows").symlink_to(cut.folder("bronze/rows"))
    columns = ["key", "n", "city", "day"]
    expected = as_rows(cut.arrow("bronze/rows"), columns)
    assert expected == as_rows(of_delta.run().arrow("copies/delta"), columns)
    of_cuts = Trial(follow_cuts, folder / "follows_cuts")
    of_cuts.data.parent.mkdir(parents=True)
    of_cuts.data.symlink_to(folder / "warehouse")
    assert expected == as_rows(of_cuts.run().arrow("copies/cuts"), columns)


def renamed(data):
    said = (data / "names").read_text().split() if (data / "names").exists() else ()
    now = {"append": "bronze/rows", "upsert": "gold/newest", "by": "city", **dict(each.split("=") for each in said)}
    was = {"append": "bronze/rows", "upsert": "gold/newest"} if "renamed=" in said else {}
    pipeline = Pipeline("renamed", config=TWO_SLICES, parallelism=2)
    rows = pipeline.source("numbers", SequenceSource({"a": 120}, keys=5)).with_column("city", CITY, StringType())
    rows = rows.with_column("town", TOWN, StringType()).drop("_split", "_position")
    rows = rows.table(now["append"], id="rows", partition_by=[now["by"]], renamed_from=was.get("append"))
    newest = rows.key_by("key").aggregate("newest", rows=count(), city=max_of("town"), town=max_of("town"))
    newest.upsert(now["upsert"], partition_by=[now["by"]], renamed_from=was.get("upsert"))
    return pipeline


def test_a_renamed_table_keeps_its_partitions_and_its_layout(tmp_path):
    """Its files are linked into folders of the same partitions. A tick with another `partition_by` is refused."""
    trial = Trial(renamed, tmp_path)
    first = trial.run(checkpoints=2)
    rows = first.arrow("bronze/rows").num_rows
    assert 0 < rows < 120
    names = trial.data / "names"
    trial.data.mkdir(exist_ok=True)
    for text in ("by=town", "renamed= append=silver/rows upsert=gold/latest by=town"):
        names.write_text(text)
        with pytest.raises((CutDoesNotFitError, RenameFailedError, TableMismatchError, TickFailedError)) as refused:
            trial.run()
        assert "partition_by" in str(refused.value)
    names.write_text("renamed= append=silver/rows upsert=gold/latest")
    last = trial.run()
    assert 120 == last.arrow("silver/rows").num_rows
    assert 120 == sum(last.arrow("gold/latest").column("rows").to_pylist())
    is_laid_out(DeltaTable(last.folder("silver/rows")), ["city"])
    is_laid_out(DeltaTable(last.folder("gold/latest")), ["city"])
