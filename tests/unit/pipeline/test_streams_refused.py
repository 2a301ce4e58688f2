"""A wrong pipeline is refused at the line that is wrong. The error names the id, the rule and the way out."""

import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DayTimeIntervalType,
    DoubleType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from checkpointing.identifiers import InvalidNameError
from jobs.pipeline import InvalidPipelineError, Pipeline, Stream, count, sum_of
from jobs.pipeline.joins import join
from jobs.pipeline.planning import plan
from jobs.pipeline.rows_in_time import distinct
from jobs.pipeline.top import deduplicate
from jobs.pipeline.windows import tumbling
from jobs.quality.expectation import Expectation
from jobs.sinks.port import Sink
from jobs.sources.files.file_source import FileSource
from jobs.sources.hybrid import SequenceSource
from tests.unit.uncalled import Nothing

NOT_NULL = Expectation("expect_column_values_to_not_be_null", {"column": "value"})


def numbers(pipeline: Pipeline | None = None, name: str = "numbers") -> Stream:
    return (pipeline or Pipeline("example")).source(name, SequenceSource({"a": 10}))


def refused(excinfo) -> str:
    return str(excinfo.value)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda: Pipeline("No Folder"), id="job"),
        pytest.param(lambda: Pipeline("example").source("Numbers!", SequenceSource({"a": 1})), id="source"),
        pytest.param(lambda: numbers().table("bronze", id="kept"), id="table without schema"),
        pytest.param(lambda: numbers().table("bronze/../x", id="kept"), id="table outside"),
        pytest.param(lambda: numbers().table("bronze/numbers", id="bronze/numbers"), id="vertex"),
        pytest.param(lambda: numbers().key_by("key").aggregate("a-b", rows=count()), id="aggregate"),
        pytest.param(lambda: numbers().key_by("key").aggregate("ab", rows=count()).upsert("gold"), id="upsert"),
        pytest.param(lambda: numbers().check_rows(NOT_NULL, quarantine="bad", id="checked"), id="quarantine"),
    ],
)
def test_a_name_that_cannot_be_a_path_is_refused_where_it_is_written(write) -> None:
    """Names that a user gives are validated before anything is declared."""
    with pytest.raises(InvalidNameError):
        write()


def test_rows_of_an_aggregate_without_keys_have_no_column_of_its_name() -> None:
    rows = numbers().with_column("_all", "n", LongType())
    with pytest.raises(InvalidPipelineError) as excinfo:
        rows.aggregate("total", rows=count())
    assert "vertex total: columns '_all' and '_all' have one name; rename one" == refused(excinfo)


def test_two_vertices_may_not_share_an_id() -> None:
    """A restore finds a vertex's state by the vertex's id, so an id names one vertex."""
    pipeline = Pipeline("example")
    numbers(pipeline)
    with pytest.raises(InvalidPipelineError) as excinfo:
        numbers(pipeline)
    assert "pipeline example: two vertices have the id 'numbers'; rename one" == refused(excinfo)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda rows: rows.table("bronze/numbers", id="again"), id="table"),
        pytest.param(lambda rows: rows.check_rows(NOT_NULL, quarantine="bronze/numbers", id="again"), id="quarantine"),
        pytest.param(
            lambda rows: rows.key_by("key").aggregate("again", rows=count()).upsert("bronze/numbers"), id="upsert"
        ),
    ],
)
def test_two_vertices_may_not_write_one_table(second) -> None:
    """The message names both vertices."""
    rows = numbers().table("bronze/numbers", id="kept")
    with pytest.raises(
        InvalidPipelineError, match="vertex again: table bronze/numbers is written by vertex kept already"
    ):
        second(rows)


def test_a_table_cannot_be_its_own_quarantine() -> None:
    """A vertex may write each table only once."""
    with pytest.raises(InvalidPipelineError, match="vertex kept: table bronze/numbers is written by vertex kept"):
        numbers().table("bronze/numbers", id="kept").check_rows(NOT_NULL, quarantine="bronze/numbers")


def test_one_vertex_checks_its_rows_once() -> None:
    """A second check of the same table would replace the first check."""
    rows = numbers().table("bronze/numbers", id="kept")
    rows.check_rows(NOT_NULL, quarantine="q/bad")
    with pytest.raises(InvalidPipelineError, match="quarantine q/worse: rows are checked right after table"):
        rows.check_rows(NOT_NULL, quarantine="q/worse")


