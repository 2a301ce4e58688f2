"""What the reports show, from plain data on a recording console."""

import io
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType
from rich.console import Console

from checkpointing.channel_items import AlignmentType, ChannelState, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.failures import CheckpointFailureReason
from checkpointing.handles import FileHandle
from checkpointing.identifiers import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    SplitId,
    TableName,
    VertexId,
    job_name,
)
from checkpointing.messages import MicroBatchFinished, RunMicroBatch, TickOutcome, TimeAdvanced
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import (
    CheckpointCounts,
    CheckpointFailure,
    Claim,
    Holder,
    Release,
    SubtaskStatistics,
    TickEnd,
)
from checkpointing.percentiles import Distribution
from jobs.cli.run import LiveDisplay, PlainDisplay, display_for
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.reading import Cut, Cuts
from jobs.showing.checkpoints import (
    NOT_MEASURED,
    counts_line,
    history_grid,
    moments,
    render_checkpoints,
    render_timeline,
    subtasks_grid,
    vertices_grid,
)
from jobs.showing.cut import render_cut
from jobs.showing.graph import render_graph
from jobs.showing.quantities import CheckpointLine, Tally, moment, plural, seconds, size
from jobs.showing.summary import render_caught_up, render_done, render_finished, render_lines
from jobs.sources.files.file_source import FileSource
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import SourceError
from jobs.sources.position_words import PositionWords
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
from jobs.tick.tick_settings import TickReport
from jobs.warehouse.cuts_table import RecordedCut
from jobs.warehouse.warehouse import Warehouse
from tests.unit.full_entry import plain_entry

STARTED_MS = 1_700_000_000_000
"""When the recorded checkpoint was triggered."""
SILVER = TableName("silver/flights")
GOLD = TableName("gold/delays_by_route")
NO_WORDS = PositionWords({})


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(0, "0.00 s"), (450, "0.45 s"), (59_999, "60.00 s"), (125_000, "2 min 05 s"), (3_720_000, "1 h 02 min")],
)
def test_durations_are_read_in_the_unit_that_fits(milliseconds, said):
    """Short durations are shown in seconds with hundredths, longer ones in minutes, and the longest in hours."""
    assert said == seconds(milliseconds)


@pytest.mark.parametrize(("number", "said"), [(0, "0 B"), (1023, "1023 B"), (4300, "4.2 KiB"), (3 << 40, "3.0 TiB")])
def test_sizes_are_read_in_the_largest_unit_that_leaves_one(number, said):
    """A number of bytes has no decimals. Larger units have one digit after the point."""
    assert said == size(number)


def test_one_is_singular_and_moments_are_utc():
    """The words are `1 row`, `2 rows`, `2 vertices`. A moment is shown in UTC, whatever the reader's time zone."""
    assert ["1 row", "2 rows", "2 vertices"] == [plural(1, "row"), plural(2, "row"), plural(2, "vertex", "vertices")]
    assert "2023-11-14 22:13:20" == moment(STARTED_MS)


def test_a_timeline_tells_an_epochs_life_in_order_of_time(record):
    """The order is: triggered, each barrier at its channel, aligned, acknowledged, commit point, published."""
    told = [(each.at_ms - STARTED_MS, each.what) for each in moments(record(), STARTED_MS + 1500)]
    assert [
        (0, "barrier 7 triggered"),
        (100, "barrier on flights->joined:0[0]"),
        (900, "barrier on weather->joined:1[0]"),
        (900, "aligned after 0.80 s, 4.0 KiB held"),
        (950, "acknowledged"),
        (1200, "COMMIT POINT: the entry is in `checkpoints`"),
        (1500, "published, cut recorded"),
    ] == told


