"""The broadcast input of a keyed task, without Spark: which rows are kept, and which subtasks write and see them."""

from dataclasses import dataclass, field
from itertools import permutations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import ArrayType, LongType

from checkpointing.graph import TableMode
from checkpointing.handles import Version
from checkpointing.identifiers import Generation, TableName, VertexId, job_name
from checkpointing.key_groups import KeyGroupRange, range_of
from jobs.operators.broadcast import Broadcast, BroadcastState
from jobs.operators.exchange import SUBTASK, Splitter, take_apart, with_key_group
from jobs.operators.process import NamedOutputs, ProcessCalls, Processed
from jobs.operators.scan.scanned import KeyedScan
from jobs.pipeline import InvalidPipelineError, Pipeline, count
from jobs.pipeline.broadcasting import broadcast
from jobs.pipeline.planning import plan
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource
from jobs.state.files import frame_of
from jobs.state.keyed_rows import KeyedRows
from jobs.state.merge import DELETED, KEY_GROUP
from tests.unit.pipeline.test_streams import NUMBERS, ROWS, Function, Merging

RULES = pa.schema([("rule", pa.string()), ("version", pa.int64()), ("limit", pa.int64())])
NEWEST = Broadcast(("rule",), "version")


def rules(*rows):
    return pl.DataFrame(rows, schema={"rule": pl.String, "version": pl.Int64, "limit": pl.Int64}, orient="row")


@dataclass
class Kept:
    """Runs the micro-batches of one subtask. Passes the state files from one to the next, as the protocol does."""

    root: str
    subtask: int = 0
    files: tuple = ()
    number: int = 0
    written: list = field(default_factory=list)

    def take(self, *rows, outdated=False):
        """Return what the subtask sees after these rows."""
        self.number += 1
        state = BroadcastState(
            operator="judged_broadcast",
            table=TableName("_tidemark/j/state/judged_broadcast"),
            kept=NEWEST,
            schema=RULES,
            files=self.files,
            max_parallelism=8,
            version=Version(Generation(1), self.number),
            outdated=outdated,
        )
        writer = StagedFiles(self.root, job_name("j"), Generation(1), VertexId("judged"), self.number)
        seen = state.taken(writer, self.subtask, rules(*rows))
        if seen.written:
            self.files = seen.written[0].files
        self.written.append(bool(seen.written))
        return seen


def test_the_newest_row_of_each_key_is_kept_in_any_order(tmp_path):
    """Null is the least version. Of rows with equal versions, the one with the greatest other columns is kept."""
    rows = [("a", 1, 5), ("a", 3, 1), ("a", 3, 2), ("b", None, 9), ("b", 1, 0)]
    for number, order in enumerate(permutations(rows)):
        kept = Kept(str(tmp_path / str(number)))
        for row in order:
            seen = kept.take(row)
        assert [("a", 3, 2), ("b", 1, 0)] == sorted(seen.rows.rows())


def test_rows_that_change_nothing_write_nothing(tmp_path):
    """A rule that comes again, or an older rule, changes nothing. A newer rule changes the state."""
    kept = Kept(str(tmp_path))
    seen = [kept.take(*rows) for rows in ([("a", 2, 1)], [("a", 2, 1)], [("a", 1, 7)], [], [("a", 3, 1)])]
    assert [True, False, False, False, True] == [each.has_changed for each in seen] == kept.written


def test_only_the_first_subtask_writes_and_all_see_the_same(tmp_path):
    """The file has all rules under one range of key groups, so it is whole for each subtask."""
    first, second = Kept(str(tmp_path)), Kept(str(tmp_path), subtask=1)
    for rows in ([("a", 1, 1), ("b", 1, 1)], [("b", 2, 2)]):
        mine, its = first.take(*rows), second.take(*rows)
        assert sorted(mine.rows.rows()) == sorted(its.rows.rows())
        second.files = first.files
    assert [[True, True], [False, False]] == [first.written, second.written]
    assert KeyGroupRange(first=0, last=7) == first.files[0].key_groups


