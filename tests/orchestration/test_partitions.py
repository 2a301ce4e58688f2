"""A day of a table is a partition. It is reported to Dagster when the watermark passes it, and after a correction (N8).

The pipeline's number n is n hours after 2026-01-01 in UTC, and rows may come two hours late. Each checkpoint has twenty
numbers, so checkpoint n is complete until the hour 20 n - 3. In Berlin, days begin an hour before midnight of UTC.
"""

from datetime import UTC, datetime
from functools import partial
from time import sleep
from unittest.mock import MagicMock

import dagster as dg
import polars as pl
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import TimestampType

from checkpointing.identifiers import TableName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.pipeline import InvalidPipelineError, Pipeline, count, max_of
from jobs.pipeline.planning import plan
from jobs.pipeline.tables import time_partitions
from jobs.pipeline.top import top
from jobs.pipeline.windows import cumulative, hopping, session, tumbling
from jobs.quality.expectation import Expectation
from jobs.reading import Cuts
from jobs.reading.changed_times import changed_times
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.warehouse import Warehouse
from orchestration.cut_resource import CutResource
from orchestration.partitions import ToldPartitions, complete_partitions
from orchestration.pipelines import build_definitions
from tests.scenarios.reading.timed_job import HOUR, TimedEngine, timed
from tests.scenarios.runtime.sequence_job import JOB

BRONZE_KEY = dg.AssetKey(["bronze", "numbers"])
LATEST = dg.AutomationCondition.in_latest_time_window()
EVERY_DAY = dg.AutomationCondition.eager().without(LATEST)
DAYS = [f"2026-01-0{day}" for day in range(1, 6)]


def by_day(rows=100, **how):
    return timed(rows, days={"size": "1d", "start": "2026-01-01", "tz": "Europe/Berlin"}, **how)


class Project:
    """A pipeline whose bronze table has days, and two assets downstream of that table, on one Dagster instance."""

    def __init__(self, root, instance):
        self.warehouse, self.instance, self._cursor = root / "warehouse", instance, None
        self.ran = []

    def defs(self, rows=100, **how):
        built = build_definitions(
            by_day(rows, **how), warehouse=self.warehouse, runner=partial(run_tick, engine=TimedEngine())
        )
        days = next(each for each in built.resolve_all_asset_specs() if each.key == BRONZE_KEY).partitions_def

        @dg.asset(deps=[BRONZE_KEY], partitions_def=days, automation_condition=EVERY_DAY)
        def each_day(context: dg.AssetExecutionContext, numbers_cut: CutResource):
            self.ran.append((context.partition_key, numbers_cut.cut().checkpoint))

        @dg.asset(deps=[BRONZE_KEY], partitions_def=days, automation_condition=dg.AutomationCondition.eager())
        def newest_day(): ...

        self._down = [each_day, newest_day]
        return dg.Definitions.merge(dg.Definitions(assets=self._down), built)

    def tick(self, rows=100, how=(), **config):
        job = self.defs(rows, **dict(how)).resolve_job_def(f"{JOB}_tick")
        return job.execute_in_process(
            run_config={"ops": {JOB: {"config": config}}}, instance=self.instance, raise_on_error=False
        )

    def days(self):
        """Return each day that was reported to Dagster, with its checkpoint, in the order of the events."""
        records = self.instance.fetch_materializations(BRONZE_KEY, 1000).records[::-1]
        told = [record.asset_materialization for record in records]
        return [(each.partition, each.metadata["checkpoint"].value) for each in told]

    def verdict(self):
        """Return the last reported evaluation of the suite's expectation."""
        (check,) = self.instance.event_log_storage.get_asset_check_execution_history(N_BETWEEN, limit=1)
        return check.event.dagster_event.asset_check_evaluation_data

    def asked(self, at):
        """Return the days that Dagster requests for each of both downstream assets, and run them."""
        defs = self.defs()
        seen = dg.evaluate_automation_conditions(
            defs, instance=self.instance, cursor=self._cursor, evaluation_time=datetime.fromisoformat(at)
        )
        self._cursor = seen.cursor
        found = [sorted(seen.get_requested_partitions(each.key) or ()) for each in self._down]
        for each, days in zip(self._down, found, strict=True):
            for day in days:
                bronze = next(spec for spec in defs.resolve_all_asset_specs() if spec.key == BRONZE_KEY)
                dg.materialize(
                    [each, bronze],
                    selection=[each],
                    partition_key=day,
                    instance=self.instance,
                    resources=defs.resources,
                )
        return found


