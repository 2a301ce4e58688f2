"""Turns the segments of a micro-batch into the rows that its operator gets.

Reading is lazy: a source slice and its steps become part of the consumer's Spark job. Schemas are declared, and paths
come from handles. So no folder is listed, and no schema is inferred.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import StructField, StructType

from checkpointing.channel_items import Segment, SourceSlice, StagedSegment
from checkpointing.columns import columns_then
from checkpointing.handles import FileHandle
from checkpointing.identifiers import SplitId
from jobs.engine_paths import spark_path
from jobs.operators.changes import ADDING, DELETE, INSERT, KIND, UPDATE_AFTER
from jobs.operators.derived_scans import AddingScan, ChangesScan, FilteredScan, NewColumn
from jobs.operators.expressions import Column, Expression
from jobs.operators.in_time.measured_times import TimeColumn, TimesOfInput
from jobs.operators.process import of_output
from jobs.operators.scan.divided import Divided, Division
from jobs.operators.scan.scanned import Scanned
from jobs.operators.scan.stepped import Stepped, rows_by_tasks
from jobs.operators.spec import (
    Chain,
    InputPlan,
    InputTime,
    InvalidSpecError,
    TaskSteps,
    arrow_schema,
    nullable_schema,
    schema_with_kind,
)
from jobs.sources.hybrid import PartScan
from jobs.sources.port import Source, read_stores
from jobs.sources.slice_reading import OffersScans, RowScan
from jobs.spark.session import spark_reads
from jobs.state.files import schema_of
from jobs.storage.address import Root, StoreUrl, parsed
from jobs.storage.parquet import FileScan

_WHOLE_OBJECT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A task reads an object of a store whole, so Spark reads larger objects.

Of a file, a task reads only what it needs.
"""


def read_input(
    spark: SparkSession,
    plan: InputPlan,
    segments: Sequence[Segment],
    warehouse: Root,
    times: TimesOfInput | None = None,
) -> DataFrame | None:
    """Return the rows of one input after its chain, or None if no segment holds any.

    If the input has event times, `times` measures them. Raise InvalidSpecError if there are source slices and the plan
    has no reader for them.
    """
    if plan.time is not None and times is not None:
        return _timed(spark, plan, plan.time, segments, times)
    parts = tuple(_parts(spark, plan, segments, warehouse))
    if not parts:
        return None
    rows = reduce(DataFrame.unionByName, parts)
    chain = plan.chain or _unchanged
    if not plan.of_changes:
        return chain(rows)
    return _changed(rows, chain) if plan.takes_changes else chain(_added(rows))


def _timed(
    spark: SparkSession, plan: InputPlan, time: InputTime, segments: Sequence[Segment], times: TimesOfInput
) -> DataFrame | None:
    """Return the rows of a source after its chain. The event times of each split are measured separately."""
    measured = []
    for (split, offered_ms), slices in slices_by_split(segments, time.column).items():
        rows = _read(spark, plan, slices)
        rows = rows if time.before is None else time.before(rows)
        limit_ms = time.column.limit_ms(offered_ms)
        measured.append(times.observed.of(rows, time.column, times.input, split, limit_ms))
    if not measured:
        return None
    every = reduce(DataFrame.unionByName, measured)
    return every if time.after is None else time.after(every)


def slices_by_split(segments: Sequence[Segment], time: TimeColumn) -> dict[tuple[SplitId, int], list[SourceSlice]]:
    """Return the slices of each split, in order.

    If the offering time limits event times, slices of another offering time are listed separately.
    """
    found: dict[tuple[SplitId, int], list[SourceSlice]] = {}
    for segment in segments:
        if isinstance(segment, SourceSlice):
            found.setdefault((segment.split, 0 if time.ahead_ms is None else segment.offered_ms), []).append(segment)
    return found


def scanned_input(
    plan: InputPlan, segments: Sequence[Segment], warehouse: Root, times: TimesOfInput | None = None
) -> Scanned | None:
    """Return the parts of files that tasks can read themselves, or None if Spark must read the input or it is empty.

    If the input has event times, `times` says for which input they are measured. A task cannot measure a time that a
    step computes.
    """
    steps = plan.chain or TaskSteps(_unchanged)
    if not isinstance(steps, TaskSteps):
        return None
    if plan.time is not None and times is not None:
        found = _timed_scans(plan, plan.time, segments, warehouse, times)
    else:
        found = _scans(plan, segments, warehouse)
    scans = _filtered(found, plan.schema, steps.rules)
    if plan.of_changes:
        scans = tuple(ChangesScan(scan=scan) for scan in scans)
    return Scanned(_adding(scans, plan.schema, steps.added)) if scans else None