@pytest.mark.parametrize(
    ("alignment", "held", "told"),
    [
        (AlignmentType.AT_LEAST_ONCE, 0, "all barriers counted after 0.80 s, none waited for"),
        (AlignmentType.UNALIGNED, 0, "unaligned: the barrier overtook 40 rows, 3.0 KiB"),
        (
            AlignmentType.UNALIGNED,
            4096,
            "unaligned: the barrier overtook 40 rows, 3.0 KiB; 4.0 KiB held until it turned",
        ),
    ],
)
def test_a_timeline_says_how_the_barrier_passed(shown, record, alignment, held, told):
    """A barrier that was counted, or overtook rows, is not called aligned. Rows in flight are shown with their edge."""
    text = shown(render_timeline(passing(record(), alignment, held), STARTED_MS + 1500, {}, NO_WORDS))
    assert told in text
    assert "aligned after" not in text
    flying = "in flight 40 rows, 3.0 KiB from weather to joined; a restore begins with them"
    assert (alignment is AlignmentType.UNALIGNED) == (flying in text)


def passing(record, alignment, held):
    """Return the checkpoint as if its barrier had passed the join in this way.

    An unaligned barrier overtook a segment.
    """
    (joined,) = record.statistics.vertices
    life = record.statistics.model_copy(
        update={"vertices": (joined.model_copy(update={"alignment": alignment, "bytes_held": held}),)}
    )
    if alignment is not AlignmentType.UNALIGNED:
        return record.model_copy(update={"statistics": life})
    segment = StagedSegment((FileHandle("bronze/weather/_data/1/w-1-a.parquet", 40, 3072, 1),))
    channel = ChannelId(EdgeId(VertexId("weather"), VertexId("joined"), 1), 0)
    source, was = record.vertices
    first = replace(was.subtasks[0], in_flight=(ChannelState(channel, (segment,)),))
    overtaken = was.model_copy(update={"subtasks": (first, *was.subtasks[1:])})
    return record.model_copy(update={"statistics": life, "vertices": (source, overtaken)})


def test_a_timeline_shows_tables_state_and_positions(shown, record):
    """The timeline shows each table's files, the size of the state (shared files count once), and all positions."""
    text = shown(render_timeline(record(), STARTED_MS + 1500, {SILVER: 7, GOLD: 8}, NO_WORDS))
    assert "checkpoint 7 of flights, builds on 6, generation 2: 12,000 rows" in text
    assert "state 1 file, 2.0 KiB in all" in text
    assert "files 2, consumed 1,200" in text
    assert "append: new files │     1 │   11 │ 2.9 KiB │             7" in text
    assert "upsert: all files │     2 │   22 │ 5.9 KiB │             8" in text


def test_a_committed_checkpoint_that_is_not_published_says_so(shown, record):
    """From the commit point until the cut is recorded, no table is shown as published."""
    text = shown(render_timeline(record(), None, {}, NO_WORDS))
    assert "not published yet" in text
    assert "published, cut recorded" not in text
    assert "not published" in text.split("tables")[-1]


def test_the_list_shows_what_is_published_and_who_holds_the_job(shown, record):
    """There is a line for each checkpoint. A checkpoint without a recorded cut is shown as not published yet."""
    text = shown(render_checkpoints("flights", [record(8, 7), record(7, 6)], {CheckpointId(7)}, "held by somebody"))
    lines = [line for line in text.splitlines() if "checkpoint │" in line]
    assert ["not yet", "published"] == [line.split("│")[-2].strip() for line in lines]
    assert "2 checkpoints retained" in text
    assert "held by somebody" in text


@pytest.mark.parametrize("width", [116, 120])
def test_the_kind_of_a_finished_checkpoint_stays_in_one_line(record, width):
    """No part of the line is cut off in a window of usual width."""
    done = [
        vertex.model_copy(update={"subtasks": [replace(each, finished=True, in_flight=()) for each in vertex.subtasks]})
        for vertex in record(8, 7).vertices
    ]
    finished = record(8, 7).model_copy(update={"vertices": done})
    console = Console(width=width, record=True, file=StringIO())
    console.print(render_checkpoints("flights", [finished], {CheckpointId(8)}, "held by nobody"))
    (line,) = [line for line in console.export_text().splitlines() if "finished" in line]
    assert ["8", "finished"] == [cell.strip() for cell in line.split("│")[1:3]]
    assert "…" not in line


