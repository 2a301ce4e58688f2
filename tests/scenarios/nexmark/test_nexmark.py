"""Nexmark on real Spark: each query has the rows that DuckDB computes, despite disorder, late rows and a SIGKILL.

`make nexmark` runs each query by itself, over 1M events, with two kills, once at each of two parallelisms.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StringType

from bench.nexmark import figures
from bench.nexmark.answers import QUERIES as ANSWERS
from bench.nexmark.answers import answer
from bench.nexmark.exact import InexactError, Run, judge, played, require_exact
from bench.nexmark.generate import Extent, delivered, lay_out
from bench.nexmark.queries import IN_TIME, QUERIES, AuctionHouse, bids_in_time, q7, q8
from bench.peers import nexmark_streaming
from bench.plan import QUICK
from bench.programs import Measured, Program
from jobs.operators import execute, ways_to_read
from jobs.operators.stateless_job import divided_job
from tidemark import Pipeline, count, tumbling
from tidemark.testing import Trial

EVENTS = 20_000
RATE = 150
"""At this rate the events cover two minutes of event time, which are a dozen windows, and sessions that end."""
FILES = 4
EVERY_ROWS = 4_000
OTHERS = tuple(name for name in QUERIES if name not in IN_TIME)


def chained(data, *, ends=False):
    """Declare two queries, and windows after a join within a time range."""
    pipeline = Pipeline("nexmark", parallelism=2)
    house = AuctionHouse(pipeline, data, ends=ends)
    q7(house)
    q8(house)
    bids = bids_in_time(house, "chained", of_auction=["category"], of_bid=[])
    by_category = bids.key_by("category").window(tumbling("10s"))
    by_category.aggregate("chained", late="fail", bids=count()).table("nexmark/chained")
    return pipeline


def chained_to_the_end(data):
    return chained(data, ends=True)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
def test_windows_behind_joins_in_time(tmp_path):
    """A join emits a row long after the row's time. No window after the join closes before that."""
    for of_kind in delivered(Extent(events=4_000, rate=100, files=2, disorder_ms=3_500)):
        for kind, table in of_kind.items():
            Trial(chained, tmp_path).deliver(kind, table)
        Trial(chained, tmp_path).run()
    trial = Trial(chained_to_the_end, tmp_path)
    cut = trial.run()
    for name in ("q7", "q8"):
        assert judge(name, cut, trial.data)
    start = "time_bucket(INTERVAL 10 SECOND, a.dateTime) AS window_start"
    bids = f"""SELECT category, {start}, window_start + INTERVAL 10 SECOND AS window_end, count(*) AS bids
        FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires GROUP BY ALL"""
    require_exact("chained", answer(trial.data, bids), pa.table(cut.arrow("nexmark/chained")))


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("names", "late", "dies_at"),
    [(IN_TIME, 0.02, "after:AppendRow#1"), (OTHERS, 0.0, "after:RunMicroBatch#9")],
    ids=["in-time", "others"],
)
def test_every_query_is_exact(tmp_path, names, late, dies_at):
    """Rows that came too late are in the late tables, and nothing else differs."""
    data = lay_out(Extent(EVENTS, RATE, FILES, disorder_ms=3_500, late=late, late_ms=30_000), tmp_path)
    cut = played(Run(names, data, 2, EVERY_ROWS, (dies_at,)), tmp_path / "trial")
    for name in names:
        assert judge(name, cut, data), name
    late_tables = {table for table in cut.tables if table.startswith("late/")}
    assert late_tables >= ({"late/q5", "late/q7", "late/q9_joined", "late/q11"} if late else set())


def computed(data):
    """Declare a pipeline with `upper`, which only Spark can compute."""
    pipeline = Pipeline("nexmark", parallelism=2)
    bids = AuctionHouse(pipeline, data).bids.with_column("loud", "upper(channel)", StringType())
    bids.select("auction", "loud").table("nexmark/loud", id="loud")
    return pipeline


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(600)
def test_times_go_on_where_spark_sees_some_columns_only(tmp_path, monkeypatch):
    """The task that reads the other columns measures the event times of the rows."""
    monkeypatch.setattr(ways_to_read, "is_small", lambda *_: False)
    divided = []
    monkeypatch.setattr(execute, "divided_job", lambda *of: divided.append(of[1].vertex) or divided_job(*of))
    trial = Trial(computed, tmp_path)
    for of_kind in delivered(Extent(events=4_000, rate=100, files=2)):
        for kind, rows in of_kind.items():
            trial.deliver(kind, rows)
        cut = trial.run()
    assert {"loud"} == {*divided}
    until = cut.complete_until("nexmark/loud")
    last = pc.max(of_kind["bid"].column("dateTime")).as_py()
    assert timedelta(seconds=3) < last - until < timedelta(seconds=5)
    wanted = answer(trial.data, "SELECT auction, upper(channel) AS loud FROM bid")
    require_exact("loud", wanted, pa.table(cut.arrow("nexmark/loud")))


