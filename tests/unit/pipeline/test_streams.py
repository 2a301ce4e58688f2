"""Joins are planned by the kinds of their inputs. The error for a step that cannot take a row back names the step."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from checkpointing.channel_items import SourceSlice, StagedSegment
from checkpointing.config import CheckpointConfig, CheckpointingMode
from checkpointing.graph import TableMode, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import InvalidNameError
from jobs.operators.derived_scans import NewColumn
from jobs.operators.expressions import Call, Column
from jobs.operators.process import NamedOutputs, UnknownOutputError, of_output
from jobs.operators.spec import TaskSteps, TextSteps
from jobs.pipeline import Processed, first_of, max_of, sum_of
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.plain_expressions import plain_column, plain_condition
from jobs.pipeline.planning import plan
from jobs.pipeline.steps import in_turn
from jobs.pipeline.top import top
from jobs.quality.expectation import Expectation
from tidemark import FileSource, KafkaSource, Pipeline, SequenceSource, as_of, count, join, tumbling

WINDOW = ["window_start", "window_end"]


def streams():
    pipeline = Pipeline("example")
    counted = pipeline.source("left", SequenceSource({"a": 10})).key_by("key").aggregate("counted", n=count())
    rows = pipeline.source("right", SequenceSource({"a": 10})).select("key", "value")
    return pipeline, counted, rows


def test_only_the_side_that_is_a_changelog_is_read_with_kinds():
    """The other side is append-only, so its rows have no change kind."""
    pipeline, counted, rows = streams()
    join(counted.key_by("key"), rows.key_by("key"), "joined").key_by("n").aggregate("sizes", rows=count())
    planned = plan(pipeline)
    joined = planned.vertices["joined"]
    assert [reads.takes_changes for reads in joined.inputs] == [True, False]
    assert [each.schema.names for each in joined.spec.inputs] == [["key", "n", "_change_kind"], ["key", "value"]]
    assert joined.spec.emits_changes
    assert planned.graph.vertex("joined").changes_of == ("counted",)
    assert planned.graph.vertex("sizes").changes_of == ("joined",)


def test_an_inner_join_of_append_only_streams_is_append_only():
    """Such a join takes no row back. So any step may follow, and an append table may hold its rows."""
    pipeline, _, rows = streams()
    other = rows.select("key").key_by("key")
    join(rows.key_by("key"), other, "joined").table("silver/joined").key_by("key").aggregate("n", rows=count())
    planned = plan(pipeline)
    assert not planned.vertices["joined"].spec.emits_changes
    assert planned.graph.vertex("n").changes_of == ()


CLICKS = StructType().add("user", StringType()).add("at", TimestampType())
ORDERS = StructType().add("user", StringType()).add("paid_at", TimestampType())
HOURS = tumbling("1h")


@pytest.mark.parametrize(
    ("of", "added"),
    [
        (lambda name, rows: FileSource(Path(name), rows), ["_split", "_position"]),
        (lambda name, rows: KafkaSource("broker:9092", name, rows), ["_undecoded", "_split", "_position"]),
    ],
    ids=["files", "kafka"],
)
@pytest.mark.parametrize(
    ("joins", "columns"),
    [
        (lambda left, right: join(left, right, "paid", within=("-5m", "1h"), late="fail"), ["at"]),
        (lambda left, right: join(left.window(HOURS), right.window(HOURS), "paid", late="fail"), [*WINDOW, "at"]),
        (lambda left, right: as_of(left, right, "paid", late="fail"), ["at"]),
        (lambda left, right: join(left, right, "paid"), ["at"]),
    ],
    ids=["within", "windows", "as_of", "tables"],
)
def test_two_sources_are_joined_without_a_word_about_the_columns_that_sources_add(of, added, joins, columns):
    """A joined row has the added columns of its left row, since both sides would have columns of these names."""
    pipeline = Pipeline("shop")
    clicks = pipeline.source("clicks", of("clicks", CLICKS)).event_time("at", delay="10m").key_by("user")
    orders = pipeline.source("orders", of("orders", ORDERS)).event_time("paid_at", delay="10m").key_by("user")
    joins(clicks, orders).table("gold/paid")
    assert ["user", *columns, *added, "paid_at"] == plan(pipeline).table_schemas["gold/paid"].names


def test_a_semi_join_has_the_left_columns_and_an_anti_join_takes_rows_back():
    """Both sides may have the same columns. If no row is taken back, a left row that has a match keeps it."""
    pipeline, _, rows = streams()
    one, other = rows.key_by("key"), rows.key_by("key")
    join(one, other, "known", how="semi").table("silver/known")
    with pytest.raises(InvalidPipelineError, match="join 'unknown' takes rows back"):
        join(one, other, "unknown", how="anti").table("silver/unknown")
    planned = plan(pipeline)
    assert planned.vertices["known"].spec.output.names == ["key", "value"]
    assert not planned.vertices["known"].spec.emits_changes


@pytest.mark.parametrize(
    ("follow", "said"),
    [
        (lambda joined: joined.table("silver/joined"), "join 'joined' takes rows back"),
        (lambda joined: joined.upsert("gold/joined"), "join 'joined' takes rows back"),
        (lambda joined: joined.table("silver/joined", id="kept"), "those of join 'joined'"),
        (lambda joined: joined.union(joined, id="both").table("silver/both"), "a stream of this union takes rows back"),
    ],
)
def test_a_step_that_cannot_take_a_row_back_is_refused(follow, said):
    """Even for append-only streams, an outer join takes back the row with nulls when a match comes."""
    _, _, rows = streams()
    joined = join(rows.key_by("key"), rows.select("key").key_by("key"), "joined", how="left")
    with pytest.raises(InvalidPipelineError, match=said):
        follow(joined)


def test_joins_that_cannot_be_are_refused():
    """An unknown type of join is refused, and so is a column that both sides have."""
    _, _, rows = streams()
    keyed = rows.key_by("key")
    with pytest.raises(InvalidPipelineError, match="choose one of inner, left, right, full, semi, anti"):
        join(keyed, keyed, "joined", how="outer")
    with pytest.raises(InvalidPipelineError, match=r"columns \['value'\] are on both sides"):
        join(keyed, keyed, "joined")


def test_a_column_that_counts_kept_rows_is_refused_by_name():
    """The state keeps each row with a column `_times`. A user's column of that name failed in the middle of a tick."""
    _, _, rows = streams()
    named = rows.with_column("_times", "value", LongType()).key_by("key")
    with pytest.raises(InvalidPipelineError, match="'_times' and '_times' have one name; rename one"):
        join(named, rows.select("key").key_by("key"), "joined")