def cut_in(root, versions):
    recorded = RecordedCut(CheckpointId(7), 1_700_000_000_000, versions)
    entry = plain_entry(job="flights", checkpoint=7, parent=0, nonce="nonce")
    return Cut(Warehouse(root, ProtocolPaths(job_name("flights"))), recorded, entry, Cuts(root, "flights"))


def test_a_cut_shows_output_tables_before_states(shown):
    """Users mostly want to read the output tables."""
    text = shown(
        render_cut(cut_in(Path("/w"), {TableName("_tidemark/flights/state/joined"): 3, SILVER: 7}), Path("/w"))
    )
    assert text.index("silver/flights") < text.index("_tidemark/flights/state/joined")
    assert "cut 7 of flights: every table as of one moment, published at 20" in text
    assert "tidemark state flights joined --at 7 --warehouse /w" in text.splitlines()


def test_lines_of_a_cut_are_never_wrapped(shown):
    """A user copies these lines, so each must be whole."""
    deep = Path("/a") / "/".join(["very"] * 30)
    text = shown(render_cut(cut_in(deep, {SILVER: 7}), deep), width=40)
    assert f"silver_flights = pl.scan_delta('{deep}/silver/flights', version=7)" in text.splitlines()


def test_a_summary_adds_up_epochs(shown):
    """The rows so far are the sum of this epoch's rows and those of the epochs above."""
    lines = [CheckpointLine(CheckpointId(n), 1000, 500, 20, 0, 2048) for n in (1, 2)]
    rows = [line.split("│")[1:4] for line in shown(render_lines(lines)).splitlines() if "KiB" in line]
    assert [["1", "1,000", "1,000"], ["2", "1,000", "2,000"]] == [[cell.strip() for cell in row] for row in rows]
    said = "flights is caught up: 2,000 rows in 2 checkpoints, 1.50 s"
    assert f"{said}\n" == shown(render_done("flights", "is caught up", lines, 1500))
    failed = shown(render_done("flights", "is caught up", lines, 1500, failed_checkpoints=2))
    assert f"{said}; 2 checkpoints failed\n" == failed


def test_a_jump_of_ids_is_explained_in_the_list(shown, record):
    """The parent decides which entry follows: 8 follows 7, and 1001 follows 8 although the ids jump."""
    rows = [record(1001, 8), record(8, 7), record(7, 6)]
    text = shown(render_checkpoints("flights", rows, set(), "held by somebody"))
    assert "1001 follows 8: the ids between were given to a tick that died" in text
    assert 1 == text.count(" follows ")


def listed(checkpoint, reason=CheckpointFailureReason.CHECKPOINT_EXPIRED):
    return CheckpointFailure(
        checkpoint=CheckpointId(checkpoint), reason=reason, message=f"why {checkpoint}", at_ms=STARTED_MS
    )


def test_failed_and_declined_checkpoints_stand_beside_the_completed_ones(shown, record):
    """Entries list them, so they are known while the tick runs. A release lists the failures after the last entry."""
    statistics = record().statistics.model_copy(update={"failed": (listed(7),)})
    newest = record(8, 6).model_copy(update={"statistics": statistics})
    declined = listed(9, CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED)
    ended = TickEnd(outcome="failed", message="why 9", failed=(listed(7), declined))
    release = Release(generation=Generation(2), next_id=CheckpointId(10), at_ms=STARTED_MS, nonce="r", ended=ended)
    text = shown(render_checkpoints("flights", [newest, release], {CheckpointId(8)}, ""), width=300)
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in text.splitlines() if "│" in line]
    assert [["9", "declined"], ["8", "checkpoint"], ["7", "failed"]] == rows[:3]
    assert "(generation 2, 2023-11-14 22:13:20 UTC): why 7. What to do: nothing: checkpoint 8 has its rows" in text
    assert "why 9. What to do: remove the cause: the next checkpoint has its rows" in text
    assert "8 follows 6" not in text
    assert 1 == text.count("why 9")


