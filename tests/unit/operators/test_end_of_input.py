"""The end of input in a keyed task, without Spark.

Every key of the subtask's range ends, with or without new rows (F4).
"""

from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpointing.graph import TableMode
from checkpointing.handles import KeyedFileKind, Version
from checkpointing.identifiers import Generation, TableName, VertexId, job_name
from checkpointing.key_groups import KeyGroupRange
from jobs.operators.enrich import EnrichFunction
from jobs.operators.exchange import BLOCK, SUBTASK, TAG, WAKING, Splitter
from jobs.operators.key_hash import key_groups, said_groups
from jobs.operators.keyed_task import AppendTarget, InputLayout, KeyedTask, UpsertTarget
from jobs.operators.process import ForeignKeyError, NamedOutputs, Processed
from jobs.operators.reports import report_from
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import CompactionPolicy, IncrementalBackend, live_files
from jobs.state.merge import KEY_GROUP

LEFT = pa.schema([("k", pa.string()), ("id", pa.int64())])
RIGHT = pa.schema([("rk", pa.string()), ("temp", pa.float64())])
GAINED = pa.struct([("temp", pa.float64())])
WAITS = pa.schema([("k", pa.string()), ("right", GAINED), ("waiting", pa.list_(pa.struct(list(LEFT))))])
OUTPUT = pa.schema([*LEFT, ("temp", pa.float64())])
SILVER = TableName("silver/flights")
GROUPS = {None: 0, "a": 1, "b": 2, "c": 3}


@dataclass
class Bench:
    """Runs one subtask over several micro-batches, and keeps its state files as a coordinator would."""

    root: str
    function: object = EnrichFunction(("k",), ("rk",), ("temp",))
    inputs: tuple = (InputLayout(schema=LEFT, keys=("k",)), InputLayout(schema=RIGHT, keys=("rk",)))
    state_schema: pa.Schema = WAITS
    output_schema: pa.Schema = OUTPUT
    mode: TableMode = TableMode.APPEND
    parallelism: int = 1
    policy: CompactionPolicy = field(default_factory=CompactionPolicy)
    files: tuple = ()
    table_files: tuple = ()
    micro_batch: int = 0
    outputs: dict = field(default_factory=dict)

    def run(self, *rows, end=False):
        """Run rows: a list of tuples for each input. Return the report, or None if the task reports nothing."""
        self.micro_batch += 1
        batches = [batch for tag, values in enumerate(rows) if values for batch in self._sent(tag, values)]
        waking = [pa.record_batch({SUBTASK: [0], TAG: [WAKING], BLOCK: pa.nulls(1, pa.binary())})] if end else []
        reports = list(self._task(end=end).carry_out(0, [*batches, *waking]))
        if not reports:
            return None
        report = report_from(reports[0].column("report")[0].as_py())
        still = (file for file in self.files if file.file.path not in report.ended)
        self.files = live_files([*still, *report.state])
        self.table_files = report.ranges[0].files if report.ranges else self.table_files
        return report

    def _sent(self, tag, values):
        """Return rows in the layout of the exchange, all for subtask 0."""
        schema = self.inputs[tag].schema
        groups = pa.array([GROUPS[row[0]] for row in values], pa.int32())
        rows = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema=schema)
        splitter = Splitter(tag=tag, schema=schema, parallelism=1, max_parallelism=8)
        return splitter.run(rows.add_column(0, KEY_GROUP, groups).to_batches())

    def _task(self, *, end):
        append = AppendTarget(table=SILVER)
        upsert = UpsertTarget(table=SILVER, keys=("k",), files=(self.table_files, *[()] * (self.parallelism - 1)))
        return KeyedTask(
            operator="silver",
            writer=StagedFiles(self.root, job_name("j"), Generation(1), VertexId("silver"), self.micro_batch),
            version=Version(Generation(1), self.micro_batch),
            parallelism=self.parallelism,
            max_parallelism=8,
            keys=("k",),
            state_keys=("k",),
            inputs=self.inputs,
            function=self.function,
            state_table=TableName("_tidemark/j/state/silver"),
            state_schema=self.state_schema,
            output_schema=self.output_schema,
            outputs=NamedOutputs(TableName("_tidemark/j/channels/silver"), self.outputs),
            state=(self.files, *[()] * (self.parallelism - 1)),
            backend=IncrementalBackend(self.policy),
            target=append if self.mode is TableMode.APPEND else upsert,
            channel=None,
            emits=self.mode is TableMode.APPEND,
            end_of_input=end,
        )

    def read(self, handles):
        rows = [row for file in handles for row in pq.read_table(f"{self.root}/{file.path}").to_pylist()]
        return sorted((tuple(row.values()) for row in rows), key=str)

    def state(self):
        """Return the state as key -> row, as a worker without a copy of the state loads it."""
        live = {}
        for file in self.files:
            live = {} if file.kind is KeyedFileKind.BASE else live
            for row in pq.read_table(f"{self.root}/{file.file.path}").to_pylist():
                deleted = row.pop("_deleted")
                live.pop(row["k"], None)
                live |= {} if deleted else {row["k"]: row}
        return live


