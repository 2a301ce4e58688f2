"""What the reports show, from plain data on a recording console."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType
from rich.console import Console

from checkpointing.channel_items import AlignmentType, ChannelState, StagedSegment
from checkpointing.handles import FileHandle
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, TableName, VertexId, job_name
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Statistics
from jobs.pipeline import Pipeline
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.reading import Cut, Cuts
from jobs.showing.checkpoints import moments, render_checkpoints, render_timeline
from jobs.showing.cut import render_cut
from jobs.showing.graph import render_graph
from jobs.showing.quantities import CheckpointLine, moment, plural, seconds, size
from jobs.showing.summary import render_caught_up, render_done, render_finished, render_lines
from jobs.sources.hybrid import SequenceSource
from jobs.sources.position_words import PositionWords
from jobs.warehouse.cuts_table import RecordedCut
from jobs.warehouse.warehouse import Warehouse

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
    """Seconds with hundredths, then minutes, then hours."""
    assert said == seconds(milliseconds)


@pytest.mark.parametrize(("number", "said"), [(0, "0 B"), (1023, "1023 B"), (4300, "4.2 KiB"), (3 << 40, "3.0 TiB")])
def test_sizes_are_read_in_the_largest_unit_that_leaves_one(number, said):
    """Bytes are whole, larger units have a digit behind the point."""
    assert said == size(number)


def test_one_is_singular_and_moments_are_utc():
    """`1 row`, `2 rows`, `2 vertices`; a moment does not depend on where it is read."""
    assert ["1 row", "2 rows", "2 vertices"] == [plural(1, "row"), plural(2, "row"), plural(2, "vertex", "vertices")]
    assert "2023-11-14 22:13:20" == moment(STARTED_MS)


def test_a_timeline_tells_an_epochs_life_in_order_of_time(record):
    """Trigger, each barrier at its channel, aligned, acknowledged, commit point, published."""
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
    """A barrier that is counted or overtakes rows is not called aligned. Rows in flight are shown with their edge."""
    text = shown(render_timeline(passing(record(), alignment, held), STARTED_MS + 1500, {}, NO_WORDS))
    assert told in text
    assert "aligned after" not in text
    flying = "in flight 40 rows, 3.0 KiB from weather to joined; a restore begins with them"
    assert (alignment is AlignmentType.UNALIGNED) == (flying in text)


def passing(record, alignment, held):
    """Return the checkpoint as if its barrier had passed the join in this way; unaligned, it overtook a segment."""
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
    """It shows the files of each table, the size of the state with shared files counted once, and all positions."""
    text = shown(render_timeline(record(), STARTED_MS + 1500, {SILVER: 7, GOLD: 8}, NO_WORDS))
    assert "checkpoint 7 of flights, builds on 6, generation 2: 12,000 rows" in text
    assert "state 1 file, 2.0 KiB in all" in text
    assert "files 2, consumed 1,200" in text
    assert "append: new files │     1 │   11 │ 2.9 KiB │             7" in text
    assert "upsert: all files │     2 │   22 │ 5.9 KiB │             8" in text


def test_a_committed_checkpoint_that_is_not_published_says_so(shown, record):
    """Between commit point and cut, nothing is shown as visible."""
    text = shown(render_timeline(record(), None, {}, NO_WORDS))
    assert "not published yet" in text
    assert "published, cut recorded" not in text
    assert "not published" in text.split("tables")[-1]


def test_the_list_shows_what_is_published_and_who_holds_the_job(shown, record):
    """There is a line for each checkpoint. Without a recorded cut it is not published yet."""
    text = shown(render_checkpoints("flights", [record(8, 7), record(7, 6)], {CheckpointId(7)}, "held by somebody"))
    lines = [line for line in text.splitlines() if "checkpoint │" in line]
    assert ["not yet", "published"] == [line.split("│")[-2].strip() for line in lines]
    assert "2 checkpoints retained" in text
    assert "held by somebody" in text


@pytest.mark.parametrize("width", [116, 120])
def test_the_kind_of_a_finished_checkpoint_stays_in_one_line(record, width):
    """Nothing of the line is cut off in a window of usual width."""
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
    """Return a cut of these versions, as it would be found in a warehouse."""
    recorded = RecordedCut(CheckpointId(7), 1_700_000_000_000, versions)
    entry = CheckpointRecord(
        job="flights",
        checkpoint=7,
        parent=0,
        generation=1,
        nonce="nonce",
        max_parallelism=8,
        vertices=(),
        tables=(),
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
    )
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
    """A line that is copied must be whole."""
    deep = Path("/a") / "/".join(["very"] * 30)
    text = shown(render_cut(cut_in(deep, {SILVER: 7}), deep), width=40)
    assert f"silver_flights = pl.scan_delta('{deep}/silver/flights', version=7)" in text.splitlines()


def test_a_summary_adds_up_epochs(shown):
    """Rows so far are the sum of the epochs above."""
    lines = [CheckpointLine(CheckpointId(n), 1000, 500, 20, 0, 2048) for n in (1, 2)]
    rows = [line.split("│")[1:4] for line in shown(render_lines(lines)).splitlines() if "KiB" in line]
    assert [["1", "1,000", "1,000"], ["2", "1,000", "2,000"]] == [[cell.strip() for cell in row] for row in rows]
    said = "flights is caught up: 2,000 rows in 2 checkpoints, 1.50 s"
    assert f"{said}\n" == shown(render_done("flights", "is caught up", lines, 1500))
    failed = shown(render_done("flights", "is caught up", lines, 1500, failed_checkpoints=2))
    assert f"{said}; 2 checkpoints failed\n" == failed


def test_a_jump_of_ids_is_explained_in_the_list(shown, record):
    """The parent decides: 8 follows 7, and 1001 follows 8 although the ids jump."""
    rows = [record(1001, 8), record(8, 7), record(7, 6)]
    text = shown(render_checkpoints("flights", rows, set(), "held by somebody"))
    assert "1001 follows 8: the ids between were given to a tick that died" in text
    assert 1 == text.count(" follows ")


def test_a_checkpoint_that_was_only_published_took_no_time_of_this_tick(shown):
    """Another tick read its rows."""
    line = CheckpointLine(CheckpointId(7), 1000, None, 20, 0, 2048)
    (row,) = [line.split("│")[1:5] for line in shown(render_lines([line])).splitlines() if "KiB" in line]
    assert ["7", "1,000", "1,000", "-"] == [cell.strip() for cell in row]


def test_caught_up_is_said_in_one_line(shown):
    """The second run changes nothing and says so."""
    assert "flights is caught up: nothing new to read, all tables at checkpoint 29\n" == shown(
        render_caught_up("flights", 29)
    )


def test_a_finished_job_is_said_in_one_line_with_the_way_to_read_again(shown):
    """Nothing was started, and the line says what to type."""
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
    """An input of a named output says its name. One of a function's own output says none."""
    pipeline, row = Pipeline("f"), StructType().add("key", LongType()).add("n", LongType())
    rows = pipeline.source("rows", SequenceSource({"a": 1}, keys=1)).key_by("key")
    done = rows.process("sort", object(), state=StructType().add("m", LongType()), output=row, outputs={"late": row})
    done.union(done.output("late"), id="both").table("silver/both")
    text = shown(render_graph(plan(pipeline)))
    assert "← input 0: sort  1 channel of files" in text
    assert "← input 1: sort, output late  1 channel of files" in text


def test_explain_says_which_rows_an_overwrite_table_shows(shown):
    """It names the version column, and the columns of the partitions."""
    pipeline = Pipeline("f")
    rows = pipeline.source("rows", SequenceSource({"a": 1}, keys=1))
    rows.overwrite("silver/whole", version="n", id="whole")
    rows.overwrite("silver/parts", version="n", partition_by=["key"], id="parts")
    text = shown(render_graph(plan(pipeline)))
    assert "⇒ silver/whole  overwrite, shows the greatest n, 6 columns" in text
    assert "⇒ silver/parts  overwrite, shows the greatest n of each partition by key, 6 columns" in text