# ------------------------------------------------------------------
# A union has the rows of all its streams. Streams with different columns are refused with an error that names both
# streams.


def two(pipeline=None):
    pipeline = pipeline or Pipeline("example")
    return tuple(pipeline.source(name, SequenceSource({"a": 10})) for name in ("left", "right"))


def test_a_union_is_one_vertex_with_an_edge_from_each_stream():
    """A table right after the union belongs to the same vertex."""
    pipeline = Pipeline("example")
    left, right = two(pipeline)
    left.union(right, id="both").table("bronze/both").key_by("key").aggregate("by_key", n=count()).upsert("gold/n")
    graph = plan(pipeline).graph
    both = graph.vertex("both")
    assert both.kind is VertexKind.STATELESS
    assert ["bronze/both"] == [table.name for table in both.tables]
    assert ["left", "right"] == [edge.upstream for edge in graph.upstream("both")]


def counts_and_rows(pipeline):
    left, right = two(pipeline)
    counted = left.key_by("key").aggregate("per_key", n=count())
    return counted, right.with_column("n", "1", LongType()).select("key", "n")


@pytest.mark.parametrize("first", [True, False], ids=["changelog first", "changelog last"])
def test_a_union_passes_changes_on_if_somebody_takes_them(first):
    """The keyed vertices before and after a union begin together.

    The union emits changes, and so does a union of unions.
    """
    pipeline = Pipeline("example")
    counted, rows = counts_and_rows(pipeline)
    both = counted.union(rows, id="both") if first else rows.union(counted, id="both")
    both.union(rows, id="all").key_by("n").aggregate("sizes", keys=count()).upsert("gold/sizes")
    planned = plan(pipeline)
    assert all(planned.vertices[name].spec.emits_changes for name in ("per_key", "both", "all"))
    assert [reads.takes_changes for reads in planned.vertices["both"].inputs] == [first, not first]
    assert planned.graph.vertex("sizes").changes_of == ("per_key",)
    assert planned.graph.vertex("all").changes_of == ()


def test_a_union_whose_changes_nobody_takes_has_new_rows_only():
    """The union's table holds each update of the aggregate as a row, as the aggregate's own append table would."""
    pipeline = Pipeline("example")
    counted, rows = counts_and_rows(pipeline)
    counted.union(rows, id="both").table("silver/both")
    planned = plan(pipeline)
    assert not any(planned.vertices[name].spec.emits_changes for name in ("per_key", "both"))
    assert not any(reads.takes_changes for reads in planned.vertices["both"].inputs)