@pytest.fixture
def project(tmp_path, instance):
    return Project(tmp_path, instance)


def test_a_day_is_told_when_a_cut_is_complete_until_its_end(project):
    """In Berlin, the day 2026-01-01 ends at hour 23.

    Cut 1 is complete until hour 17 and cut 2 until hour 37. So cut 2 is the first cut with all rows of this day.
    """
    assert project.tick().success
    assert [("2026-01-01", 2), ("2026-01-02", 3), ("2026-01-03", 4), ("2026-01-04", 5)] == project.days()
    project.tick()
    assert 4 == len(project.days())


def test_assets_downstream_run_exactly_when_their_day_is_complete(project):
    """Dagster's own `eager` requests only the newest day.

    Without its condition on the latest day, it requests every day.
    """
    assert [[], []] == project.asked("2026-01-01T12:00:00+00:00")
    project.tick(checkpoints=2)
    assert [["2026-01-01"], ["2026-01-01"]] == project.asked("2026-01-02T02:00:00+00:00")
    assert [[], []] == project.asked("2026-01-02T03:00:00+00:00")
    project.tick()
    assert [["2026-01-02", "2026-01-03", "2026-01-04"], ["2026-01-04"]] == project.asked("2026-01-05T02:00:00+00:00")
    assert project.days() == project.ran  # each run has read the cut with which its day was materialized
    assert [[], []] == project.asked("2026-01-05T03:00:00+00:00")


def test_a_tick_that_died_before_its_events_leaves_them_to_the_next_one(project, monkeypatch):
    """The first tick commits cuts 1 to 5, and does not report some days.

    The next tick reports these, and no day twice.
    """
    with monkeypatch.context() as dies:
        told = []

        def news(self, epoch):
            for event in real(self, epoch):
                if len(told) == 2:
                    raise SystemError("killed")
                told.append(event)
                yield event

        real = ToldPartitions.news
        dies.setattr(ToldPartitions, "news", news)
        assert not project.tick().success
    before = project.days()
    project.tick()
    assert before == project.days()[: len(before)]
    assert DAYS[:4] == sorted(day for day, _ in project.days())


RESTS = {"delay": "1s", "close_after": "1s"}


def test_a_day_ends_by_the_clock_while_its_source_rests_and_nothing_waits(project, monkeypatch):
    """The last row is at midnight in Berlin, less a second.

    The tick that closes the day dies before it reports the day.
    """
    project.tick(24, RESTS)
    assert [] == project.days()
    sleep(2.1)
    with monkeypatch.context() as dies:
        dies.setattr(ToldPartitions, "news", MagicMock(side_effect=SystemError("killed")))
        assert not project.tick(24, RESTS).success
    project.tick(24, RESTS)
    assert [("2026-01-01", 3)] == project.days()
    project.tick(24, RESTS)
    assert [("2026-01-01", 3)] == project.days()
    assert 3 == Cuts(project.warehouse, JOB).latest().checkpoint, "no further day is over, so nothing brings a cut"


def test_a_day_is_told_again_when_its_rows_change(project):
    """A new split brings rows of the first day, after the cut that was complete until the day's end."""
    project.tick(60)
    assert DAYS[:2] == [day for day, _ in project.days()]
    late = {"late": 5}
    project.tick(60, {"more": late})
    assert ["2026-01-01"] == [day for day, _ in project.days()[2:]]
    (newest,) = project.instance.fetch_materializations(BRONZE_KEY, 1).records
    assert newest.asset_materialization.metadata["corrected"].value
    project.tick(60, {"more": late})
    assert 3 == len(project.days())