def test_an_outdated_file_is_written_again_without_rows(tmp_path):
    """The rules in the file stay the same, and nothing is reported to the function as changed."""
    kept = Kept(str(tmp_path))
    kept.take(("a", 1, 1))
    before = kept.files
    seen = kept.take(outdated=True)
    assert (False, [("a", 1, 1)]) == (seen.has_changed, seen.rows.rows())
    assert kept.files != before


def test_every_subtask_gets_every_row():
    """Each block has a key group that its subtask owns, since the task checks this."""
    sent = Splitter(tag=1, schema=RULES, parallelism=3, max_parallelism=8, broadcast=True)
    frame = rules(("a", 1, 1), ("b", 2, 2))
    columns = [frame.to_arrow()[name].cast(RULES.field(name).type) for name in RULES.names]
    rows = pa.table([pa.array([0, 0], pa.int32()), *columns], schema=with_key_group(RULES))
    (batch,) = rows.to_batches()
    (blocks,) = sent.run([batch, batch.slice(0, 0)])
    assert [0, 1, 2] == blocks.column(0).to_pylist()
    for subtask in range(3):
        (_, arrived) = take_apart([blocks.slice(subtask, 1)], [RULES, RULES]).frames
        assert frame.rows() == arrived.drop(KEY_GROUP).rows()
        assert {range_of(subtask=subtask, parallelism=3, max_parallelism=8).first} == set(arrived[KEY_GROUP].to_list())


class Holds:
    """Holds rows back until there is a rule with the name of their key."""

    def process(self, inputs, state):
        rows, known = inputs
        every = pl.concat([state, rows.select("k", "n")])
        return self.broadcast_changed(every.group_by("k").agg(pl.col("n").max()), known)

    def broadcast_changed(self, state, broadcast):
        is_known = pl.col("k").is_in(broadcast["rule"].to_list())
        return Processed(state=state.filter(~is_known), output=state.filter(is_known))


KEYED = pa.schema([("k", pa.string()), ("n", pa.int64())])


def called(held, new, known, *, changed):
    """Call the function for these new rows, with held rows and rules. Return what it then held, deleted and emitted."""
    calls = ProcessCalls(
        operator="judged",
        function=Holds(),
        keys=("k",),
        state_keys=("k",),
        state_schema=KEYED,
        output_schema=KEYED,
        outputs=NamedOutputs(TableName("c"), {}),
        checked=None,
        ends=False,
    )
    types = {KEY_GROUP: pl.Int32, "k": pl.String, "n": pl.Int64}
    loaded = KeyedRows.of(pl.DataFrame([(0, *row) for row in held], schema=types, orient="row"))
    rows = pl.DataFrame([(0, *row) for row in new], schema=types, orient="row")
    seen = SeenRows(rules(*((name, 1, 1) for name in known)), changed)
    touched = rows.select(KEY_GROUP, "k").unique()
    if not calls.are_due((rows,), seen):
        return None
    done = calls.run(loaded, (rows,), touched, seen)
    gone = set(done.delta.filter(DELETED)["k"].to_list())
    after = {row["k"]: row["n"] for row in done.state().frame().iter_rows(named=True)}
    return after, gone, sorted(pl.concat([each.output for each in done.results]).rows())


@dataclass
class SeenRows:
    """What a subtask sees of its broadcast."""

    rows: pl.DataFrame
    has_changed: bool


def test_a_function_looks_at_its_keys_again_when_rules_come():
    """Held rows of other keys are emitted too, before the rows of the same micro-batch are processed."""
    held, new = [("a", 1), ("b", 2), ("c", 3)], [("c", 9), ("d", 4)]
    assert ({"b": 2, "c": 9, "d": 4}, {"a"}, [("a", 1)]) == called(held, new, ["a"], changed=True)
    assert ({"b": 2}, {"a", "c"}, [("a", 1), ("c", 3)]) == called(held, [], ["a", "c"], changed=True)
    assert ({"a": 1, "b": 2}, {"c"}, [("c", 1), ("c", 3)]) == called(held, [("c", 1)], ["c"], changed=True)


