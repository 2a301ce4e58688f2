"""A vertex that reads another output from now on, on Spark: no row in flight is passed over without a word."""

import time

import polars as pl
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import EdgeId, JobName, VertexId
from checkpointing.job.restoring import CutDoesNotFitError, in_flight
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.reading import Cuts
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.warehouse import Warehouse
from tidemark import Pipeline, Processed, SequenceSource
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

ROWS = {"a": 150, "b": 120}
NUMBER = StructType().add("n", LongType())
ROW = StructType().add("n", LongType()).add("key", LongType())
SMALL = {"every_rows": 30, "slice_rows_max": 10, "micro_batch_rows_max": 10, "retained": 50}


class Slow:
    """Puts each row out, slowly. So rows wait on the way to it."""

    def process(self, inputs, state):
        """Return the rows, and keep the greatest number of each key."""
        time.sleep(0.7)
        rows = inputs[0].select("n", "key")
        return Processed(state=_greatest(rows, state), output=rows)


def _greatest(rows, state):
    return pl.concat([rows.select("key", "n"), state.select("key", "n")]).group_by("key").max()


class Sorted:
    """Puts each row out, odd numbers also as `odd` and even ones as `even`."""

    def process(self, inputs, state):
        """Keep the greatest number of each key."""
        rows = inputs[0].select("n", "key")
        odd = pl.col("n") % 2 == 1
        sorted_out = {"odd": rows.filter(odd), "even": rows.filter(~odd)}
        return Processed(state=_greatest(rows, state), output=rows, outputs=sorted_out)


def reading(output):
    """Return the pipeline in which vertex `kept` reads this output. None is the function's own."""
    pipeline = Pipeline("sorted", parallelism=2)
    rows = pipeline.source("rows", SequenceSource(ROWS, keys=13)).table("bronze/rows", id="bronze")
    outputs = {"odd": ROW, "even": ROW}
    done = rows.key_by("key").process("sort", Sorted(), state=NUMBER, output=ROW, outputs=outputs)
    read = (done if output is None else done.output(output)).key_by("key")
    read.process("kept", Slow(), state=NUMBER, output=ROW).table("silver/kept")
    for name in outputs.keys() - {output}:
        done.output(name).table(f"silver/{name}", id=name)
    return pipeline


def odd(data):
    """Return the pipeline in which `kept` reads the odd rows."""
    return reading("odd")


def own(data):
    """Return the pipeline in which `kept` reads all rows."""
    return reading(None)


def entries(warehouse):
    """Return all entries of the job, with the version of their table."""
    return CheckpointStore(Warehouse(warehouse, ProtocolPaths(JobName("sorted")))).observe()


def newest(warehouse):
    """Return the newest checkpoint's entry."""
    _, rows = entries(warehouse)
    return max((row for row in rows if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def flying(record):
    """Return how many odd rows the checkpoint holds in flight to `kept`."""
    edge = EdgeId(VertexId("sort"), VertexId("kept"))
    segments = (segment for channel, segment in in_flight(record) if channel.edge == edge)
    return sum(file.rows for each in segments for file in each.files if "/_output=odd/" in file.path)


def shown(cut, table="silver/kept"):
    """Return the numbers that a table shows at the cut."""
    return sorted(cut.polars(table).collect()["n"].to_list())


def test_with_rows_in_flight_a_vertex_may_not_read_another_output(tmp_path, spark):
    """The tick is refused before it claims the job, and the message names all. The old pipeline then ends exactly."""
    Trial(odd, tmp_path).run(unaligned=True, checkpoints=4, **SMALL)
    record = newest(tmp_path / "warehouse")
    assert flying(record) > 0
    before, _ = entries(tmp_path / "warehouse")
    says = f"checkpoint {record.checkpoint} holds .*'kept', whose input 0 read the output 'odd' of 'sort' .*main output"
    with pytest.raises(CutDoesNotFitError, match=says):
        Trial(own, tmp_path).run(unaligned=True, **SMALL)
    assert before == entries(tmp_path / "warehouse")[0]
    cut = Trial(odd, tmp_path).run(unaligned=True, **SMALL)
    assert [n for n in shown(cut, "bronze/rows") if n % 2] == shown(cut)


def test_without_rows_in_flight_a_vertex_goes_on_with_another_output(tmp_path, spark):
    """It keeps the rows of the first output, and takes all rows of the other one that come from then on."""
    first = Trial(odd, tmp_path).run(checkpoints=2, **SMALL)
    before = shown(first, "bronze/rows")
    last = Trial(own, tmp_path).run(allow_non_restored_state=True, **SMALL)
    late = sorted(shown(last, "bronze/rows"))
    for n in before:
        late.remove(n)
    assert sum(ROWS.values()) == len(before) + len(late)
    assert sorted([n for n in before if n % 2] + late) == shown(last)
    assert Cuts(tmp_path / "warehouse", "sorted").latest().checkpoint == last.checkpoint
