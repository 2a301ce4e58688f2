"""The alert sensor calls a user's function once for each problem. These tests use real warehouses."""

import dagster as dg
import pytest
from pyspark.sql.types import TimestampType

from checkpointing.config import CheckpointConfig
from checkpointing.job.setup import TickLimits
from checkpointing.metadata.paths import ProtocolPaths
from jobs.pipeline.planning import plan
from jobs.tick.at_rest.held_cut import reject
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.warehouse import Warehouse
from orchestration.deployment import Limits
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.scenarios.reading.timed_job import TimedEngine, timed
from tests.scenarios.runtime.sequence_job import JOB, LocalEngine, build
from tidemark import Cuts, Pipeline, SequenceSource, count, tumbling
from tidemark.dagster import alert_sensor


class Broken(LocalEngine):
    def run(self, *_):
        raise RuntimeError("no table at postgres://me:secret@there")


class Watch:
    """An alert sensor of a pipeline in a warehouse, and the alerts of its last evaluation."""

    def __init__(self, root, instance, pipeline=NUMBERS, **how):
        self.warehouse, self.instance, self.told, self.error = root / "warehouse", instance, [], None
        self._sensor = alert_sensor(pipeline, notify=self._notify, warehouse=self.warehouse, **how)
        self._repository = dg.Definitions.merge(
            build_definitions(pipeline, warehouse=self.warehouse), dg.Definitions(sensors=[self._sensor])
        ).get_repository_def()
        self._cursor = None

    def _notify(self, alert):
        if self.error is not None:
            raise self.error
        self.told.append(alert)

    def look(self):
        """Evaluate the sensor. Return the kinds and subjects of its alerts."""
        self.told.clear()
        context = dg.build_sensor_context(instance=self.instance, cursor=self._cursor, repository_def=self._repository)
        self._cursor = self._sensor.evaluate_tick(context).cursor
        return [(alert.kind, alert.subject) for alert in self.told]

    def tick(self, planned=None, engine=None, **limits):
        settings = RuntimeSettings(warehouse=self.warehouse, limits=TickLimits(**limits))
        return run_tick(planned or build(), settings, engine=engine or LocalEngine())


def test_a_failed_tick_is_told_once_and_its_successor_again(tmp_path, instance):
    """A tick that succeeds in between ends the alert. The alert contains no password."""
    watch = Watch(tmp_path, instance, kinds=["tick_failed"])
    assert watch.look() == []
    watch.tick(engine=Broken())
    assert watch.look() == [("tick_failed", "generation 1")]
    assert "no table at postgres://" in watch.told[0].message
    assert "secret" not in watch.told[0].message
    assert "Traceback" not in watch.told[0].message
    assert watch.look() == []
    watch.tick()
    assert watch.look() == []
    watch.tick(build({"a": 400, "b": 400}), engine=Broken())
    assert watch.look() == [("tick_failed", "generation 3")]


def test_a_failed_run_of_dagster_is_told_once_with_its_reason(tmp_path, instance, run_job):
    """The entry of the run's tick also records the failure, but causes no second alert."""
    watch = Watch(tmp_path, instance, kinds=["tick_failed"])
    assert watch.look() == []
    run_job(engine=Broken())
    (run,) = instance.get_runs()
    assert watch.look() == [("tick_failed", f"run {run.run_id}")]
    assert "no table at" in watch.told[0].message
    assert "secret" not in watch.told[0].message
    assert "Traceback" not in watch.told[0].message
    assert watch.look() == []


def test_an_alert_that_could_not_be_told_is_told_at_the_next_look(tmp_path, instance):
    watch = Watch(tmp_path, instance)
    watch.tick(engine=Broken())
    watch.error = ConnectionError("the chat is away")
    with pytest.raises(ConnectionError):
        watch.look()
    watch.error = None
    assert watch.look() == [("tick_failed", "generation 1")]


def test_a_cut_that_waits_for_a_person_is_told_once(tmp_path, instance):
    """After it is rejected, the next waiting cut causes an alert, too."""
    watch = Watch(tmp_path, instance, kinds=["cut_held"])
    cuts = Cuts(watch.warehouse, JOB)
    for _ in range(2):
        watch.tick(hold=True)
        assert watch.look() == [("cut_held", f"cut {cuts.pending().checkpoint}")]
        assert "tidemark approve numbers" in watch.told[0].message
        assert watch.look() == []
        reject(Warehouse(watch.warehouse, ProtocolPaths(JOB)))
        assert watch.look() == []


def test_a_lag_is_told_again_once_it_has_ended(tmp_path, instance):
    """A pipeline lags if its sources have more rows and its newest checkpoint is old.

    Without unread rows it never lags.
    """
    watch = Watch(tmp_path, instance, limits=Limits(fresh_within_ms=0))
    watch.tick(checkpoints=1)
    assert watch.look() == [("lag", JOB)]
    assert "rows wait at the sources" in watch.told[0].message
    assert watch.look() == []
    watch.tick()
    assert watch.look() == []


def test_a_table_that_is_behind_in_event_time_is_told(tmp_path, instance):
    """The table's rows are of January 2026. With wider limits, there is no alert."""
    watch = Watch(tmp_path, instance, timed())
    watch.tick(plan(timed()), engine=TimedEngine())
    assert watch.look() == [("freshness", "bronze/numbers"), ("freshness", "gold/by_key")]
    assert "it is complete until 2026-01-05" in watch.told[0].message
    assert Watch(tmp_path, instance, timed(), limits=Limits(fresh_within_ms=10**13)).look() == []


def late(_data):
    """Return a pipeline whose rows are late for their windows from the fiftieth row on."""
    pipeline = Pipeline("late", config=CheckpointConfig(every_rows=50, slice_rows_max=25, retained=9))
    numbers = pipeline.source("numbers", SequenceSource({"a": 100}))
    timed = numbers.with_column("at", "timestamp_seconds(if(n < 50, n * 3600, 0))", TimestampType())
    windows = timed.event_time("at", delay="1s").key_by("key").window(tumbling("1h"))
    windows.aggregate("hours", rows=count(), late="late/numbers").table("gold/hours")
    return pipeline


@pytest.mark.spark
def test_late_rows_are_told_for_each_checkpoint(tmp_path, instance, spark):
    watch = Watch(tmp_path, instance, late, kinds=["late_rows"])
    assert watch.look() == []
    run_tick(plan(late(None)), RuntimeSettings(warehouse=watch.warehouse))
    (told,) = watch.look()
    assert told[0] == "late_rows"
    assert watch.told[0].message.startswith("hours of late got 50 late rows in checkpoint ")
    assert watch.look() == []
