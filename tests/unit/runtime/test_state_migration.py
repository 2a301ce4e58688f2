"""Which restored files have other columns than the plan declares. Their footers alone decide this (D6)."""

import io
from dataclasses import dataclass

import pytest
from pyspark.sql.types import IntegerType, LongType, ShortType, StringType, StructType
from rich.console import Console

from checkpointing.channel_items import ChannelState, StagedSegment, SubtaskSnapshot
from checkpointing.handles import KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import ChannelId, EdgeId, Generation, TableName, VertexId, job_name
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import VertexRecord
from jobs.cli.run import PlainDisplay
from jobs.operators.spec import arrow_schema
from jobs.pipeline import Pipeline, count
from jobs.pipeline.planning import plan
from jobs.showing.quantities import Tally
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource
from jobs.spark.session import SparkConfig
from jobs.state.backend import state_file_schema
from jobs.state.worker_copy import CopyUses
from jobs.tick.engine import SparkEngine
from jobs.tick.listener import StateLoaded
from jobs.tick.state_migration import find_migrations, plan_with_migrations
from tests.unit.full_entry import plain_entry
from tests.unit.uncalled import Nothing

JOB = job_name("j")
COUNTS = VertexId("counts")


def planned(keys=("key",), /, function=None, **columns):
    """Return the plan of a job whose state has these columns besides its key."""
    pipeline, state = Pipeline(JOB), StructType()
    for name, kind in columns.items():
        state = state.add(name, kind)
    output = StructType().add("key", LongType())
    numbers = pipeline.source("numbers", SequenceSource({"a": 1}, keys=1)).key_by(*keys)
    numbers.process("counts", function or Nothing(), state=state, output=output).table("s/t")
    return plan(pipeline)


@pytest.fixture
def cut(tmp_path):
    """Return a function that makes a cut with one state file for each of the given plans, as that plan writes it."""

    def of(*plans, inline=False):
        files = []
        for number, each in enumerate(plans):
            writer = StagedFiles(str(tmp_path), JOB, Generation(1), COUNTS, number)
            spec = each.vertices[COUNTS].spec
            content = state_file_schema(arrow_schema(spec.state), spec.keys).empty_table()
            write = writer.inline if inline else writer.write
            handle = write(table_of_state(JOB, COUNTS), content)
            files.append(KeyedFile(handle, KeyedFileKind.DELTA, 0, 127, Version(Generation(1), number)))
        record = plain_entry(
            job=JOB,
            max_parallelism=128,
            vertices=(
                VertexRecord(
                    vertex=COUNTS,
                    micro_batch=1,
                    subtasks=(SubtaskSnapshot(state=tuple(files)),),
                    meanings=plans[-1].graph.vertex(COUNTS).meanings,
                ),
            ),
        )
        return record, [file.file.path for file in files]

    return of


OLD = {"n": IntegerType(), "note": StringType()}


def test_files_with_the_declared_columns_need_nothing(cut, tmp_path):
    """The plan does not change, and no subtask rewrites a file."""
    same = planned(**OLD)
    record, _ = cut(same, planned(note=StringType(), n=IntegerType()))
    assert {} == find_migrations(same, record, tmp_path)
    assert same == plan_with_migrations(same, record, tmp_path)


@pytest.mark.parametrize("inline", [False, True])
def test_just_the_files_with_other_columns_are_outdated(cut, tmp_path, inline):
    """A cut may hold old and new files, if a tick ended before all were rewritten.

    State inside an entry counts, too.
    """
    now = planned(n=LongType(), extra=StringType())
    record, (old, _) = cut(planned(**OLD), now, inline=inline)
    found = find_migrations(now, record, tmp_path)[COUNTS]
    assert {old} == found.outdated
    assert 3 == len(found.changes)
    assert {old} == plan_with_migrations(now, record, tmp_path).vertices[COUNTS].spec.outdated


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (planned(n=ShortType(), note=StringType()), "column n was int and is now smallint"),
        (planned(n=IntegerType(), note=LongType()), "column note was string and is now bigint"),
        (planned(("n",), note=StringType()), r"column n was keyed by \(key\) and is now keyed by \(n\)"),
    ],
)
def test_any_other_change_is_refused_naming_operator_and_column(cut, tmp_path, now, says):
    """The error is CutDoesNotFitError. Every way to start a job reports it before anything is changed."""
    record, _ = cut(planned(**OLD))
    with pytest.raises(CutDoesNotFitError, match=f"checkpoint 7: state of operator 'counts': {says}.*another id"):
        plan_with_migrations(now, record, tmp_path)


def test_a_missing_file_is_reported_by_the_micro_batch_that_needs_it(cut, tmp_path):
    """The micro-batch names the file and its operator. Here, the file's columns are unknown."""
    record, (path,) = cut(planned(**OLD))
    (tmp_path / path).unlink()
    assert {} == find_migrations(planned(n=LongType()), record, tmp_path)


