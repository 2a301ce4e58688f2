"""Tests odd names of warehouses, input, columns and partitions: in commands, with real Delta tables, and on Spark."""

import json
import shlex
from collections import Counter
from functools import reduce
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, JobName, SplitId, TableName, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.engine_paths import spark_sql_table
from jobs.operators.inputs import staged_rows
from jobs.pipeline.planning import plan
from jobs.pipelines import registry
from jobs.reading import Cuts
from jobs.reading.cut_sql import cut_sql, view_name
from jobs.showing.cut import recipes
from jobs.sources.files.file_source import FileSource
from jobs.tick.discovery import look_at_input
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse
from orchestration.epochs import passed_over
from tests.odd_names import ALL_IN_ONE, NAMES, NAMES_OF_FOLDERS, NOT_FOR_DELTA
from tests.scenarios.processes import killed
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, ticked
from tidemark import Expectation, InvalidPipelineError, Pipeline, count, join
from tidemark.testing import Trial

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
EVERY_NAME = [pytest.param(ALL_IN_ONE, id="all in one")] + [
    pytest.param(name, id=what, marks=pytest.mark.dear) for what, name in NAMES_OF_FOLDERS.items()
]
"""The first name contains nearly all odd characters. If it fails, the others show which character is to blame."""


@pytest.fixture
def done(typed):
    """Return a function that runs a command, checks that it succeeds, and returns its output."""

    def type_in(*words):
        code, out, err = typed(*words)
        assert ExitCode.DONE is code, (words, out, err)
        return out

    return type_in


def rows_read(cut):
    read = {table: cut.polars(table).collect().height for table in (BRONZE, GOLD)}
    assert read == {table: cut.arrow(table).num_rows for table in (BRONZE, GOLD)}
    return read


def pasted(cut, engine):
    recipe = next(each for each in recipes(cut) if each.engine == engine)
    names: dict = {}
    exec("\n".join(recipe.lines), names)  # noqa: S102 - a user would paste them
    read = {table: names[view_name(table)] for table in cut.tables}
    return {table: rows.collect().height if engine == "Polars" else rows.num_rows for table, rows in read.items()}


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_job_lives_in_a_warehouse_of_any_name(tmp_path, done, name):
    """Run, resume, savepoint, copy, restore, roll back, reset, read, examine, clean up: all of it works there."""
    root, copy, fork = tmp_path / name, tmp_path / f"{name} copy", tmp_path / "fork" / name
    where = ("--warehouse", root)
    done("run", PIPELINE, "--checkpoints", 1, *where)
    said = done("savepoint", JOB, "--to", copy, *where)
    number = said.split()[1]
    again = shlex.split(next(line for line in said.splitlines() if line.startswith("restore it with: tidemark ")))
    done("run", PIPELINE, *where)
    cut = Cuts(root, JOB).latest()
    assert {BRONZE: 300, GOLD: 7} == rows_read(cut) == pasted(cut, "Polars") == pasted(cut, "DuckDB")
    with duckdb.connect() as connection:
        connection.execute(done("cut", JOB, "--sql", "duckdb", "--schema", "then", *where))
        shown = {table: connection.table(f"then.{view_name(table)}").fetchall() for table in cut.tables}
        assert {table: len(rows) for table, rows in shown.items()} == {BRONZE: 300, GOLD: 7}
    by_key = cut.state("by_key").polars().collect().height
    assert 7 == by_key == len(duckdb.connect().sql(cut.state("by_key").sql("duckdb")).fetchall())
    done("state", JOB, "by_key", *where)
    done("checkpoints", "list", JOB, *where)

    assert ["restore", "it", "with:", "tidemark", "run", JOB, "--from", str(copy)] == again[:8]
    done("run", PIPELINE, "--from", again[7], "--warehouse", fork)
    assert {BRONZE: 300, GOLD: 7} == rows_read(Cuts(fork, JOB).latest())

    done("rollback", JOB, number, *where)
    done("reset", PIPELINE, "numbers", "--to", 0, "--split", "a", *where)
    done("run", PIPELINE, *where)
    assert {BRONZE: 350, GOLD: 7} == rows_read(Cuts(root, JOB).latest())
    done("doctor", JOB, *where)
    done("doctor", JOB, "--verify", *where)
    done("savepoint", JOB, "--dispose", number, *where)
    done("cleanup", JOB, "--reader-grace", "0s", *where)
    assert {BRONZE: 350, GOLD: 7} == rows_read(Cuts(root, JOB).latest())