def test_a_union_of_a_changelog_with_updates_that_lost_their_kind_is_refused():
    """A vertex that takes the union's changes would count the second stream's updates as rows."""
    counted, _ = counts_and_rows(Pipeline("example"))
    kept = counted.table("silver/kept", id="kept")
    with pytest.raises(InvalidPipelineError, match="vertex both: its rows are updates of the aggregate 'per_key'"):
        counted.union(kept, id="both")
    lost = kept.union(kept, id="lost")
    with pytest.raises(InvalidPipelineError, match="vertex again: its rows are updates of the aggregate 'per_key'"):
        lost.key_by("key").aggregate("again", total=sum_of("n"))


REFUSED = {
    "another type": (
        lambda left, right: left.union(right.with_column("value", "value", StringType()), id="both"),
        "vertex both: column 'value' is bigint in left and string in right; give both streams the same columns",
    ),
    "a column less": (
        lambda left, right: left.union(right.drop("value"), id="both"),
        "vertex both: column 'value' is bigint in left and missing in right",
    ),
    "a column more": (
        lambda left, right: left.drop("value").union(right, id="both"),
        "vertex both: column 'value' is missing in left and bigint in right",
    ),
    "alone": (lambda left, _: left.union(id="both"), "vertex both: a union needs another stream"),
    "two pipelines": (
        lambda left, _: left.union(two()[1], id="both"),
        "vertex both: the streams belong to two pipelines",
    ),
}


@pytest.mark.parametrize(("write", "said"), REFUSED.values(), ids=list(REFUSED))
def test_a_union_of_other_columns_is_refused(write, said):
    """One sentence names the vertex, the column and both streams."""
    with pytest.raises(InvalidPipelineError, match=said):
        write(*two())


# ------------------------------------------------------------------
# The output of an aggregate is a changelog. A step that would count updates as rows is refused at that line (M1).


NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "n"})
OUTPUT = StructType().add("key", LongType()).add("n", LongType())
STATE = StructType().add("last", LongType())


@dataclass
class Differences:
    """A keyed function that is not called here."""

    def process(self, inputs, state):
        raise AssertionError("planning calls no function")


def per_key(pipeline=None):
    rows = (pipeline or Pipeline("example")).source("numbers", SequenceSource({"a": 10}))
    return rows.key_by("key", "split").aggregate("per_key", n=count(), top=max_of("value"))


def again(rows):
    return rows.key_by("split").aggregate("per_split", total=sum_of("n"))


PASSES_CHANGES = {
    "directly": lambda rows: rows,
    "after its upsert table": lambda rows: rows.upsert("gold/per_key"),
    "after its append table": lambda rows: rows.table("silver/per_key"),
    "select": lambda rows: rows.select("split", "n"),
    "drop": lambda rows: rows.drop("top"),
    "with_column": lambda rows: rows.with_column("n", "n * 2", LongType()),
    "transform": lambda rows: rows.transform(lambda each: each.filter("n > 1")),
}


@pytest.mark.parametrize("updates", PASSES_CHANGES.values(), ids=list(PASSES_CHANGES))
def test_an_aggregate_of_updates_takes_back_what_they_replace(updates):
    """The planner knows that the stream is a changelog: one vertex emits changes, and the other takes them."""
    pipeline = Pipeline("example")
    again(updates(per_key(pipeline))).upsert("gold/per_split")
    planned = plan(pipeline)
    assert planned.vertices["per_key"].spec.emits_changes
    (reads,) = planned.vertices["per_split"].inputs
    assert (reads.of_changes, reads.takes_changes) == (True, True)
    assert planned.vertices["per_split"].spec.inputs[0].schema.names == ["split", "n", "_change_kind"]
    assert [meaning.column for meaning in planned.graph.vertex("per_split").meanings] == ["total", "_rows"]
    assert planned.graph.vertex("per_split").changes_of == ("per_key",)


def test_without_a_reader_of_changes_nobody_puts_them_out():
    """A process function gets only the new rows."""
    pipeline = Pipeline("example")
    per_key(pipeline).key_by("key").process("differences", Differences(), state=STATE, output=OUTPUT)
    planned = plan(pipeline)
    assert not planned.vertices["per_key"].spec.emits_changes
    assert not planned.vertices["differences"].inputs[0].takes_changes


