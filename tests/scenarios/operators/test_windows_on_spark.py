"""Windows of event time on real Spark: kills, other micro-batches and parallelism change no window and no late row.

`judge` replays the cuts. It takes each epoch's rows from the bronze table, and computes the watermark from the rows of
earlier epochs.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from jobs.operators.in_time.measured_times import MicroBatchId, ObservedTimes, TimeColumn, TimedScan, take_measured
from tidemark import FileSource, Pipeline, count, cumulative, hopping, join, session, sum_of, tumbling
from tidemark.testing import TickFailedError, Trial

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)
DELAY = timedelta(minutes=10)
ROWS = StructType([StructField("at", TimestampType()), StructField("user", StringType()), StructField("n", LongType())])


def clicks(split, first, rows):
    """Return rows whose times advance by two minutes. One in ten is up to three hours late."""
    draw = Random(f"{split} {first}")  # noqa: S311 - no secret
    found = []
    for n in range(first, first + rows):
        back = draw.randrange(180) if draw.random() < 0.1 else draw.randrange(10)
        found.append({"at": BEGIN + timedelta(minutes=2 * n - back, seconds=n), "user": draw.choice("abcd"), "n": n})
    return found


def declared(data, *, tasks=True):
    pipeline = Pipeline("clicks", parallelism=2)
    stream = pipeline.source("clicks", FileSource(data, schema=ROWS)).event_time("at", delay="10m")
    if not tasks:  # a step that only Spark can do
        stream = stream.transform(lambda rows: rows.hint("tidemark"))
    stream = stream.table("bronze/clicks", id="bronze")
    by_user = stream.key_by("user")
    sums = {"rows": count(), "total": sum_of("n"), "odd": count(where="n % 2 = 1")}
    by_user.window(tumbling("1h")).aggregate("hourly", late="late/hourly", **sums).table("gold/hourly")
    by_user.window(tumbling("1d", tz="Europe/Berlin")).aggregate(
        "daily", late="late/daily", emit="updating", **sums
    ).upsert("gold/daily")
    hops = by_user.window(hopping("1h", every="20m")).aggregate("hops", late="late/hops", lateness="30m", **sums)
    hops.upsert("gold/hops")
    by_user.window(cumulative("1h", every="20m")).aggregate("steps", late="late/steps", **sums).table("gold/steps")
    sessions = by_user.window(session("7m")).aggregate("sessions", late="late/sessions", **sums)
    sessions.table("gold/sessions")
    daily = (
        sessions.key_by("user").window(tumbling("6h")).aggregate("quarters", late="late/quarters", rows=sum_of("rows"))
    )
    daily.table("gold/quarters")
    return pipeline


def build(data):
    return declared(data)


def by_spark(data):
    return declared(data, tasks=False)


def watermark(rows):
    """Return the watermark after these rows, or None if a split has no row."""
    of_splits = [rows.filter(pl.col("_split") == split)["at"].max() for split in ("a", "b")]
    return None if None in of_splits else min(of_splits) - DELAY - timedelta(milliseconds=1)


def ends(kind, time):
    """Return the ends of the windows that a row of this time belongs to."""
    hour = time.replace(minute=0, second=0, microsecond=0)
    third = hour + timedelta(minutes=time.minute // 20 * 20)
    match kind:
        case "hourly":
            return [hour + timedelta(hours=1)]
        case "hops":
            return [third + timedelta(minutes=20 * step) for step in (1, 2, 3)]
        case "steps":
            return [end for step in (1, 2, 3) if (end := hour + timedelta(minutes=20 * step)) > time]


def judge(trial):
    """Replay the cuts, and compare the result with the job's windows and late rows, for each kind of window."""
    late, accepted = ({kind: [] for kind in LATENESS} for _ in range(2))
    before, passed = None, None
    for cut in trial.cuts.all():
        now = pl.from_arrow(cut.arrow("bronze/clicks"))
        new = now if before is None else now.join(before, on=["_split", "_position"], how="anti")
        for row in new.iter_rows(named=True):
            for kind, lateness in LATENESS.items():
                is_open = [end for end in ends(kind, row["at"]) if passed is None or end - MS + lateness > passed]
                accepted[kind] += [(row["user"], end, row["n"]) for end in is_open]
                late[kind] += [] if is_open else [(row["_split"], row["_position"])]
        before, passed, last = now, watermark(now), cut
    assert all(late.values())
    for kind in LATENESS:
        said = pl.from_arrow(last.arrow(f"late/{kind}"))
        assert sorted(late[kind]) == sorted(said.select("_split", "_position").rows())
        closed = [row for row in accepted[kind] if row[1] - MS <= passed]
        want = (
            pl.DataFrame(closed, schema=["user", "window_end", "n"], orient="row")
            .group_by("user", "window_end")
            .agg(pl.len().alias("rows"), pl.col("n").sum().alias("total"), (pl.col("n") % 2).sum().alias("odd"))
        )
        found = pl.from_arrow(last.arrow(f"gold/{kind}")).select(want.columns)
        assert sorted(want.rows()) == sorted(found.rows())