def test_a_killed_tick_in_a_warehouse_of_an_odd_name_is_taken_up(tmp_path, done):
    """A tick is killed after it committed a checkpoint. The next tick publishes the checkpoint and loses nothing."""
    root = tmp_path / ALL_IN_ONE
    killed(ticked, root, kill_at="after:AppendRow#2")
    done("run", PIPELINE, "--warehouse", root)
    assert {BRONZE: 300, GOLD: 7} == rows_read(Cuts(root, JOB).latest())


@pytest.mark.parametrize("name", NOT_FOR_DELTA.values(), ids=NOT_FOR_DELTA)
def test_a_warehouse_that_delta_cannot_open_is_refused_before_anything_is_made(tmp_path, typed, name):
    """One sentence says which part of the name is the trouble. The folder is not created."""
    code, out, err = typed("run", PIPELINE, "--warehouse", tmp_path / name)
    assert (ExitCode.FAILED, "", 1) == (code, out, len(err.splitlines()))
    assert "cannot hold tables: delta-rs, which keeps their logs, cannot open a folder with" in err
    assert [] == list(tmp_path.iterdir())


def test_a_copy_that_delta_cannot_open_is_refused_before_a_savepoint_is_taken(tmp_path, done, typed):
    root = tmp_path / "warehouse"
    done("run", PIPELINE, "--checkpoints", 1, "--warehouse", root)
    before = done("checkpoints", "list", JOB, "--warehouse", root)
    code, _, err = typed("savepoint", JOB, "--to", tmp_path / "x%20y", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert "x%20y cannot hold tables" in err
    assert before == done("checkpoints", "list", JOB, "--warehouse", root)


# ------------------------------------------------------------------
# Tests that the tick, the doctor and Dagster report unread input. The commands are real, and none needs Spark.


ORDERS = f"{__name__}:orders"
ONE_COLUMN = StructType().add("n", LongType())


def orders(data: Path) -> Pipeline:
    pipeline = Pipeline("orders")
    pipeline.source("orders", FileSource(data / "orders", ONE_COLUMN)).table("bronze/orders", id="bronze")
    return pipeline


def broken(data: Path) -> Pipeline:
    """Raise an error, as a user's module may."""
    raise RuntimeError("out of ideas")


@pytest.fixture
def data(tmp_path):
    """Return the data folder. Its split has a file that the source does not read."""
    (tmp_path / "data" / "orders" / "EWR").mkdir(parents=True)
    (tmp_path / "data" / "orders" / "EWR" / "1.csv").write_text("n\n1\n")
    return tmp_path / "data"


@pytest.fixture
def over(tmp_path, data, capsys):
    """Return a function that runs a command and returns its exit code, stdout and stderr."""

    def type_in(verb, name, *words):
        code = execute([verb, name, "--warehouse", str(tmp_path / "warehouse"), "--data", str(data), *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return type_in


def test_a_tick_that_finds_no_file_does_not_say_that_it_is_caught_up(over, data):
    code, out, err = over("run", ORDERS)
    assert ExitCode.DONE is code
    assert "orders has read nothing: source orders found no file, and nothing else is new" in out
    assert "caught up" not in out
    assert 1 == err.count(f"source orders has found no file under {data}/orders: it reads")
    assert 1 == err.count("source orders passes over 1 file in")
    assert "EWR/1.csv" in err


def test_a_tick_that_read_files_names_the_ignored_ones_and_is_caught_up(over, data):
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), data / "orders" / "EWR" / "1.parquet")
    code, out, err = over("run", ORDERS)
    assert (ExitCode.DONE, True) == (code, "orders is caught up" in out)
    assert "has found no file" not in err
    assert 1 == err.count("source orders passes over 1 file in")


def test_the_doctor_finds_ignored_files(over, monkeypatch):
    monkeypatch.setitem(registry.OWN, "orders", ORDERS)
    over("run", ORDERS)
    code, out, _ = over("doctor", "orders")
    assert ExitCode.FAILED is code
    assert "source orders has found no file under" in out
    assert "source orders passes over 1 file in" in out
    assert "0 files in 1 splits of" in out


def test_the_doctor_looks_at_a_job_whose_pipeline_cannot_be_loaded(over, monkeypatch):
    """An error in the pipeline's module is one finding among the others."""
    monkeypatch.setitem(registry.OWN, "orders", f"{__name__}:broken")
    over("run", ORDERS)
    code, out, _ = over("doctor", "orders")
    assert ExitCode.FAILED is code
    said = next(line for line in out.splitlines() if "the pipeline cannot be loaded, so its input was not" in line)
    assert "RuntimeError: out of ideas" in said


def test_dagster_shows_ignored_files(data):
    """The source's metadata has the number of ignored files and a sentence, or neither if every file is read."""
    (seen,) = look_at_input(plan(orders(data)).sources, None)
    told = passed_over(seen)
    assert 1 == told["files_passed_over"].value
    assert "EWR/1.csv" in told["passed_over"].value
    (data / "orders" / "EWR" / "1.csv").unlink()
    assert {} == passed_over(look_at_input(plan(orders(data)).sources, None)[0]) == passed_over(None)


# ------------------------------------------------------------------
# Columns whose names mean something to Spark, in files of each format and through steps, rules, keys and joins.


KEY, TEXT, EMOJI, NUMBER = "customer.name", "50% `of`", "\N{GRINNING FACE}'s", 'am"ount'
SCHEMA = StructType().add(KEY, StringType()).add(TEXT, StringType()).add(EMOJI, StringType()).add(NUMBER, LongType())
ROWS = [("ann", "x", "p", 5), ("bob", "y", "q", 6), ("ann", "z", "r", 7)]


def write(folder: Path, form: str) -> None:
    folder.mkdir(parents=True)
    if form == "csv":
        lines = [",".join(f'"{word.replace(chr(34), chr(92) + chr(34))}"' for word in SCHEMA.names)]
        text = "\n".join([*lines, *(",".join(map(str, row)) for row in ROWS)])
    else:
        text = "\n".join(json.dumps(dict(zip(SCHEMA.names, row, strict=True))) for row in ROWS)
    (folder / f"1.{form}").write_text(f"{text}\n", encoding="utf-8")


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_columns_of_odd_names_pass_through_every_step(spark, tmp_path, form):
    rule = Expectation("expect_column_values_to_be_between", {"column": NUMBER, "min_value": 6})

    def build(data):
        pipeline = Pipeline("odd")
        source = FileSource(data / "in", SCHEMA, format=form, options={"header": "true"} if form == "csv" else {})
        rows = pipeline.source("in", source)
        twice = rows.with_column("twice.`as` much", f"`{NUMBER}` * 2", LongType())
        twice.table("out/rows", id="rows", partition_by=[KEY])
        kept = twice.transform(lambda frame: frame.filter(F.col(f"`{NUMBER}`") > 0)).check_rows(
            rule, quarantine="quarantine/rows", id="rules"
        )
        kept.select(KEY, NUMBER).key_by(KEY).aggregate("by_step", n=count()).upsert("out/by_step")
        rows.drop(TEXT).key_by(KEY).aggregate("by_task", n=count()).upsert("out_by/step")
        left = kept.select(KEY, NUMBER).key_by(KEY)
        right = rows.select(KEY, TEXT).key_by(KEY)
        join(left, right, "joined").table("out/joined")
        return pipeline

    made = Trial(build, tmp_path)
    if form == "parquet":
        columns = zip(SCHEMA.names, zip(*ROWS, strict=True), strict=True)
        made.deliver("in/a", pa.table({name: list(values) for name, values in columns}))
    else:
        write(made.data / "in" / "a", form)
    cut = made.run()
    found = cut.polars("out/rows").collect().sort(NUMBER)
    assert [(*row, 2 * row[-1]) for row in ROWS] == found.select(*SCHEMA.names, "twice.`as` much").rows()
    assert [("ann", 1), ("bob", 1)] == sorted(cut.polars("out/by_step").select(KEY, "n").collect().rows())
    assert [("ann", 2), ("bob", 1)] == sorted(cut.polars("out_by/step").select(KEY, "n").collect().rows())
    assert [5] == cut.polars("quarantine/rows").collect()[NUMBER].to_list()
    assert 3 == cut.polars("out/joined").collect().height
    with duckdb.connect() as connection:
        connection.execute(cut_sql(cut, "duckdb", 'a`b"c'))
        sums = (("out_rows", '"am""ount"', 18), ("out__by_step", "n", 2), ("out_by__step", "n", 3))
        for name, column, due in sums:
            assert [(due,)] == connection.execute(f'SELECT sum({column}) FROM "a`b""c".{name}').fetchall()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n", "N"], "columns 'n' and 'N' have one name; rename one"),
        (["n", "*"], "Polars takes the name of column '\\*' for a pattern; rename it"),
        (["n", "^n.*$"], "for a pattern; rename it"),
        (["n", "_tidemark_row"], "keeps names that begin with '_tidemark_' for itself; rename it"),
    ],
)
def test_names_that_an_engine_takes_for_others_are_refused_when_the_pipeline_is_built(tmp_path, names, said):
    """Spark finds a column whatever the case of its name, and Polars finds several columns by a pattern."""
    schema = StructType()
    for name in names:
        schema = schema.add(name, LongType())
    with pytest.raises(InvalidPipelineError, match=said):
        Pipeline("odd").source("in", FileSource(tmp_path, schema))


