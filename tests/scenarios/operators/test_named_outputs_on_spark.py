"""Named outputs of a process function on Spark: each cut shows what the function puts out for the rows of the cut."""

import polars as pl
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from jobs.reading import Cuts
from tidemark import Pipeline, Processed, SequenceSource, count
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark

ROWS = {"a": 120, "b": 90}
KEYS = 13
ODD = StructType().add("n", LongType()).add("key", LongType()).add("split", StringType())
SEEN = StructType().add("key", LongType())
TOTALS = StructType().add("rows", LongType()).add("total", LongType())
SMALL = {"every_rows": 40, "slice_rows_max": 10, "retained": 9}


class Sorted:
    """Counts and adds by key, puts odd rows out as `odd`, and a key that it sees for the first time as `seen`."""

    def __init__(self, outputs):
        """Name the outputs that have rows."""
        self.outputs = outputs

    def process(self, inputs, state):
        """Return the new totals and the rows of the outputs."""
        (rows,) = inputs
        now = rows.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum().alias("total"))
        new = pl.concat([now, state.select(now.columns)]).group_by("key").sum()
        odd, seen = rows.filter(pl.col("n") % 2 == 1), now.join(state, on="key", how="anti").select("key")
        every = {"odd": odd, "seen": seen}
        return Processed(state=new, output=new, outputs={name: every[name] for name in self.outputs})


def declared(data, outputs=("odd", "seen"), put_out=None):
    """Return the pipeline."""
    pipeline = Pipeline("sorted", parallelism=2)
    rows = pipeline.source("rows", SequenceSource(ROWS, keys=KEYS)).table("bronze/rows", id="bronze")
    output = StructType([rows.schema["key"], *TOTALS.fields])
    schemas = {name: {"odd": ODD, "seen": SEEN}[name] for name in outputs}
    function = Sorted(put_out or outputs)
    done = rows.key_by("key").process("sort", function, state=TOTALS, output=output, outputs=schemas)
    done.upsert("gold/totals")
    odd = done.output("odd").table("silver/odd", id="odd")
    odd.key_by("key").aggregate("odds", rows=count()).upsert("gold/odds")
    if "seen" in outputs:
        done.output("seen").table("silver/seen", id="seen")
    return pipeline


def build(data):
    """Return the pipeline with both outputs, in another process too."""
    return declared(data)


def without_seen(data):
    """Return the pipeline without the output `seen`."""
    return declared(data, ("odd",))


def undeclared(data):
    """Return the pipeline without the output `seen`, which the function puts out."""
    return declared(data, ("odd",), ("odd", "seen"))


def expected(bronze):
    """Return what each table shows at the cut with these rows."""
    odd = bronze.filter(pl.col("n") % 2 == 1)
    totals = bronze.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum().alias("total"))
    return {
        "gold/totals": totals,
        "silver/odd": odd.select("n", "key", "split"),
        "silver/seen": bronze.select("key").unique(),
        "gold/odds": odd.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows")),
    }


def judge(warehouse, cuts=None):
    """Compare all tables of these cuts with what their bronze rows make. By default those are all cuts."""
    cuts = cuts or Cuts(warehouse, "sorted").all()
    for cut in cuts:
        for table, rows in expected(cut.polars("bronze/rows").collect()).items():
            found = cut.polars(table).select(rows.columns).collect()
            assert sorted(rows.rows()) == sorted(found.rows()), (cut, table)
    return cuts


def test_each_cut_shows_each_output_whole_over_a_restart_and_a_rescale(tmp_path, spark):
    """Two outputs go to tables of their own, one of them also to an aggregate. The second tick has three subtasks."""
    trial = Trial(build, tmp_path)
    trial.run(checkpoints=2, **SMALL)
    trial.run(parallelism=3, **SMALL)
    cuts = judge(trial.warehouse)
    assert len(cuts) > 3
    assert sum(ROWS.values()) == cuts[-1].polars("bronze/rows").collect().height


def test_a_clean_up_deletes_files_of_outputs_that_were_taken(tmp_path, spark):
    """They lie in folders of their own. What the newest cuts do not need goes after the grace period."""
    trial = Trial(build, tmp_path)
    trial.run(checkpoints=2, **SMALL)
    channel = trial.warehouse / "_tidemark/sorted/channels/sort/_data"
    assert list((channel / "1/_output=odd").iterdir())
    trial.run(reader_grace_ms=1, **SMALL | {"retained": 1})
    assert [] == list((channel / "1").rglob("*.parquet"))
    judge(trial.warehouse)


@pytest.mark.dear
@pytest.mark.parametrize("boundary", ["after:RunMicroBatch#5", "after:AppendRow#2", "before:PublishTable:silver/odd#2"])
def test_a_kill_loses_and_doubles_no_row_of_an_output(tmp_path, spark, boundary):
    """The next tick reads the rows again that were in no cut."""
    trial = Trial(build, tmp_path)
    trial.kill(boundary, spark_cores=1, **SMALL)
    trial.run(**SMALL)
    judge(trial.warehouse)


@pytest.mark.dear
def test_rows_of_outputs_may_be_in_flight(tmp_path, spark):
    """Unaligned barriers overtake them. After a kill, the next tick takes them from the cut."""
    trial = Trial(build, tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1, unaligned=True, **SMALL)
    trial.run(unaligned=True, **SMALL)
    judge(trial.warehouse, [Cuts(trial.warehouse, "sorted").latest()])


def test_an_output_may_come_and_go_between_ticks(tmp_path, spark):
    """A new output begins with the rows that are read from then on. The other one misses no row."""
    Trial(without_seen, tmp_path).run(checkpoints=2, **SMALL)
    Trial(build, tmp_path).run(checkpoints=1, **SMALL)
    newest = Trial(without_seen, tmp_path).run(allow_non_restored_state=True, **SMALL)
    tables = expected(newest.polars("bronze/rows").collect())
    for table in ("silver/odd", "gold/odds", "gold/totals"):
        found = newest.polars(table).select(tables[table].columns).collect()
        assert sorted(tables[table].rows()) == sorted(found.rows()), table


def test_rows_of_an_output_that_was_not_declared_fail_by_name(tmp_path, spark):
    """The message names the vertex, the output and how to declare it."""
    with pytest.raises(TickFailedError, match=r"operator sort: .*put out rows as 'seen', and its outputs are odd"):
        Trial(undeclared, tmp_path).run(**SMALL)
