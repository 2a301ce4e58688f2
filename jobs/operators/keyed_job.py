"""Builds the Spark job of a keyed micro-batch: one exchange into ranges of key groups, then the tasks.

Key group = pmod(Spark's hash of the key columns, max parallelism); the subtask that owns it is the
Spark partition (`repartitionById` promises exactly that).
"""

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import StructType

from checkpointing.handles import FileHandle, KeyedFile, Version
from checkpointing.identifiers import Generation
from checkpointing.key_groups import key_group_ranges, range_of
from checkpointing.messages import RunMicroBatch
from checkpointing.metadata.paths import ProtocolPaths
from jobs.operators.arrived import TAG, WAKING, flat_column, struct_column
from jobs.operators.functions import EndsInput
from jobs.operators.inputs import in_schema, renamed_rows
from jobs.operators.keyed_task import AppendTarget, InputLayout, KeyedTask, UpsertTarget
from jobs.operators.reports import REPORT_SCHEMA
from jobs.operators.schemas import arrow_schema, quoted
from jobs.operators.spec import KeyedSpec
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import fits
from jobs.state.merge import KEY_GROUP
from jobs.storage.address import parsed

_Branch = tuple[int, DataFrame, StructType, tuple[str, ...]]
"""(tag, rows, their schema, their key columns)."""


def keyed_job(
    spark: SparkSession,
    spec: KeyedSpec,
    effect: RunMicroBatch,
    inputs: Mapping[int, DataFrame],
    writer: StagedFiles,
) -> DataFrame:
    """Return the lazy job whose rows are the tasks' reports. `inputs` are by ordinal; a missing one is empty."""
    branches: list[_Branch] = [
        (tag, rows, spec.inputs[tag].schema, spec.inputs[tag].keys) for tag, rows in inputs.items()
    ]
    others = misfits(spec, effect)
    if others:
        rows = renamed_rows(spark, spec.output, others, parsed(writer.root), spec.columns_renamed_from)
        branches.append((len(spec.inputs), rows, spec.output, spec.keys))
    wakes = must_wake(spec, effect)
    only = branches[0][0] if len(branches) == 1 and not wakes else None
    lay = _exchange_rows if only is None else _flat_rows
    arriving = [lay(branch, spec.max_parallelism) for branch in branches]
    if wakes:
        arriving.append(_waking_rows(spark, spec))
    subtask = F.expr(f"cast({KEY_GROUP} * {spec.parallelism} div {spec.max_parallelism} as int)")
    return (
        _exchanged(arriving)
        .repartitionById(spec.parallelism, subtask)
        .mapInArrow(_task(spec, effect, writer, only).run, REPORT_SCHEMA)
    )


def misfits(spec: KeyedSpec, effect: RunMicroBatch) -> tuple[FileHandle, ...]:
    """Return the files of the upsert table that were written for ranges of another parallelism."""
    found = {
        file.file.path: file.file
        for subtask, files in enumerate(_range_files(spec, effect))
        if not _fits(spec, subtask, files)
        for file in files
    }
    return tuple(found.values())


def must_wake(spec: KeyedSpec, effect: RunMicroBatch) -> bool:
    """Return whether subtasks must run even without rows: the input ends, or their state is outdated."""
    ends = effect.end_of_input and isinstance(spec.function, EndsInput) and any(effect.state)
    return ends or bool(_outdated(spec, effect)) or bool(_outdated_ranges(spec, effect))


def _outdated(spec: KeyedSpec, effect: RunMicroBatch) -> frozenset[int]:
    """Return the subtasks whose live state has other columns than the declared ones."""
    return _holding(spec.outdated, effect.state)


def _outdated_ranges(spec: KeyedSpec, effect: RunMicroBatch) -> frozenset[int]:
    """Return the subtasks whose range of the upsert table has other columns than the declared ones."""
    return _holding(spec.outdated, _range_files(spec, effect))


