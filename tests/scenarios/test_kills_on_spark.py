"""Tests features under kills on real Spark: a tick dies, the next one goes on, and the feature's judge checks cuts.

Each feature's judge stands beside its other tests. Kills that need no Spark are in faults/ and runtime/.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.scenarios import test_applied_changes_on_spark as applied
from tests.scenarios import test_compaction_on_spark as files
from tests.scenarios import test_rows_on_spark as partitions
from tests.scenarios.operators import test_changelogs_like_spark as changelogs
from tests.scenarios.operators import test_named_outputs as outputs
from tidemark import Pipeline
from tidemark.testing import Trial

COMMIT = ("before:AppendRow#2", "after:AppendRow#2")


@dataclass(frozen=True)
class Check:
    """A pipeline, the settings of its ticks, the judge of its cuts, and the moments at which a tick is killed."""

    build: Callable[..., Pipeline]
    judge: Callable[[Trial, SparkSession], object]
    settings: Mapping[str, object] = field(default_factory=dict)
    afterwards: Mapping[str, object] = field(default_factory=dict)
    moments: tuple[str, ...] = COMMIT


def judge_partitions(trial, spark):
    assert 180 == partitions.compare(trial.cuts.latest(), spark)
    table = trial.warehouse / "bronze" / "rows"
    active = pa.table(DeltaTable(str(table)).get_add_actions()).column("path").to_pylist()
    assert {unquote(path) for path in active} == {str(path.relative_to(table)) for path in table.rglob("*.parquet")}


def judge_compaction(trial, _spark):
    last = trial.cuts.latest()
    assert [*range(files.ROWS)] == files.numbers(last) == files.numbers(last, files.BY_CITY)
    assert len(files.actions(trial)) <= 20


def judge_deliveries(trial, _spark):
    assert sum(files.DELIVERED.values()) == [files.compare(cut) for cut in trial.cuts.all()][-1]


def judge_applied(trial, spark):
    assert 180 == applied.judge(trial.cuts.latest(), spark)


def judge_changelog(name):
    kind = changelogs.KINDS[name]
    return lambda trial, spark: changelogs.judge(spark, trial, kind.sql_of(kind.fixed))


CHECKS = {
    "partitions": Check(partitions.build, judge_partitions, afterwards={"parallelism": 3}),
    "compaction": Check(
        files.build,
        judge_compaction,
        moments=("before:CompactFiles#2", "after:CompactFiles#2", "before:AppendRow#9", "after:PublishTable#25"),
    ),
    "overwrite": Check(
        files.deliveries,
        judge_deliveries,
        moments=("after:RunMicroBatch#9", *COMMIT, "after:PublishTable#3", "before:RecordCut#2"),
    ),
    "changes in any order": Check(applied.build, judge_applied, {"every_rows": 40, "slice_rows_max": 20}),
    "named outputs": Check(
        outputs.build,
        lambda trial, _: outputs.judge(trial.warehouse),
        outputs.SMALL,
        moments=("after:RunMicroBatch#5", "after:AppendRow#2", "before:PublishTable:silver/odd#2"),
    ),
    **{
        name: Check(
            changelogs.build,
            judge_changelog(name),
            {"every_rows": 40, "slice_rows_max": 10, "retained": 9},
            {"slice_rows_max": 20},
            ("after:RunMicroBatch#9", "after:AppendRow#2"),
        )
        for name in changelogs.KINDS
    },
}


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "moment"), [(name, moment) for name in CHECKS for moment in CHECKS[name].moments])
def test_a_killed_tick_is_made_up_for(tmp_path, spark, name, moment):
    """SIGKILL strikes in a micro-batch, around the commit or between publications. Every cut still has its rows."""
    check = CHECKS[name]
    trial = Trial(check.build, tmp_path / name)
    trial.kill(moment, spark_cores=1, **check.settings)
    trial.run(**check.settings | check.afterwards)
    check.judge(trial, spark)