def test_a_tick_that_died_is_listed_though_it_wrote_nothing(shown, record):
    """Such a tick's claim has no release, and another process claims next. Attempts of one process are one tick."""

    def claim(generation, pid):
        holder = Holder(host="here", pid=pid, started="then")
        ids = {"first_id": CheckpointId(1), "last_id": CheckpointId(9)}
        return Claim(generation=Generation(generation), holder=holder, at_ms=STARTED_MS, nonce="n", **ids)

    rows = [claim(4, 11), claim(3, 10), claim(2, 10), claim(1, 9)]
    text = shown(render_checkpoints("flights", [record(), *rows], set(), ""), width=300)
    died = [line for line in text.splitlines() if "died, or was taken over" in line]
    assert ["generation 3", "generation 1"] == [line.split(" tick of ")[1][:12] for line in died]
    assert died[1].endswith("process 9 on here began it 2023-11-14 22:13:20 UTC; no retained checkpoint is its own")


def test_a_checkpoint_that_was_only_published_took_no_time_of_this_tick(shown):
    """An earlier tick read the checkpoint's rows."""
    line = CheckpointLine(CheckpointId(7), 1000, None, 20, 0, 2048)
    (row,) = [line.split("│")[1:5] for line in shown(render_lines([line])).splitlines() if "KiB" in line]
    assert ["7", "1,000", "1,000", "-"] == [cell.strip() for cell in row]


def test_caught_up_is_said_in_one_line(shown):
    """A run that finds nothing new reports this in one line."""
    assert "flights is caught up: nothing new to read, all tables at checkpoint 29\n" == shown(
        render_caught_up("flights", 29)
    )


def test_a_finished_job_is_said_in_one_line_with_the_way_to_read_again(shown):
    """The run started nothing. The line says what to type."""
    way_out = "To read one again, type 'tidemark reset shop.flights:build SOURCE --to start'"
    said = shown(render_finished("flights", None, "shop.flights:build"))
    assert f"flights is finished: its sources have ended. {way_out}\n" == said


def test_explain_shows_channels_alignment_tables_and_suites(shown):
    """A joining vertex of two inputs aligns the barriers of all their channels."""
    pipeline = Pipeline("f", parallelism=2)
    flights = pipeline.source("flights", SequenceSource({"EWR": 9, "JFK": 9}), rows_per_epoch=500).key_by("key")
    weather = (
        pipeline.source("weather", SequenceSource({"all": 9}))
        .select("key", "value")
        .with_column("temp", "value", LongType())
    )
    kept = weather.table("bronze/weather", id="bronze")
    joined = flights.connect(kept.key_by("key")).enrich("joined", "temp").table(SILVER)
    joined.expect(Expectation("expect_column_values_to_not_be_null", {"column": "n"}), suite="sound")
    text = shown(render_graph(plan(pipeline).with_discovered_splits()))
    assert "f: 4 vertices, 6 subtasks, 4 channels, 3 tables" in text
    assert "flights  source of 2 splits: EWR, JFK, at most 500 rows an epoch" in text
    assert "bronze  stateless, writes its rows to files\n" in text
    assert "joined  keyed, 2 subtasks, aligns the barriers of 3 channels" in text
    assert "← input 0: flights  2 channels of lazy slices, exchanged by key" in text
    assert "← input 1: bronze  1 channel of files, exchanged by key" in text
    assert "⇒ silver/flights  append, 7 columns, judged at every barrier by suite sound" in text
    assert "⇒ _tidemark/f/state/joined  operator state by key" in text


def test_explain_shows_which_output_an_input_reads(shown):
    """An input that reads a named output shows the output's name.

    An input that reads a function's own output shows none.
    """
    pipeline, row = Pipeline("f"), StructType().add("key", LongType()).add("n", LongType())
    rows = pipeline.source("rows", SequenceSource({"a": 1}, keys=1)).key_by("key")
    done = rows.process("sort", object(), state=StructType().add("m", LongType()), output=row, outputs={"late": row})
    done.union(done.output("late"), id="both").table("silver/both")
    text = shown(render_graph(plan(pipeline)))
    assert "← input 0: sort  1 channel of files" in text
    assert "← input 1: sort, output late  1 channel of files" in text