def test_a_refused_change_leaves_the_pipeline_unchanged() -> None:
    """The call raises an error, and the pipeline is the same as before."""
    pipeline = Pipeline("example")
    rows = numbers(pipeline).table("bronze/numbers", id="kept")
    before = pipeline.vertices()
    with pytest.raises(InvalidPipelineError):
        rows.check_rows(NOT_NULL, quarantine="bronze/numbers")
    assert before == pipeline.vertices()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda rows: rows.select("n", "nope"), id="select"),
        pytest.param(lambda rows: rows.drop("nope"), id="drop"),
        pytest.param(lambda rows: rows.key_by("n", "nope"), id="key_by"),
        pytest.param(lambda rows: rows.key_by("n").aggregate("sums", total=sum_of("nope")), id="aggregate"),
        pytest.param(lambda rows: rows.key_by("n").connect(rows.key_by("n")).enrich("enriched", "nope"), id="enrich"),
        pytest.param(
            lambda rows: (
                rows.select("n").key_by("n").connect(rows.key_by("n")).enrich("enriched", "value", latest_by="nope")
            ),
            id="latest_by",
        ),
        pytest.param(
            lambda rows: rows.check_rows(
                Expectation("expect_column_values_to_not_be_null", {"column": "nope"}), quarantine="q/bad", id="checked"
            ),
            id="row rule",
        ),
        pytest.param(
            lambda rows: rows.table("bronze/numbers", id="kept").expect(
                Expectation("expect_column_pair_values_to_be_equal", {"column_A": "n", "column_B": "nope"})
            ),
            id="suite",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", total=sum_of("value")).upsert("gold/sums", ("n", "nope")),
            id="upsert",
        ),
    ],
)
def test_an_unknown_column_is_refused_with_the_known_ones(write) -> None:
    """The message lists the columns."""
    with pytest.raises(InvalidPipelineError, match=r"there is no column 'nope'; the rows have .*\bn\b"):
        write(numbers())


@pytest.mark.parametrize(
    ("write", "rule"),
    [
        pytest.param(lambda rows: rows.key_by(), "name at least one column", id="no key"),
        pytest.param(lambda rows: rows.key_by("n", "n"), "columns 'n' and 'n' have one name", id="key twice"),
        pytest.param(lambda rows: rows.select(), "select on numbers: name at least one column", id="nothing selected"),
        pytest.param(
            lambda rows: rows.with_column("N", "n + 1", LongType()), "columns 'n' and 'N' have one name", id="case"
        ),
        pytest.param(lambda rows: rows.key_by("n").aggregate("sums"), "needs a column", id="no aggregate"),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", n=count()),
            "columns 'n' and 'n' have one name",
            id="named as key",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", _deleted=count()),
            "may not be called '_deleted'",
            id="reserved",
        ),
        pytest.param(
            lambda rows: rows.with_column("_Key_group", "n", LongType()).key_by("n"),
            "key_by on numbers: keyed rows may not have a column '_Key_group'; drop or rename it before",
            id="ours beside the key",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", total=sum_of("split")),
            "can't sum column split",
            id="sum of text",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").connect(rows.key_by("split")), "cast them to the same types", id="key types"
        ),
        pytest.param(
            lambda rows: rows.key_by("n").connect(rows.key_by("n", "key")),
            "cast them to the same types",
            id="key number",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").connect(numbers().key_by("n")), "belong to two pipelines", id="two pipelines"
        ),
        pytest.param(
            lambda rows: rows.key_by("n").connect(rows.key_by("n")).enrich("enriched", "value"),
            r"vertex enriched: columns \['value'\] are in the left rows too",
            id="enriched by its own",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").process(
                "seen", Nothing(), state=StructType().add("n", LongType()), output=StructType().add("n", LongType())
            ),
            "vertex seen, state: columns 'n' and 'n' have one name",
            id="keys in the state",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").process(
                "seen", Nothing(), state=StructType().add("_key_group", LongType()), output=StructType()
            ),
            "may not be called '_key_group'",
            id="state reserved",
        ),
        pytest.param(
            lambda rows: rows.key_by("n", "key").aggregate("sums", rows=count()).upsert("gold/sums", ("n",)),
            r"the keys \['n'\] lack 'key', a key of vertex sums",
            id="upsert by less",
        ),
        pytest.param(
            lambda rows: rows.upsert("gold/numbers"), "direct output of a keyed vertex", id="upsert of a source"
        ),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", rows=count()).drop("rows").upsert("gold/sums"),
            "direct output of a keyed vertex",
            id="upsert after a step",
        ),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", rows=count()).upsert("gold/sums").upsert("gold/more"),
            "writes no table yet",
            id="two upserts",
        ),
        pytest.param(
            lambda rows: rows.table("bronze/numbers"), r"table\('bronze/numbers', id=\.\.\.\)", id="table without id"
        ),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", rows=count()).table("silver/sums").table("silver/more"),
            r"table\('silver/more', id=\.\.\.\)",
            id="second table without id",
        ),
        pytest.param(
            lambda rows: rows.check_rows(NOT_NULL, quarantine="q/bad"),
            r"check_rows\(\.\.\., id=\.\.\.\)",
            id="check without id",
        ),
        pytest.param(
            lambda rows: (
                rows.table("bronze/numbers", id="kept")
                .check_rows(NOT_NULL, quarantine="q/bad")
                .check_rows(NOT_NULL, quarantine="q/worse")
            ),
            "right after table",
            id="checked twice",
        ),
        pytest.param(
            lambda rows: rows.check_rows(quarantine="q/bad", id="checked"), "at least one expectation", id="no rule"
        ),
        pytest.param(
            lambda rows: rows.check_rows(
                Expectation("expect_column_mean_to_be_between", {"column": "n", "min_value": 0}),
                quarantine="q/bad",
                id="checked",
            ),
            "vertex checked: expect_column_mean_to_be_between cannot split rows",
            id="no row rule",
        ),
        pytest.param(lambda rows: rows.expect(NOT_NULL), "a suite judges a table", id="suite of no table"),
        pytest.param(
            lambda rows: rows.table("bronze/numbers", id="kept").expect(NOT_NULL).expect(NOT_NULL),
            "has a suite already",
            id="two suites",
        ),
        pytest.param(
            lambda rows: rows.table("bronze/numbers", id="kept").expect(), "has no expectation", id="empty suite"
        ),
        pytest.param(
            lambda rows: rows.key_by("n").aggregate("sums", value=count()).upsert("gold/sums").expect(NOT_NULL),
            "judge the stream that feeds it",
            id="suite of an upserted table",
        ),
    ],
)
def test_a_call_without_a_meaning_is_refused_with_its_rule(write, rule: str) -> None:
    """Each rule of the API has its own message."""
    with pytest.raises(InvalidPipelineError, match=rule):
        write(numbers())


