"""What a tick shows while it works, and how long its bar is."""

import io

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from rich.console import Console

from checkpointing.channel_items import SourceSlice
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, Generation, SplitId, VertexId
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, TimeAdvanced
from checkpointing.metadata.record import Claim, Holder
from jobs.cli.run import LiveDisplay, PlainDisplay, display_for
from jobs.showing.quantities import Tally
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from jobs.tick.discovery import ENDLESS, Ahead, rows_ahead
from jobs.tick.listener import (
    MicroBatchRan,
    MicroBatchSlow,
    Narrator,
    NoticeFailed,
    Recovery,
    Restarting,
    RowsRead,
    SparkStarted,
    SparkStarting,
    TickListener,
)

FLIGHTS = VertexId("flights")
CLAIM = Claim(
    generation=Generation(2),
    holder=Holder(host="h", pid=1, started="s"),
    first_id=CheckpointId(1),
    last_id=CheckpointId(1000),
    at_ms=0,
    nonce="n",
)


class Split:
    """A source of these splits; each has rows up to its number. Positions are whole numbers."""

    def __init__(self, rows, error=None):
        self.rows = rows
        self.error = error

    def splits(self):
        return tuple(SplitId(name) for name in self.rows)

    def poll(self, request):
        if self.error:
            raise SourceError(self.error)
        start = int(request.position or 0)
        end = min(self.rows[request.split], start + request.max_rows)
        if start == end:
            return None
        return SourceSlice(request.source, request.split, str(start), str(end), "", end - start, 0)


@pytest.fixture
def told():
    """Return a plain display and a function that gives the lines it has printed."""
    out = io.StringIO()
    seconds = iter([100.0, 109.0, 110.2, 112.5])
    display = PlainDisplay(
        Console(file=out, width=40, highlight=False), Tally(rows_ahead=24_000), lambda: next(seconds)
    )
    return display, lambda: out.getvalue().splitlines()


def test_plain_lines_tell_a_tick(told, record):
    """It prints the claim, where the tick begins, Spark's start, and each checkpoint's rows, seconds and share."""
    display, lines = told
    display.claimed(CLAIM, "process 7 on h has died")
    display.recovered(Recovery(CheckpointId(6), CheckpointId(6), 3))
    display.progress(SparkStarting())
    display.progress(SparkStarted(9_000))
    display.progress(RowsRead(FLIGHTS, SplitId("EWR"), 12_000))
    display.progress(MicroBatchRan(FLIGHTS, 1, 12_000, 300))
    display.completed(record(), ("silver/flights: went on after version 6",), {})
    assert [
        "generation 2: process 7 on h has died",
        "checkpoint 6 was committed and not yet published: published now",
        "3 files of unfinished epochs removed: nothing refers to them",
        "begins after checkpoint 6, 24,000 rows to read",
        "Spark is starting",
        "Spark started in 9.00 s",
        "checkpoint 7: 12,000 rows in 1.20 s, 12,000 of 24,000 (50 %)",
        "  silver/flights: went on after version 6",
    ] == lines()
    display.completed(record(8, 7), (), {})
    assert "checkpoint 8: 12,000 rows in 2.30 s, 24,000 of 24,000 (100 %)" == lines()[-1]


def test_estimated_rows_to_read_are_called_so_before_one_is_read(tmp_path):
    """The first line of a tick has the estimate too, and so has the share."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text("1\n" * 10)
    source = FileSource(tmp_path, StructType([StructField("n", LongType())]), format="csv")
    ahead = rows_ahead({FLIGHTS: source}, None)
    assert Ahead(10, estimated=True) == ahead
    out = io.StringIO()
    tally = Tally(ahead.rows, ahead_estimated=ahead.estimated)
    display = PlainDisplay(Console(file=out, width=80, highlight=False), tally)
    display.recovered(Recovery(None, None, 0))
    assert "about 10 rows to read" in out.getvalue()
    assert "0 of about 10" == tally.so_far


def test_estimated_rows_are_called_so(told, record):
    """A source may only guess how many rows a file has. No line shows such a number as exact."""
    display, lines = told
    display.recovered(Recovery(None, None, 0))
    guessed = record()
    guessed = guessed.model_copy(
        update={"statistics": guessed.statistics.model_copy(update={"rows_estimated": 12_000})}
    )
    display.completed(guessed, (), {})
    assert "checkpoint 7: about 12,000 rows in 9.00 s, about 12,000 of about 24,000 (50 %)" == lines()[-1]


def test_rows_that_were_through_before_their_barrier_still_took_their_time(told, record):
    """A checkpoint that is triggered when all rows are read commits at once. Its seconds include reading its rows."""
    display, lines = told
    at_once = record()
    at_once = at_once.model_copy(
        update={"statistics": at_once.statistics.model_copy(update={"committed_ms": at_once.statistics.triggered_ms})}
    )
    display.recovered(Recovery(CheckpointId(6), None, 0))
    display.completed(at_once, (), {})
    assert "checkpoint 7: 12,000 rows in 9.00 s, 12,000 of 24,000 (50 %)" == lines()[-1]


@pytest.mark.parametrize(("restored", "said"), [(CheckpointId(3), True), (None, False), (CheckpointId(1000), False)])
def test_ids_that_jump_are_explained(told, restored, said):
    """After a tick that died, the next id comes after the block that the tick had reserved."""
    display, lines = told
    display.claimed(CLAIM.model_copy(update={"first_id": CheckpointId(1001)}), "process 7 on h has died")
    display.recovered(Recovery(restored, None, 0))
    why = "the next checkpoint is 1001: the ids up to 1000 were given to an older tick or a savepoint, and no id is"
    assert said == any(line.startswith(why) for line in lines())


def test_a_checkpoint_rolled_forward_is_no_row_of_this_tick(told, record):
    """It is listed, but rows that another tick read do not count in this tick's bar."""
    display, lines = told
    display.completed(record(), (), {})
    display.recovered(Recovery(CheckpointId(7), CheckpointId(7), 0))
    assert [
        "checkpoint 7 was committed and not yet published: published now",
        "begins after checkpoint 7, 24,000 rows to read",
    ] == lines()
    assert ([7], 0) == ([line.checkpoint for line in display.tally.lines], display.tally.rows_committed)


