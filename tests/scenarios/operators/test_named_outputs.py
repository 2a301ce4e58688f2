"""Named outputs of a process function on Spark: each cut shows what the function emits for the rows of the cut."""

import time

import polars as pl
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.identifiers import EdgeId, JobName, VertexId
from checkpointing.job.restoring import CutDoesNotFitError, in_flight
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.reading import Cuts
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.warehouse import Warehouse
from tidemark import Pipeline, Processed, SequenceSource, count, join
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark

ROWS = {"a": 120, "b": 90}
KEYS = 13
ODD = StructType().add("n", LongType()).add("key", LongType()).add("split", StringType())
SEEN = StructType().add("key", LongType())
TOTALS = StructType().add("rows", LongType()).add("total", LongType())
SMALL = {"every_rows": 40, "slice_rows_max": 10, "retained": 9}


NUMBERED = StructType().add("number", LongType()).add("key", LongType()).add("split", StringType())
"""The columns of the output `odd` after `n` is renamed to `number`."""


class Renaming:
    """Does what `Sorted` does, but a column of `odd` has its new name."""

    def process(self, inputs, state):
        done = Sorted(("odd", "seen")).process(inputs, state)
        odd = done.outputs["odd"].rename({"n": "number"}).select(NUMBERED.names)
        return Processed(state=done.state, output=done.output, outputs={**done.outputs, "odd": odd})


class Sorted:
    """Counts and sums each key. Emits odd rows as `odd`, and each key that it sees for the first time as `seen`."""

    def __init__(self, outputs):
        self.outputs = outputs

    def process(self, inputs, state):
        (rows,) = inputs
        now = rows.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum().alias("total"))
        new = pl.concat([now, state.select(now.columns)]).group_by("key").sum()
        odd, seen = rows.filter(pl.col("n") % 2 == 1), now.join(state, on="key", how="anti").select("key")
        every = {"odd": odd, "seen": seen}
        return Processed(state=new, output=new, outputs={name: every[name] for name in self.outputs})


def declared(data, outputs=("odd", "seen"), put_out=None):
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
    return declared(data)


def without_seen(data):
    return declared(data, ("odd",))


def renamed(data):
    pipeline = Pipeline("sorted", parallelism=2)
    rows = pipeline.source("rows", SequenceSource(ROWS, keys=KEYS)).table("bronze/rows", id="bronze")
    output, outputs = StructType([rows.schema["key"], *TOTALS.fields]), {"odd": NUMBERED, "seen": SEEN}
    was = {"number": "n"}
    done = rows.key_by("key").process(
        "sort", Renaming(), state=TOTALS, output=output, outputs=outputs, columns_renamed_from=was
    )
    done.upsert("gold/totals")
    odd = done.output("odd").table("silver/odd", id="odd").change_columns(renamed_from=was)
    odd.key_by("key").aggregate("odds", rows=count()).upsert("gold/odds")
    done.output("seen").table("silver/seen", id="seen")
    return pipeline


def undeclared(data):
    """Return the pipeline that does not declare the output `seen`, although the function emits rows as `seen`."""
    return declared(data, ("odd",), ("odd", "seen"))


def expected(bronze):
    odd = bronze.filter(pl.col("n") % 2 == 1)
    totals = bronze.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum().alias("total"))
    return {
        "gold/totals": totals,
        "silver/odd": odd.select("n", "key", "split"),
        "silver/seen": bronze.select("key").unique(),
        "gold/odds": odd.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows")),
    }


def judge(warehouse, cuts=None):
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


def test_a_rollback_takes_each_output_back(tmp_path, spark):
    """After the rollback, every table shows the rows of the first cut. The next tick ends with each row once."""
    trial = Trial(build, tmp_path)
    trial.run(**SMALL)
    first, *_, last = judge(trial.warehouse)
    before = first.polars("bronze/rows").collect()
    assert before.height < last.polars("bronze/rows").collect().height
    roll_back(Warehouse(trial.warehouse, ProtocolPaths(JobName("sorted"))), first.checkpoint)
    for table, rows in expected(before).items():
        shown = pl.read_delta(str(trial.warehouse / table)).select(rows.columns)
        assert sorted(rows.rows()) == sorted(shown.rows()), table
    trial.run(**SMALL)
    newest = judge(trial.warehouse)[-1]
    assert sum(ROWS.values()) == newest.polars("bronze/rows").collect().height


RARE = 77
"""Only rows with this number are alerts."""


