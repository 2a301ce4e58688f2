"""Named outputs of a process function: what is refused, and how a reader finds the files of its output."""

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.channel_items import SourceSlice, StagedSegment
from checkpointing.handles import FileHandle
from checkpointing.identifiers import InvalidNameError
from jobs.operators.process import NamedOutputs, UnknownOutputError, of_output
from jobs.pipeline import InvalidPipelineError, Pipeline, Processed
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource

NUMBERS = StructType().add("n", LongType())
ROWS = StructType().add("key", LongType()).add("n", LongType())
ALERTS = {"alerts": NUMBERS}
CHANNEL = "_tidemark/j/channels/sort/_data/1"


class Function:
    """Does nothing."""

    def process(self, inputs, state):
        return Processed(state, pl.DataFrame())


class Merging(Function):
    """Merges partials."""

    def partials(self, rows, types):
        return rows

    def merged(self, partials, before):
        return partials


def processed(outputs=ALERTS, function=None):
    """Return a pipeline, and the stream that its process function returns."""
    pipeline = Pipeline("j")
    keyed = pipeline.source("numbers", SequenceSource({"a": 10})).key_by("key")
    return pipeline, keyed.process("sort", function or Function(), state=NUMBERS, output=ROWS, outputs=outputs)


def file(path, rows=3):
    return FileHandle(path, rows, 10 * rows, 0)