@pytest.mark.parametrize(
    "updates",
    [
        pytest.param(lambda: per_key().drop("top").table("silver/n", id="kept"), id="a table of its own vertex"),
        pytest.param(lambda: per_key().check_rows(NOT_NULL, quarantine="q/n", id="kept"), id="check_rows"),
    ],
)
def test_updates_that_lost_their_kind_are_refused(updates):
    """A vertex between the two aggregates emits only new rows.

    The message names this vertex, and what to write instead.
    """
    with pytest.raises(InvalidPipelineError) as refused:
        again(updates())
    said = str(refused.value)
    assert said.startswith("vertex per_split: its rows are updates of the aggregate 'per_key', and vertex 'kept'")
    assert "Aggregate the stream of 'per_key' itself" in said


def test_columns_of_ours_are_refused():
    """The state has a column `_rows` for the number of rows, and changes have a column `_change_kind`."""
    rows = per_key()
    with pytest.raises(InvalidPipelineError, match="columns '_rows' and '_rows' have one name"):
        rows.key_by("split").aggregate("other", _rows=count())
    with pytest.raises(InvalidPipelineError, match="columns '_change_kind' and '_change_kind' have one name"):
        rows.with_column("_change_kind", "1", LongType()).key_by("split").aggregate("other", n=count())


DELETES = {
    "append table": lambda rows: rows.table("silver/n"),
    "append table of its own vertex": lambda rows: rows.table("silver/n", id="kept"),
    "check_rows": lambda rows: rows.check_rows(
        Expectation("expect_column_values_to_not_be_null", {"column": "total"}), quarantine="q/n", id="checked"
    ),
    "process": lambda rows: rows.key_by("split").process("p", Differences(), state=STATE, output=OUTPUT),
    "enrich": lambda rows: (
        rows.select("split").key_by("split").connect(rows.key_by("split")).enrich("e", "total", latest_by="total")
    ),
    "other keys": lambda rows: rows.upsert("gold/n", keys=["split", "total"]),
}


@pytest.mark.parametrize("step", DELETES.values(), ids=list(DELETES))
def test_a_step_that_takes_no_row_back_is_refused_by_name(step):
    """Such a step would keep deleted rows. The message names the aggregate, and steps that can take rows back."""
    with pytest.raises(InvalidPipelineError, match=r"aggregate 'per_split'.* takes changes and so deletes rows"):
        step(again(per_key()))


OF_A_UNION = {
    "append table": lambda both: both.table("silver/n"),
    "append table of its own vertex": lambda both: both.table("silver/n", id="kept"),
    "check_rows": lambda both: both.check_rows(NOT_NULL, quarantine="q/n"),
    "upsert": lambda both: both.upsert("gold/n"),
    "process": lambda both: both.key_by("split").process("p", Differences(), state=STATE, output=OUTPUT),
}


@pytest.mark.parametrize("step", OF_A_UNION.values(), ids=list(OF_A_UNION))
def test_a_step_that_takes_no_row_back_is_refused_after_a_union_too(step):
    rows = again(per_key()).with_column("n", "total", LongType())
    said = "a stream of this union takes rows back|union 'both', which .*this step cannot|only the direct output of a"
    with pytest.raises(InvalidPipelineError, match=said):
        step(rows.union(rows, id="both"))


def test_a_crash_may_not_take_a_row_back_twice():
    """With at-least-once checkpoints, rows may come again after a crash. So a row could be taken back twice."""
    pipeline = Pipeline("example")
    again(per_key(pipeline)).upsert("gold/per_split")
    with pytest.raises(InvalidPipelineError, match=r"vertex per_split: it takes changes, and with mode at_least_once"):
        plan(pipeline, config=CheckpointConfig(mode=CheckpointingMode.AT_LEAST_ONCE))


def enriched(left, right):
    return left.key_by("key").connect(right.key_by("key")).enrich("enriched", "top")


def test_enriched_updates_are_updates():
    """More columns do not make an update append-only."""
    pipeline = Pipeline("example")
    left = pipeline.source("left", SequenceSource({"a": 10})).key_by("key", "split").aggregate("per_key", n=count())
    right = pipeline.source("right", SequenceSource({"a": 10})).select("key", "value")
    both = left.key_by("key").connect(right.key_by("key")).enrich("enriched", "value")
    with pytest.raises(InvalidPipelineError, match="updates of the aggregate 'per_key'"):
        again(both)


def test_enriched_rows_are_append_only():
    """Each left row is emitted once, so it may be counted."""
    pipeline = Pipeline("example")
    left = pipeline.source("left", SequenceSource({"a": 10}))
    right = pipeline.source("right", SequenceSource({"a": 10})).with_column("top", "value", LongType())
    again(enriched(left, right.select("key", "top"))).upsert("gold/per_split")
    assert "per_split" in plan_of(pipeline)


def plan_of(pipeline):
    return [vertex.id for vertex in plan(pipeline).graph.vertices]