def test_explain_says_which_rows_an_overwrite_table_shows(shown):
    """The line names the version column and the partition columns."""
    pipeline = Pipeline("f")
    rows = pipeline.source("rows", SequenceSource({"a": 1}, keys=1))
    rows.overwrite("silver/whole", version="n", id="whole")
    rows.overwrite("silver/parts", version="n", partition_by=["key"], id="parts")
    text = shown(render_graph(plan(pipeline)))
    assert "⇒ silver/whole  overwrite, shows the greatest n, 6 columns" in text
    assert "⇒ silver/parts  overwrite, shows the greatest n of each partition by key, 6 columns" in text


# ------------------------------------------------------------------
# What the command line shows of a checkpoint's numbers: vertices, subtasks, the history, and what was not measured.


def measured(record, times, **changes):
    """Return the checkpoint with these task times of its joining vertex's subtasks."""
    (joined,) = record.statistics.vertices
    columns = SubtaskStatistics(
        task_ms=times, sync_ms=tuple(1 for _ in times), rows_in=tuple(range(len(times))), rows_out=(1,) * len(times)
    )
    joined = joined.model_copy(update={"subtasks": columns, "start_delay_ms": 100, "bytes_processed": 2048, **changes})
    subtasks = tuple(SubtaskSnapshot() for _ in times)
    vertices = (record.vertices[0], record.vertices[1].model_copy(update={"subtasks": subtasks}))
    statistics = record.statistics.model_copy(update={"vertices": (joined,)})
    return record.model_copy(update={"vertices": vertices, "statistics": statistics})


