"""The time until which a cut's tables are complete (N8): what readers find out, and what the table of cuts has."""

import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from pyspark.sql.types import TimestampType

from checkpointing.event_time import END_OF_TIME, VertexTime, Watermark
from checkpointing.job.drafts import time_record
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, SavepointRequested
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.pipeline import Pipeline, count
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.joins import join
from jobs.pipeline.planning import plan
from jobs.reading import Cuts, NoEventTimeError, NoSuchTableError
from jobs.showing.graph import _watermark
from jobs.sources.hybrid import SequenceSource
from jobs.tick.at_rest.request_client import Taken
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.scenarios.reading.timed_job import HOUR, START, TimedEngine, timed
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, run

MS = timedelta(milliseconds=1)
FOR_EVER = datetime.max.replace(tzinfo=UTC)


def tick(root, pipeline, **limits):
    return run_tick(plan(pipeline), RuntimeSettings(warehouse=root, limits=TickLimits(**limits)), engine=TimedEngine())


def test_a_cut_says_until_when_its_tables_are_complete(tmp_path):
    """The rows before barrier n have times up to hour 20 n - 1. Rows may come two hours late."""
    tick(tmp_path, timed())
    cuts = Cuts(tmp_path, JOB)
    found = {cut.checkpoint: (cut.complete_until(BRONZE), cut.complete_until(GOLD)) for cut in cuts.all()}
    assert {n: (START + (20 * n - 3) * HOUR - MS,) * 2 for n in range(1, 6)} == found
    with pytest.raises(NoSuchTableError):
        cuts.latest().complete_until("gold/none")


@pytest.mark.parametrize(
    ("hour", "checkpoint"), [(0, 1), (17, 1), (17.001, 2), (37, 2), (38, 3), (97, 5), (97.001, None), (1000, None)]
)
def test_the_first_cut_with_all_rows_before_a_moment_is_found(tmp_path, hour, checkpoint):
    """The moment itself does not count. A cut whose watermark is the last millisecond before the moment is enough."""
    tick(tmp_path, timed())
    found = Cuts(tmp_path, JOB).first_complete(GOLD, START + hour * HOUR)
    assert checkpoint == (None if found is None else found.checkpoint)
    rows = pl.Series() if found is None else found.polars(BRONZE).collect()["n"]
    assert found is None or {n for n in range(100) if n < hour} <= set(rows)


def test_the_table_of_cuts_says_it_for_sql(tmp_path):
    tick(tmp_path, timed(40))
    told = pl.read_delta(str(tmp_path / "_tidemark" / JOB / "cuts")).filter(pl.col("table") == GOLD).sort("checkpoint")
    assert [START + 17 * HOUR - MS, START + 37 * HOUR - MS] == told["complete_until"].to_list()
    states = pl.read_delta(str(tmp_path / "_tidemark" / JOB / "cuts")).filter(pl.col("table").str.contains("state"))
    assert [None, None] == states["complete_until"].to_list()


def test_commands_show_it(tmp_path, capsys):
    tick(tmp_path, timed(20))
    named = ("tests.scenarios.reading.timed_job:build", "--warehouse", str(tmp_path))
    assert ExitCode.DONE == execute(["cut", *named])
    assert "2026-01-01 16:59:59.999" in capsys.readouterr().out
    assert ExitCode.DONE == execute(["checkpoints", "list", *named, "--json"])
    shown = json.loads(capsys.readouterr().out)["checkpoints"]
    ms = int((START + 17 * HOUR).timestamp()) * 1000 - 1
    assert [{BRONZE: ms, GOLD: ms}] == [each["complete_until_ms"] for each in shown]


def test_after_the_last_row_a_table_is_complete_for_ever(tmp_path):
    tick(tmp_path, timed(40, bounded=True))
    newest = Cuts(tmp_path, JOB).latest()
    assert newest.finished
    assert FOR_EVER == newest.complete_until(GOLD)
    assert newest.checkpoint == Cuts(tmp_path, JOB).first_complete(GOLD, "9999-12-31").checkpoint
    told = pl.read_delta(str(tmp_path / "_tidemark" / JOB / "cuts")).filter(pl.col("checkpoint") == newest.checkpoint)
    assert FOR_EVER == told.filter(pl.col("table") == GOLD)["complete_until"].item()


def test_a_drain_completes_no_table_further_than_its_rows(tmp_path):
    """More rows may come after a drain. So the time never passes the rows that were read, and never goes back later."""
    tick(tmp_path, timed(), checkpoints=1)
    inbox = Inbox()
    inbox.put(SavepointRequested("drain", SavepointKind.DRAIN))
    run_tick(plan(timed()), RuntimeSettings(warehouse=tmp_path), engine=TimedEngine(), inbox=inbox)
    drained = Cuts(tmp_path, JOB).latest()
    at, entry = drained.complete_until(GOLD), drained.entry()
    assert all(was.time.watermark_ms == END_OF_TIME for was in entry.vertices if was.time is not None)
    assert "second result" in Taken(entry, None).closed_windows
    assert at == START + (pl.Series(drained.polars(BRONZE).collect()["n"]).max() - 2) * HOUR - MS
    assert Cuts(tmp_path, JOB).first_complete(GOLD, "9999-12-31") is None
    tick(tmp_path, timed())
    ends = [cut.complete_until(GOLD) for cut in Cuts(tmp_path, JOB).all()]
    assert ends == sorted(ends)
    assert START + 97 * HOUR - MS == ends[-1]