LATENESS = {"hourly": timedelta(0), "hops": timedelta(minutes=30), "steps": timedelta(0)}
MS = timedelta(milliseconds=1)
ROUNDS = 4


def deliver(trial, place):
    for split in "ab":
        trial.deliver(split, pl.DataFrame(clicks(split, 60 * place, 60), schema_overrides={"n": pl.Int64}))


def tables(trial):
    last = trial.cuts.latest()
    return {name: sorted(map(str, pl.from_arrow(last.arrow(name)).rows())) for name in last.tables}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    trial = Trial(build, tmp_path_factory.mktemp("undisturbed"))
    for place in range(ROUNDS):
        deliver(trial, place)
        trial.run(retained=9)
    return trial


def test_windows_and_late_rows_are_those_of_a_replay_over_the_cuts(undisturbed):
    judge(undisturbed)


@pytest.mark.kill
@pytest.mark.parametrize("moment", ["after:RunMicroBatch#4", "before:AppendRow#1", "after:AppendRow#1"])
def test_a_killed_tick_gives_the_same_windows_and_late_rows(tmp_path, undisturbed, moment):
    trial = Trial(build, tmp_path)
    for place in range(ROUNDS):
        deliver(trial, place)
        if place == 2:
            trial.kill(moment, spark_cores=1)
        trial.run()
    assert tables(undisturbed) == tables(trial)


def test_micro_batches_parallelism_and_reader_change_nothing(tmp_path, undisturbed):
    """Spark reads the rows, in slices of 17, and the parallelism changes with each tick."""
    trial = Trial(by_spark, tmp_path)
    for place in range(ROUNDS):
        deliver(trial, place)
        trial.run(slice_rows_max=17, parallelism=1 + place % 3)
    assert tables(undisturbed) == tables(trial)


def holding(hold_back):
    def build(data):
        pipeline = Pipeline("clicks")
        stream = pipeline.source("clicks", FileSource(data, schema=ROWS))
        stream = stream.event_time("at", delay="10m", hold_back=hold_back).table("bronze/clicks", id="bronze")
        hours = stream.key_by("user").window(tumbling("1h")).aggregate("hourly", late="late/hourly", rows=count())
        hours.table("gold/hourly")
        return pipeline

    return build


def furthest_ahead(trial):
    """Return the most rows of split b, which begins a day later, in a cut that has not yet all rows of split a."""
    rows = [pl.from_arrow(cut.arrow("bronze/clicks"))["_split"].to_list() for cut in trial.cuts.all()]
    return max(splits.count("b") for splits in rows if splits.count("a") < HALF)


HALF = 300


def test_a_split_that_runs_ahead_is_held_back_and_no_result_changes(tmp_path):
    """The tick reads two splits in slices of 60 rows. It holds split b back once the first rows have run."""
    held, free = Trial(holding("30m"), tmp_path / "held"), Trial(holding(None), tmp_path / "free")
    for trial in (held, free):
        for split, begin in (("a", 0), ("b", 720)):
            rows = [{"at": BEGIN + timedelta(minutes=2 * (begin + n)), "user": "u", "n": n} for n in range(HALF)]
            trial.deliver(split, pl.DataFrame(rows, schema_overrides={"n": pl.Int64}))
        trial.run(slice_rows_max=60, every_rows=120, retained=20)
    assert tables(held) == tables(free)
    assert 2 * HALF == len(pl.from_arrow(held.cuts.latest().arrow("bronze/clicks")))
    assert furthest_ahead(held) <= 120 < furthest_ahead(free)


def misfits(data, *, ahead=None, to="quarantine/clicks", tasks=True):
    pipeline = Pipeline("clicks", parallelism=2)
    stream = pipeline.source("clicks", FileSource(data, schema=ROWS))
    if not tasks:
        stream = stream.transform(lambda rows: rows.hint("tidemark"))
    timed = stream.event_time("at", delay="10m", ahead_at_most=ahead, misfits=to)
    timed.key_by("user").window(tumbling("1h")).aggregate("hourly", late="late/hourly", rows=count()).table(
        "gold/hourly"
    )
    return pipeline


