"""Columns whose names mean something to Spark, in files of each format and through steps, rules, keys and joins."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import LongType, StringType, StructType

from jobs.sources.files.file_source import FileSource
from tidemark import Expectation, InvalidPipelineError, Pipeline, count, join
from tidemark.testing import Trial

pytestmark = pytest.mark.spark

KEY, TEXT, EMOJI, NUMBER = "customer.name", "50% `of`", "\N{GRINNING FACE}'s", 'am"ount'
SCHEMA = StructType().add(KEY, StringType()).add(TEXT, StringType()).add(EMOJI, StringType()).add(NUMBER, LongType())
ROWS = [("ann", "x", "p", 5), ("bob", "y", "q", 6), ("ann", "z", "r", 7)]


def write(folder: Path, form: str) -> None:
    """Write the rows as a file of that format."""
    folder.mkdir(parents=True)
    if form == "csv":
        lines = [",".join(f'"{word.replace(chr(34), chr(92) + chr(34))}"' for word in SCHEMA.names)]
        text = "\n".join([*lines, *(",".join(map(str, row)) for row in ROWS)])
    else:
        text = "\n".join(json.dumps(dict(zip(SCHEMA.names, row, strict=True))) for row in ROWS)
    (folder / f"1.{form}").write_text(f"{text}\n", encoding="utf-8")


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_columns_of_odd_names_pass_through_every_step(spark, tmp_path, form):
    """Each path sees the same rows: steps in Spark and in tasks, row rules, keys, a join, a sink by partition."""
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
