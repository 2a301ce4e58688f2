"""State expires on real Spark, over ticks, kills and changes of the pipeline (N5)."""

from datetime import UTC, datetime

import polars as pl
import pytest
from pyspark.sql.types import StringType, StructType, TimestampType

from jobs.pipeline import Pipeline, count
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.processing import expires
from jobs.pipeline.rows_in_time import distinct
from jobs.sources.files.file_source import FileSource
from jobs.testing.trial import Trial

CLICKS = StructType().add("user", StringType()).add("at", TimestampType())
GOLD = "gold/visits"


def visits(data, ttl):
    pipeline = Pipeline("visits")
    clicks = pipeline.source("clicks", FileSource(data / "clicks", CLICKS)).event_time("at", delay="0s")
    clicks.key_by("user").aggregate("visits", n=count(), ttl=ttl).upsert(GOLD)
    return pipeline


def for_an_hour(data):
    return visits(data, "1h")


def for_ever(data):
    return visits(data, None)


def at(text):
    return datetime.fromisoformat(f"2026-03-01T{text}:00").replace(tzinfo=UTC)


def deliver(trial, *clicks):
    rows = [{"user": user, "at": at(time)} for user, time in clicks]
    trial.deliver("clicks/web", pl.DataFrame(rows, schema={"user": pl.String, "at": pl.Datetime("us", "UTC")}))


def shown(cut):
    return dict(cut.polars(GOLD).collect().select("user", "n").rows())


def written(cut, operator="visits"):
    """Return the users in the state's files, also those whose state has expired."""
    return set(cut.state(operator).polars().collect()["user"])


@pytest.mark.spark
def test_a_key_begins_anew_once_its_state_has_expired(tmp_path, spark):
    """A tick is killed and repeated.

    The table keeps the row of a key whose state has expired, until the key has a new row.
    """
    trial = Trial("tests.scenarios.test_expiry_on_spark:for_an_hour", tmp_path)
    deliver(trial, ("ann", "10:00"), ("bob", "10:00"))
    trial.run(spark_cores=1)
    deliver(trial, ("bob", "10:30"))
    trial.run(spark_cores=1)
    deliver(trial, ("cid", "11:00"))
    cut = trial.run(spark_cores=1)
    assert shown(cut) == {"ann": 1, "bob": 2, "cid": 1}
    deliver(trial, ("ann", "11:10"), ("bob", "11:10"))
    trial.kill("before:AppendRow", spark_cores=1)
    cut = trial.run(spark_cores=1)
    assert shown(cut) == {"ann": 1, "bob": 3, "cid": 1}
    deliver(trial, ("dan", "12:30"))
    trial.run(spark_cores=1)
    deliver(trial, ("eve", "14:00"))
    assert written(trial.run(spark_cores=1)) == {"eve"}


@pytest.mark.spark
def test_a_time_to_live_is_turned_on_and_off_without_a_new_checkpoint(tmp_path, spark):
    """The age of existing state begins with the change, as if the state was written then (FLINK-37295)."""
    before, after = Trial(for_ever, tmp_path), Trial(for_an_hour, tmp_path)
    deliver(before, ("ann", "10:00"), ("bob", "10:00"))
    before.run(spark_cores=1)
    deliver(before, ("bob", "13:00"))
    before.run(spark_cores=1)
    deliver(after, ("ann", "13:30"))
    assert shown(after.run(spark_cores=1)) == {"ann": 2, "bob": 2}
    deliver(after, ("bob", "14:20"))
    assert shown(after.run(spark_cores=1)) == {"ann": 2, "bob": 3}
    deliver(after, ("ann", "14:40"))
    assert shown(after.run(spark_cores=1)) == {"ann": 3, "bob": 3}
    deliver(after, ("cid", "15:30"))
    assert shown(after.run(spark_cores=1)) == {"ann": 3, "bob": 3, "cid": 1}
    deliver(before, ("bob", "15:31"), ("cid", "15:31"))
    assert shown(before.run(spark_cores=1)) == {"ann": 3, "bob": 1, "cid": 2}
    deliver(before, ("bob", "23:00"), ("cid", "23:00"))
    assert shown(before.run(spark_cores=1)) == {"ann": 3, "bob": 2, "cid": 3}


def test_a_time_to_live_needs_a_time(tmp_path):
    """Without event times, the time to live can follow the clock. The message says so, and names the vertex."""
    pipeline = Pipeline("visits")
    clicks = pipeline.source("clicks", FileSource(tmp_path, CLICKS)).key_by("user")
    with pytest.raises(InvalidPipelineError, match=r'vertex visits: .* event times .* ttl=expires\("1d", by="clock"\)'):
        clicks.aggregate("visits", n=count(), ttl="1d")
    with pytest.raises(InvalidPipelineError, match="expires: by is 'hours'"):
        expires("1d", by="hours")
    with pytest.raises(InvalidPipelineError, match="expires: 0s is no time to live"):
        clicks.aggregate("visits", n=count(), ttl="0s")
    with pytest.raises(InvalidPipelineError, match="no column may be called 'ttl'"):
        clicks.aggregate("visits", ttl=count())
    assert clicks.aggregate("visits", n=count(), ttl=expires("1d", by="clock", refresh="reads")).schema


def once(data):
    pipeline = Pipeline("visits")
    clicks = pipeline.source("clicks", FileSource(data / "clicks", CLICKS)).event_time("at", delay="10m")
    distinct(clicks.key_by("user"), "once", within="1h", late="late/clicks").table("silver/once")
    return pipeline


def times(cut, table):
    return sorted((user, f"{time:%H:%M}") for user, time in cut.polars(table).collect().select("user", "at").rows())


@pytest.mark.spark
def test_the_first_click_of_an_hour_is_put_out_once(tmp_path, spark):
    """A tick is killed after it has emitted its rows. The next tick reads the same rows, in other micro-batches."""
    trial = Trial("tests.scenarios.test_expiry_on_spark:once", tmp_path)
    deliver(trial, ("ann", "10:05"), ("bob", "10:00"))
    deliver(trial, ("ann", "10:00"), ("ann", "10:30"))
    trial.kill("after:RunMicroBatch#2", spark_cores=1)
    cut = trial.run(spark_cores=1, micro_batch_rows_max=1, slice_rows_max=1)
    assert times(cut, "silver/once") == [("ann", "10:00"), ("bob", "10:00")]
    deliver(trial, ("ann", "10:59"), ("bob", "11:00"), ("bob", "10:15"), ("ann", "12:00"))
    trial.kill("after:AppendRow", spark_cores=1)
    deliver(trial, ("ann", "13:00"), ("bob", "13:00"), ("cid", "11:40"))
    cut = trial.run(spark_cores=1)
    shown = [("ann", "10:00"), ("ann", "12:00"), ("ann", "13:00"), ("bob", "10:00"), ("bob", "11:00"), ("bob", "13:00")]
    assert times(cut, "silver/once") == shown
    assert times(cut, "late/clicks") == [("bob", "10:15"), ("cid", "11:40")]
    assert written(cut, "once") == {"ann", "bob"}
