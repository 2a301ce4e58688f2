"""Top rows are planned with the kind of their input, and what cannot be is refused by name."""

import pytest

from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.planning import plan
from tidemark import Pipeline, SequenceSource, count, deduplicate, join, top


def streams():
    """Return a pipeline with a changelog (key, n) and an append-only stream (key, value)."""
    pipeline = Pipeline("example")
    counted = pipeline.source("left", SequenceSource({"a": 10})).key_by("key").aggregate("counted", n=count())
    rows = pipeline.source("right", SequenceSource({"a": 10})).select("key", "value")
    return pipeline, counted, rows


def test_only_a_changelog_is_read_with_kinds_and_kept_whole():
    """Of an append-only stream the state holds the first rows. The meaning of the state says which."""
    pipeline, counted, rows = streams()
    top(counted.key_by("n"), "most", n=3, order_by=["key desc"], row_number="nth").upsert("gold/most")
    deduplicate(rows.key_by("key"), "latest", order_by="value", keep="last").upsert("gold/latest")
    planned = plan(pipeline)
    most, latest = planned.vertices["most"], planned.vertices["latest"]
    assert [most.inputs[0].takes_changes, latest.inputs[0].takes_changes] == [True, False]
    assert [most.spec.function.changelog, latest.spec.function.changelog] == [True, False]
    assert [planned.graph.vertex(name).changes_of for name in ("most", "latest")] == [("counted",), ()]
    assert [str(each.spec.meanings[0]) for each in (most, latest)] == [
        "first_3_of_all_rows(key desc bigint)",
        "first_1_of_new_rows(value desc bigint)",
    ]


def test_the_table_keys_tell_first_rows_apart():
    """With a row number they are the keys and that number, and with one row of a key the keys."""
    pipeline, counted, rows = streams()
    top(counted.key_by("n"), "most", n=3, order_by="key", row_number="nth").upsert("gold/most")
    deduplicate(rows.key_by("key"), "latest", order_by="value").upsert("gold/latest")
    planned = plan(pipeline)
    assert planned.vertices["most"].spec.table.keys == ("n", "nth")
    assert planned.vertices["most"].spec.output.simpleString() == "struct<n:bigint,key:bigint,nth:int>"
    assert planned.vertices["latest"].spec.table.keys == ("key",)


def test_aggregates_joins_and_top_take_the_changes_of_first_rows():
    """Each of them reads the first rows with their kinds."""
    pipeline, counted, rows = streams()
    first = top(rows.key_by("key"), "first", n=2, order_by="value")
    first.key_by("key").aggregate("sizes", rows=count()).upsert("gold/sizes")
    join(first.key_by("key"), counted.key_by("key"), "both").key_by("n").aggregate("n_both", rows=count())
    top(first.key_by("value"), "again", n=1, order_by="key").upsert("gold/again")
    planned = plan(pipeline)
    assert planned.vertices["first"].spec.emits_changes
    taken = {name: planned.graph.vertex(name).changes_of for name in ("sizes", "both", "again")}
    assert taken == {"sizes": ("first",), "both": ("first", "counted"), "again": ("first",)}


@pytest.mark.parametrize(
    ("n", "follow", "said"),
    [
        (2, lambda first: first.upsert("gold/first"), "no column of its 2 rows of a key is known to be unique"),
        (2, lambda first: first.table("gold/first"), 'Number them, as in row_number="nth"'),
        (2, lambda first: first.table("gold/first", id="kept"), "those of top 'first', which takes rows back"),
        (1, lambda first: first.table("gold/first", id="kept"), "write the stream of 'first' with upsert"),
        (1, lambda first: first.table("gold/first"), "top 'first' takes rows back, which an append table cannot do"),
        (1, lambda first: first.upsert("gold/first", keys=["key", "value"]), r"leave out keys=\['key', 'value'\]"),
    ],
)
def test_a_step_that_cannot_take_a_row_back_is_refused(n, follow, said):
    """A first row may be taken back even if all rows are only added: a later one may come before it."""
    _, _, rows = streams()
    with pytest.raises(InvalidPipelineError, match=said):
        follow(top(rows.key_by("key"), "first", n=n, order_by="value"))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"n": 0}, "n is 0; write a whole number of rows"),
        ({"n": None}, "n is None; write"),
        ({"n": "3"}, "n is '3'; write"),
        ({"order_by": []}, "order_by names no column"),
        ({"order_by": "nothing desc"}, "there is no column 'nothing'"),
        ({"order_by": "key"}, "order_by names 'key', a key"),
        ({"row_number": "value"}, "columns 'value' and 'value' have one name"),
        ({"row_number": "_top_rows"}, "columns '_top_rows' and '_top_rows' have one name"),
    ],
)
def test_top_rows_that_cannot_be_are_refused(told, said):
    """The message names the vertex and what does not fit."""
    _, _, rows = streams()
    with pytest.raises(InvalidPipelineError, match=f"vertex first: {said}"):
        top(rows.key_by("key"), "first", **{"n": 2, "order_by": "value", **told})


def test_an_unknown_word_is_refused_and_case_of_a_direction_does_not_count():
    """`DESC` is `desc`; a column is found by its own name only."""
    _, _, rows = streams()
    with pytest.raises(InvalidPipelineError, match='keep is \'newest\'; write "first" or "last"'):
        deduplicate(rows.key_by("key"), "first", order_by="value", keep="newest")
    vertex = top(rows.key_by("key"), "first", n=1, order_by="value DESC")
    assert [str(by) for by in vertex.declarations.vertex("first").function.order] == ["value desc"]


def test_updates_that_lost_their_kind_are_refused():
    """A vertex between the aggregate and the top rows passes on new rows only."""
    _, counted, _ = streams()
    passed = counted.table("silver/passed", id="passed")
    with pytest.raises(InvalidPipelineError, match="vertex first: its rows are updates of the aggregate 'counted'"):
        top(passed.key_by("key"), "first", n=1, order_by="n")
