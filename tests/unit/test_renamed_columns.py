"""The effects of renamed columns, and refused renames, by the names in a file and in the pipeline (G2)."""

import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.identifiers import InvalidNameError
from checkpointing.renamed_columns import ColumnRenames, renamed_columns, unrenamable
from checkpointing.state_evolution import ChangeKind, Column, StateSchema, renamed_inside
from checkpointing.state_meaning import ColumnMeaning, meaning_changes, still_held, under_new_names
from jobs.pipeline import InvalidPipelineError, Pipeline, count, max_of
from jobs.sources.hybrid import SequenceSource
from tests.unit.uncalled import Nothing

THING = "table g/t"
DECLARED = {"m": "n"}


def judged(now, then, declared=DECLARED, of_cut=()):
    renames = ColumnRenames(declared, dict(of_cut))
    changes = renamed_columns(ChangeKind.TABLE_SCHEMA, THING, now, then, renames)
    return [(each.column, each.was, each.now, bool(each.refused)) for each in changes]


def test_both_names_in_one_file_are_refused():
    """Which of the two columns is the new one cannot be decided."""
    assert [("m", "n", "m", True)] == judged(["k", "m"], ["k", "n", "m"])


def test_a_rename_from_an_unknown_name_is_refused_if_a_column_is_removed():
    """The old name is misspelt, or two versions old.

    If no column is removed, the new name is a new column, as after a rollback over many checkpoints.
    """
    assert [("m", "n", "m", True)] == judged(["k", "m"], ["k", "x"])
    assert [] == judged(["k", "m"], ["k"])
    assert [("a", "x", "a", False)] == judged(["k", "a", "m"], ["k", "x"], {"a": "x", "m": "n"})


def test_a_rename_is_undone_only_explicitly():
    """The cut's entry lists the rename. While files still have the old name, there is nothing to undo."""
    listed = {"m": "n"}
    assert [("n", "m", "n", True)] == judged(["k", "n"], ["k", "m"], {}, listed)
    assert [("n", "m", "n", False)] == judged(["k", "n"], ["k", "m"], {"n": "m"}, listed)
    assert [] == judged(["k", "n"], ["k", "n"], {}, listed)
    assert [] == judged(["k", "n", "m"], ["k", "m"], {}, listed)
    assert [] == judged(["k", "x"], ["k", "m"], {}, listed)


def test_an_overwrite_table_renames_no_column():
    """The files of an overwrite table are never changed. If the table has the new name already, nothing is refused."""
    renames = ColumnRenames(DECLARED, {})
    (change,) = unrenamable(THING, ["k", "m"], ["k", "n"], renames)
    assert "overwrite table" in change.refused
    assert [] == [*unrenamable(THING, ["k", "m"], ["k", "n", "m"], renames)]


COUNT, GREATEST = (ColumnMeaning(column="n", function=name) for name in ("count", "max"))


def test_a_renamed_column_keeps_its_meaning():
    """A count stays a count. An entry with both names was written before any file had the new name."""
    renamed = ColumnMeaning(column="m", function="count")
    assert (renamed,) == under_new_names([COUNT], DECLARED) == under_new_names([renamed, COUNT], DECLARED)
    assert (renamed,) == under_new_names([renamed], DECLARED)
    assert under_new_names(None, DECLARED) is None
    (change,) = meaning_changes("s", under_new_names([GREATEST], DECLARED), [renamed], ["k", "m"])
    assert change.refused
    assert (renamed, COUNT) == still_held([COUNT], [renamed], {"k", "n"})


def struct(*names):
    return {"type": "struct", "fields": [{"name": name, "type": "long"} for name in names]}


def test_old_names_inside_a_column_are_found_at_every_depth():
    """Rows that wait inside a state column keep the names that they had."""
    was, now = (
        StateSchema((Column("k", "long"), Column("waiting", {"type": "array", "elementType": struct("k", name)})))
        for name in ("n", "m")
    )
    assert [("waiting", "n", "m")] == [*renamed_inside(was, now, DECLARED)]
    assert [] == [*renamed_inside(now, now, DECLARED)]
    assert [] == [*renamed_inside(was, now, {})]


# ------------------------------------------------------------------ where it is declared


def keyed():
    return Pipeline("example").source("numbers", SequenceSource({"a": 10})).key_by("key")


def aggregate(**columns):
    return keyed().aggregate("sums", **columns)


def process(renamed, state=("m",), output=("key", "m")):
    """Declare a process function with these columns."""
    schemas = (
        StructType([*[field for name in names for field in StructType().add(name, LongType())]])
        for names in (state, output)
    )
    state_schema, output_schema = schemas
    return keyed().process("sums", Nothing(), state=state_schema, output=output_schema, columns_renamed_from=renamed)


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (
            lambda: aggregate(m=count(renamed_from="m")),
            "vertex sums: column m is renamed from 'm', which is its own name",
        ),
        (lambda: aggregate(m=count(renamed_from="n"), n=count()), "there still is a column n"),
        (lambda: aggregate(m=count(renamed_from="key")), "there still is a column key"),
        (
            lambda: aggregate(m=count(renamed_from="n"), n=count(renamed_from="m")),
            "n is renamed from 'm': columns cannot pass on their names at once",
        ),
        (
            lambda: aggregate(a=count(renamed_from="n"), b=count(renamed_from="n")),
            "column a is renamed from 'n', and b too",
        ),
        (lambda: process({"key": "k"}), "column key is renamed from 'k', and it is a key"),
        (lambda: process({"x": "n"}), "there is no column 'x'; there are m"),
        (lambda: process({"m": "n"}, output=("key", "n")), "there still is a column n"),
        (
            lambda: process({"m": "n"}).upsert("gold/t", keys=["key", "m"]),
            "table gold/t: column m is renamed from 'n', and it is a key",
        ),
    ],
    ids=["own name", "still there", "a key's", "swap", "two of one", "key", "unknown", "in the output", "table key"],
)
def test_a_rename_without_a_meaning_is_refused_where_it_is_written(declare, says):
    """Each refusal names the vertex or table, both column names, and the correction."""
    with pytest.raises(InvalidPipelineError) as refused:
        declare()
    assert says in str(refused.value)


@pytest.mark.parametrize("name", ["", "n" * 1025])
def test_an_old_name_that_no_column_can_have_is_refused(name):
    """An entry of `checkpoints` lists the old name, so its length is limited."""
    with pytest.raises(InvalidNameError, match="1 to 1024 characters"):
        aggregate(m=max_of("value", renamed_from=name))


def test_a_process_function_renames_columns_of_its_state_and_of_its_output():
    """One map declares the renames of state and output. A column may be in the state, in the output, or in both."""
    for state, output in ((("m",), ("key",)), (("x",), ("key", "m")), (("m",), ("key", "m"))):
        assert process({"m": "n"}, state, output)
