"""Columns that cannot lay a table out are refused when the pipeline is built. The error names the column."""

import pytest
from pyspark.sql.types import ArrayType, DoubleType, StringType, TimestampType

from jobs.pipeline import InvalidPipelineError, Pipeline, Stream, first_of, max_of, sum_of
from jobs.sources.hybrid import SequenceSource


def numbers() -> Stream:
    """Return a source of split, n, key, value, _split, _position."""
    return Pipeline("example").source("numbers", SequenceSource({"a": 10}))


def refused(excinfo) -> str:
    """Return the message that the user reads."""
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
    """Delta needs a column in the files, and the files of a renamed column lie in folders of its old name."""
    rows = numbers().select("key", "n")
    with pytest.raises(InvalidPipelineError, match="it names all columns of the table; leave out at least one"):
        rows.table("bronze/rows", id="rows", partition_by=["key", "n"])
    summed = rows.key_by("key").aggregate("sums", total=sum_of("n", renamed_from="amount"))
    with pytest.raises(InvalidPipelineError, match=r"column 'total' is renamed from 'amount'.*keep the name"):
        summed.upsert("gold/sums", partition_by=["total"])
    assert ("key",) == summed.upsert("gold/sums", partition_by=["key"]).declarations.vertex("sums").table.partitioned_by
