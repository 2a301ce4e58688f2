"""A pipeline may use old state only if its columns still have the same meanings (D6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.state_evolution import first_refused
from checkpointing.state_meaning import Argument, ColumnMeaning, meaning_changes, still_held

THING = "state of operator 'sums'"
V = Argument("v", "bigint")


def meaning(function, *arguments, column="m", version=1):
    """Return the meaning of a column."""
    return ColumnMeaning(column=column, function=function, arguments=arguments, version=version)


def changes(was, now, held=("k", "m")):
    """Return the changes between two meanings of a column in state files."""
    return meaning_changes(THING, None if was is None else [was], [now], held)


def test_the_same_meaning_is_no_change():
    """Nothing is reported and nothing refused."""
    assert () == changes(meaning("max", V), meaning("max", V))


@pytest.mark.parametrize(
    ("was", "now", "shown"),
    [
        (meaning("max", V), meaning("count"), ("max(v bigint)", "count()")),
        (meaning("count"), meaning("sum", V), ("count()", "sum(v bigint)")),
        (meaning("count"), meaning("count", V), ("count()", "count(v bigint)")),
        (meaning("sum", V), meaning("sum", Argument("w", "bigint")), ("sum(v bigint)", "sum(w bigint)")),
        (meaning("first_right_row", V), meaning("latest_right_row", V), None),
        (meaning("process", version=None), meaning("count"), ("process()", "count()")),
        (meaning("sum", V), meaning("sum", V, version=2), ("sum(v bigint)", "sum(v bigint) version 2")),
    ],
)
def test_another_function_or_input_column_is_refused_with_both_meanings(was, now, shown):
    """A maximum is no count, even if their types are equal."""
    (found,) = changes(was, now)
    assert first_refused([found]) is found
    if shown is not None:
        assert shown == (found.was, found.now)


def test_the_refusal_names_operator_column_meanings_and_every_way_out():
    """They are a new column name, a new operator id with earlier rows read again, and another warehouse."""
    (found,) = changes(meaning("max", V), meaning("count"))
    said = str(found)
    assert said.startswith("state of operator 'sums': column m was max(v bigint) and is now count(): ")
    for way_out in ("keep max(v bigint)", "another name", "another id", "'tidemark reset'", "--warehouse EMPTY_FOLDER"):
        assert way_out in said


def test_another_type_of_the_input_column_is_reported_and_left_to_the_schema():
    """A sum stays a sum when its input is widened. The types decide whether its values fit."""
    (found,) = changes(meaning("sum", Argument("v", "int")), meaning("sum", V))
    assert ("sum(v int)", "sum(v bigint)", "") == (found.was, found.now, found.refused)


def test_an_unrecorded_meaning_is_accepted():
    """So a job of an older version goes on. The report says that no meanings were compared."""
    (found,) = changes(None, meaning("count"))
    assert ("not recorded", "count()", "") == (found.was, found.now, found.refused)
    assert "older format" in found.verdict


def test_a_column_that_no_file_has_may_mean_anything():
    """It begins empty, so no old value is read into it, even if an entry has an older meaning."""
    assert () == changes(meaning("max", V), meaning("count"), held=("k",))


_meanings = st.builds(
    ColumnMeaning,
    column=st.sampled_from("ab"),
    function=st.sampled_from(["count", "max", "process"]),
    arguments=st.sampled_from([(), (V,), (Argument("v", "int"),)]),
    version=st.sampled_from([None, 1, 2]),
)
_states = st.lists(_meanings, max_size=2, unique_by=lambda each: each.column).map(tuple)


@given(lives=st.lists(st.tuples(_states, st.booleans()), min_size=2, max_size=6))
def test_no_column_is_ever_read_with_another_meaning_than_it_was_written_with(lives):
    """Over any series of pipelines, a tick of each restores, writes an entry, and may rewrite the files.

    The model keeps the meaning of the pipeline that wrote each column. Functions, input columns and declared versions
    must be equal when it is read.
    """
    written: dict[str, ColumnMeaning] = {}
    recorded: tuple[ColumnMeaning, ...] | None = ()
    for now, rewrites in lives:
        if first_refused(meaning_changes(THING, recorded, now, set(written))) is not None:
            continue
        for one in now:
            old = written.get(one.column)
            if old is not None:
                assert (old.function, [each.column for each in old.arguments]) == (
                    one.function,
                    [each.column for each in one.arguments],
                )
                assert old.version in (None, one.version)
        recorded = still_held(recorded, now, set(written))
        if rewrites:
            written = {one.column: one for one in now}
        else:
            written |= {one.column: one for one in now if one.column in written}