def _holding(outdated: frozenset[str], held: Sequence[tuple[KeyedFile, ...]]) -> frozenset[int]:
    if not outdated:
        return frozenset()
    return frozenset(
        subtask for subtask, files in enumerate(held) if any(keyed.file.path in outdated for keyed in files)
    )


def _exchanged(rows: Sequence[DataFrame]) -> DataFrame:
    """Return all rows in the layout of the exchange; a struct column is null under another's tag."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows)


def _waking_rows(spark: SparkSession, spec: KeyedSpec) -> DataFrame:
    """Return one row per subtask that belongs to no input. Without rows Spark would optimise the exchange away."""
    firsts = [own.first for own in key_group_ranges(parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)]
    listed = ", ".join(str(first) for first in firsts)
    return spark.range(0, 1, 1, 1).selectExpr(f"explode(array({listed})) as {KEY_GROUP}", f"{WAKING} as {TAG}")


def _exchange_rows(branch: _Branch, max_parallelism: int) -> DataFrame:
    tag, rows, schema, keys = branch
    return in_schema(rows, schema).selectExpr(
        f"pmod(hash({quoted(keys)}), {max_parallelism}) as {KEY_GROUP}",
        f"{tag} as {TAG}",
        f"struct({quoted(schema.names)}) as {struct_column(tag)}",
    )


def _flat_rows(branch: _Branch, max_parallelism: int) -> DataFrame:
    """Return the rows of the only branch, column by column, without tag and struct."""
    _, rows, schema, keys = branch
    return in_schema(rows, schema).selectExpr(
        f"pmod(hash({quoted(keys)}), {max_parallelism}) as {KEY_GROUP}",
        *(f"{quoted([name])} as {flat_column(place)}" for place, name in enumerate(schema.names)),
    )


def _task(spec: KeyedSpec, effect: RunMicroBatch, writer: StagedFiles, only: int | None) -> KeyedTask:
    paths = ProtocolPaths(writer.job)
    kept = spec.table is not None and spec.upserted is None
    return KeyedTask(
        operator=spec.vertex,
        writer=writer,
        version=Version(Generation(effect.generation), effect.micro_batch),
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        keys=spec.keys,
        inputs=tuple(InputLayout(schema=arrow_schema(keyed.schema), keys=keyed.keys) for keyed in spec.inputs),
        function=spec.function,
        state_table=paths.state_table(spec.vertex),
        state_schema=arrow_schema(spec.state),
        output_schema=arrow_schema(spec.output),
        state=effect.state or ((),) * spec.parallelism,
        backend=spec.backend,
        target=_target(spec, effect),
        channel=paths.channel(spec.vertex) if spec.emits and (spec.emits_changes or not kept) else None,
        emits=spec.emits,
        emits_changes=spec.emits_changes,
        only=only,
        end_of_input=effect.end_of_input,
        outdated=_outdated(spec, effect),
        outdated_ranges=_outdated_ranges(spec, effect),
        columns_renamed_from=spec.columns_renamed_from,
    )


def _target(spec: KeyedSpec, effect: RunMicroBatch) -> AppendTarget | UpsertTarget | None:
    if spec.table is None:
        return None
    if spec.upserted is None:
        return AppendTarget(table=spec.table.name)
    ranges = enumerate(_range_files(spec, effect))
    fitting = tuple(files if _fits(spec, subtask, files) else None for subtask, files in ranges)
    return UpsertTarget(table=spec.table.name, keys=spec.table.keys, files=fitting)


def _range_files(spec: KeyedSpec, effect: RunMicroBatch) -> tuple[tuple[KeyedFile, ...], ...]:
    """Return the live files of the upsert table by subtask; none without such a table."""
    if spec.upserted is None:
        return ()
    name, by_subtask = spec.upserted.name, effect.ranges or ((),) * spec.parallelism
    return tuple(
        tuple(file for entry in ranges if entry.table == name for file in entry.files) for ranges in by_subtask
    )


def _fits(spec: KeyedSpec, subtask: int, files: tuple[KeyedFile, ...]) -> bool:
    own = range_of(subtask=subtask, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
    return fits(files, own)