ROWS = pa.table({"auction": [1, 2, 2], "mean": [0.1, 0.5, 0.5]})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ROWS.slice(1), "1 rows are missing, and 0 are too many"),
        (pa.concat_tables([ROWS, ROWS.slice(2)]), "0 rows are missing, and 1 are too many"),
        (ROWS.set_column(1, "mean", [[0.1, 0.5, 0.4]]), "mean differs"),
        (ROWS.drop_columns(["mean"]), "its columns are"),
    ],
)
def test_another_table_is_not_exact(found, said):
    require_exact("q", ROWS, ROWS.take([2, 0, 1]))
    with pytest.raises(InexactError, match=said):
        require_exact("q", ROWS, found)


def test_each_query_has_its_peers():
    """Each query but q6 has a file with Flink's SQL, and the figures name the queries that each peer runs."""
    files = {path.stem for path in (Path(nexmark_streaming.__file__).parent / "nexmark").glob("*.sql")}
    assert files == set(figures.IN_FLINK) == set(QUERIES) - {"q6"}
    assert set(nexmark_streaming.QUERIES) == set(figures.STREAMED)
    assert set(ANSWERS) == set(QUERIES)


def ran(seconds, memory=1):
    return [{"total_s": seconds, "cpu_s": 2 * seconds, "peak_memory_bytes": memory}]


def test_the_better_setting_of_a_peer_counts_and_a_query_without_figures_is_named():
    results = {
        "nexmark:ours:q0": ran(2.0, 9),
        "nexmark:ours:q1": ran(1.0, 3),
        "nexmark:ours:q6": ran(1.0, 1),
        "nexmark:flink:rocksdb:row:q0": ran(8.0, 6),
        "nexmark:flink:rocksdb:mini-batch:q0": ran(4.0, 3),
        "nexmark:flink:rocksdb:row:q1": ran(8.0, 6),
    }
    found = figures.against(figures.ROCKSDB, ("q0", "q1", "q2"))(results, QUICK)
    assert found["ratio"] == pytest.approx(4.0)  # of 2 and 8
    assert found["lacking"] == ["q2"]
    assert figures.against(figures.ROCKSDB, ("q0", "q1"), worst=True)(results, QUICK)["ratio"] == pytest.approx(2.0)
    assert figures.memory(results, QUICK)["ratio"] == pytest.approx(9 / 6)
    lines = figures.markdown(found)
    assert [line for line in lines if line.startswith("| q0 ")] == ["| q0 | 2.0 | 4.0 | 0 | 4.0 | 8.0 | 0 |"]
    assert figures.picture(found).count("<text") == 1 + 8 + 1 + 2 * 2


def test_a_run_of_the_bench_that_was_cut_goes_on(tmp_path):
    """The result of a program is kept for its round, and used again. Another setting or other code is measured anew."""
    measured = Measured(tmp_path / "measured", tmp_path)
    row, batch = (Program("q0", ("bench.peers.flink", "q0", how)) for how in ("row", "mini-batch"))
    ours, result = Program("q0", ("bench.ours.nexmark", "q0")), {"total_s": 1.5}
    peer, job = (tmp_path / place for place in ("bench/peers/flink.py", "jobs/tick/tick.py"))
    for path in (peer, job):
        path.parent.mkdir(parents=True)
        path.write_text("")
    for program in (row, ours):
        measured.keep(program, result)
    assert [result, None, result] == [measured.find(each) for each in (row, batch, ours)]
    assert measured.find(replace(row, environment={"THREADS": "2"})) is None
    assert measured.find(row, 2) is None
    measured.keep(row, {"total_s": 2.5}, 2)
    assert [1.5, 2.5] == [measured.find(row, number)["total_s"] for number in (1, 2)]
    job.write_text("changed")
    assert [result, None] == [measured.find(each) for each in (row, ours)]
    peer.write_text("changed")
    assert measured.find(row) is None
