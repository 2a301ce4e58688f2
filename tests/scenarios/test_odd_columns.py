"""Columns whose names mean something to Spark, in files of each format and through steps, rules, keys and joins."""

import json
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StringType, StructType

from checkpointing.identifiers import CheckpointId, JobName, SplitId, TableName, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.paths import ProtocolPaths
from jobs.engine_paths import spark_sql_table
from jobs.operators.inputs import staged_rows
from jobs.reading import Cuts
from jobs.showing.cut import recipes
from jobs.sources.files.file_source import FileSource
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.warehouse import Warehouse
from tests.odd_names import ALL_IN_ONE, NAMES, NAMES_OF_FOLDERS, NOT_FOR_DELTA
from tidemark import Expectation, InvalidPipelineError, Pipeline, count, join
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

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
        rows.drop(TEXT).key_by(KEY).aggregate("by_task", n=count()).upsert("out/by_task")
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
    assert [("ann", 2), ("bob", 1)] == sorted(cut.polars("out/by_task").select(KEY, "n").collect().rows())
    assert [5] == cut.polars("quarantine/rows").collect()[NUMBER].to_list()
    assert 3 == cut.polars("out/joined").collect().height


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n", "N"], "columns 'n' and 'N' have one name; rename one"),
        (["n", "*"], "Polars takes the name of column '\\*' for a pattern; rename it"),
        (["n", "^n.*$"], "for a pattern; rename it"),
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


SCHEMA_OF_ODD_NAMES_IN_SPARK = StructType().add("row", LongType())
EWR = SplitId("EWR")
ROWS_OF_ODD_NAMES_IN_SPARK = 3


def write_of_odd_names_in_spark(path, first):
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"row": range(first, first + ROWS_OF_ODD_NAMES_IN_SPARK)}), path)


def whole(source):
    return source.poll(PollSource(VertexId("in"), EWR, None, 1_000))


def test_an_input_file_of_any_name_is_read_row_by_row(spark, tmp_path):
    names = sorted(f"{name}.parquet" for name in (NAMES | NOT_FOR_DELTA).values())
    (tmp_path / EWR).mkdir()
    for place, name in enumerate(names):
        pq.write_table(
            pa.table({"row": range(ROWS_OF_ODD_NAMES_IN_SPARK * place, ROWS_OF_ODD_NAMES_IN_SPARK * (place + 1))}),
            tmp_path / EWR / name,
        )
    source = FileSource(tmp_path, SCHEMA_OF_ODD_NAMES_IN_SPARK)
    found = source.read(spark, [whole(source)]).select("row", "_split", "_position").orderBy("row").collect()
    assert [(row, EWR, row) for row in range(ROWS_OF_ODD_NAMES_IN_SPARK * len(names))] == [tuple(row) for row in found]


def test_a_data_folder_of_any_name_is_read(spark, tmp_path):
    """No name is taken for a glob, a URI or a column."""
    roots = [tmp_path / name for name in (NAMES_OF_FOLDERS | NOT_FOR_DELTA).values()]
    for place, root in enumerate(roots):
        write_of_odd_names_in_spark(root / EWR / "rows.parquet", ROWS_OF_ODD_NAMES_IN_SPARK * place)
    sources = [FileSource(root, SCHEMA_OF_ODD_NAMES_IN_SPARK) for root in roots]
    frames = [source.read(spark, [whole(source)]) for source in sources]
    found = reduce(DataFrame.unionAll, frames).select("row").collect()
    assert list(range(ROWS_OF_ODD_NAMES_IN_SPARK * len(roots))) == sorted(row[0] for row in found)


def test_staged_files_in_a_warehouse_of_any_name_are_read_back(spark, tmp_path):
    roots = [tmp_path / name for name in NAMES_OF_FOLDERS.values()]
    for place, root in enumerate(roots):
        write_of_odd_names_in_spark(root / "_data" / "rows.parquet", ROWS_OF_ODD_NAMES_IN_SPARK * place)
    frames = [staged_rows(spark, SCHEMA_OF_ODD_NAMES_IN_SPARK, ["_data/rows.parquet"], root) for root in roots]
    found = reduce(DataFrame.unionAll, frames).collect()
    assert list(range(ROWS_OF_ODD_NAMES_IN_SPARK * len(roots))) == sorted(row[0] for row in found)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(ALL_IN_ONE, id="all in one"),
        *(pytest.param(name, id=what, marks=pytest.mark.dear) for what, name in NAMES_OF_FOLDERS.items()),
    ],
)
def test_sparks_lines_and_its_sql_read_a_cut_in_a_warehouse_of_any_name(neighbour, tmp_path, name):
    """`Cut.spark`, the printed line, and a path in back quotes as the SQL of a state has it."""
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
    frames = (
        cut.spark(neighbour, table),
        names["silver_flights"],
        neighbour.sql(f"SELECT * FROM {spark_sql_table(cut.folder(table))} VERSION AS OF 1"),
    )
    assert [2, 2, 2] == [frame.count() for frame in frames]