N_BETWEEN = dg.AssetCheckKey(BRONZE_KEY, "n_between")
SMALL = Expectation("expect_column_values_to_be_between", {"column": "n", "min_value": 0, "max_value": 70})
JUDGED = {"expects": [SMALL]}


def test_days_of_a_judged_table_are_those_of_good_cuts(project):
    """Cut 4 would have the numbers from 60 to 79. The suite rejects them, so the third day is not reported."""
    failed = project.tick(how=JUDGED)
    assert not failed.success
    assert [("2026-01-01", 2), ("2026-01-02", 3)] == project.days()
    check = project.verdict()
    assert (BRONZE_KEY, False, True) == (
        check.asset_key,
        check.passed,
        "71" in check.metadata["unexpected_values"].value,
    )
    assert project.tick(60, JUDGED).success
    assert project.verdict().passed
    checks = project.defs(**JUDGED).get_repository_def().asset_graph.asset_check_keys
    assert N_BETWEEN in checks


def test_the_suites_of_tables_with_days_can_be_asked_alone(project):
    """The run of a tick reports the suites. Evaluated alone, they show the verdict of the newest checkpoint."""
    ticked = project.tick(60, JUDGED)
    (said,) = [each for each in ticked.get_asset_check_evaluations() if each.check_name == "n_between"]
    assert said.passed
    defs = dg.Definitions.merge(project.defs(60, **JUDGED), dg.Definitions(jobs=[ASKED]))
    alone = defs.resolve_job_def("asked").execute_in_process(instance=project.instance)
    (again,) = alone.get_asset_check_evaluations()
    assert (said.passed, said.metadata["checkpoint"]) == (again.passed, again.metadata["checkpoint"])


ASKED = dg.define_asset_job("asked", dg.AssetSelection.checks(N_BETWEEN))


def test_days_of_a_tick_outside_of_dagster_are_told(project):
    """The sensor that reports the tables of such a tick also reports the tables' days, each day once."""
    plan_, warehouse = plan(by_day(60)), project.warehouse
    run_tick(plan_, RuntimeSettings(warehouse=warehouse), engine=TimedEngine())
    built = build_definitions(by_day(60), warehouse=warehouse)
    sensor = next(each for each in built.sensors if each.name == f"{JOB}_outside_ticks")
    context = dg.build_sensor_context(instance=project.instance, definitions=built)
    told = sensor.evaluate_tick(context).asset_events
    days = [each.partition for each in told if each.asset_key == BRONZE_KEY and hasattr(each, "partition")]
    assert DAYS[:2] == [day for day in days if day is not None]


def test_an_upserted_row_changes_its_own_day_alone(tmp_path):
    """The file of a range is written again with all its rows, but rows of other days have not changed."""
    folder, first = tmp_path / "gold/daily", datetime(2026, 1, 1, tzinfo=UTC)
    rows = pl.DataFrame({"window_end": [first, first + 30 * HOUR], "rows": [1, 2]})
    write_deltalake(str(folder), rows.to_arrow())
    write_deltalake(str(folder), rows.with_columns(rows=pl.Series([1, 3])).to_arrow(), mode="overwrite")
    warehouse = Warehouse(tmp_path, ProtocolPaths(JOB))
    found = partial(changed_times, warehouse, TableName("gold/daily"), time=("window_end", 0))
    assert (first + 30 * HOUR,) == found(0, 1, before=first + 48 * HOUR)
    assert () == found(0, 1, before=first + 24 * HOUR)
    quarter = HOUR / 4
    of_windows = partial(changed_times, warehouse, TableName("gold/daily"), time=("window_end", 1))
    assert (first + 30 * HOUR - quarter,) == of_windows(0, 1, before=first + 30 * HOUR)