def test_each_reader_is_planned_with_the_columns_of_its_output():
    """The function's own output goes on as before, to a table of the vertex itself."""
    pipeline, done = processed({"alerts": NUMBERS, "late": ROWS})
    done.output("late").table("silver/late", id="late")
    done.output("alerts").with_column("m", "n + 1", LongType()).table("silver/alerts", id="alerts")
    done.upsert("gold/sorted")
    planned = plan(pipeline)
    late, alerts = (planned.vertices[name].inputs[0] for name in ("late", "alerts"))
    assert [(ROWS, "late"), (NUMBERS, "alerts")] == [(each.schema, each.output) for each in (late, alerts)]
    assert ("alerts", "late") == alerts.outputs
    spec = planned.vertices["sort"].spec
    assert (False, {"alerts": NUMBERS, "late": ROWS}) == (spec.emits, spec.outputs)
    assert ["n", "m"] == [column.name for column in planned.table_schemas["silver/alerts"]]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda done: done.output("alert"), "vertex sort has no output 'alert'; it has alerts. Declare it"),
        (lambda done: done.drop("n").output("alerts"), "only the stream that process"),
        (lambda done: done.output("alerts").output("alerts"), "only the stream that process"),
        (lambda done: done.output("alerts").table("silver/alerts"), "needs an id of its own"),
        (lambda done: done.output("alerts").upsert("silver/alerts"), "only the direct output of a keyed vertex"),
        (lambda done: done.output("alerts").expect(), "it writes no table|write it right after table"),
        (lambda done: done.table("silver/sorted", partition_by=["_output"]), "there is no column '_output'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(act, said):
    """An unknown output, an output of another stream, and what only a vertex's own output can have."""
    _, done = processed()
    with pytest.raises(InvalidPipelineError, match=said):
        act(done)


@pytest.mark.parametrize(
    ("outputs", "function", "error", "said"),
    [
        ({"Alerts": NUMBERS}, None, InvalidNameError, "output 'Alerts' does not match"),
        ({"a/b": NUMBERS}, None, InvalidNameError, "output 'a/b' does not match"),
        ({"alerts": StructType()}, None, InvalidPipelineError, "at least one field"),
        ({"alerts": StructType().add("n", LongType()).add("N", LongType())}, None, InvalidPipelineError, "one name"),
        (ALERTS, Merging(), InvalidPipelineError, "its function merges partials"),
    ],
)
def test_an_output_that_cannot_be_is_refused_where_it_is_declared(outputs, function, error, said):
    """A name that is no folder's, columns that nobody can write, and a function whose output is its state."""
    with pytest.raises(error, match=said):
        processed(outputs, function)


def renamed(columns_renamed_from):
    """Return the stream of a function that has renamed columns of its output `alerts`."""
    pipeline = Pipeline("j")
    keyed = pipeline.source("numbers", SequenceSource({"a": 10})).key_by("key")
    alerts = {"alerts": StructType().add("alert", LongType()).add("n", LongType())}
    return pipeline, keyed.process(
        "sort", Function(), state=NUMBERS, output=ROWS, outputs=alerts, columns_renamed_from=columns_renamed_from
    )


def test_a_column_of_an_output_may_be_renamed():
    """The entry lists the rename at the function. The table of the output says it for itself."""
    pipeline, done = renamed({"alert": "key"})
    done.output("alerts").table("silver/alerts", id="alerts").change_columns(renamed_from={"alert": "key"})
    done.upsert("gold/sorted")
    found = plan(pipeline).graph
    assert [{"alert": "key"}] * 2 == [dict(found.vertex(name).columns_renamed_from) for name in ("sort", "alerts")]


@pytest.mark.parametrize(
    ("renames", "said"),
    [
        (
            {"alert": "n"},
            "output 'alerts': column alert is renamed from 'n', and there still is a column n",
        ),
        ({"alarm": "x"}, "column alarm is renamed from 'x', and there is no column 'alarm'"),
        ({"alert": "alert"}, "which is its own name"),
    ],
)
def test_a_rename_that_means_nothing_in_an_output_is_refused(renames, said):
    """Each output has columns of its own, so the message names it."""
    with pytest.raises(InvalidPipelineError, match=said):
        renamed(renames)


def test_an_output_that_nobody_reads_is_refused():
    """Its rows would be lost without a word."""
    pipeline, done = processed()
    done.table("silver/sorted")
    with pytest.raises(InvalidPipelineError, match="nothing reads the output 'alerts' of vertex sort"):
        plan(pipeline)


def test_a_table_may_not_be_laid_out_by_the_name_of_our_folders():
    """A folder `_output=...` tells whose rows a file has."""
    pipeline = Pipeline("j")
    numbers = pipeline.source("numbers", SequenceSource({"a": 10})).with_column("_output", "n", LongType())
    with pytest.raises(InvalidPipelineError, match="folders of '_output' are Tidemark's own"):
        numbers.table("bronze/numbers", id="bronze", partition_by=["_output"])


def test_a_reader_gets_the_files_of_its_output_only():
    """Those without a folder are of the function's own output. A segment without any such file is left out."""
    own, alert, late = (file(f"{CHANNEL}/{folder}f.parquet") for folder in ("", "_output=alerts/", "_output=late/"))
    of_source = SourceSlice("numbers", "a", "0", "1", "{}", 1, 1)
    segments = [StagedSegment((own, alert)), StagedSegment((late,)), of_source]
    known = ("alerts", "late")
    assert [StagedSegment((own,)), of_source] == list(of_output(segments, None, known))
    assert [StagedSegment((alert,)), of_source] == list(of_output(segments, "alerts", known))
    assert [StagedSegment((late,)), of_source] == list(of_output(segments, "late", known))


def test_rows_in_flight_of_an_output_that_is_gone_are_an_error():
    """A reader that passed over them would lose them."""
    segments = [StagedSegment((file(f"{CHANNEL}/_output=late/f.parquet", rows=7),))]
    with pytest.raises(UnknownOutputError, match=r"7 rows in flight are of the output 'late', which .* no longer has"):
        list(of_output(segments, None, ("alerts",)))


def test_an_output_without_rows_is_whole_and_an_unknown_one_is_named():
    """The function may leave outputs out. It may not put out rows as something else."""
    outputs = NamedOutputs("channels/sort", {"alerts": pa.schema([("n", pa.int64())])})
    rows = outputs.conformed("sort", {})
    assert ({"n": pl.Int64}, 0) == (dict(rows["alerts"].schema), rows["alerts"].height)
    with pytest.raises(UnknownOutputError, match="put out rows as 'alert', and its outputs are alerts"):
        outputs.conformed("sort", {"alert": pl.DataFrame({"n": [1]})})