@pytest.mark.parametrize("kind", [BooleanType(), BinaryType(), ArrayType(LongType())])
def test_the_latest_by_a_column_without_an_order_is_refused(kind) -> None:
    """Without an order, it is undefined which of two rows is later."""
    left = numbers().select("n").key_by("n")
    right = left.stream.with_column("value", "n", LongType()).with_column("at", "null", kind).key_by("n")
    with pytest.raises(
        InvalidPipelineError, match=r"vertex enriched: latest_by is 'at', a .*, of which none is the latest"
    ):
        left.connect(right).enrich("enriched", "value", latest_by="at")


@pytest.mark.parametrize("version", [0, -1, "2", 1.5, True, 2**53])
def test_a_state_version_that_is_no_whole_number_is_refused(version) -> None:
    """Each restore compares the version, so it must be a number that a user can raise."""
    function, state = Nothing(), StructType().add("seen", LongType())
    function.state_version = version
    with pytest.raises(InvalidPipelineError, match=r"vertex own: state_version is .*; declare a whole number from 1"):
        numbers().key_by("key").process("own", function, state=state, output=state)


@pytest.mark.parametrize("rows", [0, -1])
def test_a_cap_of_no_rows_is_refused(rows: int) -> None:
    """A source that may send nothing would never be caught up."""
    with pytest.raises(InvalidPipelineError, match="rows_per_epoch is"):
        Pipeline("example").source("numbers", SequenceSource({"a": 1}), rows_per_epoch=rows)


def test_no_parallelism_is_refused() -> None:
    """A keyed vertex has at least one subtask."""
    with pytest.raises(InvalidPipelineError, match="parallelism is 0"):
        Pipeline("example", parallelism=0)


def test_a_step_changes_the_schema() -> None:
    """Select, drop, with_column and transform agree on the columns that the next line may name."""
    rows = numbers().drop("split", "_split").select("value", "n").with_column("half", "n / 2", DoubleType())
    assert ["value", "n", "half"] == rows.schema.names
    other = StructType().add("word", StringType()).add("places", ArrayType(LongType()))
    assert other == rows.transform(lambda frame: frame, other).schema


def test_a_stream_is_not_changed_by_its_branches() -> None:
    """Streams are values, so one branch does not affect another."""
    rows = numbers()
    rows.select("n")
    assert ["split", "n", "key", "value", "_split", "_position"] == rows.schema.names
    assert () == rows.steps