class Watches:
    """Emits each row. Emits the rows of one number also as `alerts`, so most micro-batches have no alert."""

    def process(self, inputs, state):
        (rows,) = inputs
        now = pl.concat([rows.select("key", "n"), state.select("key", "n")]).group_by("key").max()
        each = rows.select("n", "key", "split")
        return Processed(state=now, output=each, outputs={"alerts": each.filter(pl.col("n") == RARE)})


def watched(data):
    pipeline = Pipeline("watched", parallelism=2)
    rows = pipeline.source("rows", SequenceSource(ROWS, keys=KEYS)).table("bronze/rows", id="bronze")
    number = StructType().add("n", LongType())
    done = rows.key_by("key").process("watch", Watches(), state=number, output=ODD, outputs={"alerts": ODD})
    alerts = done.output("alerts")
    done.union(alerts.with_column("n", "-n", LongType()), id="both").table("silver/both")
    wanted = alerts.select("key", "n").transform(_called_at, StructType().add("key", LongType()).add("at", LongType()))
    join(done.key_by("key"), wanted.key_by("key"), "met").table("silver/met")
    return pipeline


def _called_at(rows):
    return rows.withColumnRenamed("n", "at")


def test_one_vertex_may_read_two_outputs_and_one_of_them_may_be_empty_for_long(tmp_path, spark):
    """A union and a join read both outputs and do not confuse them. Micro-batches without an alert succeed."""
    trial = Trial(watched, tmp_path)
    trial.run(checkpoints=1, **SMALL)
    trial.run(**SMALL)
    cuts = trial.cuts.all()
    alerts_in = []
    for cut in cuts:
        rows = cut.polars("bronze/rows").collect().select("n", "key", "split")
        alerts = rows.filter(pl.col("n") == RARE)
        both = pl.concat([rows, alerts.with_columns(-pl.col("n"))])
        met = rows.join(alerts.select("key", at="n"), on="key")
        for table, made in (("silver/both", both), ("silver/met", met)):
            found = cut.polars(table).select(made.columns).collect()
            assert sorted(made.rows()) == sorted(found.rows()), (cut, table)
        alerts_in.append(alerts.height)
    assert (0, 2) == (alerts_in[0], alerts_in[-1])


def test_a_clean_up_deletes_files_of_outputs_that_were_taken(tmp_path, spark):
    """Each output's files lie in their own folder. Files that no retained cut needs go after the grace period."""
    trial = Trial(build, tmp_path)
    trial.run(checkpoints=2, **SMALL)
    channel = trial.warehouse / "_tidemark/sorted/channels/sort/_data"
    assert list((channel / "1/_output=odd").iterdir())
    trial.run(reader_grace_ms=1, **SMALL | {"retained": 1})
    assert [] == list((channel / "1").rglob("*.parquet"))
    judge(trial.warehouse)


def test_a_column_of_an_output_is_renamed_with_its_table(tmp_path, spark):
    """In all rows of the table the column has its new name, in rows of older checkpoints too."""
    Trial(build, tmp_path).run(checkpoints=2, **SMALL)
    cut = Trial(renamed, tmp_path).run(**SMALL)
    odd = cut.polars("silver/odd").collect()
    assert ["number", "key", "split"] == odd.columns[:3]
    due = expected(cut.polars("bronze/rows").collect())
    assert sorted(due["silver/odd"].rows()) == sorted(odd.select("number", "key", "split").rows())
    assert sorted(due["gold/odds"].rows()) == sorted(cut.polars("gold/odds").collect().rows())


@pytest.mark.dear
def test_rows_in_flight_under_the_old_name_are_refused(tmp_path, spark):
    """Rows in flight would have no value under the new name. The message names the way out."""
    trial = Trial(build, tmp_path)
    trial.kill("after:AppendRow#2", spark_cores=1, unaligned=True, **SMALL)
    with pytest.raises(CutDoesNotFitError, match=r"rows in flight from 'sort': column number was n and is now number"):
        Trial(renamed, tmp_path).run(unaligned=True, **SMALL)


def test_an_output_may_come_and_go_between_ticks(tmp_path, spark):
    """A new output begins with the rows that are read after it was added. The other output misses no row."""
    Trial(without_seen, tmp_path).run(checkpoints=2, **SMALL)
    Trial(build, tmp_path).run(checkpoints=1, **SMALL)
    newest = Trial(without_seen, tmp_path).run(allow_non_restored_state=True, **SMALL)
    tables = expected(newest.polars("bronze/rows").collect())
    for table in ("silver/odd", "gold/odds", "gold/totals"):
        found = newest.polars(table).select(tables[table].columns).collect()
        assert sorted(tables[table].rows()) == sorted(found.rows()), table