@pytest.fixture
def silver(tmp_path):
    """Return a bench of the enriching vertex. Two flights wait, and the weather of one key is known."""
    bench = Bench(str(tmp_path))
    bench.run([("a", 1), (None, 2)], [("b", 5.0)])
    return bench


def test_waiting_rows_are_emitted_with_nulls_when_the_input_ends_without_rows(silver):
    """No row reaches the subtask. All waiting rows are emitted and staged. Known right rows stay in the state."""
    report = silver.run(end=True)
    assert [("a", 1, None), (None, 2, None)] == silver.read(report.emitted)
    assert report.emitted == tuple(file for _, file in report.staged)
    assert {"b": {"temp": 5.0}} == {key: row["right"] for key, row in silver.state().items()}
    assert [None] == [row["waiting"] for row in silver.state().values()]


def test_a_task_says_how_many_rows_it_received(silver):
    """Rows of all inputs count. At the end of the input there may be none (E6)."""
    assert 3 == silver.run([("a", 3), ("b", 4)], [("c", 1.0)]).work.rows
    assert 0 == silver.run(end=True).work.rows


def test_the_last_rows_are_processed_before_the_end(silver):
    """A right row among the last rows still matches its left row.

    A left row without a right row is emitted with nulls.
    """
    report = silver.run([("c", 3)], [("a", 7.0)], end=True)
    assert [("a", 1, 7.0), ("c", 3, None), (None, 2, None)] == silver.read(report.emitted)
    assert {"a": {"temp": 7.0}, "b": {"temp": 5.0}} == {key: row["right"] for key, row in silver.state().items()}


def test_weather_for_an_emitted_flight_comes_too_late(silver):
    """The state no longer has the emitted flight, so its weather emits nothing.

    Later flights of the key get that weather.
    """
    silver.run(end=True)
    assert () == silver.run([], [("a", 9.0)]).emitted
    assert [("a", 4, 9.0)] == silver.read(silver.run([("a", 4)], []).emitted)


def test_the_end_is_the_same_as_a_delta_or_a_base(tmp_path):
    """Whether the policy chooses a base or a delta, the state after the end is the same, tombstones included."""
    states = []
    for number, policy in enumerate((CompactionPolicy(ratio=0.1), CompactionPolicy(ratio=100.0))):
        bench = Bench(str(tmp_path / str(number)), policy=policy)
        bench.run([("a", 1), (None, 2)], [("b", 5.0)])
        bench.run([("c", 3)], [("a", 7.0)], end=True)
        states.append((bench.state(), [file.kind for file in bench.files]))
    assert states[0][0] == states[1][0]
    assert ([KeyedFileKind.BASE], [KeyedFileKind.BASE, KeyedFileKind.DELTA]) == (states[0][1], states[1][1])


def test_a_subtask_without_state_and_rows_reports_nothing(tmp_path):
    """If such a subtask gets rows at the end of its input, it ends exactly the keys of these rows."""
    bench = Bench(str(tmp_path))
    assert None is bench.run(end=True)
    report = bench.run([("a", 1)], [], end=True)
    assert [("a", 1, None)] == bench.read(report.emitted)
    assert {} == bench.state()


def test_a_second_end_emits_and_writes_nothing(silver):
    """If nothing waits in the state, the state stays unchanged and no file is written for it."""
    silver.run(end=True)
    again = silver.run(end=True)
    assert ((), (), ()) == (again.emitted, again.staged, again.state)