def test_the_first_update_of_an_aggregate_enriches_nothing():
    """The first update is a partial result of the first micro-batch's rows. The latest update may enrich."""
    pipeline = Pipeline("example")
    left = pipeline.source("left", SequenceSource({"a": 10})).key_by("key")
    sums = pipeline.source("right", SequenceSource({"a": 10})).key_by("key").aggregate("per_key", rows=count())
    both = left.connect(sums.key_by("key"))
    with pytest.raises(
        InvalidPipelineError, match=r"vertex enriched: its right rows are updates .*'per_key'.*latest_by"
    ):
        both.enrich("enriched", "rows")
    again(both.enrich("enriched", "rows", latest_by="rows").with_column("n", "rows", LongType())).upsert("gold/sums")
    assert "per_split" in plan_of(pipeline)


def test_a_process_function_may_read_updates_and_its_output_may_be_counted():
    """The function knows the earlier row from its state, so it can emit differences. Tidemark cannot check this."""
    pipeline = Pipeline("example")
    rows = pipeline.source("numbers", SequenceSource({"a": 10})).key_by("key").aggregate("per_key", n=count())
    differences = rows.key_by("key").process("differences", Differences(), state=STATE, output=OUTPUT)
    differences.key_by("n").aggregate("per_n", rows=count()).upsert("gold/per_n")
    assert "per_n" in plan_of(pipeline)


def test_two_aggregates_of_the_same_rows_are_allowed():
    """This is the way out in the message: both aggregates read the rows themselves."""
    pipeline = Pipeline("example")
    rows = pipeline.source("numbers", SequenceSource({"a": 10})).table("bronze/numbers", id="bronze")
    rows.key_by("key", "split").aggregate("per_key", n=count()).upsert("gold/per_key")
    rows.key_by("split").aggregate("per_split", n=count()).upsert("gold/per_split")
    assert {"per_key", "per_split"} <= set(plan_of(pipeline))


# ------------------------------------------------------------------
# Named outputs of a process function: what is refused, and how a reader finds the files of its output.


NUMBERS = StructType().add("n", LongType())
ROWS = StructType().add("key", LongType()).add("n", LongType())
ALERTS = {"alerts": NUMBERS}
CHANNEL = "_tidemark/j/channels/sort/_data/1"


class Function:
    """A function that changes nothing."""

    def process(self, inputs, state):
        return Processed(state, pl.DataFrame())


class Merging(Function):
    """A function that merges partial results."""

    def partials(self, rows, types):
        return rows

    def merged(self, partials, before):
        return partials


def processed(outputs=ALERTS, function=None):
    pipeline = Pipeline("j")
    keyed = pipeline.source("numbers", SequenceSource({"a": 10})).key_by("key")
    return pipeline, keyed.process("sort", function or Function(), state=NUMBERS, output=ROWS, outputs=outputs)


def file(path, rows=3):
    return FileHandle(path, rows, 10 * rows, 0)


def test_each_reader_is_planned_with_the_columns_of_its_output():
    """The function's own output still goes to a table of its vertex."""
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
    """Refused: an unknown output, an output of another stream, and steps only for a vertex's own output."""
    _, done = processed()
    with pytest.raises(InvalidPipelineError, match=said):
        act(done)


@pytest.mark.parametrize(
    ("outputs", "function", "error", "said"),
    [
        ({"Alerts": NUMBERS}, None, InvalidNameError, "output 'Alerts' does not match"),
        ({"a/b": NUMBERS}, None, InvalidNameError, "output 'a/b' does not match"),
        ({"alerts": StructType()}, None, InvalidPipelineError, "at least one field"),
        (
            {"alerts": StructType().add("n", LongType()).add("N", LongType())},
            None,
            InvalidPipelineError,
            "one name",
        ),
        (ALERTS, Merging(), InvalidPipelineError, "its function merges partials"),
    ],
)
def test_an_output_that_cannot_be_is_refused_where_it_is_declared(outputs, function, error, said):
    """Refused: a name that no folder can have, impossible columns, and a function that merges partial results."""
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
    """The entry lists the rename at the function's vertex. The output's table declares the rename, too."""
    pipeline, done = renamed({"alert": "key"})
    done.output("alerts").table("silver/alerts", id="alerts").change_columns(renamed_from={"alert": "key"})
    done.upsert("gold/sorted")
    found = plan(pipeline).graph
    assert [{"alert": "key"}] * 2 == [dict(found.vertex(name).columns_renamed_from) for name in ("sort", "alerts")]