def test_a_table_without_event_times_says_nothing(tmp_path):
    run(tmp_path)
    cuts = Cuts(tmp_path, JOB)
    assert cuts.latest().complete_until(GOLD) is None
    with pytest.raises(NoEventTimeError, match="declare event_time on the sources"):
        cuts.first_complete(GOLD, START)


def test_a_table_of_cuts_from_before_gets_the_column(tmp_path, monkeypatch):
    """A warehouse that an older version wrote goes on. Old cuts have null in the column, and new cuts have a time."""
    with monkeypatch.context() as older:
        without_the_column(older)
        run(tmp_path, 1)
    folder = str(tmp_path / "_tidemark" / JOB / "cuts")
    assert "complete_until" not in pl.read_delta(folder).columns
    run(tmp_path, 1)
    told = pl.read_delta(folder)
    assert [None] * told.height == told["complete_until"].to_list()
    assert 2 == told["checkpoint"].n_unique()
    assert set(told["checkpoint"]) == {cut.checkpoint for cut in Cuts(tmp_path, JOB).all()}


def test_a_table_below_an_enrichment_does_not_know(tmp_path):
    """A row may wait in an enrichment, whatever the watermark is. At the end of time no row waits any more."""
    pipeline = Pipeline(JOB)
    left = pipeline.source("left", SequenceSource({"a": 9}, keys=3)).with_column("at", "now()", TimestampType())
    right = pipeline.source("right", SequenceSource({"b": 9}, keys=3)).select("key", "value")
    kept = left.event_time("at", delay="1h").drop("value").table(BRONZE, id="bronze").key_by("key")
    kept.connect(right.key_by("key")).enrich("enriched", "value").table("silver/numbers").key_by("key").aggregate(
        "by_key", rows=count()
    ).upsert(GOLD)
    graph = plan(pipeline).graph
    time = VertexTime({})
    for at, known in ((Watermark(5), 1), (Watermark(END_OF_TIME), 3)):
        time.watermark = at
        told = [table for vertex in graph.operators() for table in time_record(graph, vertex, time).tables]
        assert [BRONZE, "silver/numbers", GOLD][:known] == told


def without_the_column(monkeypatch):
    from jobs.warehouse import cuts_table

    older = cuts_table.SCHEMA.remove(cuts_table.SCHEMA.get_field_index("complete_until"))
    monkeypatch.setattr(cuts_table, "SCHEMA", older)


def test_a_table_of_pairs_is_behind_by_as_long_as_a_row_may_wait():
    """A left row from noon may find its partner until one o'clock. Before that, its result may not be in the table."""
    pipeline = Pipeline(JOB)
    left, right = (
        pipeline.source(name, SequenceSource({name: 9}, keys=3))
        .with_column(f"{name}_at", "now()", TimestampType())
        .event_time(f"{name}_at", delay="1h")
        for name in ("left", "right")
    )
    kept = left.select("key", "n", "left_at").key_by("key")
    paid = right.select("key", "value", "right_at").key_by("key")
    join(kept, paid, "paid", how="left", within=("-5m", "1h"), late="late/rows").table(GOLD)
    graph = plan(pipeline).graph
    time = VertexTime({})
    time.watermark = Watermark(7_200_000)
    told = {vertex.id: time_record(graph, vertex, time) for vertex in graph.operators()}
    assert (GOLD,) == told["paid"].tables
    assert (3_600_000, 0) == (told["paid"].behind_ms, told["paid_late"].behind_ms)


def test_a_checkpoint_shows_which_split_holds_the_time_back(tmp_path, capsys):
    """Split b is far behind, and the hours of split a wait for it."""
    tick(tmp_path, timed(40, more={"b": 5}), checkpoints=2)
    named = ("tests.scenarios.reading.timed_job:build", "--warehouse", str(tmp_path))
    assert ExitCode.DONE == execute(["checkpoints", "show", *named, "--json"])
    shown = {each["vertex"]: each for each in json.loads(capsys.readouterr().out)["event_time"]}
    bronze, gold = shown["bronze"], shown["by_key"]
    assert "b" == bronze["inputs"][bronze["held_back_by"]]["split"]
    assert bronze["watermark_ms"] == gold["watermark_ms"] == min(each["watermark_ms"] for each in bronze["inputs"])
    assert ExitCode.DONE == execute(["checkpoints", "show", *named])
    assert "event time" in capsys.readouterr().out


def test_explain_says_when_time_goes_on_by_the_clock():
    pipeline = Pipeline(JOB)
    numbers = pipeline.source("numbers", SequenceSource({"a": 9}, keys=3)).with_column("at", "now()", TimestampType())
    numbers.event_time("at", delay="2h", idle_after="5m", close_after="1h").table(BRONZE, id="bronze")
    planned = plan(pipeline)
    (line,) = (line.plain for line in _watermark(planned, planned.graph.vertex("bronze")))
    assert "(2 h 00 min of delay, idle after 5 min 00 s, by the clock once all rest for 1 h 00 min)" in line
    with pytest.raises(InvalidPipelineError, match="close_after is 0, so time would never wait for rows"):
        numbers.event_time("at", delay="2h", close_after="0s")


def test_explain_says_where_watermarks_come_from_and_what_bounds_state(capsys):
    assert ExitCode.DONE == execute(["explain", "tests.scenarios.reading.timed_job:build"])
    shown = capsys.readouterr().out
    assert "the least of each split of numbers (2 h 00 min of delay, never idle)" in shown
    assert "the least of vertex bronze" in shown
    assert "nothing bounds it" in shown