def test_a_sink_must_suit_the_mode_of_its_table() -> None:
    """An append table cannot have a sink of upsert tables, nor the other way round."""

    class Appends(Sink):
        def prepare(self, job, table, schema):
            raise AssertionError("planning calls no sink")

        def publish(self, job, table, checkpoint, rows):
            raise AssertionError("planning calls no sink")

    stream = numbers()
    with pytest.raises(InvalidPipelineError, match=r"is no sink of upsert tables; derive it from tidemark.UpsertSink"):
        stream.key_by("key").aggregate("sums", rows=count()).upsert("gold/sums", sink=Appends())
    with pytest.raises(InvalidPipelineError, match=r"is no sink of append tables; derive it from tidemark.Sink"):
        stream.table("bronze/more", id="more", sink=object())


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        pytest.param({"columns": {"price": "in cents"}}, "there is no column 'price'; the rows have", id="column"),
        pytest.param({"comment": None}, "the comment must be a text, and is None", id="comment"),
        pytest.param({"properties": {"team": 7}}, "property team must be a text, and is 7", id="property"),
        pytest.param({"properties": {"the team": "a"}}, "'the team' is no name of a property, as team", id="name"),
        pytest.param(
            {"properties": {"delta.appendOnly": "true"}},
            "Tidemark sets no property 'delta.appendOnly', because names that begin with 'delta.' or 'tidemark.' "
            "change how tables are written; set it with ALTER TABLE, and Tidemark keeps it",
            id="Delta's",
        ),
    ],
)
def test_a_description_that_a_table_cannot_have_is_refused(says, problem) -> None:
    kept = numbers().table("bronze/numbers", id="kept")
    with pytest.raises(InvalidPipelineError) as excinfo:
        kept.describe_table(**says)
    assert f"description of table bronze/numbers: {problem}" in refused(excinfo)


def test_only_a_table_can_be_described() -> None:
    """After another step, it would be unclear which table is meant."""
    with pytest.raises(InvalidPipelineError) as excinfo:
        numbers().table("bronze/numbers", id="kept").select("n").describe_table("numbers")
    assert "describe_table on kept: it describes a table; write it right after table(...)" == refused(excinfo)


def nested(kind: str, depth: int):
    """Return a type with this many nested structs, lists or maps."""
    inner = LongType()
    for _ in range(depth):
        match kind:
            case "struct":
                inner = StructType().add("f", inner)
            case "list":
                inner = ArrayType(inner)
            case _:
                inner = MapType(StringType(), inner)
    return inner


@pytest.mark.parametrize("kind", ["struct", "list", "map"])
def test_a_type_that_no_table_can_hold_is_refused(kind, tmp_path) -> None:
    """Such a type is refused when the pipeline is planned.

    A type of the greatest allowed depth can be written and read.
    """

    def of(depth: int) -> StructType:
        pipeline = Pipeline("example")
        schema = StructType().add("deep", nested(kind, depth))
        numbers(pipeline).transform(lambda rows: rows, schema=schema).table("bronze/deep", id="deep")
        return plan(pipeline).table_schemas["bronze/deep"]

    for depth in (31, 150):
        with pytest.raises(InvalidPipelineError, match="table bronze/deep: column 'deep' has structs, lists or maps"):
            of(depth)
    schema = of(30)
    write_deltalake(str(tmp_path), pa.table([pa.nulls(2, schema.field(0).type)], schema=schema))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (DayTimeIntervalType(), "column 'x' has the type interval day to second, which Delta tables"),
        (ArrayType(YearMonthIntervalType()), "column 'x' has the type interval year to month, which Delta tables"),
        (StructType().add("a", NullType()), "column 'x' has the type void, which Delta tables"),
        (VariantType(), "column 'x' has the type variant, which Delta tables"),
        (CharType(3), "column 'x' has the type char(3), which Delta tables"),
        (
            StructType().add("a", LongType()).add("A", LongType()),
            "column 'x': fields 'a' and 'A' have one name; rename",
        ),
    ],
)
def test_a_type_that_tidemark_cannot_keep_is_refused_unless_a_step_converts_it(kind, why) -> None:
    """Such a type is refused when the pipeline is planned, at an append table, an aggregate or a deduplication."""

    def planned(write, *, converted: bool):
        pipeline = Pipeline("example")
        rows = numbers(pipeline).with_column("x", "NULL", kind)
        write(rows.with_column("x", "1", LongType()) if converted else rows)
        return plan(pipeline)

    for where, write in (
        ("table bronze/x", lambda rows: rows.table("bronze/x", id="kept")),
        ("table gold/x", lambda rows: rows.key_by("x").aggregate("kept", rows=count()).upsert("gold/x")),
        ("table gold/x", lambda rows: deduplicate(rows.key_by("key"), "kept", order_by="n").upsert("gold/x")),
    ):
        planned(write, converted=True)
        with pytest.raises(InvalidPipelineError, match=re.escape(f"{where}: {why}")):
            planned(write, converted=False)