def test_a_failed_checkpoint_says_why_and_what_becomes_of_its_rows(told):
    """Without a message of its own, the failure shows the message of its reason."""
    display, lines = told
    display.failed(CheckpointId(7), CheckpointFailureReason.CHECKPOINT_EXPIRED, "")
    assert [
        "checkpoint 7 failed: the checkpoint expired before it completed; its rows belong to the next one"
    ] == lines()


def test_a_restart_is_told_with_its_reason_and_its_rows_are_not_counted_twice(told):
    """It says why the job failed, when it restarts and from where. Rows that no checkpoint covers are read again."""
    display, text = told
    display.progress(RowsRead(FLIGHTS, SplitId("a"), 5))
    display.progress(Restarting(2, CheckpointFailureReason.TASK_FAILURE, "out of paper", 1_500))
    assert (0, 0) == (display.tally.rows_read, display.tally.rows_open)
    said = text()
    assert "failed: out of paper" in said
    assert "restart 2 in 1.50 s, from the newest checkpoint" in said


def test_a_notice_that_failed_is_shown(told):
    """It says who raised which error, and that the checkpoint stays."""
    display, text = told
    display.progress(NoticeFailed("listener Mail", CheckpointId(4), "OSError: no route"))
    assert "checkpoint 4 stays as it is, but listener Mail raised OSError: no route" in text()


def test_a_live_display_counts_the_same(record):
    """Bar and lines add up events in the same tally, which the summary reads."""
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True), Tally(rows_ahead=100))
    with display.bar:
        display.recovered(Recovery(None, None, 0))
        display.progress(SparkStarting())
        display.progress(RowsRead(FLIGHTS, SplitId("EWR"), 13_000))
        display.progress(MicroBatchRan(FLIGHTS, 1, 13_000, 300))
        display.completed(record(), (), {})
    tally = display.tally
    assert (13_000, 12_000, 1_000, 13_000) == (
        tally.rows_read,
        tally.rows_committed,
        tally.rows_open,
        tally.rows_ahead,
    )


def test_a_pipe_gets_lines_and_a_terminal_a_bar():
    """A log must not be full of redrawn bars."""
    with display_for(Console(file=io.StringIO()), Tally()) as display:
        assert type(display) is PlainDisplay
    terminal = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    with display_for(terminal, Tally()) as display:
        assert type(display) is LiveDisplay


def test_rows_ahead_are_those_after_the_restored_positions(record):
    """From the start all rows count, after a checkpoint the rest. Vertices without splits have no position."""
    sources = {FLIGHTS: Split({"EWR": 5_000, "JFK": 100})}
    restored = record(position="1200")
    assert Ahead(5_100) == rows_ahead(sources, None)
    assert Ahead(3_900) == rows_ahead(sources, restored)


def test_an_endless_or_unreadable_source_has_no_total():
    """Then the bar has no total, and the tick says what is wrong."""
    assert Ahead(None) == rows_ahead({FLIGHTS: Split({"EWR": 2 * ENDLESS})}, None)
    assert Ahead(None) == rows_ahead({FLIGHTS: Split({"EWR": 1}, error="unreadable")}, None)


class Hears(TickListener):
    """A listener that keeps the events between checkpoints."""

    def __init__(self):
        self.heard = []

    def progress(self, progress):
        self.heard.append(progress)


def test_a_micro_batch_that_runs_for_long_is_told_of_ever_more_rarely(told):
    """After a minute the vertex of a slow function is named, and again each time that its running time has doubled."""
    hears = Hears()
    narrator = Narrator(hears)
    narrator.saw_fact(TimeAdvanced(1_000))
    narrator.saw_effect(RunMicroBatch(FLIGHTS, 3, Generation(1), (), (), ()))
    for second in range(1, 400):
        narrator.saw_fact(TimeAdvanced(1_000 * second))
    slow = [each for each in hears.heard if isinstance(each, MicroBatchSlow)]
    assert [(FLIGHTS, 3, 60_000), (FLIGHTS, 3, 120_000), (FLIGHTS, 3, 240_000)] == [
        (each.vertex, each.micro_batch, each.for_ms) for each in slow
    ]
    display, lines = told
    display.progress(slow[0])
    assert lines()[-1].startswith("vertex flights has been at work on micro-batch 3 for 1 min 00 s: it has much to do")
    narrator.saw_fact(MicroBatchFinished(FLIGHTS, 3, ()))
    narrator.saw_fact(TimeAdvanced(10_000_000))
    assert 3 == len([each for each in hears.heard if isinstance(each, MicroBatchSlow)])
