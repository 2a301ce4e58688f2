"""Builds the Spark job of a keyed micro-batch: rows become blocks, one exchange brings them to the tasks.

Key group = pmod(Spark's hash of the key columns, max parallelism). Either Spark or `key_hash` computes it, with the
same result. So equal keys always have the same key group, wherever their rows come from. The subtask that owns the key
group is the Spark partition (`repartition_by_id` promises exactly that). A small micro-batch needs no exchange, because
one task runs all subtasks in turn. A larger micro-batch needs none either if tasks read its files themselves: each
subtask's task keeps the rows of its own key groups.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from checkpointing.event_time import END_OF_TIME
from checkpointing.handles import KeyedFile, Version
from checkpointing.identifiers import Generation, JobName
from checkpointing.messages import RunMicroBatch
from checkpointing.metadata.paths import ProtocolPaths, broadcast_of, is_state_table, table_of_broadcast
from jobs.operators.broadcast import BroadcastState
from jobs.operators.exchange import (
    BLOCK,
    EXCHANGED,
    SUBTASK,
    TAG,
    WAKING,
    Splitter,
    arrived,
    blocks_by_tag,
)
from jobs.operators.inputs import in_schema, renamed_rows
from jobs.operators.key_hash import landing
from jobs.operators.keyed_task import AppendTarget, InputLayout, KeyedTask, UpsertTarget
from jobs.operators.process import AnyFunction, EndsInput, FiresInTime, NamedOutputs
from jobs.operators.python_workers import freeze_imports, reported
from jobs.operators.reports import times_read
from jobs.operators.scan.scanned import KeyedScan, Scanned, ScanTasks, keyed_scan, shares_of
from jobs.operators.scan.stepped import (
    ArrowFunction,
    Part,
    Stepped,
    SteppedWork,
    rows_of,
)
from jobs.operators.spec import KeyedSpec, arrow_schema, fits_range, misfits, quoted, range_files
from jobs.operators.ways_to_read import Exchange, exchange
from jobs.sinks.staged_files import StagedFiles
from jobs.spark.columns import map_in_arrow
from jobs.spark.versions import repartition_by_id
from jobs.state.merge import KEY_GROUP
from jobs.storage.address import parsed

# ------------------------------------------------------------------
# Runs subtasks of a keyed micro-batch whose rows need no exchange between Spark's tasks.
#
# Either one task runs all subtasks, one after another. Or each subtask has its own task, which reads all files and
# keeps the rows of its own key groups. This takes less time than if the tasks wrote rows for each other.


@dataclass(frozen=True, slots=True)
class WithoutExchange:
    """The subtasks of a micro-batch, and the inputs whose files their tasks read themselves."""

    task: KeyedTask
    scans: tuple[KeyedScan, ...]

    def run_scans(self, subtasks: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Run these subtasks, and yield their reports. Raises the errors of `KeyedTask.run` and of the scans."""
        yield from self._run(subtasks, {})

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run all subtasks with the blocks that come from Spark, and yield their reports.

        Raises as `run_scans` does.
        """
        blocks: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        for batch in batches:
            for row, subtask in enumerate(batch.column(SUBTASK).to_pylist()):
                blocks[subtask].append(batch.slice(row, 1))
        yield from self._run(range(self.task.parallelism), blocks)

    def _run(self, subtasks: Sequence[int], blocks: Mapping[int, Sequence[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        scanned = {scan.splitter.tag: scan.by_subtask(subtasks) for scan in self.scans}
        schemas = self.task.schemas
        for subtask in subtasks:
            parts = blocks_by_tag(blocks.get(subtask, ()), schemas)
            parts |= {tag: rows[subtask] for tag, rows in scanned.items()}
            timed = replace(self.task, writer=self.task.writer.timed())
            yield from times_read(subtask, self.task.writer)
            yield from timed.take(subtask, arrived(parts, schemas))
        freeze_imports()


_Branch = tuple[int, DataFrame | Scanned | Stepped, StructType, tuple[str, ...]]
"""(tag, rows, their schema, their key columns)."""


def keyed_job(
    spark: SparkSession,
    spec: KeyedSpec,
    effect: RunMicroBatch,
    inputs: Mapping[int, DataFrame | Scanned | Stepped],
    writer: StagedFiles,
) -> Part:
    """Return the lazy job whose rows are the tasks' reports. `inputs` are by ordinal. A missing input is empty.

    Inputs are `Stepped` only if one task runs the micro-batch (`is_in_one_task`).
    """
    task = _task(spec, effect, writer)
    branches: list[_Branch] = [
        (tag, rows, spec.inputs[tag].schema, spec.inputs[tag].keys) for tag, rows in inputs.items()
    ]
    others = misfits(spec, effect)
    if others:
        rows = renamed_rows(spark, spec.output, others, parsed(writer.root), spec.columns_renamed_from)
        branches.append((len(spec.inputs), rows, spec.output, spec.keys))
    scans = _scans(spec, branches)
    way = exchange(spec, effect, parsed(writer.root), scans, by_tasks=len(scans) == len(branches))
    if way is Exchange.NONE:
        return _in_one_task(spark, spec, branches, WithoutExchange(task, scans))
    if way is Exchange.BY_READING:
        subtasks = WithoutExchange(task, scans)
        return ScanTasks(tuple((subtasks, (subtask,)) for subtask in range(spec.parallelism)))
    wakes = must_wake(spec, effect)
    arriving = [_blocks(spark, spec, branch) for branch in branches]
    if wakes:
        arriving.append(_waking_rows(spark, spec))
    exchanged = repartition_by_id(reduce(DataFrame.union, arriving), spec.parallelism, SUBTASK, landing)
    return reported(exchanged, task.run)


def _in_one_task(spark: SparkSession, spec: KeyedSpec, branches: Sequence[_Branch], subtasks: WithoutExchange) -> Part:
    through_spark = [branch for branch in branches if not isinstance(branch[1], Scanned)]
    stepped = {tag: rows for tag, rows, _, _ in through_spark if isinstance(rows, Stepped)}

    def plan(rows: Mapping[int, DataFrame], after: ArrowFunction) -> DataFrame:
        sent = (_in_blocks(spec, tag, of, spec.inputs[tag].schema, spec.inputs[tag].keys) for tag, of in rows.items())
        return _to_one_task(sent, after)

    if not through_spark:
        return ScanTasks(((subtasks, tuple(range(spec.parallelism))),))
    if len(stepped) == len(through_spark):
        return SteppedWork(vertex=spec.vertex, inputs=stepped, after=subtasks, plan=plan)
    return _to_one_task((_blocks(spark, spec, branch) for branch in through_spark), subtasks.run)


def _to_one_task(sent: Iterable[DataFrame], run: ArrowFunction) -> DataFrame:
    return reported(reduce(DataFrame.union, sent).coalesce(1), run)


def _scans(spec: KeyedSpec, branches: Sequence[_Branch]) -> tuple[KeyedScan, ...]:
    return tuple(_keyed_scan(spec, branch, branch[1]) for branch in branches if isinstance(branch[1], Scanned))


def must_wake(spec: KeyedSpec, effect: RunMicroBatch) -> bool:
    """Return whether subtasks must run even without rows: the input ends, state is due, or state is rewritten."""
    ends = effect.end_of_input and isinstance(spec.function, EndsInput) and any(effect.state)
    fires = effect.due_ms is not None and any(effect.state)
    return ends or fires or any(found(spec, effect) for found in (_outdated, _outdated_ranges, _has_outdated_broadcast))


def _outdated(spec: KeyedSpec, effect: RunMicroBatch) -> frozenset[int]:
    """Return the subtasks that rewrite their state.

    Their state has other columns, or the input ends and some of the state has expired.
    """
    cleans_up = effect.end_of_input and spec.expires is not None and effect.now_ms is not None
    if cleans_up:
        return frozenset(subtask for subtask, files in enumerate(effect.state) if files)
    return _holding(spec.outdated, effect.state)


def _outdated_ranges(spec: KeyedSpec, effect: RunMicroBatch) -> frozenset[int]:
    """Return the subtasks whose range of the upsert table has other columns than the declared ones."""
    return _holding(spec.outdated, range_files(spec, effect))


def _has_outdated_broadcast(spec: KeyedSpec, effect: RunMicroBatch) -> bool:
    """Return whether the broadcast state has other columns than the declared ones."""
    return any(keyed.file.path in spec.outdated for keyed in _broadcast_files(spec, effect))


def _broadcast_files(spec: KeyedSpec, effect: RunMicroBatch) -> tuple[KeyedFile, ...]:
    """Return the files of the broadcast state. All subtasks hold the same ones."""
    if spec.broadcast is None or not effect.ranges:
        return ()
    return tuple(file for entry in effect.ranges[0] if is_state_table(entry.table) for file in entry.files)


def _holding(outdated: frozenset[str], held: Sequence[tuple[KeyedFile, ...]]) -> frozenset[int]:
    if not outdated:
        return frozenset()
    return frozenset(
        subtask for subtask, files in enumerate(held) if any(keyed.file.path in outdated for keyed in files)
    )


def _waking_rows(spark: SparkSession, spec: KeyedSpec) -> DataFrame:
    """Return one row for each subtask. These rows belong to no input. Without rows Spark would drop the exchange."""
    return spark.range(0, spec.parallelism, 1, 1).selectExpr(
        f"cast(id as int) as {SUBTASK}", f"{WAKING} as {TAG}", f"cast(null as binary) as {BLOCK}"
    )


def _blocks(spark: SparkSession, spec: KeyedSpec, branch: _Branch) -> DataFrame:
    tag, rows, schema, keys = branch
    if isinstance(rows, Scanned):
        return keyed_scan(spark, _keyed_scan(spec, branch, rows))
    return _in_blocks(spec, tag, rows_of(spark, rows) if isinstance(rows, Stepped) else rows, schema, keys)


def _in_blocks(spec: KeyedSpec, tag: int, rows: DataFrame, schema: StructType, keys: Sequence[str]) -> DataFrame:
    splitter = _splitter(spec, tag, schema)
    group = "0" if splitter.broadcast else f"pmod(hash({quoted(keys)}), {spec.max_parallelism})"
    grouped = in_schema(rows, schema).selectExpr(f"{group} as {KEY_GROUP}", "*")
    return map_in_arrow(grouped, splitter.run, EXCHANGED)


def _splitter(spec: KeyedSpec, tag: int, schema: StructType) -> Splitter:
    """Return the splitter for an input's rows. Rows of files that fit no range have the tag after the last input's."""
    keyed = spec.inputs[tag] if tag < len(spec.inputs) else None
    return Splitter(
        tag=tag,
        schema=arrow_schema(schema),
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        to_all=keyed.to_all if keyed is not None else None,
        broadcast=keyed is not None and keyed.is_broadcast,
    )


def _keyed_scan(spec: KeyedSpec, branch: _Branch, rows: Scanned) -> KeyedScan:
    tag, _, schema, keys = branch
    return KeyedScan(
        shares=shares_of(rows.scans),
        keys=keys,
        max_parallelism=spec.max_parallelism,
        splitter=_splitter(spec, tag, schema),
    )


def _task(spec: KeyedSpec, effect: RunMicroBatch, writer: StagedFiles) -> KeyedTask:
    paths = ProtocolPaths(writer.job)
    kept = spec.table is not None and spec.upserted is None
    return KeyedTask(
        operator=spec.vertex,
        writer=writer,
        version=Version(Generation(effect.generation), effect.micro_batch),
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        keys=spec.keys,
        state_keys=spec.state_keys,
        inputs=tuple(InputLayout(schema=arrow_schema(keyed.schema), keys=keyed.keys) for keyed in spec.inputs),
        function=_function(spec, effect),
        state_table=paths.state_table(spec.vertex),
        state_schema=arrow_schema(spec.state),
        output_schema=arrow_schema(spec.output),
        outputs=NamedOutputs(
            paths.channel(spec.vertex), {name: arrow_schema(rows) for name, rows in spec.outputs.items()}
        ),
        state=effect.state or ((),) * spec.parallelism,
        backend=spec.backend,
        target=_target(spec, effect),
        channel=paths.channel(spec.vertex) if spec.emits and (spec.emits_changes or not kept) else None,
        emits=spec.emits,
        emits_changes=spec.emits_changes,
        end_of_input=effect.end_of_input,
        fires_ms=effect.due_ms,
        outdated=_outdated(spec, effect),
        outdated_ranges=_outdated_ranges(spec, effect),
        columns_renamed_from=spec.columns_renamed_from,
        broadcast=_broadcast(spec, effect, writer.job),
        stored=spec.stored,
        expires=spec.expires,
        now_ms=effect.now_ms,
        lapsed=spec.lapsed,
    )


def _function(spec: KeyedSpec, effect: RunMicroBatch) -> AnyFunction:
    if isinstance(spec.function, FiresInTime):
        return spec.function.at(effect.late_ms, END_OF_TIME if effect.due_ms is None else effect.due_ms)
    return spec.function


def _broadcast(spec: KeyedSpec, effect: RunMicroBatch, job: JobName) -> BroadcastState | None:
    taken = spec.broadcast
    if taken is None:
        return None
    return BroadcastState(
        operator=broadcast_of(spec.vertex),
        table=table_of_broadcast(job, spec.vertex),
        kept=taken.kept,
        schema=arrow_schema(taken.schema),
        files=_broadcast_files(spec, effect),
        max_parallelism=spec.max_parallelism,
        version=Version(Generation(effect.generation), effect.micro_batch),
        outdated=_has_outdated_broadcast(spec, effect),
    )


def _target(spec: KeyedSpec, effect: RunMicroBatch) -> AppendTarget | UpsertTarget | None:
    if spec.table is None:
        return None
    if spec.upserted is None:
        return AppendTarget(table=spec.table.name, partitioned_by=spec.table.partitioned_by)
    ranges = enumerate(range_files(spec, effect))
    fitting = tuple(files if fits_range(spec, subtask, files) else None for subtask, files in ranges)
    return UpsertTarget(
        table=spec.table.name, keys=spec.table.keys, files=fitting, partitioned_by=spec.table.partitioned_by
    )