def cells(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_what_nobody_measured_is_said_and_never_0(shown, record):
    """An entry of an older version lacks the measurements of its subtasks, its start delay and its counts."""
    text = shown(render_timeline(record(), None, {}, PositionWords({})), width=240)
    assert "generation 2 up to checkpoint 7: checkpoints not measured" in text
    (barriers,) = cells(shown(vertices_grid(record())))
    assert [NOT_MEASURED, "0.80 s", NOT_MEASURED] == barriers[1:4]
    for row in cells(shown(subtasks_grid(record(), every=False), width=240)):
        assert [NOT_MEASURED] * 6 == row[2:8]
    assert [["flights", "EWR", NOT_MEASURED, NOT_MEASURED]] == [
        [row[0], row[1], row[3], row[4]] for row in cells(text) if row[1:2] == ["EWR"]
    ]


def test_each_subtask_has_its_numbers_under_the_vertexs_spread(shown, record):
    """The table shows the least, the average and the most of all subtasks, and then each subtask."""
    rows = cells(shown(subtasks_grid(measured(record(), (100, 900, 200)), every=False)))
    assert [
        ["least", "0.10 s"],
        ["average", "0.40 s"],
        ["most", "0.90 s"],
        ["0", "0.10 s"],
        ["1", "0.90 s"],
        ["2", "0.20 s"],
    ] == [row[1:3] for row in rows]


@pytest.mark.parametrize(("every", "left_out"), [(False, True), (True, False)])
def test_of_many_subtasks_the_slowest_are_shown_or_all(shown, record, every, left_out):
    """Of a thousand subtasks, the table shows the sixteen slowest. It says how to see the others."""
    many = measured(record(), tuple(range(1_000)))
    text = shown(subtasks_grid(many, every=every))
    assert left_out == ("984 faster subtasks left out: --subtasks shows all" in text)
    named = [row[1] for row in cells(text) if row[1].isdigit()]
    assert ([str(n) for n in range(1_000)] if every else [str(n) for n in range(984, 1_000)]) == named


def test_a_list_has_the_spread_of_its_checkpoints_and_what_the_newest_counts(shown, record):
    """The list has percentiles over its checkpoints, and counts how the generation's checkpoints ended."""
    counts = CheckpointCounts(total=9, in_progress=1, completed=6, failed=2, restored=1)
    newest = record(8, 7)
    statistics = newest.statistics.model_copy(update={"counts": counts})
    text = shown(
        render_checkpoints("flights", [newest.model_copy(update={"statistics": statistics}), record()], [], "")
    )
    assert "over 2 checkpoints" in text
    assert "9 triggered, 7 completed, 2 failed, restored from a checkpoint" in text
    assert ["slowest subtask", NOT_MEASURED] in [row[:2] for row in cells(text)]
    assert "over" not in shown(render_checkpoints("flights", [record()], [], ""))


def test_a_history_of_what_was_measured_says_so(shown, record):
    """The history shows the distribution of the slowest subtask's time over the checkpoints."""
    records = [measured(record(n + 1, n), (n * 100, 50)) for n in range(1, 21)]
    (row,) = [row for row in cells(shown(history_grid(records))) if row[0] == "slowest subtask"]
    assert ["0.10 s", "1.05 s", "2.00 s", "1.00 s", "1.90 s", "2.00 s"] == row[1:]


def test_an_entry_counts_its_own_checkpoint_as_completed(record):
    """The checkpoint was in progress when its entry was written. Another checkpoint may have been in progress, too."""
    counts = CheckpointCounts(total=5, in_progress=2, completed=3)
    one = record()
    told = counts_line(one.model_copy(update={"statistics": one.statistics.model_copy(update={"counts": counts})}))
    assert "5 triggered, 4 completed, 0 failed, 1 more in progress, started without a checkpoint" in told.plain


def test_the_counts_are_those_of_a_generation(record):
    """Without counts, the line says that they were not measured."""
    assert counts_line(record()).plain.endswith("checkpoints not measured")


@given(st.lists(st.one_of(st.none(), st.integers(0, 10_000))))
def test_a_distribution_lies_within_its_numbers(numbers):
    """At least n % of the numbers are not greater than percentile n, and fewer are smaller. None does not count."""
    known = [number for number in numbers if number is not None]
    spread = Distribution.of(numbers)
    if spread is None:
        assert [] == known
        return
    assert (len(known), min(known), max(known)) == (spread.count, spread.minimum, spread.maximum)
    assert min(known) <= spread.average <= max(known)
    for per_cent, value in ((50, spread.p50), (95, spread.p95), (99, spread.p99)):
        assert value in known
        below, reached = sum(n < value for n in known), sum(n <= value for n in known)
        assert 100 * below < per_cent * len(known) <= 100 * reached


# ------------------------------------------------------------------
# What a tick shows while it works, and how long its bar is.


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
    """A source of these splits. Each split has as many rows as its number says, and positions are whole numbers."""

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
    """Return a plain display, and a function that returns the lines that the display has printed."""
    out = io.StringIO()
    seconds = iter([100.0, 109.0, 110.2, 112.5])
    display = PlainDisplay(
        Console(file=out, width=40, highlight=False), Tally(rows_ahead=24_000), lambda: next(seconds)
    )
    return display, lambda: out.getvalue().splitlines()


def test_plain_lines_tell_a_tick(told, record):
    """The lines show the claim, where the tick begins, Spark's start, and each checkpoint's rows, seconds and share."""
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
    """The first line of a tick and the share call such a number an estimate, too."""
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
    """The checkpoint is listed, but this tick's bar does not count its rows, since an earlier tick read them."""
    display, lines = told
    display.completed(record(), (), {})
    display.recovered(Recovery(CheckpointId(7), CheckpointId(7), 0))
    assert [
        "checkpoint 7 was committed and not yet published: published now",
        "begins after checkpoint 7, 24,000 rows to read",
    ] == lines()
    assert ([7], 0) == ([line.checkpoint for line in display.tally.lines], display.tally.rows_committed)


def test_a_failed_checkpoint_says_why_and_what_becomes_of_its_rows(told):
    """A failure without a message shows its reason's text.

    If the failure ends the tick, the tick's error has the message.
    """
    display, lines = told
    display.failed(CheckpointId(7), CheckpointFailureReason.CHECKPOINT_EXPIRED, "", ends_tick=False)
    display.failed(CheckpointId(8), CheckpointFailureReason.CHECKPOINT_EXPIRED, "it is slow", ends_tick=True)
    display.failed(CheckpointId(9), CheckpointFailureReason.QUALITY, "suite good rejects 5 rows", ends_tick=True)
    assert [
        "checkpoint 7 failed: the checkpoint expired before it completed; its rows belong to the next one",
        "checkpoint 8 failed, and the job with it",
        "checkpoint 9 failed, and the tick ends",
    ] == lines()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            "2 failed; the last one: no ink",
            "the checkpoint expired before it completed: 2 failed; the last one: no ink",
        ),
        (
            "2 in a row: the checkpoint expired before it completed",
            "2 in a row: the checkpoint expired before it completed",
        ),
        ("", "the checkpoint expired before it completed: see the trace 1.ndjson"),
    ],
)
def test_the_error_of_a_tick_says_its_reason_once(message, why):
    report = TickReport(
        outcome=TickOutcome.FAILED,
        generation=Generation(1),
        completed=(),
        message=message,
        reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
        seconds=1.0,
        trace=Path("1.ndjson"),
        counts=CheckpointCounts(),
    )
    assert why == report.why