def stepped_input(plan: InputPlan, segments: Sequence[Segment], warehouse: Root) -> Stepped | None:
    """Return the parts of files that tasks can read before Spark's steps.

    None: Spark must read the input, or nothing is to be read.
    """
    scans = [] if plan.of_changes else _scans(plan, segments, warehouse)
    return Stepped(tuple(scans), plan.schema, plan.chain or _unchanged) if scans else None


def divided_input(
    plan: InputPlan,
    division: Division,
    segments: Sequence[Segment],
    warehouse: Root,
    times: TimesOfInput | None = None,
) -> Divided | None:
    """Return the parts of files from which a task reads the columns that Spark does not need, or None.

    None: Spark needs all columns, or must read the input itself.
    """
    if plan.chain is None or plan.of_changes or {*division.copies.values()} <= {*division.read}:
        return None
    if plan.time is None or times is None:
        scans = _scans(plan, segments, warehouse)
    elif plan.time.column.kept_in is None:
        scans = _timed_scans(plan, plan.time, segments, warehouse, times)
    else:
        return None
    repeat = scans and all(scan.may_repeat for scan in scans)
    return Divided(tuple(scans), plan.schema, plan.chain, division) if repeat else None


def _scans(plan: InputPlan, segments: Sequence[Segment], warehouse: Root) -> list[RowScan]:
    """Return the parts of files with all rows of an input.

    There are none if Spark must read the input or it is empty.
    """
    own = list(of_output(segments, plan.output, plan.outputs))
    scans: list[RowScan] = [
        _whole(file, warehouse) for segment in own if isinstance(segment, StagedSegment) for file in segment.files
    ]
    slices = [segment for segment in own if isinstance(segment, SourceSlice)]
    if slices:
        of_source = plan.reader.scans(slices) if isinstance(plan.reader, OffersScans) else None
        if of_source is None:
            return []
        scans += of_source
    return scans if all(_is_in_reach(scan, warehouse) for scan in scans) else []


def _timed_scans(
    plan: InputPlan, said: InputTime, segments: Sequence[Segment], warehouse: Root, times: TimesOfInput
) -> list[RowScan]:
    """Return for each split the parts of files that measure its times. There are none if Spark must read a split.

    If a step has renamed the time's column, the scan uses the column's name in the file.
    """
    before = said.before or TaskSteps(_unchanged)
    if not isinstance(before, TaskSteps) or before.rules:
        return []
    of = {column.name: column.values for column in before.added}.get(said.column.name, Column(said.column.name))
    if not isinstance(of, Column):
        return []
    time = replace(said.column, name=of.name)
    found: list[RowScan] = []
    for (split, offered_ms), slices in slices_by_split(segments, time).items():
        scans = _scans(plan, slices, warehouse)
        if not scans:
            return []
        found += times.scans(scans, split, time, time.limit_ms(offered_ms))
    return found


def _filtered(scans: Sequence[RowScan], schema: StructType, rules: tuple[Expression, ...]) -> tuple[RowScan, ...]:
    if not rules:
        return tuple(scans)
    tested = _read_by(rules, schema)
    return tuple(FilteredScan(scan=scan, rules=rules, tested=tested) for scan in scans)


def _adding(scans: Sequence[RowScan], schema: StructType, added: tuple[NewColumn, ...]) -> tuple[RowScan, ...]:
    if not added:
        return tuple(scans)
    read = _read_by([column.values for column in added], schema)
    return tuple(AddingScan(scan=scan, added=added, read=read) for scan in scans)


def _read_by(expressions: Sequence[Expression], schema: StructType) -> pa.Schema:
    names = dict.fromkeys(name for each in expressions for name in each.columns)
    return arrow_schema(StructType([schema[name] for name in names]))


def _is_in_reach(scan: RowScan, warehouse: Root) -> bool:
    """Return whether a task can read a file. Only if the warehouse is in a store, tasks surely have a store's key."""
    file = scan.scan if isinstance(scan, PartScan) else scan
    if not isinstance(file, FileScan) or not isinstance(parsed(file.root), StoreUrl):
        return True
    return isinstance(warehouse, StoreUrl) and file.bytes <= _WHOLE_OBJECT_BYTES_MAX


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