@pytest.mark.parametrize(
    ("renames", "said"),
    [
        ({"alert": "n"}, "output 'alerts': column alert is renamed from 'n', and there still is a column n"),
        ({"alarm": "x"}, "column alarm is renamed from 'x', and there is no column 'alarm'"),
        ({"alert": "alert"}, "which is its own name"),
    ],
)
def test_a_rename_that_means_nothing_in_an_output_is_refused(renames, said):
    """Each output has its own columns, so the message names the output."""
    with pytest.raises(InvalidPipelineError, match=said):
        renamed(renames)


def test_an_output_that_nobody_reads_is_refused():
    """The rows of such an output would be lost silently."""
    pipeline, done = processed()
    done.table("silver/sorted")
    with pytest.raises(InvalidPipelineError, match="nothing reads the output 'alerts' of vertex sort"):
        plan(pipeline)


def test_a_table_may_not_be_laid_out_by_the_name_of_our_folders():
    """Tidemark's own folders `_output=...` show to which output the rows of a file belong."""
    pipeline = Pipeline("j")
    numbers = pipeline.source("numbers", SequenceSource({"a": 10})).with_column("_output", "n", LongType())
    with pytest.raises(InvalidPipelineError, match="folders of '_output' are Tidemark's own"):
        numbers.table("bronze/numbers", id="bronze", partition_by=["_output"])


def test_a_reader_gets_the_files_of_its_output_only():
    """Files without such a folder belong to the function's own output.

    A segment without a file of the output is left out.
    """
    own, alert, late = (file(f"{CHANNEL}/{folder}f.parquet") for folder in ("", "_output=alerts/", "_output=late/"))
    of_source = SourceSlice("numbers", "a", "0", "1", "{}", 1, 1)
    segments = [StagedSegment((own, alert)), StagedSegment((late,)), of_source]
    known = ("alerts", "late")
    assert [StagedSegment((own,)), of_source] == list(of_output(segments, None, known))
    assert [StagedSegment((alert,)), of_source] == list(of_output(segments, "alerts", known))
    assert [StagedSegment((late,)), of_source] == list(of_output(segments, "late", known))


def test_rows_in_flight_of_an_output_that_is_gone_are_an_error():
    """A reader that skipped these rows would lose them."""
    segments = [StagedSegment((file(f"{CHANNEL}/_output=late/f.parquet", rows=7),))]
    with pytest.raises(UnknownOutputError, match=r"7 rows in flight are of the output 'late', which .* no longer has"):
        list(of_output(segments, None, ("alerts",)))


def test_an_output_without_rows_is_whole_and_an_unknown_one_is_named():
    """The function may leave an output without rows. It may not emit rows for an undeclared output."""
    outputs = NamedOutputs("channels/sort", {"alerts": pa.schema([("n", pa.int64())])})
    rows = outputs.conformed("sort", {})
    assert ({"n": pl.Int64}, 0) == (dict(rows["alerts"].schema), rows["alerts"].height)
    with pytest.raises(UnknownOutputError, match="put out rows as 'alert', and its outputs are alerts"):
        outputs.conformed("sort", {"alert": pl.DataFrame({"n": [1]})})


# ------------------------------------------------------------------
# Which overwrite tables a pipeline may have. The error is raised when the pipeline is built, and names the column or
# step.


def numbers(pipeline=None):
    return (pipeline or Pipeline("example")).source("numbers", SequenceSource({"a": 10}))


@pytest.mark.parametrize(
    ("version", "by", "message"),
    [
        ("day", [], "version of table silver/newest: there is no column 'day'"),
        ("real", [], "column 'real' is a double, and only whole numbers, dates, timestamps and texts can be versions"),
        ("good", [], "column 'good' is a boolean"),
        ("n", ["key", "n"], "column 'n' is in partition_by too, so each partition has one version"),
        ("n", ["at"], "partition_by of table silver/newest: column 'at' is a timestamp"),
        ("n", "key", "partition_by is the text 'key'"),
    ],
)
def test_a_version_has_a_type_with_one_order(version, by, message):
    """A double is refused, since engines order NaN in different ways."""
    rows = numbers().with_column("real", "1.5", DoubleType()).with_column("good", "true", BooleanType())
    rows = rows.with_column("at", "timestamp_seconds(n)", TimestampType())
    with pytest.raises(InvalidPipelineError) as excinfo:
        rows.overwrite("silver/newest", version=version, partition_by=by, id="newest")
    assert message in str(excinfo.value)