def test_an_operator_that_is_new_or_gone_has_nothing_to_migrate(cut, tmp_path):
    """Which operators may be missing is decided elsewhere (G2)."""
    record, _ = cut(planned(**OLD))
    other = record.model_copy(update={"vertices": (record.vertices[0].model_copy(update={"vertex": VertexId("x")}),)})
    assert {} == find_migrations(planned(n=LongType()), other, tmp_path)


@dataclass
class Versioned(Nothing):
    """A keyed function that declares the version of its state."""

    state_version: int


def test_another_version_of_a_function_is_refused_and_a_first_one_is_taken(cut, tmp_path):
    """A user's function may declare the version of its state. State without a recorded version is accepted as it is."""
    first, second = (planned(**OLD, function=Versioned(version)) for version in (1, 2))
    says = "checkpoint 7: state of operator 'counts': column n was process.. version 1 and is now process.. version 2"
    record, _ = cut(first)
    with pytest.raises(CutDoesNotFitError, match=f"{says}.*state of version 1 is there"):
        plan_with_migrations(second, record, tmp_path)
    with pytest.raises(CutDoesNotFitError, match="the function declares no state_version now"):
        plan_with_migrations(planned(**OLD), record, tmp_path)
    undeclared, _ = cut(planned(**OLD))
    assert second.vertices == plan_with_migrations(second, undeclared, tmp_path).vertices


def test_state_of_an_older_format_is_taken_as_it_is_and_told(cut, tmp_path):
    """The entry records no meanings, so nothing can be compared. The next checkpoint records them."""
    same = planned(**OLD)
    record, _ = cut(same)
    was = record.vertices[0].model_copy(update={"meanings": None})
    found = find_migrations(same, record.model_copy(update={"vertices": (was,)}), tmp_path)[COUNTS]
    assert [("not recorded", "process()")] * 2 == [(change.was, change.now) for change in found.changes]
    assert frozenset() == found.outdated
    assert ["n", "note"] == [meaning.column for meaning in found.meanings]


def test_the_meaning_of_a_dropped_column_is_recorded_while_files_hold_it(cut, tmp_path):
    """If the column came back, its old values would be read again."""
    now = planned(n=IntegerType())
    record, _ = cut(planned(**OLD))
    migrated = plan_with_migrations(now, record, tmp_path)
    assert ["n", "note"] == [meaning.column for meaning in migrated.graph.vertex(COUNTS).meanings]
    rewritten, _ = cut(now)
    left = rewritten.vertices[0].model_copy(update={"meanings": migrated.graph.vertex(COUNTS).meanings})
    again = plan_with_migrations(now, rewritten.model_copy(update={"vertices": (left,)}), tmp_path)
    assert ["n"] == [meaning.column for meaning in again.graph.vertex(COUNTS).meanings]


def joined(name, kept_name, **was):
    """Return the plan of a count in a column of this name. The counts wait for numbers in an enrichment."""
    pipeline = Pipeline(JOB)
    rows = pipeline.source("numbers", SequenceSource({"a": 1}, keys=1))
    counted = rows.key_by("key").aggregate("sums", **{name: count(**was)})
    if name != kept_name:
        counted = counted.with_column(kept_name, name, LongType()).drop(name)
    other = pipeline.source("others", SequenceSource({"b": 1}, keys=1)).key_by("key")
    counted.key_by("key").connect(other).enrich("counts", "value").table("s/t")
    return plan(pipeline)


def test_rows_that_wait_under_the_old_name_of_a_renamed_column_are_refused(cut, tmp_path):
    """A rename does not change names inside a column. The way out that the message names works."""
    record, _ = cut(joined("n", "n"))
    now = joined("total", "total", renamed_from="n")
    says = r"state of operator 'counts': column waiting.total was n and is now total: .*with_column\('n', 'total', TYPE"
    with pytest.raises(CutDoesNotFitError, match=says):
        plan_with_migrations(now, record, tmp_path)
    assert plan_with_migrations(joined("total", "n", renamed_from="n"), record, tmp_path)


def test_rows_in_flight_under_the_old_name_of_a_renamed_column_are_refused(cut, tmp_path):
    """An unaligned checkpoint has these rows in files with only the old name.

    The previous version of the pipeline reads them.
    """
    before, now = joined("n", "n"), joined("total", "total", renamed_from="n")
    sums = VertexId("sums")
    content = arrow_schema(before.vertices[sums].spec.output).empty_table()
    writer = StagedFiles(str(tmp_path), JOB, Generation(1), sums, 7)
    file = writer.write(TableName(f"_tidemark/{JOB}/channels/sums"), content)
    held = ChannelState(ChannelId(EdgeId(sums, COUNTS, 0), 0), (StagedSegment((file,)),))
    record, _ = cut(before)
    was = VertexRecord(vertex=COUNTS, micro_batch=1, subtasks=(SubtaskSnapshot(in_flight=(held,)),))
    record = record.model_copy(update={"vertices": (was,)})
    with pytest.raises(CutDoesNotFitError, match="rows in flight from 'sums': column total was n and is now total"):
        plan_with_migrations(now, record, tmp_path)
    assert plan_with_migrations(before, record, tmp_path)


