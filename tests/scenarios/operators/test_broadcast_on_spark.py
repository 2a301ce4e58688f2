"""Broadcasts on Spark: every subtask sees the newest rule of each class, and each cut holds all these rules (D1)."""

import polars as pl
import pytest
from pyspark.sql.types import ArrayType, LongType, StructType

from checkpointing.identifiers import JobName
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata.paths import ProtocolPaths
from jobs.reading import Cuts
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.warehouse import Warehouse
from tidemark import Pipeline, Processed, SequenceSource, broadcast
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

PAYMENTS = {"a": 120, "b": 90}
RULES = {"r": 60}
CLASSES = 5
SMALL = {"every_rows": 40, "slice_rows_max": 10, "retained": 9}
JUDGED = StructType().add("n", LongType()).add("account", LongType()).add("rule", LongType())
HELD = StructType().add("held", ArrayType(LongType()))


class Judge:
    """Gives each payment the newest rule of its class. A payment waits until there is a rule of its class."""

    def process(self, inputs, state):
        payments, rules = inputs
        new = payments.group_by("account").agg(pl.col("n"))
        every = new.join(state, on="account", how="left").select(
            "account", pl.col("n").list.concat(pl.col("held").fill_null([])).alias("held")
        )
        return self._judged(every, rules)

    def broadcast_changed(self, state, broadcast):
        return self._judged(state, broadcast)

    def _judged(self, every, rules):
        rows = every.explode("held").with_columns((pl.col("held") % CLASSES).alias("class"))
        known = rules.select("class", pl.col("version").alias("rule"))
        found = rows.join(known, on="class", how="left")
        waits = found.filter(pl.col("rule").is_null()).group_by("account").agg("held")
        judged = found.filter(pl.col("rule").is_not_null()).select(pl.col("held").alias("n"), "account", "rule")
        return Processed(state=waits, output=judged)


def declared(
    data, *, more=False, key="class", name="judged", renamed_from=None, sees=True, rules=RULES, latest_by="version"
):
    pipeline = Pipeline("bank", parallelism=2)
    payments = pipeline.source("payments", SequenceSource(PAYMENTS, keys=13)).table(
        "bronze/payments", id="payments_kept"
    )
    rows = pipeline.source("rules", SequenceSource(rules, keys=CLASSES)).table("bronze/rules", id="rules_kept")
    rows = rows.with_column("class", "n % 5", LongType()).with_column("version", "n", LongType())
    rows = rows.select("class", "version", *(["split"] if more else []))
    by_account = payments.with_column("account", "key", LongType()).key_by("account")
    connected = broadcast(rows, key, latest_by=latest_by).connect(by_account) if sees else by_account
    function = Judge() if sees else Waits()
    connected.process(name, function, state=HELD, output=JUDGED, renamed_from=renamed_from).table("silver/judged")
    return pipeline


class Waits:
    def process(self, inputs, state):
        return Processed(state=state, output=pl.DataFrame(schema={"n": int, "account": int, "rule": int}))


def build(data):
    return declared(data)


def build_renamed(data):
    return declared(data, name="checked", renamed_from="judged", rules={"r": 63})


def build_renamed_with_more(data):
    return declared(data, more=True, name="checked", renamed_from="judged", rules={"r": 66})


def build_by_version(data):
    return declared(data, key="version")


def build_by_class(data):
    """Return the pipeline that keeps the rule with the greatest `class`, instead of the greatest `version`."""
    return declared(data, latest_by="class")


def build_blind(data):
    """Return the pipeline whose operator does not see the rules."""
    return declared(data, sees=False)


def judge(warehouse, operator="judged", cuts=None):
    cuts = cuts or Cuts(warehouse, "bank").all()
    for cut in cuts:
        rules = cut.polars("bronze/rules").select(pl.col("n") % CLASSES, pl.col("n").alias("version")).collect()
        newest = dict(rules.group_by("n").max().iter_rows())
        kept = cut.state(f"{operator}_broadcast").polars().collect() if newest else pl.DataFrame()
        assert newest == ({row["class"]: row["version"] for row in kept.iter_rows(named=True)}), cut
        judged = cut.polars("silver/judged").collect()
        for row in judged.iter_rows(named=True):
            assert row["rule"] % CLASSES == row["n"] % CLASSES
            assert row["rule"] <= newest[row["n"] % CLASSES]
        waiting = cut.state(operator).polars().select("held").explode("held").collect()["held"].to_list()
        assert not any(each % CLASSES in newest for each in waiting), cut
        every = sorted(cut.polars("bronze/payments").select("n").collect()["n"].to_list())
        assert sorted([*judged["n"].to_list(), *waiting]) == every, cut
    return cuts


