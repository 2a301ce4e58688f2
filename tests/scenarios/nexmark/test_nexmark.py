"""Nexmark on real Spark: each query has the rows that DuckDB answers, in order and with disorder, after a SIGKILL."""

from collections import Counter
from math import isclose

import polars as pl
import pyarrow as pa
import pytest

from bench.nexmark.answers import answer, answers
from bench.nexmark.generate import Extent, delivered
from bench.nexmark.queries import IN_TIME, QUERIES, AuctionHouse, bids_in_time, declared, q7, q8
from tidemark import Pipeline, count, tumbling
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENTS = 20_000
FILES = 3
RATE = 150
"""Two minutes of event time: a dozen windows, and sessions that end."""


OTHERS = [name for name in QUERIES if name not in IN_TIME]


def in_time(data):
    return declared(data, IN_TIME)


def in_time_to_the_end(data):
    return declared(data, IN_TIME, ends=True)


def of_tables(data):
    return declared(data, OTHERS)


def deliver(trial, number, of_kind):
    for kind, table in of_kind.items():
        trial.deliver(kind, table)
    if number == 0:
        values = pl.DataFrame({"key": range(10_000)}).with_columns(
            ("value-" + pl.col("key").cast(pl.String)).alias("value")
        )
        trial.deliver("value", values)


def chained(data, *, ends=False):
    """Declare two queries, and windows behind a join within a time range."""
    pipeline = Pipeline("nexmark", parallelism=2)
    house = AuctionHouse(pipeline, data, ends=ends)
    q7(house)
    q8(house)
    by_category = bids_in_time(house, "bids_in_time").key_by("category").window(tumbling("10s"))
    by_category.aggregate("chained", late="fail", bids=count()).table("nexmark/chained")
    return pipeline


def chained_to_the_end(data):
    return chained(data, ends=True)


def played(build, folder, *, disorder_ms, dies_at):
    """Return the trial after a tick for each file. The second one is killed, and its rows wait for the next one."""
    trial = Trial(build, folder)
    extent = Extent(events=EVENTS, rate=RATE, files=FILES, disorder_ms=disorder_ms)
    for number, of_kind in enumerate(delivered(extent)):
        deliver(trial, number, of_kind)
        if number == 1:
            trial.kill(dies_at, spark_cores=2)
        trial.run()
    return trial


def comparable(table):
    """Return the rows, each with its columns in order of their names, and its means apart from the rest."""
    frame = pl.from_arrow(table)
    frame = frame.with_columns(pl.col(pl.Datetime).dt.replace_time_zone(None).dt.cast_time_unit("us"))
    means = sorted(name for name, kind in frame.schema.items() if kind.is_float())
    whole = sorted(name for name in frame.columns if name not in means)
    exact = frame.with_columns(pl.col(pl.Decimal, pl.Int32).cast(pl.Float64)).select(whole)
    values = frame.select(pl.concat_list(means) if means else pl.repeat([], pl.len())).to_series().to_list()
    return whole, Counter(exact.rows()), dict(zip(exact.rows(), values, strict=True))


def require_equal(name, wanted, found):
    (columns, rows, means), (its, had, said) = comparable(wanted), comparable(found)
    assert columns == its, name
    missing, beyond = list((rows - had).elements()), list((had - rows).elements())
    assert not missing, (
        f"{name}: {len(missing)} rows are missing, and {len(beyond)} too many: {missing[:1]} {beyond[:1]}"
    )
    assert not beyond, f"{name}: {len(beyond)} rows are too many: {beyond[:1]}"
    for row, values in means.items():
        assert all(isclose(one, other, rel_tol=1e-9) for one, other in zip(values, said[row], strict=True)), name


def judge(trial, names):
    cut = trial.cuts.latest()
    for name, wanted in answers(trial.data, names):
        assert wanted.num_rows
        require_equal(name, wanted, pa.table(cut.arrow(f"nexmark/{name}")))


def test_windows_behind_joins_in_time(tmp_path):
    """A join puts a row out long after its time, and no window behind it closes before."""
    for number, of_kind in enumerate(delivered(Extent(events=4_000, rate=100, files=2, disorder_ms=3_500))):
        deliver(Trial(chained, tmp_path), number, of_kind)
        Trial(chained, tmp_path).run()
    trial = Trial(chained_to_the_end, tmp_path)
    trial.run()
    judge(trial, ["q7", "q8"])
    start = "time_bucket(INTERVAL 10 SECOND, a.dateTime) AS window_start"
    bids = f"""SELECT category, {start}, window_start + INTERVAL 10 SECOND AS window_end, count(*) AS bids
        FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires GROUP BY ALL"""
    require_equal("chained", answer(trial.data, bids), pa.table(trial.cuts.latest().arrow("nexmark/chained")))


@pytest.mark.kill
@pytest.mark.parametrize("disorder_ms", [0, 3_500])
def test_windows_and_joins_in_time(tmp_path, disorder_ms):
    played(in_time, tmp_path, disorder_ms=disorder_ms, dies_at="after:AppendRow#1")
    trial = Trial(in_time_to_the_end, tmp_path)
    trial.run()
    judge(trial, IN_TIME)


@pytest.mark.kill
def test_queries_that_need_no_time(tmp_path):
    judge(played(of_tables, tmp_path, disorder_ms=0, dies_at="after:RunMicroBatch#9"), OTHERS)
