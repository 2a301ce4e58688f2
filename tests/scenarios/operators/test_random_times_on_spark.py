"""Compares random operators on real Spark, each killed once, with a replay of the recorded cuts (N1, N6).

The rows are random too. The replay reads the epochs from the bronze table, and knows nothing of micro-batches, state,
kills or parallelism. It determines which rows are late, and computes the batch result of the others.
"""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tidemark import FileSource, Pipeline, count, distinct, over, sum_of, tumbling
from tidemark.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
ROWS = StructType([StructField("at", TimestampType()), StructField("user", StringType()), StructField("n", LongType())])
ROUNDS = 3
OPERATORS = ("once", "moving", "newest")


def build(data):
    drawn = json.loads((data / "drawn.json").read_text())
    pipeline = Pipeline("random", parallelism=2)
    stream = pipeline.source("clicks", FileSource(data / "clicks", schema=ROWS))
    stream = stream.event_time("at", delay=f"{drawn['delay']}m")
    if drawn["by_spark"]:  # a step that only Spark can do
        stream = stream.transform(lambda rows: rows.hint("tidemark"))
    clicks = stream.table("bronze/clicks", id="bronze").key_by("user")
    once = distinct(clicks, "once", within=f"{drawn['within']}m", late="late/once").table("silver/once")
    windows = once.key_by("user").window(tumbling(f"{drawn['size']}m"))
    windows.aggregate("sizes", late="late/sizes", rows=count()).table("gold/sizes")
    sums = {"rows": count(), "total": sum_of("n")}
    over(clicks, "moving", within=f"{drawn['back']}m", late="late/moving", **sums).table("gold/moving")
    over(clicks, "newest", last=drawn["last"], late="late/newest", **sums).table("gold/newest")
    return pipeline


def drawn_by(draw):
    return {
        "delay": draw.choice([0, 7, 20]),
        "within": draw.choice([3, 30, 200]),
        "size": draw.choice([10, 60]),
        "back": draw.choice([5, 45]),
        "last": draw.choice([1, 4]),
        "by_spark": draw.random() < 0.5,
    }


def rows(draw, split, place, delay):
    """Return rows whose times advance by about two minutes. One in eight is later than the delay allows."""
    found = []
    for n in range(50 * place, 50 * place + 50):
        back = delay + draw.randrange(1, 200) if draw.random() < 0.12 else draw.randrange(delay + 1)
        apart = timedelta(microseconds=2 * n + split)  # no two rows have the same time
        found.append({"at": BEGIN + timedelta(minutes=2 * n - back) + apart, "user": draw.choice("abc"), "n": n})
    return pl.DataFrame(found, schema_overrides={"n": pl.Int64})


class Replay:
    """The expected work of each operator at a cut: late rows, rows that count, and rows that `once` has emitted."""

    def __init__(self, drawn):
        self.drawn = drawn
        self.late, self.counted, self.once = [], [], []
        self.watermark = None

    def epoch(self, new, every):
        """Take the rows of an epoch, and then advance the watermark to that of all rows."""
        within = timedelta(minutes=self.drawn["within"])
        for row in sorted(new, key=lambda each: each["at"]):
            if self.watermark is not None and row["at"] <= self.watermark:
                self.late.append((row["_split"], row["_position"]))
                continue
            self.counted.append(row)
            near = (each for each in self.once if each["user"] == row["user"])
            if all(abs(each["at"] - row["at"]) >= within for each in near):
                self.once.append(row)
        ends = [every.filter(pl.col("_split") == split)["at"].max() for split in ("a", "b")]
        if None not in ends:
            self.watermark = min(ends) - timedelta(minutes=self.drawn["delay"]) - MS

    def sizes(self):
        """Return how many rows of `once` each closed window has."""
        size = timedelta(minutes=self.drawn["size"])
        ends = [(row["user"], BEGIN + ((row["at"] - BEGIN) // size + 1) * size) for row in self.once]
        return Counter(each for each in ends if each[1] - MS <= self.watermark)

    def over(self, name):
        """Return each row that the watermark has passed, with the count and sum of the rows in its range."""
        found, back = [], timedelta(minutes=self.drawn["back"])
        for row in (each for each in self.counted if each["at"] <= self.watermark):
            before = [each for each in self.counted if each["user"] == row["user"] and each["at"] <= row["at"]]
            before.sort(key=lambda each: each["at"])
            seen = [each for each in before if each["at"] >= row["at"] - back]
            if name == "newest":
                seen = before[-self.drawn["last"] :]
            found.append((row["_split"], row["_position"], len(seen), sum(each["n"] for each in seen)))
        return sorted(found)


def places(cut, table):
    return sorted(pl.from_arrow(cut.arrow(table)).select("_split", "_position").rows())


def judge(trial, drawn):
    replay, before = Replay(drawn), None
    for cut in trial.cuts.all():
        now = pl.from_arrow(cut.arrow("bronze/clicks"))
        new = now if before is None else now.join(before, on=["_split", "_position"], how="anti")
        replay.epoch(new.to_dicts(), now)
        before, last = now, cut
        assert sorted((row["_split"], row["_position"]) for row in replay.once) == places(cut, "silver/once")
    assert replay.late
    for name in OPERATORS:
        assert sorted(replay.late) == places(last, f"late/{name}")
    assert 0 == last.arrow("late/sizes").num_rows
    sizes = pl.from_arrow(last.arrow("gold/sizes")).select("user", "window_end", "rows").rows()
    assert sorted(replay.sizes().items()) == sorted(((user, end), rows) for user, end, rows in sizes)
    for name in ("moving", "newest"):
        found = pl.from_arrow(last.arrow(f"gold/{name}")).select("_split", "_position", "rows", "total").rows()
        assert replay.over(name) == sorted(found)


@settings(max_examples=1, phases=[Phase.generate], deadline=None)
@given(draw=st.randoms(use_true_random=True))
def test_random_operators_give_what_a_replay_over_the_cuts_gives_although_a_tick_is_killed(tmp_path_factory, draw):
    trial, drawn = Trial(build, tmp_path_factory.mktemp("random")), drawn_by(draw)
    trial.data.mkdir(parents=True)
    (trial.data / "drawn.json").write_text(json.dumps(drawn))
    for place in range(ROUNDS):
        for split, name in enumerate("ab"):
            trial.deliver(f"clicks/{name}", rows(draw, split, place, drawn["delay"]))
        how = {"parallelism": draw.choice([1, 2, 3]), "every_rows": 60, "retained": 30}
        if place == 1:
            moment = draw.choice(["after:RunMicroBatch#5", "before:AppendRow#1", "after:AppendRow#2"])
            trial.kill(moment, spark_cores=1, **how)
        trial.run(slice_rows_max=draw.choice([17, 1000]), **how)
    judge(trial, drawn)