def test_a_restart_is_told_with_its_reason_and_its_rows_are_not_counted_twice(told):
    """The lines say why the job failed, and when and from where it restarts.

    Rows that no checkpoint covers are read again.
    """
    display, text = told
    display.progress(RowsRead(FLIGHTS, SplitId("a"), 5))
    display.progress(Restarting(2, CheckpointFailureReason.TASK_FAILURE, "out of paper", 1_500))
    assert (0, 0) == (display.tally.rows_read, display.tally.rows_open)
    said = text()
    assert "failed: out of paper" in said
    assert "restart 2 in 1.50 s, from the newest checkpoint" in said


def test_a_notice_that_failed_is_shown(told):
    """The line says which listener raised which error, and that the checkpoint stays."""
    display, text = told
    display.progress(NoticeFailed("listener Mail", CheckpointId(4), "OSError: no route"))
    assert "checkpoint 4 stays as it is, but listener Mail raised OSError: no route" in text()


def test_a_live_display_counts_the_same(record):
    """The bar and the plain lines add up events in the same tally. The summary reads that tally."""
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True), Tally(rows_ahead=100))
    with display.bar:
        display.recovered(Recovery(None, None, 0))
        display.progress(SparkStarting())
        display.progress(RowsRead(FLIGHTS, SplitId("EWR"), 13_000))
        display.progress(MicroBatchRan(FLIGHTS, 1, 13_000, 300))
        display.completed(record(), (), {})
    tally = display.tally
    assert (13_000, 12_000, 1_000, 13_000) == (tally.rows_read, tally.rows_committed, tally.rows_open, tally.rows_ahead)


def test_a_pipe_gets_lines_and_a_terminal_a_bar():
    """A log must not be full of redrawn bars."""
    with display_for(Console(file=io.StringIO()), Tally()) as display:
        assert type(display) is PlainDisplay
    terminal = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm"})
    with display_for(terminal, Tally()) as display:
        assert type(display) is LiveDisplay


def test_rows_ahead_are_those_after_the_restored_positions(record):
    """From the start, all rows are ahead. After a checkpoint, only the rows after its positions are ahead.

    A vertex without splits has no rows ahead.
    """
    sources = {FLIGHTS: Split({"EWR": 5_000, "JFK": 100})}
    restored = record(position="1200")
    assert Ahead(5_100) == rows_ahead(sources, None)
    assert Ahead(3_900) == rows_ahead(sources, restored)


def test_an_endless_or_unreadable_source_has_no_total():
    """For such a source, the bar has no total. The tick reports the error when it reads."""
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