def test_an_end_without_changes_keeps_the_change_of_the_last_rows(silver):
    """The change that the last rows made is written, although the end changes nothing."""
    silver.run(end=True)
    report = silver.run([], [("c", 8.0)], end=True)
    assert () == report.emitted
    assert {"b": {"temp": 5.0}, "c": {"temp": 8.0}} == {key: row["right"] for key, row in silver.state().items()}


@dataclass(frozen=True, slots=True)
class Sessions:
    """Counts the rows of each key. When the input ends, it emits the count and forgets the key."""

    def process(self, inputs, state):
        counted = inputs[0].group_by("k").agg(pl.len().cast(pl.Int64).alias("n"))
        both = pl.concat([state, counted]).group_by("k").agg(pl.col("n").sum())
        return Processed(state=both, output=both.clear())

    def end_of_input(self, state):
        return Processed(state=state.clear(), output=state)


COUNT = pa.schema([("k", pa.string()), ("n", pa.int64())])


def test_a_users_function_ends_its_keys_into_an_upsert_table(tmp_path):
    one = (InputLayout(schema=LEFT, keys=("k",)),)
    bench = Bench(str(tmp_path), Sessions(), one, COUNT, COUNT, TableMode.UPSERT)
    bench.run([("a", 1), ("a", 2), ("b", 3)])
    assert () == bench.table_files
    bench.run([("a", 4)], end=True)
    assert [("a", 3), ("b", 1)] == bench.read(file.file for file in bench.table_files)
    assert {} == bench.state()


@dataclass(frozen=True, slots=True)
class Narrates(Sessions):
    """Emits a line for each key of its rows, and a line for each key that ends."""

    def process(self, inputs, state):
        done = super(Narrates, self).process(inputs, state)
        return replace(done, outputs={"lines": _lines(inputs[0].unique("k"), "rows")})

    def end_of_input(self, state):
        return replace(super(Narrates, self).end_of_input(state), outputs={"lines": _lines(state, "end")})


def _lines(keys, said):
    return keys.select("k", line=pl.lit(said))


def test_a_named_output_has_its_rows_in_files_of_its_own(tmp_path):
    """A named output gets rows of the last micro-batch and of the end. The function's own output is in other files."""
    lines = pa.schema([("k", pa.string()), ("line", pa.string())])
    one = (InputLayout(schema=LEFT, keys=("k",)),)
    bench = Bench(
        str(tmp_path), Narrates(), one, COUNT, COUNT, TableMode.UPSERT, outputs={"lines": lines, "none": lines}
    )
    (file,) = bench.run([("a", 1), ("b", 1)], end=True).emitted
    assert "channels/silver/_data/1/_output=lines/silver-1-" in file.path
    assert [("a", "end"), ("a", "rows"), ("b", "end"), ("b", "rows")] == bench.read([file])


@dataclass(frozen=True, slots=True)
class Forgets(Sessions):
    """Deletes a key when rows come for it a second time, and marks the remaining keys at the end."""

    def process(self, inputs, state):
        counted = inputs[0].select("k").unique().with_columns(pl.lit(1, pl.Int64).alias("n"))
        return Processed(state=counted.join(state, on="k", how="anti"), output=state.clear())

    def end_of_input(self, state):
        return Processed(state=state.with_columns(pl.lit(9, pl.Int64).alias("n")), output=state.clear())


def test_keys_that_the_last_rows_deleted_stay_deleted(tmp_path):
    """The delta of the end is merged with the delta of the rows, and does not undo its tombstones."""
    one = (InputLayout(schema=LEFT, keys=("k",)),)
    bench = Bench(str(tmp_path), Forgets(), one, COUNT, COUNT, TableMode.UPSERT, policy=CompactionPolicy(ratio=100.0))
    bench.run([("a", 1), ("b", 2)])
    bench.run([("a", 3)], end=True)
    assert KeyedFileKind.DELTA is bench.files[-1].kind
    assert {"b": 9} == {key: row["n"] for key, row in bench.state().items()}


@dataclass(frozen=True, slots=True)
class Counts:
    """A function without an end of input."""

    def process(self, inputs, state):
        return Sessions().process(inputs, state)