def keyed_rows(name):
    return StructType().add("key", LongType()).add(name, LongType())


def sorting(own, outputs=("late", "odd"), **renamed):
    """Return the plan of a function with these named outputs. `counts` reads the first output's column `total`."""
    pipeline = Pipeline(JOB)
    numbers = pipeline.source("numbers", SequenceSource({"a": 1}, keys=1)).key_by("key")
    done = numbers.process(
        "sums",
        Nothing(),
        state=StructType().add("seen", LongType()),
        output=keyed_rows(own),
        outputs={name: keyed_rows("total") for name in outputs},
        columns_renamed_from=renamed,
    ).table("s/own")
    for name in outputs[1:]:
        done.output(name).table(f"s/{name}", id=name)
    done.output(outputs[0]).key_by("key").aggregate("counts", rows=count()).upsert("s/t")
    return plan(pipeline)


@pytest.fixture
def flying(cut, tmp_path):
    """Return a function that makes a cut with files of these outputs, with these columns, in flight to `counts`."""

    def of(before, own, *outputs):
        channel = TableName(f"_tidemark/{JOB}/channels/sums")
        writer = StagedFiles(str(tmp_path), JOB, Generation(1), VertexId("sums"), 7)
        places = {"": keyed_rows(own)} | {f"_output={name}": keyed_rows("total") for name in outputs}
        rows = {folder: arrow_schema(schema).empty_table() for folder, schema in places.items()}
        files = tuple(writer.write(channel, content, folder=folder) for folder, content in rows.items())
        held = ChannelState(ChannelId(EdgeId(VertexId("sums"), COUNTS, 0), 0), (StagedSegment(files),))
        was = VertexRecord(vertex=COUNTS, micro_batch=1, subtasks=(SubtaskSnapshot(in_flight=(held,)),))
        return cut(before)[0].model_copy(update={"vertices": (was,)})

    return of


def test_rows_in_flight_of_another_output_do_not_refuse_a_rename(flying, tmp_path):
    """Rows of another output are in the same channel, with the old name.

    `counts` skips them, and its own rows never had that name.
    """
    record = flying(sorting("n"), "n", "late", "odd")
    assert plan_with_migrations(sorting("total", total="n"), record, tmp_path)


def test_an_output_with_rows_in_flight_may_not_be_taken_away(flying, tmp_path):
    """The tick is refused before it claims the job. The message names the checkpoint, the vertex and the output."""
    record = flying(sorting("n"), "n", "late", "odd")
    says = "checkpoint 7, vertex 'sums': 0 rows in flight are of the output 'odd', which .* no longer has: put"
    with pytest.raises(CutDoesNotFitError, match=says):
        plan_with_migrations(sorting("n", ("late",)), record, tmp_path)
    assert plan_with_migrations(sorting("n"), record, tmp_path)


# ------------------------------------------------------------------
# At its end, a tick on a cluster reports where its tasks found their state.


USES = CopyUses(hits=30, behind=4, misses=1_200)


@pytest.fixture
def told():
    out = io.StringIO()
    return PlainDisplay(Console(file=out, width=40), Tally(rows_ahead=0)), lambda: out.getvalue().splitlines()


@pytest.mark.parametrize("config", [SparkConfig(master="spark://h:1"), SparkConfig(connect_url="sc://h:1")])
def test_a_tick_on_a_cluster_says_it_once(told, config):
    """After a miss, a task reads all files of a range from the store. The engine may be closed twice."""
    display, lines = told
    engine = SparkEngine(config, display)
    engine.copies += USES
    engine.close()
    engine.close()
    assert [
        "state: 34 of 1,234 loads found a copy in the worker's memory, 4 of them without the newest files"
    ] == lines()


def test_a_local_tick_and_one_without_state_say_nothing(told):
    """Local workers are few, and their misses cost little."""
    display, lines = told
    for config, uses in ((SparkConfig(), USES), (SparkConfig(master="spark://h:1"), CopyUses())):
        engine = SparkEngine(config, display)
        engine.copies += uses
        engine.close()
    assert [] == lines()


def test_the_line_of_few_loads(told):
    display, lines = told
    display.progress(StateLoaded(CopyUses(hits=1)))
    assert ["state: 1 of 1 load found a copy in the worker's memory"] == lines()