def test_rows_of_an_output_that_was_not_declared_fail_by_name(tmp_path, spark):
    with pytest.raises(TickFailedError, match=r"operator sort: .*put out rows as 'seen', and its outputs are odd"):
        Trial(undeclared, tmp_path).run(**SMALL)


# ------------------------------------------------------------------
# On Spark, a new pipeline in which a vertex reads another output: no row in flight is lost silently.


ROWS_OF_ANOTHER_OUTPUT_ON_SPARK = {"a": 150, "b": 120}
NUMBER = StructType().add("n", LongType())
ROW = StructType().add("n", LongType()).add("key", LongType())
SMALL_OF_ANOTHER_OUTPUT_ON_SPARK = {"every_rows": 30, "slice_rows_max": 10, "micro_batch_rows_max": 10, "retained": 50}


class Slow:
    """Emits each row slowly, so that rows wait in its input channel."""

    def process(self, inputs, state):
        time.sleep(0.7)
        rows = inputs[0].select("n", "key")
        return Processed(state=_greatest(rows, state), output=rows)


def _greatest(rows, state):
    return pl.concat([rows.select("key", "n"), state.select("key", "n")]).group_by("key").max()


class SortsAnew:
    """Emits each row. Emits odd numbers also as `odd`, and even ones as `even`."""

    def process(self, inputs, state):
        rows = inputs[0].select("n", "key")
        odd = pl.col("n") % 2 == 1
        sorted_out = {"odd": rows.filter(odd), "even": rows.filter(~odd)}
        return Processed(state=_greatest(rows, state), output=rows, outputs=sorted_out)


def reading(output):
    pipeline = Pipeline("sorted", parallelism=2)
    rows = pipeline.source("rows", SequenceSource(ROWS_OF_ANOTHER_OUTPUT_ON_SPARK, keys=13)).table(
        "bronze/rows", id="bronze"
    )
    outputs = {"odd": ROW, "even": ROW}
    done = rows.key_by("key").process("sort", SortsAnew(), state=NUMBER, output=ROW, outputs=outputs)
    read = (done if output is None else done.output(output)).key_by("key")
    read.process("kept", Slow(), state=NUMBER, output=ROW).table("silver/kept")
    for name in outputs.keys() - {output}:
        done.output(name).table(f"silver/{name}", id=name)
    return pipeline


def odd(data):
    return reading("odd")


def own(data):
    return reading(None)


def entries(warehouse):
    return CheckpointStore(Warehouse(warehouse, ProtocolPaths(JobName("sorted")))).observe()


def newest(warehouse):
    _, rows = entries(warehouse)
    return max((row for row in rows if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def flying(record):
    edge = EdgeId(VertexId("sort"), VertexId("kept"))
    segments = (segment for channel, segment in in_flight(record) if channel.edge == edge)
    return sum(file.rows for each in segments for file in each.files if "/_output=odd/" in file.path)


def shown(cut, table="silver/kept"):
    return sorted(cut.polars(table).collect()["n"].to_list())


def test_with_rows_in_flight_a_vertex_may_not_read_another_output(tmp_path, spark):
    """The tick is refused before it claims the job. The message names checkpoint, vertices, input and outputs.

    The old pipeline then ends with each row exactly once.
    """
    Trial(odd, tmp_path).run(unaligned=True, checkpoints=4, **SMALL_OF_ANOTHER_OUTPUT_ON_SPARK)
    record = newest(tmp_path / "warehouse")
    assert flying(record) > 0
    before, _ = entries(tmp_path / "warehouse")
    says = f"checkpoint {record.checkpoint} holds .*'kept', whose input 0 read the output 'odd' of 'sort' .*main output"
    with pytest.raises(CutDoesNotFitError, match=says):
        Trial(own, tmp_path).run(unaligned=True, **SMALL_OF_ANOTHER_OUTPUT_ON_SPARK)
    assert before == entries(tmp_path / "warehouse")[0]
    cut = Trial(odd, tmp_path).run(unaligned=True, **SMALL_OF_ANOTHER_OUTPUT_ON_SPARK)
    assert [n for n in shown(cut, "bronze/rows") if n % 2] == shown(cut)