def test_a_function_that_holds_nothing_back_does_not_run_at_the_end(tmp_path):
    """An aggregate has nothing to end. Without rows, its subtask reports nothing."""
    bench = Bench(str(tmp_path), Counts(), (InputLayout(schema=LEFT, keys=("k",)),), COUNT, COUNT, TableMode.UPSERT)
    bench.run([("a", 1)])
    assert None is bench.run(end=True)
    assert None is not bench.run([("a", 1)], end=True)


@dataclass(frozen=True, slots=True)
class Invents(Counts):
    """A function that makes state for a new key at the end."""

    def end_of_input(self, state):
        return Processed(state=state.with_columns(pl.lit("new").alias("k")), output=state.clear())


def test_the_end_may_not_add_keys(tmp_path):
    """A key without a key group would be lost at the next rescaling."""
    bench = Bench(str(tmp_path), Invents(), (InputLayout(schema=LEFT, keys=("k",)),), COUNT, COUNT, TableMode.UPSERT)
    with pytest.raises(KeyError, match="not touched"):
        bench.run([("a", 1)], end=True)


@dataclass(frozen=True, slots=True)
class Totals(Sessions):
    """A function that emits a count of all keys at the end, under a key that no row has."""

    def end_of_input(self, state):
        total = state.select(pl.lit("all").alias("k"), pl.col("n").sum())
        return Processed(state=state, output=pl.concat([state, total]))


def test_the_end_may_emit_only_keys_of_the_subtasks_state(tmp_path):
    """Otherwise each subtask would emit a total of its own rows.

    Keys in the state are allowed, even without new rows.
    """
    one = (InputLayout(schema=LEFT, keys=("k",)),)
    ended = Bench(str(tmp_path / "own"), Sessions(), one, COUNT, COUNT, TableMode.UPSERT, 2)
    ended.run([("a", 1), ("b", 2)])
    ended.run([("a", 3)], end=True)
    assert [("a", 2), ("b", 1)] == ended.read(file.file for file in ended.table_files)
    foreign = Bench(str(tmp_path / "all"), Totals(), one, COUNT, COUNT, TableMode.UPSERT, 2)
    foreign.run([("a", 1), ("b", 2)])
    with pytest.raises(ForeignKeyError, match="vertex silver: its function emitted a row with the key k=all"):
        foreign.run([("a", 3)], end=True)


@dataclass(frozen=True, slots=True)
class Merging:
    """An aggregate that emits the partial results of all keys under one key."""

    def process(self, inputs, state):
        """Fail, since `process` is not called on a function that merges partials."""
        raise AssertionError

    def partials(self, rows, types):
        counted = rows.select(pl.col(KEY_GROUP).first(), pl.lit("all").alias("k"), pl.len().cast(pl.Int64).alias("n"))
        return counted.filter(pl.col("n") > 0)

    def merged(self, partials, before):
        return partials


def test_a_users_own_aggregate_is_checked_too(tmp_path):
    """A user's aggregate could emit any key. Only the built-in ones emit exactly the keys by which they group."""
    one = (InputLayout(schema=LEFT, keys=("k",)),)
    bench = Bench(str(tmp_path), Merging(), one, COUNT, COUNT, TableMode.UPSERT, 2)
    with pytest.raises(ForeignKeyError, match="k=all"):
        bench.run([("a", 1), ("b", 2)])


def test_a_file_for_the_next_vertex_says_the_key_groups_of_its_rows(tmp_path):
    """With a single subtask the file has no key groups, since that subtask reads all files anyway."""
    bench, channel = Bench(str(tmp_path)), TableName("_tidemark/j/channels/silver")
    said = []
    for parallelism in (1, 2):
        task = replace(
            bench._task(end=True), channel=channel, target=None, parallelism=parallelism, state=((),) * parallelism
        )
        (batch,) = task.carry_out(0, bench._sent(0, [("a", 1), ("b", 2)]))
        (file,) = report_from(batch.column("report")[0].as_py()).emitted
        said.append(said_groups(pq.read_schema(tmp_path / file.path), ("k",), OUTPUT, 8))
    groups = key_groups([pa.array(["a", "b"])], 8).to_pylist()
    assert [None, KeyGroupRange(first=min(groups), last=max(groups))] == said