def test_texts_with_a_collation_are_refused_by_keyed_operators() -> None:
    """Under such a collation A equals a for Spark, but not for an operator.

    A table without a keyed operator is accepted.
    """
    pipeline = Pipeline("example")
    rows = numbers(pipeline).with_column("x", "key", StringType("UTF8_LCASE")).table("bronze/x", id="kept")
    plan(pipeline)
    rows.key_by("x").aggregate("counted", rows=count()).upsert("gold/x")
    with pytest.raises(InvalidPipelineError, match=r"vertex counted: column 'x' has .*: cast it"):
        plan(pipeline)


# ------------------------------------------------------------------
# Wrong settings of event time. Each error says what to write instead.


TIMED = StructType().add("user", StringType()).add("at", TimestampType()).add("said", StringType()).add("n", LongType())
OTHER = {"at": "seen_at", "said": "heard", "n": "m"}


def timed(rows, **said):
    return rows.event_time("at", **({"delay": "1h"} | said))


def windowed(rows, late="late/days"):
    return rows.key_by("user").window(tumbling("1d")).aggregate("days", n2=count(), late=late)


def near(rows, within):
    right = timed(rows).rename(OTHER)
    return join(timed(rows).key_by("user"), right.key_by("user"), "near", within=within, late="late/near")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda rows: rows.event_time("said", delay="1h"), "column said has type string: make it a timestamp"),
        (
            lambda rows: timed(rows, delay=600),
            "delay: write a duration like 30s, 5m or 2h as a text, not 600",
        ),
        (lambda rows: timed(rows, delay="10 minutes"), r"^event_time on clicks: delay: write a duration like 30s"),
        (lambda rows: timed(rows, hold_back=timedelta(hours=1)), "hold_back: write a duration .* as a text"),
        (lambda rows: tumbling("1d", tz=None), "there is no time zone None: write one such as Europe/Berlin"),
        (windowed, "the rows of clicks have no event times: declare event_time on their source, or write by="),
        (lambda rows: windowed(timed(rows).drop("at")), "no event times any more. Keep the column of event_time"),
        (
            lambda rows: windowed(timed(rows).key_by("user").aggregate("a", at=count())),
            "the rows of a have no event times any more",
        ),
        (
            lambda rows: timed(rows).with_column("at", "now()", TimestampType()),
            "column at has the event times, and watermarks follow it; write event_time after with_column",
        ),
        (lambda rows: windowed(timed(rows), late=None), 'say where late rows go, as in late="late/days"'),
        (lambda rows: windowed(timed(rows), late="drop"), "late is 'drop', and no row is dropped: name a table"),
        (lambda rows: windowed(timed(rows), late=True), "late is True, and no row is dropped"),
        (
            lambda rows: distinct(timed(rows).key_by("user"), "once", within="1h", late="drop"),
            "late is 'drop', and no row is dropped: name a table for late rows, as in late=\"late/once\"",
        ),
        (lambda rows: timed(rows).key_by("user").window("1d"), "'1d' is no window; write one such as tumbling"),
        (
            lambda rows: timed(rows).key_by("user").aggregate("days", n2=count(), late="late/days"),
            "late= is for windows: write window",
        ),
        (lambda rows: near(rows, "1h"), "within is '1h'; write two durations, as in within="),
        (lambda rows: near(rows, (0, 60)), "write two durations"),
        (lambda rows: near(rows, ("0s", "1s", "2s")), "write two durations"),
    ],
)
def test_a_wrong_setting_of_event_time_is_refused_with_what_to_write(build, says):
    rows = Pipeline("shop").source("clicks", FileSource(Path("clicks"), TIMED)).drop("_split", "_position")
    with pytest.raises(InvalidPipelineError, match=says):
        build(rows)


def test_a_timestamp_that_becomes_another_type_is_no_event_time_any_more():
    rows = Pipeline("shop").source("clicks", FileSource(Path("clicks"), TIMED)).drop("_split", "_position")
    assert timed(rows).time is not None
    assert timed(rows).transform(lambda rows: rows, TIMED).time is not None
    texts = StructType([*(field for field in TIMED if field.name != "at"), StructField("at", StringType())])
    assert timed(rows).transform(lambda rows: rows, texts).time is None
