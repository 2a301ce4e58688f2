"""The allowed changes of a state: columns are added, dropped and widened. No other change is allowed (D6)."""

import pytest

from checkpointing.state_evolution import Column, Compatibility, StateSchema, verdict
from checkpointing.state_evolution import changes as changes_of
from checkpointing.state_meaning import Argument, ColumnMeaning, meaning_changes


def schema(keys=("k",), /, **columns):
    """Return a state schema. Without types, every column is long."""
    return StateSchema(tuple(Column(name, kind) for name, kind in columns.items()), keys)


def changes(was, now):
    return changes_of("state of operator 'sums'", was, now)


WAS = schema(k="string", total="integer", note="string")


def test_adding_dropping_and_widening_columns_is_a_migration():
    """Each change is reported by column, and none is refused."""
    found = changes(WAS, schema(k="string", total="long", extra="double"))
    expected = [
        "state of operator 'sums': column total was int and is now bigint",
        "state of operator 'sums': column extra (double) is new, null in old rows",
        "state of operator 'sums': column note (string) is dropped",
    ]
    assert expected == [str(change) for change in found]
    assert ["widened", "null in old rows", "dropped"] == [change.verdict for change in found]
    assert Compatibility.AFTER_MIGRATION is verdict(found)


def test_another_type_is_refused_with_the_way_out():
    """The message names the column, both types, and what can be done."""
    (found,) = changes(WAS, schema(k="string", total="string", note="string"))
    assert Compatibility.INCOMPATIBLE is verdict([found])
    assert str(found) == (
        "state of operator 'sums': column total was int and is now string: old values might not survive that; keep "
        "int, or give the new column another name, or give the operator another id and start it without state"
    )
    assert "refused" == found.verdict


# ------------------------------------------------------------------
# A pipeline may use old state only if its columns still have the same meanings (D6).


THING = "state of operator 'sums'"
V = Argument("v", "bigint")


def meaning(function, *arguments, column="m", version=1):
    return ColumnMeaning(column=column, function=function, arguments=arguments, version=version)


def differences(was, now, held=("k", "m")):
    return meaning_changes(THING, None if was is None else [was], [now], held)


def test_the_refusal_names_operator_column_meanings_and_every_way_out():
    """The ways out: the old meaning, a new column name, a new operator id with rows read again, another warehouse."""
    (found,) = differences(meaning("max", V), meaning("count"))
    said = str(found)
    assert said.startswith("state of operator 'sums': column m was max(v bigint) and is now count(): ")
    for way_out in ("keep max(v bigint)", "another name", "another id", "'tidemark reset'", "--warehouse EMPTY_FOLDER"):
        assert way_out in said


@pytest.mark.parametrize(
    ("function", "was", "now", "said"),
    [
        (
            "windows",
            ("session 1800000 ms", "at"),
            ("session 90000 ms", "at"),
            'the window was session("30m") by at and is now session("90s") by at: ',
        ),
        (
            "windows",
            ("tumbling 3600000 ms every 3600000 ms from 0 ms UTC", "at"),
            ("hopping 3600000 ms every 60000 ms from 1500 ms UTC", "clock"),
            'the window was tumbling("1h") by at and is now hopping("1h", every="1m", offset="1500ms") by clock: ',
        ),
        (
            "inner_join_in_time",
            ("within -300000 3600000",),
            ("cumulative 86400000 ms every 3600000 ms from 0 ms UTC",),
            'the join was inner, within=("-5m", "1h") and is now inner, cumulative("1d", every="1h"): ',
        ),
        (
            "first_until_it_closes",
            ("until", "at"),
            ("session 1000 ms", "at"),
            'the window was first_until_it_closes(until window, at window) and is now session("1s") by at: ',
        ),
    ],
)
def test_another_window_is_refused_in_the_words_of_the_pipeline(function, was, now, said):
    """The message does not name the state column `_due`, since no user has written that name."""
    then, meant = (meaning(function, *(Argument(one, "window") for one in each), column="_due") for each in (was, now))
    (found,) = differences(then, meant, {"_due"})
    assert str(found).startswith(f"state of operator 'sums': {said}its old values cannot become that; keep ")
    assert "_due" not in str(found)
    assert "another name" not in str(found)


def test_an_unrecorded_meaning_is_accepted():
    """So a job that an older version wrote can go on. The report says that no meanings were compared."""
    (found,) = differences(None, meaning("count"))
    assert ("not recorded", "count()", "") == (found.was, found.now, found.refused)
    assert "older format" in found.verdict