@pytest.mark.parametrize("tasks", [True, False])
def test_misfits_move_no_watermark_and_go_to_a_table(tmp_path, tasks):
    """A row 300 days ahead of the clock would make all rows late. A row without a time moves no watermark either."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    times = [now - timedelta(hours=3), now - timedelta(hours=1), None, now + timedelta(days=300)]
    trial = Trial(partial(misfits, ahead="2h", tasks=tasks), tmp_path)
    rows = [{"at": at, "user": "a", "n": n} for n, at in enumerate(times)]
    trial.deliver("a", pl.DataFrame(rows, schema_overrides={"at": pl.Datetime("us", "UTC")}))
    cut = trial.run()
    assert [2, 3] == sorted(row["n"] for row in cut.arrow("quarantine/clicks").to_pylist())
    assert [(now - timedelta(hours=3), 1)] == [
        (row["window_start"], row["rows"]) for row in cut.arrow("gold/hourly").to_pylist()
    ]
    assert 0 == cut.arrow("late/hourly").num_rows


@pytest.mark.parametrize("tasks", [True, False])
def test_a_time_too_far_ahead_is_an_error_without_a_table_of_misfits(tmp_path, tasks):
    trial = Trial(partial(misfits, ahead="2h", to=None, tasks=tasks), tmp_path)
    trial.deliver(
        "a",
        pl.DataFrame([{"at": datetime(2300, 1, 1, tzinfo=UTC), "user": "a", "n": 1}]).cast(
            {"at": pl.Datetime("us", "UTC")}
        ),
    )
    with pytest.raises(
        TickFailedError, match=r"split a has a row with at=2300.*7200000 ms ahead of the clock.*misfits="
    ):
        trial.run()


def resting(data):
    pipeline = Pipeline("clicks", parallelism=2)
    stream = pipeline.source("clicks", FileSource(data, schema=ROWS)).event_time("at", delay="10m", idle_after="1s")
    bronze = stream.table("bronze/clicks", id="bronze")
    bronze.key_by("user").window(tumbling("1h")).aggregate("hourly", late="late/hourly", rows=count()).table(
        "gold/hourly"
    )
    return pipeline


def test_windows_close_although_one_split_rests_and_no_row_comes(tmp_path):
    """A tick without a row takes a checkpoint, since a split has turned idle. The next tick takes none."""
    trial = Trial(resting, tmp_path)
    for split, hours in (("a", (0, 5)), ("b", (0,))):
        rows = [{"at": BEGIN + timedelta(hours=hour), "user": split, "n": hour} for hour in hours]
        trial.deliver(split, pl.DataFrame(rows, schema_overrides={"n": pl.Int64}))
    assert 0 == trial.run().arrow("gold/hourly").num_rows
    time.sleep(1.1)
    then = trial.run()
    assert 2 == then.arrow("gold/hourly").num_rows
    assert then.checkpoint == trial.run().checkpoint


def closing(data):
    """Build windows, and windows after a join whose watermark is a second behind. Both close while the input rests."""
    pipeline = Pipeline("clicks", parallelism=2)
    stream = pipeline.source("clicks", FileSource(data, schema=ROWS)).event_time("at", delay="0s", close_after="1s")
    bronze = stream.table("bronze/clicks", id="bronze")
    left, later = bronze.key_by("user"), bronze.select("user", "at").rename({"at": "then"}).key_by("user")
    left.window(tumbling("1h")).aggregate("hourly", late="late/hourly", rows=count()).table("gold/hourly")
    alone = join(left, later, "alone", how="anti", within=("1s", "1s"), late="late/alone").key_by("user")
    alone.window(tumbling("1h")).aggregate("joined", late="late/joined", rows=count()).table("gold/joined")
    return pipeline


@pytest.mark.kill
def test_windows_close_while_the_input_rests_and_rows_that_come_after_all_are_late(tmp_path):
    """Three seconds before the end of an hour, all splits rest. Split b is far behind, and never turns idle."""
    trial = Trial(closing, tmp_path)
    for split, minutes, seconds in (("a", 59, 57), ("b", 5, 0)):
        at = BEGIN + timedelta(minutes=minutes, seconds=seconds)
        trial.deliver(split, pl.DataFrame([{"at": at, "user": split, "n": 1}], schema_overrides={"n": pl.Int64}))
    assert 0 == trial.run().arrow("gold/hourly").num_rows
    time.sleep(4.1)
    trial.kill("before:AppendRow#1")
    closed = trial.run()
    shown = {name: closed.arrow(name).num_rows for name in ("gold/hourly", "gold/joined", "late/hourly")}
    assert {"gold/hourly": 2, "gold/joined": 2, "late/hourly": 0} == shown
    assert closed.complete_until("gold/hourly") >= BEGIN + timedelta(hours=1) - MS
    assert closed.checkpoint == trial.run().checkpoint, "nothing waits any more, so nothing brings a cut"
    at = BEGIN + timedelta(minutes=30)
    trial.deliver("b", pl.DataFrame([{"at": at, "user": "b", "n": 2}], schema_overrides={"n": pl.Int64}))
    after = trial.run()
    assert [2] == after.arrow("late/hourly")["n"].to_pylist()
    assert 2 == after.arrow("gold/hourly").num_rows


def hourly(data):
    """Build a table with hourly partitions, without an operator that waits for the watermark."""
    pipeline = Pipeline("clicks", parallelism=2)
    stream = pipeline.source("clicks", FileSource(data, schema=ROWS)).event_time("at", delay="0s", close_after="1s")
    stream.table("bronze/clicks", id="bronze").partitions("1h", start="2026-03-28", tz="Asia/Kolkata", by="at")
    return pipeline


@pytest.mark.kill
def test_an_hour_of_a_table_ends_while_the_input_rests_although_nothing_waits(tmp_path):
    """Hours in Kolkata end at half past in UTC. Split b is new and empty, and its source is at rest from a cut on."""
    trial = Trial(hourly, tmp_path)
    row = {"at": BEGIN + timedelta(minutes=29, seconds=58), "user": "a", "n": 1}
    trial.deliver("a", pl.DataFrame([row], schema_overrides={"n": pl.Int64}))
    trial.run()
    (trial.data / "b").mkdir()
    rests = trial.run()
    time.sleep(3.1)
    trial.kill("before:AppendRow#1")
    over = trial.run()
    end = BEGIN + timedelta(minutes=30)
    assert rests.complete_until("bronze/clicks") < end - MS <= over.complete_until("bronze/clicks")
    assert over.checkpoint == trial.run().checkpoint, "no further hour is over, so nothing brings a cut"


def clocked(data):
    pipeline = Pipeline("clicks", parallelism=2)
    stream = pipeline.source("clicks", FileSource(data, schema=ROWS))
    windows = stream.key_by("user").window(tumbling("1s", by="clock"))
    windows.aggregate("seconds", rows=count(), total=sum_of("n")).table("gold/seconds")
    return pipeline


@pytest.mark.kill
def test_windows_by_the_clock_count_each_row_once(tmp_path):
    """A window closes at the first barrier after its end, in a tick without rows too."""
    trial = Trial(clocked, tmp_path)
    for place in range(3):
        deliver(trial, place)
        if place == 1:
            trial.kill("after:AppendRow#1", spark_cores=1)
        trial.run(every_rows=40)
        time.sleep(1.1)
    shown = pl.from_arrow(trial.run().arrow("gold/seconds"))
    assert (360, 2 * sum(range(180))) == (shown["rows"].sum(), shown["total"].sum())
    assert (shown["window_end"] - shown["window_start"] == timedelta(seconds=1)).all()
    assert not shown.select("user", "window_start").is_duplicated().any()


class OneColumn:
    """A scan of one batch with one column."""

    def __init__(self, column):
        self.column = column

    def batches(self, schema):
        yield pa.record_batch([self.column], schema=schema)


ODD_US = [None, 0, -1, 1_774_000_000_123_999, -62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000]
"""Times of 1969, the first moment of the year 1, the last one of 9999, and the moment after it, which Python lacks."""


@pytest.mark.usefixtures("restored_zone")
@pytest.mark.parametrize("kind", [TimestampType(), TimestampNTZType()], ids=["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("ahead_ms", [None, 1_000])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_spark_and_tasks_measure_the_same_times_and_find_the_same_misfits(spark, kind, ahead_ms, zone):
    """Whatever the zone of Spark's session is, a timestamp without a zone is taken as UTC."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    time = TimeColumn("at", kind, ahead_ms=ahead_ms, kept_in="kept")
    for us in ODD_US:
        of, limit_ms = MicroBatchId("v", 1, 1), time.limit_ms(1_775_000_000_000)
        at = pa.array([us], pa.int64()).cast(time.field.type)
        scan = TimedScan(scan=OneColumn(at), of=of, input=0, split="s", time=time, limit_ms=limit_ms)
        (batch,) = scan.batches(pa.schema([time.field, pa.field("kept", at.type)]))
        by_task = (take_measured(of), batch.column("kept").null_count)
        observed = ObservedTimes()
        rows = spark.createDataFrame(pa.table({"at": at}), StructType([StructField("at", kind)]))
        assert kind == rows.schema["at"].dataType
        kept = observed.of(rows, time, 0, "s", limit_ms).where("kept IS NULL").count()
        assert by_task == (observed.taken(), kept), us


@pytest.fixture
def restored_zone(spark):
    was = spark.conf.get("spark.sql.session.timeZone")
    yield
    spark.conf.set("spark.sql.session.timeZone", was)