# ------------------------------------------------------------------
# Every odd name as Spark meets it: a data folder, an input file, a warehouse whose files and tables it reads.


NUMBERED = StructType().add("row", LongType())
EWR = SplitId("EWR")
EACH = 3


def write_numbers(path, first):
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"row": range(first, first + EACH)}), path)


def whole(source):
    return source.poll(PollSource(VertexId("in"), EWR, None, 1_000))


@pytest.mark.spark
def test_an_input_file_of_any_name_is_read_row_by_row(spark, tmp_path):
    names = sorted(f"{name}.parquet" for name in (NAMES | NOT_FOR_DELTA).values())
    (tmp_path / EWR).mkdir()
    for place, name in enumerate(names):
        pq.write_table(pa.table({"row": range(EACH * place, EACH * (place + 1))}), tmp_path / EWR / name)
    source = FileSource(tmp_path, NUMBERED)
    found = source.read(spark, [whole(source)]).select("row", "_split", "_position").orderBy("row").collect()
    assert [(row, EWR, row) for row in range(EACH * len(names))] == [tuple(row) for row in found]


@pytest.mark.spark
def test_a_data_folder_of_any_name_is_read(spark, tmp_path):
    """No name is taken for a glob, a URI or a column."""
    roots = [tmp_path / name for name in (NAMES_OF_FOLDERS | NOT_FOR_DELTA).values()]
    for place, root in enumerate(roots):
        write_numbers(root / EWR / "rows.parquet", EACH * place)
    sources = [FileSource(root, NUMBERED) for root in roots]
    frames = [source.read(spark, [whole(source)]) for source in sources]
    found = reduce(DataFrame.unionAll, frames).select("row").collect()
    assert list(range(EACH * len(roots))) == sorted(row[0] for row in found)


