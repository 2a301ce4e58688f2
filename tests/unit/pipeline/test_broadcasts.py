"""Broadcasts in a pipeline: how they are planned, and what is refused by name."""

import pytest
from pyspark.sql.types import ArrayType, LongType

from checkpointing.graph import TableMode
from jobs.operators.broadcast import Broadcast
from jobs.pipeline import InvalidPipelineError, Pipeline, count
from jobs.pipeline.broadcasting import broadcast
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from tests.unit.pipeline.test_named_outputs import NUMBERS, ROWS, Function, Merging

STATE = "_tidemark/j/state/sort_broadcast"


def streams():
    """Return a pipeline with payments and rules."""
    pipeline = Pipeline("j", parallelism=2)
    payments = pipeline.source("payments", SequenceSource({"a": 10})).key_by("key")
    return pipeline, payments, pipeline.source("rules", SequenceSource({"r": 10}))


def seeing(payments, rules, name="sort", function=None):
    """Declare the vertex that sees the rules."""
    connected = broadcast(rules, "key", latest_by="n").connect(payments)
    return connected.process(name, function or Function(), state=NUMBERS, output=ROWS)


def test_a_broadcast_is_the_last_input_and_has_a_table_of_its_own():
    """Every subtask holds all files of the table, whose key is that of the broadcast."""
    pipeline, payments, rules = streams()
    seeing(payments, rules)
    planned = plan(pipeline)
    spec = planned.vertices["sort"].spec
    assert [False, True] == [each.is_broadcast for each in spec.inputs]
    assert Broadcast(("key",), "n") == spec.broadcast.kept
    table = planned.graph.vertex("sort").tables[-1]
    assert (STATE, TableMode.STATE, ("key",), True) == (table.name, table.mode, table.keys, table.broadcast)
    assert {"_key_group", "key", "n", "value", "_deleted"} <= set(planned.table_schemas[STATE].names)
    assert [("payments", 0), ("rules", 1)] == [(edge.upstream, edge.input) for edge in planned.graph.upstream("sort")]


def unordered(payments, rules):
    with_list = rules.with_column("many", "array(n)", ArrayType(LongType()))
    return broadcast(with_list, "key", latest_by="many")


def updates(payments, rules):
    """Rows of an aggregate that deletes some: a broadcast cannot take a row back."""
    first = rules.key_by("key").aggregate("first", n=count())
    return seeing(payments, first.key_by("n").aggregate("second", key=count()))


def of_another(payments, rules):
    other = Pipeline("other").source("rules", SequenceSource({"r": 10}))
    return broadcast(other, "key", latest_by="n").connect(payments)


def with_its_name(payments, rules):
    seeing(payments, rules)
    payments.aggregate("sort_broadcast", rows=count())


def under_its_name(payments, rules):
    payments.aggregate("sort_broadcast", rows=count())
    seeing(payments, rules)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda _, rules: broadcast(rules, "kye", latest_by="n"), "no column 'kye'"),
        (lambda _, rules: broadcast(rules, latest_by="n"), "name at least one column"),
        (lambda _, rules: broadcast(rules, "key", latest_by="m"), "no column 'm'"),
        (unordered, "of which none is the latest"),
        (of_another, "belong to two pipelines"),
        (lambda payments, rules: seeing(payments, rules, function=Merging()), "merges partials"),
        (lambda payments, rules: seeing(payments, rules, name="s" * 60), "too long; shorten its id"),
        (updates, "takes changes and so deletes rows"),
        (with_its_name, "is the name of the broadcast state of 'sort'"),
        (under_its_name, "is the name of the broadcast state of 'sort'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(act, said):
    """The line with the mistake raises the error."""
    _, payments, rules = streams()
    with pytest.raises(InvalidPipelineError, match=said):
        act(payments, rules)


def test_a_rule_may_not_have_the_name_of_our_columns():
    """State files have a column of that name."""
    _, payments, rules = streams()
    with pytest.raises(InvalidPipelineError, match="_deleted"):
        seeing(payments, rules.with_column("_deleted", "n", LongType()))


def test_another_vertex_of_the_same_rows_sees_no_broadcast():
    """It has one input, and keeps nothing else."""
    pipeline, payments, rules = streams()
    seeing(payments, rules)
    payments.process("plain", Function(), state=NUMBERS, output=ROWS)
    spec = plan(pipeline).vertices["plain"].spec
    assert (None, [False]) == (spec.broadcast, [each.is_broadcast for each in spec.inputs])