def test_rows_that_replace_others_are_refused():
    """The table would also show the replaced rows.

    A stream that takes rows back is refused as in any append-only step.
    """
    updates = numbers().key_by("key").aggregate("counts", rows=count())
    kept = updates.table("gold/kept")
    for stream in (updates, kept.select("key", "rows")):
        with pytest.raises(InvalidPipelineError, match=r"updates of the aggregate 'counts'.*with upsert"):
            stream.overwrite("silver/newest", version="rows", id="newest")
    first = top(numbers().key_by("key"), "first", n=1, order_by="n")
    with pytest.raises(InvalidPipelineError, match=r"updates of the top 'first'.*overwrite the table from the rows"):
        first.overwrite("silver/newest", version="n", id="newest")


def test_a_stream_goes_on_after_an_overwrite_table():
    """The table can be described, judged and checked. Later steps get all rows. A union can be written so, too."""
    pipeline = Pipeline("example")
    rows = numbers(pipeline)
    both = rows.union(rows.with_column("n", "n + 1", rows.schema["n"].dataType), id="both")
    table = both.overwrite("silver/newest", version="n", partition_by=["key"], id="newest").describe_table("the newest")
    good = table.expect(NOT_NULL).check_rows(NOT_NULL, quarantine="quarantine/newest")
    good.key_by("key").aggregate("counts", rows=count()).upsert("gold/counts")
    planned = plan(pipeline)
    vertex = planned.graph.vertex("newest")
    newest, quarantine = vertex.tables
    assert (TableMode.OVERWRITE, ("n",), ("key",), True) == (
        newest.mode,
        newest.keys,
        newest.partitioned_by,
        newest.judged,
    )
    assert TableMode.APPEND is quarantine.mode
    assert planned.vertices["newest"].spec.emits
    with pytest.raises(InvalidPipelineError, match="two vertices have the id 'newest'"):
        both.overwrite("silver/other", version="n", id="newest")
    with pytest.raises(InvalidPipelineError, match=r"table silver/newest is written by vertex newest already"):
        both.overwrite("silver/newest", version="n", id="other")


def test_what_an_overwrite_table_lacks_is_no_argument():
    """So no user can believe that an outside sink follows the table, or that keys matter."""
    for given in ("sink", "keys"):
        with pytest.raises(TypeError, match=given):
            numbers().overwrite("silver/newest", version="n", id="newest", **{given: None})


# ------------------------------------------------------------------
# Columns by which a table cannot be laid out are refused when the pipeline is built. The error names the column.


def refused(excinfo) -> str:
    return str(excinfo.value)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (["day"], "there is no column 'day'"),
        (["key", "Key"], "columns 'key' and 'Key' have one name"),
        ("key", "partition_by is the text 'key'; name columns, as in ['key']"),
        (["real"], "column 'real' is a double, and only texts, whole numbers, dates and booleans"),
        (["list"], "column 'list' is a array<string>"),
        (["at"], "column 'at' is a timestamp, and only texts"),
    ],
)
def test_a_table_is_laid_out_by_columns_that_every_reader_understands(by, message) -> None:
    """The error says which column does not fit, for append and upsert tables."""
    rows = numbers().with_column("real", "1.5", DoubleType()).with_column("list", "array('a')", ArrayType(StringType()))
    rows = rows.with_column("at", "timestamp_seconds(n)", TimestampType()).select("key", "real", "list", "at", "n")
    with pytest.raises(InvalidPipelineError) as excinfo:
        rows.table("bronze/rows", id="rows", partition_by=by)
    assert message in refused(excinfo)
    with pytest.raises(InvalidPipelineError) as excinfo:
        rows.key_by("key").aggregate(
            "kept", real=max_of("real"), at=max_of("at"), list=first_of("list", order_by=["n"])
        ).upsert("gold/kept", partition_by=by)
    assert message in refused(excinfo)


def test_a_table_is_not_laid_out_by_all_columns_or_by_a_renamed_one() -> None:
    """Delta needs at least one column in the files.

    Files of a renamed partition column lie in folders of its old name.
    """
    rows = numbers().select("key", "n")
    with pytest.raises(InvalidPipelineError, match="it names all columns of the table; leave out at least one"):
        rows.table("bronze/rows", id="rows", partition_by=["key", "n"])
    summed = rows.key_by("key").aggregate("sums", total=sum_of("n", renamed_from="amount"))
    with pytest.raises(InvalidPipelineError, match=r"column 'total' is renamed from 'amount'.*keep the name"):
        summed.upsert("gold/sums", partition_by=["total"])
    assert ("key",) == summed.upsert("gold/sums", partition_by=["key"]).declarations.vertex("sums").table.partitioned_by