def test_without_a_change_the_function_is_called_for_rows_alone():
    """The function does not get the other keys. Without rows it is not called at all."""
    assert None is called([("a", 1)], [], ["a"], changed=False)
    assert ({"a": 1}, set(), [("d", 4)]) == called([("a", 1)], [("d", 4)], ["a", "d"], changed=False)


def flagged(subtasks):
    """Return rows of eight key groups as the exchange delivers them, and as tasks that read files keep them."""
    schema = pa.schema([("n", pa.int64()), ("for_all", pa.bool_())])
    groups = [0, 1, 5, 6, 7, 2]
    flags = [False, None, True, False, True, False]
    rows = pa.record_batch([pa.array(groups, pa.int32()), list(range(6)), flags], schema=with_key_group(schema))
    splitter = Splitter(tag=0, schema=schema, parallelism=subtasks, max_parallelism=8, to_all="for_all")
    scan = KeyedScan(shares=(), keys=(), max_parallelism=8, splitter=splitter)
    sent = list(splitter.run([rows]))
    exchanged, read = {}, {}
    for subtask in range(subtasks):
        own = [batch.filter(pc.equal(batch.column(SUBTASK), subtask)) for batch in sent]
        (exchanged[subtask],) = take_apart(own, [schema]).frames
        read[subtask] = frame_of(pa.Table.from_batches([scan._owned(rows, subtask)]))
    return exchanged, read


@pytest.mark.parametrize("subtasks", [1, 2, 3])
def test_flagged_rows_go_to_every_subtask_by_exchange_and_without(subtasks):
    """Each row has a key group of its subtask. Rows without a flag go only to the subtask of their key group."""
    for frames in flagged(subtasks):
        for subtask, frame in frames.items():
            own = range_of(subtask=subtask, parallelism=subtasks, max_parallelism=8)
            assert frame[KEY_GROUP].is_between(own.first, own.last).all()
            assert {2, 4} <= set(frame["n"].to_list())
            assert frame["n"].is_unique().all()
        plain = [n for frame in frames.values() for n in frame["n"].to_list() if n not in (2, 4)]
        assert [0, 1, 3, 5] == sorted(plain)


# ------------------------------------------------------------------
# Broadcasts in a pipeline: how they are planned, and which declarations are refused with an error that names the
# mistake.


STATE = "_tidemark/j/state/sort_broadcast"


def streams():
    pipeline = Pipeline("j", parallelism=2)
    payments = pipeline.source("payments", SequenceSource({"a": 10})).key_by("key")
    return pipeline, payments, pipeline.source("rules", SequenceSource({"r": 10}))


def seeing(payments, rules, name="sort", function=None):
    connected = broadcast(rules, "key", latest_by="n").connect(payments)
    return connected.process(name, function or Function(), state=NUMBERS, output=ROWS)


def test_a_broadcast_is_the_last_input_and_has_a_table_of_its_own():
    """Every subtask holds all files of the table. The table's key is the broadcast's key."""
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
    """The line of the pipeline with the mistake raises the error."""
    _, payments, rules = streams()
    with pytest.raises(InvalidPipelineError, match=said):
        act(payments, rules)


def test_a_rule_may_not_have_the_name_of_our_columns():
    _, payments, rules = streams()
    with pytest.raises(InvalidPipelineError, match="_deleted"):
        seeing(payments, rules.with_column("_deleted", "n", LongType()))


def test_another_vertex_of_the_same_rows_sees_no_broadcast():
    """This vertex has one input, and no broadcast state."""
    pipeline, payments, rules = streams()
    seeing(payments, rules)
    payments.process("plain", Function(), state=NUMBERS, output=ROWS)
    spec = plan(pipeline).vertices["plain"].spec
    assert (None, [False]) == (spec.broadcast, [each.is_broadcast for each in spec.inputs])