@pytest.mark.spark
def test_staged_files_in_a_warehouse_of_any_name_are_read_back(spark, tmp_path):
    roots = [tmp_path / name for name in NAMES_OF_FOLDERS.values()]
    for place, root in enumerate(roots):
        write_numbers(root / "_data" / "rows.parquet", EACH * place)
    file = FileHandle("_data/rows.parquet", rows=EACH, bytes=0, crc32=0)
    frames = [staged_rows(spark, NUMBERED, [file], root) for root in roots]
    found = reduce(DataFrame.unionAll, frames).collect()
    assert list(range(EACH * len(roots))) == sorted(row[0] for row in found)


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(ALL_IN_ONE, id="all in one"),
        *(pytest.param(name, id=what, marks=pytest.mark.dear) for what, name in NAMES_OF_FOLDERS.items()),
    ],
)
def test_sparks_lines_and_its_sql_read_a_cut_in_a_warehouse_of_any_name(neighbour, tmp_path, name):
    """`Cut.spark`, the printed lines, and SQL with a path in back quotes, as for a state, all read the cut."""
    root, table = tmp_path / name, TableName("silver/flights")
    warehouse = Warehouse(root, ProtocolPaths(JobName("flights")))
    for version in range(3):
        shows = Transaction(warehouse.paths.transaction_id(table), 5 + version)
        write_deltalake(
            str(root / table),
            pa.table({"number": [version]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[shows]),
        )
    CutStore(warehouse).record(CheckpointId(6), [(table, 1)])
    CheckpointStore(warehouse)
    cut = Cuts(root, "flights").latest()
    names = {"spark": neighbour}
    exec("\n".join(next(each.lines for each in recipes(cut) if each.engine == "Spark")), names)  # noqa: S102 - pasted
    frames = [cut.spark(neighbour, table), names["silver_flights"]]
    # Spark 4.0's SQL reads no version of a path with a quote and a brace. Spark 4.1's SQL reads no version of a path
    # within IDENTIFIER.
    if pyspark.__version__ >= ("4.2" if "${" in name else "4.1"):
        frames.append(neighbour.sql(f"SELECT * FROM {spark_sql_table(cut.folder(table))} VERSION AS OF 1"))
    assert {2} == {frame.count() for frame in frames}


# ------------------------------------------------------------------
# Tests that files of partitions with odd values are found: by the doctor, a clean-up, a rollback and a copy.


CITIES = ("New York", "a/b", "50%", "%20", "it's", 'say "x"', "a=b", "#?&", "Zürich", " ", "{x}", "a:b", "..", "x+y")
ORDERED = StructType().add("id", LongType()).add("city", StringType())
ODD, NAME = "odd", f"{__name__}:by_city"


def by_city(data):
    config = CheckpointConfig(every_rows=len(CITIES), retained=2, compact_files_min=3)
    pipeline = Pipeline(ODD, config=config, parallelism=2)
    rows = pipeline.source("in", FileSource(data / "in", ORDERED)).table("raw/orders", id="raw", partition_by=["city"])
    counts = rows.key_by("city").aggregate("by_city", n=count())
    counts.upsert("gold/cities", partition_by=["city"])
    return pipeline


def deliver(made, first):
    ids = pa.array(range(first, first + len(CITIES)), pa.int64())
    made.deliver("in/a", pa.table({"id": ids, "city": list(CITIES)}))


def counted(cut):
    return Counter(cut.polars("raw/orders").collect()["city"]), dict(cut.polars("gold/cities").collect().iter_rows())


@pytest.mark.spark
@pytest.mark.dear
@pytest.mark.timeout(600)
def test_files_of_odd_partitions_are_found(tmp_path, spark):
    """No command takes a file for lost or unneeded because its folder has another name than the partition's value."""
    made = Trial(by_city, tmp_path)
    where = ["--warehouse", str(made.warehouse), "--data", str(made.data)]
    for turn in range(5):
        deliver(made, turn * len(CITIES))
        assert (dict.fromkeys(CITIES, turn + 1),) * 2 == counted(made.run())
    assert ExitCode.DONE is execute(["doctor", NAME, "--verify", *where])
    assert ExitCode.DONE is execute(["cleanup", NAME, *where[:2], "--reader-grace", "0ms"])
    assert (dict.fromkeys(CITIES, 5),) * 2 == counted(made.cuts.latest())
    there = sorted(cut.checkpoint for cut in made.cuts.all())
    copy = tmp_path / "copy"
    assert ExitCode.DONE is execute(["savepoint", NAME, "--to", str(copy), *where[:2]])
    assert ExitCode.DONE is execute(["rollback", NAME, str(there[0]), *where])
    back = counted(made.cuts.latest())
    assert (dict.fromkeys(CITIES, 4),) * 2 == back
    assert ExitCode.DONE is execute(["doctor", NAME, "--verify", *where])
    assert (dict.fromkeys(CITIES, 5),) * 2 == counted(Cuts(copy, ODD).latest())