def test_tasks_read_a_column_under_the_name_that_the_file_has():
    """This also holds for a column that is renamed twice or swapped, and in a rule."""
    rows = Pipeline("renamed").source("rows", SequenceSource({"a": 10}))
    twice = rows.rename({"key": "one", "n": "two"}).rename({"one": "two", "two": "one"})
    assert {"key", "n"}.isdisjoint(twice.schema.names)
    rule = TaskSteps(lambda frame: frame, (plain_condition("two IS NOT NULL", twice.schema),))
    found = in_turn([*(step.chain for step in twice.steps), rule])
    assert isinstance(found, TaskSteps)
    assert {"two": Column("key"), "one": Column("n")} == {column.name: column.values for column in found.added}
    assert [("key",)] == [each.columns for each in found.rules]
    compared = in_turn([*(step.chain for step in twice.where("two <= one").steps)])
    assert [("key", "n")] == [rule.columns for rule in compared.rules]
    sevens = Call("remainder", (Column("key"),), (7,))
    computed = TaskSteps(lambda frame: frame, added=(NewColumn("two", sevens),))
    (rule,) = in_turn([computed, rule]).rules
    assert rule == Call("is_valid", (sevens,))


@pytest.mark.parametrize(
    "condition",
    [
        *("n = 1.0", "n = 1L", "n <=> 1", "n + 1 = 2", "n = m", "n % 0 = 0", "n = 'a'", "n % -7 = 0", "n * 2 > 0"),
        *("_split % 2 = 0", r"_split = 'a\'b'", "_split = 1", "true = key", "n = null", "n IN (1, null)", "n = 1 AND"),
        *("n = 1 -- n", "n = 1 /* one */", "abs(n) = 1", "N = 1", "n", "true", "n = 1 = true", "_split LIKE 'a_c'"),
        *("_split LIKE '%'", "n = 1 n", "n IN ()", "(n = 1", "case n when 1 then true", "upper(_split) = 'A'", "1 = n"),
        *("hour(n) = 1", "length(n) = 1", "split_part(_split, '', 1) = 'a'", "split_part(_split, 'a', 0) = 'a'"),
        *("date_format(n, 'HH') = '01'", "cast(n as int) = 1", "n - key = 0", "NOT n", "n = 1 OR 'a'"),
        *("lower(_split) = 'ä'", "lower(_split) < 'a'", "lower(_split) = _split", "length(lower(_split)) = 1"),
        *("case when n = 1 then lower(_split) end = 'a'", "if(n = 1, lower(_split), null) = 'a'"),
        *(
            f"regexp_extract(_split, '{pattern}', 1) = 'a'"
            for pattern in (
                "(a.b)",
                "(a)*",
                "(a",
                "a",
                "(a{2})",
                "(?:a)",
                "(a+?)",
                "([a&&b])",
                "(a$)",
                "(b^a)",
                "([ä])",
            )
        ),
        *("1 + 1 = 2", "split_part(cast(1 + 1 as string), 'a', 1) = '2'"),
        *("if(n = 1, null, null) = 1", "null = null", "if(n = 1, 'a', 1) = 1", "if(true, n, 1) = 1"),
    ],
)
def test_spark_judges_what_is_no_plain_condition(condition):
    """Spark also gets conditions with an error, and reports the error."""
    (step,) = numbers().where(condition).steps[-1:]
    assert isinstance(step.chain, TextSteps)


def test_a_task_copies_a_column_that_is_named_alone():
    """A word that is a value in SQL is no column. Spark computes a column of another type."""
    rows = numbers().with_column("true", "n", LongType())
    assert isinstance(rows.steps[-1].chain, TaskSteps)
    assert isinstance(rows.with_column("m", "`true`", LongType()).steps[-1].chain, TaskSteps)
    for expression, kind in (("true", LongType()), ("n", IntegerType()), ("n + 1", LongType()), ("N", LongType())):
        assert isinstance(rows.with_column("m", expression, kind).steps[-1].chain, TextSteps)


def test_a_number_that_a_decimal_cannot_hold_is_left_to_spark():
    """Ten does not fit decimal(1, 0), as a constant or as a remainder. A sum with `true` is an error."""
    rows = StructType().add("m", DecimalType(1, 0)).add("n", LongType()).add("d", DoubleType())
    assert plain_condition("m < 10", rows) is None
    assert [True, False] == [plain_column(each, DoubleType(), rows) is None for each in ("d + true", "d + 1")]
    assert plain_condition("m < 9", rows) is not None
    fits = [plain_column(each, DecimalType(1, 0), rows) for each in ("10", "n % 11", "n % 10", "9")]
    assert [True, True, False, False] == [each is None for each in fits]