def test_a_check_says_how_far_a_table_is_behind_in_event_time(project):
    """The event times of the rows are long ago, even if the rows have just come."""
    project.tick(60)
    checks = [each for each in project.tick(60).get_asset_check_evaluations() if each.check_name == "complete"]
    assert {("bronze", "numbers"), ("gold", "by_key")} == {tuple(each.asset_key.path) for each in checks}
    for each in checks:
        assert not each.passed
        assert "complete until 2026-01-03 08:59:59 UTC" in each.description
        assert each.metadata["event_time_lag_s"].value > 86_400


def test_after_the_last_row_all_days_that_have_ended_are_complete():
    declared = plan(by_day(40)).partitions["bronze/numbers"]
    now = datetime(2026, 1, 4, 12, tzinfo=UTC)
    assert tuple(DAYS[:3]) == complete_partitions(declared, 2**63 - 1, now)
    assert () == complete_partitions(declared, None, now)
    end_of_9999_ms = 253_402_300_799_999
    for until_ms in (end_of_9999_ms, end_of_9999_ms + 1):  # one row of a wrong clock
        assert tuple(DAYS[:3]) == complete_partitions(declared, until_ms, now)
    assert () == complete_partitions(declared, -62_135_596_800_001, now)


@pytest.mark.parametrize(
    ("days", "end", "wanted"),
    [
        ({"size": "1h", "start": "2026-01-01"}, datetime(2026, 1, 1, 2, tzinfo=UTC), ["00", "01"]),
        ({"size": "1d", "start": "2026-03-29", "tz": "Europe/Berlin"}, datetime(2026, 3, 29, 22, tzinfo=UTC), ["29"]),
        ({"size": "1d", "start": "2026-10-25", "tz": "Europe/Berlin"}, datetime(2026, 10, 25, 23, tzinfo=UTC), ["25"]),
        ({"size": "1w", "start": "2026-03-23", "tz": "Europe/Berlin"}, datetime(2026, 3, 29, 22, tzinfo=UTC), ["23"]),
        ({"size": "1d", "start": "2026-04-24", "tz": "Africa/Cairo"}, datetime(2026, 4, 24, 21, tzinfo=UTC), ["24"]),
        (
            {"size": "1h", "start": "2026-04-05", "tz": "Australia/Lord_Howe"},
            datetime(2026, 4, 4, 14, tzinfo=UTC),
            ["00"],
        ),
    ],
)
def test_hours_and_days_of_summer_time_end_when_the_clock_says(days, end, wanted):
    """The day on which summer time begins has 23 hours, and the day on which it ends has 25.

    The protocol, which takes a cut at the end of a day, and Dagster count days alike.
    """
    declared = plan(timed(days=days)).partitions["bronze/numbers"]
    end_ms = round(end.timestamp() * 1000)
    found = complete_partitions(declared, end_ms - 1, end)
    assert wanted == [each.split("-")[3 if days["size"] == "1h" else 2][:2] for each in found]
    before = complete_partitions(declared, end_ms - 2, end)
    assert found[:-1] == before
    counted = time_partitions(declared)
    assert [len(found), len(before)] == [counted.complete(end_ms - 1), counted.complete(end_ms - 2)]


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ({"size": "2d", "start": "2026-01-01"}, "choose one of 1h, 1d, 1w"),
        ({"size": "1w", "start": "2026-01-01"}, "a Thursday, and weeks begin on Mondays: write 2025-12-29"),
        ({"size": "1d", "start": "soon"}, "write its first day"),
        ({"size": "1d", "start": "2026-01-01", "tz": "Mars"}, "no time zone 'Mars'"),
        ({"size": "1d", "start": "2026-01-01", "by": "n"}, "column n is a bigint"),
        ({"size": "1d", "start": "2026-01-01", "by": "none"}, "none"),
    ],
)
def test_partitions_that_cannot_be_are_refused(days, said):
    with pytest.raises(InvalidPipelineError, match=said):
        timed(days=days)