def test_each_cut_holds_all_rules_over_a_restart_and_rescales(tmp_path, spark):
    """Ticks have two subtasks, then three, then one. Each sees all earlier rules, and judges each payment once."""
    trial = Trial(build, tmp_path)
    trial.run(checkpoints=2, **SMALL)
    trial.run(parallelism=3, checkpoints=2, **SMALL)
    trial.run(parallelism=1, **SMALL)
    cuts = judge(trial.warehouse)
    assert len(cuts) > 4
    last = cuts[-1]
    assert last.polars("bronze/payments").collect().height == sum(PAYMENTS.values())
    assert last.polars("silver/judged").collect().height == sum(PAYMENTS.values())


def test_a_broadcast_survives_kills_and_goes_back_with_a_rollback(tmp_path, spark):
    """One tick dies before its commit point, one after it. Then the job is rolled back to its first cut.

    A last tick reads on from there.
    """
    trial = Trial(build, tmp_path)
    trial.kill("before:AppendRow#2", **SMALL)
    trial.kill("after:AppendRow#2", **SMALL)
    trial.run(checkpoints=2, **SMALL)
    first, *_, last = judge(trial.warehouse)
    kept = first.state("judged_broadcast").polars().sort("class").collect()
    assert kept.rows() != last.state("judged_broadcast").polars().sort("class").collect().rows()
    roll_back(Warehouse(trial.warehouse, ProtocolPaths(JobName("bank"))), first.checkpoint)
    shown = pl.read_delta(str(trial.warehouse / "_tidemark/bank/state/judged_broadcast"))
    assert shown.select(kept.columns).sort("class").rows() == kept.rows()
    trial.run(**SMALL)
    assert judge(trial.warehouse)[-1].polars("silver/judged").collect().height == sum(PAYMENTS.values())


def test_rules_of_a_renamed_operator_get_a_column_and_stay(tmp_path, spark):
    trial = Trial(build, tmp_path)
    trial.run(**SMALL)
    before = judge(trial.warehouse)[-1].state("judged_broadcast").polars().sort("class").collect()
    Trial(build_renamed, tmp_path).run(**SMALL)
    after = newest_of(trial, "checked")
    assert before["version"].to_list() < after.sort("class")["version"].to_list()
    Trial(build_renamed_with_more, tmp_path).run(**SMALL)
    assert {"r", None} >= set(newest_of(trial, "checked")["split"].to_list()) >= {"r"}


def newest_of(trial, operator):
    (cut,) = judge(trial.warehouse, operator, Cuts(trial.warehouse, "bank").all()[-1:])
    return cut.state(f"{operator}_broadcast").polars().collect()


REORDERED = r"was newest_broadcast_rows\(version bigint\) and is now newest_broadcast_rows\(class bigint\)"


@pytest.mark.parametrize(
    ("build_otherwise", "says"),
    [(build_by_version, "key"), (build_blind, "broadcast input"), (build_by_class, REORDERED)],
)
def test_a_pipeline_that_would_lose_rules_is_refused(build_otherwise, says, tmp_path, spark):
    """The kept rules do not fit other keys or another order. Without the broadcast input, no operator would keep them.

    The job stays as it is.
    """
    trial = Trial(build, tmp_path)
    cut = trial.run(checkpoints=1, **SMALL)
    with pytest.raises(CutDoesNotFitError, match=says):
        Trial(build_otherwise, tmp_path).run(**SMALL)
    assert Trial(build, tmp_path).run(checkpoints=1, **SMALL).checkpoint > cut.checkpoint
    judge(trial.warehouse)


def test_rules_in_flight_are_kept_in_an_unaligned_checkpoint(tmp_path, spark):
    """Barriers overtake rules and payments. The next tick handles these rows first, and judges each payment once."""
    trial = Trial(build, tmp_path)
    trial.run(checkpoints=3, unaligned=True, micro_batch_rows_max=10, **SMALL)
    trial.run(unaligned=True, parallelism=3, **SMALL)
    last = trial.cuts.latest()
    assert sorted(last.polars("silver/judged").collect()["n"].to_list()) == sorted(
        last.polars("bronze/payments").collect()["n"].to_list()
    )