def _added(rows: DataFrame) -> DataFrame:
    """Return the rows that are added, without their kinds. In a file without kinds, all rows are added."""
    return rows.filter(F.coalesce(F.col(KIND), F.lit(UPDATE_AFTER)).isin(*ADDING)).drop(KIND)


def _changed(rows: DataFrame, chain: Chain) -> DataFrame:
    """Return the changes after the chain. The chain runs twice: over the added rows, and over the rows taken back.

    So the chain sees no kinds. If it drops one of the two rows of an update, the update becomes a delete or an insert.
    """
    taken = rows.filter(~F.col(KIND).isin(*ADDING)).drop(KIND)
    sides = ((_added(rows), INSERT), (taken, DELETE))
    return reduce(DataFrame.unionByName, [chain(side).withColumn(KIND, F.lit(kind)) for side, kind in sides])


def in_schema(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return exactly the columns of `schema`, in its order and types, found by name.

    Raise InvalidSpecError naming the missing columns, which `DataFrame.to` would fill with nulls. Spark refuses a cast
    that could lose something. There is one call for all columns, because in small micro-batches a plan that is built
    column by column costs more than running it.
    """
    missing = [name for name in schema.names if name not in rows.columns]
    if missing:
        raise InvalidSpecError(
            f"rows should have the columns {schema.names}, but lack {missing}; they have {rows.columns}"
        )
    wanted = nullable_schema(schema)
    return rows if nullable_schema(rows.schema) == wanted else rows.to(wanted)


def staged_rows(spark: SparkSession, schema: StructType, files: Sequence[FileHandle], warehouse: Root) -> DataFrame:
    """Return the rows of staged files. Tasks read them if Spark cannot read the warehouse."""
    if not spark_reads(warehouse):
        return rows_by_tasks(spark, [_whole(file, warehouse) for file in files], schema)
    paths = [spark_path(f"{warehouse}/{file.path}") for file in files]
    return spark.read.schema(nullable_schema(schema)).parquet(*paths)


def _whole(file: FileHandle, warehouse: Root) -> FileScan:
    return FileScan(root=str(warehouse), name=file.path, first=0, end=file.rows, bytes=file.bytes, staged=True)


def renamed_rows(
    spark: SparkSession, schema: StructType, files: Sequence[FileHandle], warehouse: Root, renamed: Mapping[str, str]
) -> DataFrame:
    """Return the rows of staged files, each read by its own column names. `renamed` maps new names to old names."""
    by_names: dict[tuple[str, ...], list[FileHandle]] = defaultdict(list)
    for file in files:
        footer = schema_of(str(warehouse), file) if renamed else None
        then = columns_then(schema.names, footer.names if footer is not None else (), renamed)
        by_names[tuple(then.get(name, name) for name in schema.names)].append(file)
    parts = (
        staged_rows(spark, _called(schema, names), of_names, warehouse).toDF(*schema.names)
        for names, of_names in by_names.items()
    )
    return reduce(DataFrame.unionByName, parts)


def _called(schema: StructType, names: Sequence[str]) -> StructType:
    fields = zip(names, schema.fields, strict=True)
    return StructType([StructField(name, field.dataType, field.nullable) for name, field in fields])


def _read(spark: SparkSession, plan: InputPlan, slices: Sequence[SourceSlice]) -> DataFrame:
    if plan.reader is None:
        raise InvalidSpecError(f"source {slices[0].source} has slices to read, but the plan names no reader for it")
    if isinstance(plan.reader, OffersScans) and not all(map(spark_reads, read_stores(cast("Source", plan.reader)))):
        scans = plan.reader.scans(slices)
        if scans:
            return rows_by_tasks(spark, scans, plan.schema)
    return in_schema(plan.reader.read(spark, slices), plan.schema)


def _parts(spark: SparkSession, plan: InputPlan, segments: Sequence[Segment], warehouse: Root) -> Iterator[DataFrame]:
    own = list(of_output(segments, plan.output, plan.outputs))
    slices = [segment for segment in own if isinstance(segment, SourceSlice)]
    files = [file for segment in own if isinstance(segment, StagedSegment) for file in segment.files]
    if slices:
        yield _read(spark, plan, slices)
    if files:
        schema = schema_with_kind(plan.schema) if plan.of_changes else plan.schema
        yield staged_rows(spark, schema, files, warehouse)