def test_a_window_belongs_to_the_day_of_its_last_millisecond():
    """So a session over midnight belongs to the day on which it ends. For windows by the clock, the day is unknown."""
    pipeline = Pipeline(JOB)
    rows = pipeline.source("numbers", SequenceSource({"a": 9}, keys=3)).with_column("at", "now()", TimestampType())
    keyed = rows.event_time("at", delay="1h").key_by("key")
    days = {"start": "2026-01-01"}
    visits = keyed.window(session("30m")).aggregate("visits", rows=count(), late="late/visits").table("gold/visits")
    visits.partitions("1d", **days)
    (declared,) = plan(pipeline).partitions.values()
    assert ("window_end", 1) == (declared.by, declared.before_ms)
    clock = keyed.window(tumbling("1d", by="clock")).aggregate("clock", rows=count()).table("gold/clock")
    clock.partitions("1d", **days)
    with pytest.raises(InvalidPipelineError, match="may wait in a state until a drain"):
        plan(pipeline)


@pytest.mark.parametrize(
    ("window", "size", "by", "fits"),
    [
        (tumbling("1d"), "1d", "window_start", True),
        (tumbling("1d", tz="Europe/Berlin"), "1d", "window_start", False),
        (tumbling("15m"), "1h", "window_start", True),
        (tumbling("15m", tz="Europe/Berlin"), "1h", "window_start", False),
        (tumbling("1d"), "1h", "window_start", False),
        (tumbling("1d", offset="6h"), "1d", "window_start", False),
        (tumbling("1w"), "1w", "window_start", True),
        (tumbling("7d"), "1w", "window_start", False),
        (hopping("2h", "1h"), "1d", "window_start", False),
        (cumulative("1d", "1h"), "1d", "window_start", False),
        (session("30m"), "1d", "window_start", False),
        (session("30m"), "1d", "last", False),
        (session("30m"), "1d", "window_end", True),
        (session("30m"), "1d", None, True),
    ],
)
@pytest.mark.parametrize("how", [{}, {"emit": "updating"}])
@pytest.mark.parametrize("beside", [False, True])
def test_a_day_is_not_told_before_windows_that_belong_to_it_are_out(window, size, by, fits, how, beside):
    """A session that began on one day may be emitted on the next day.

    A window inside of a day is emitted before its end.
    """
    pipeline = Pipeline(JOB)
    rows = pipeline.source("numbers", SequenceSource({"a": 9}, keys=3)).with_column("at", "now()", TimestampType())
    keyed = rows.event_time("at", delay="1h").key_by("key").window(window)
    out = keyed.aggregate("visits", last=max_of("at"), late="late/visits", **how)
    out = out.table("gold/visits", id="kept") if beside and not how else out.upsert("gold/visits")
    days = {"start": "2025-12-29", "by": by}
    if fits:
        out.partitions(size, **days)
        assert plan(pipeline).partitions["gold/visits"].size == size
        return
    with pytest.raises(InvalidPipelineError, match=f"by is {by}, and a window may be put out after"):
        out.partitions(size, **days)


def test_a_day_is_not_told_before_the_top_rows_of_windows_that_belong_to_it_are_out():
    pipeline = Pipeline(JOB)
    rows = pipeline.source("numbers", SequenceSource({"a": 9}, keys=3)).with_column("at", "now()", TimestampType())
    hops = rows.event_time("at", delay="1h").key_by("key").window(hopping("2h", "1h"))
    first = top(hops, "first", n=1, order_by="n", late="late/first").table("gold/first")
    with pytest.raises(InvalidPipelineError, match="by is window_start, and a window may be put out after"):
        first.partitions("1d", start="2026-01-01", by="window_start")
    first.partitions("1d", start="2026-01-01")
    assert ("window_end", 1) == (plan(pipeline).partitions["gold/first"].by, 1)


def test_a_table_without_event_times_has_no_partitions():
    with pytest.raises(InvalidPipelineError, match="declare event_time on their source"):
        plan(timed(days={"size": "1d", "start": "2026-01-01", "by": "at"}, in_time=False))
