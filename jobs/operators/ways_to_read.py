"""Chooses how the rows of a micro-batch come from their files to the tasks of a vertex.

For each input:

| way | when | why |
|---|---|---|
| tasks read the files (`Scanned`) | the source offers parts of files that tasks can read, and tasks can do all steps | no row passes through the JVM, and Spark plans nothing |
| a task reads, Spark computes, a task does the rest (`Stepped`) | a small micro-batch, and Spark's plan of the steps serves all micro-batches | Spark plans the steps once, and planning takes longer than the work |
| Spark gets only the columns that the steps read (`Divided`) | a large micro-batch of a stateless vertex with one input, and Spark's plan of the steps serves all micro-batches | the other columns do not pass through the JVM |
| Spark reads (`DataFrame`) | else | Spark can read and compute everything |

For the subtasks of a keyed vertex:

| way | when | why |
|---|---|---|
| one task runs them all (`Exchange.NONE`) | few rows and few subtasks, in a folder | an exchange takes longer than their work |
| each subtask's task reads all files (`Exchange.BY_READING`) | tasks read all inputs, and may read them again; not many rows, few subtasks, in a folder | to read a file twice takes less time than to write its rows for another task |
| tasks exchange rows (`Exchange.BLOCKS`) | else | each row is read once |

If the warehouse is in a store, subtasks always exchange rows, because several tasks write to a store faster than one.
"""  # noqa: E501 - tables

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StringType

from checkpointing.messages import InputSegments, RunMicroBatch
from jobs.operators.in_time.measured_times import MicroBatchId, ObservedTimes, TimesOfInput
from jobs.operators.inputs import divided_input, read_input, scanned_input, stepped_input
from jobs.operators.key_hash import can_hash
from jobs.operators.scan.divided import Divided
from jobs.operators.scan.planned_jobs import PlannedJobs
from jobs.operators.scan.scanned import KeyedScan, Scanned
from jobs.operators.scan.stepped import Stepped
from jobs.operators.spec import (
    InputPlan,
    KeyedSpec,
    Spec,
    StatelessSpec,
    VertexPlan,
    arrow_schema,
    left_to_spark,
    misfits,
)
from jobs.storage.address import Root, StoreUrl

_FEW_ROWS: Final = 50_000
_FEW_BYTES: Final = 4 * 1024 * 1024
_FEW_SUBTASKS: Final = 8
"""Up to so many rows, bytes and subtasks, one task runs all subtasks in turn."""
_READ_BY_ALL_ROWS: Final = 2_000_000
_READ_BY_ALL_BYTES: Final = 256 * 1024 * 1024
_READERS: Final = 4
"""Up to so many rows, bytes and subtasks, each subtask's task reads all files."""


@dataclass(frozen=True, slots=True)
class MicroBatchRows:
    """A micro-batch of a vertex. The way to read its rows is chosen for each input."""

    jobs: PlannedJobs
    plan: VertexPlan
    effect: RunMicroBatch
    warehouse: Root
    observed: ObservedTimes
    """Receives the event times that Spark measures while it reads."""

    def arriving(self) -> dict[int, DataFrame | Scanned | Stepped]:
        """Return a dict from inputs' numbers to their rows. Leave out inputs without rows."""
        found = {entry.input: self._arriving(entry) for entry in self.effect.inputs}
        return {number: rows for number, rows in found.items() if rows is not None}

    def divided(self) -> Divided | None:
        """Return the rows of a large micro-batch of one input, of which Spark sees only the columns that it needs."""
        spec = self.plan.spec
        if not isinstance(spec, StatelessSpec) or len(self.effect.inputs) > 1 or is_small(spec, self.effect):
            return None
        if spec.quarantine is not None or spec.emits_changes:  # the tasks need further columns from Spark
            return None
        for entry in self.effect.inputs:
            reads = self.plan.inputs[entry.input]
            division = self.jobs.division(self.effect.vertex, entry.input, reads)
            if division is not None:
                return divided_input(reads, division, entry.segments, self.warehouse, self._times(entry, reads))
        return None

    def _arriving(self, entry: InputSegments) -> DataFrame | Scanned | Stepped | None:
        reads, times = self.plan.inputs[entry.input], self._times(entry, self.plan.inputs[entry.input])
        is_kept = isinstance(self.plan.spec, StatelessSpec) and reads.takes_changes
        if may_scan(self.plan.spec, entry.input) and not is_kept:
            scanned = scanned_input(reads, entry.segments, self.warehouse, times)
            if scanned is not None:
                return scanned
        if times is None and self._may_step(entry) and self.jobs.lasts(self.effect.vertex, entry.input, reads):
            stepped = stepped_input(reads, entry.segments, self.warehouse)
            if stepped is not None:
                return stepped
        return read_input(self.jobs.session, reads, entry.segments, self.warehouse, times)

    def _may_step(self, entry: InputSegments) -> bool:
        """Return whether the micro-batch needs only one task before Spark's steps and one task after them."""
        spec = self.plan.spec
        if isinstance(spec, KeyedSpec):
            return not spec.inputs[entry.input].is_broadcast and is_in_one_task(spec, self.effect, self.warehouse)
        return is_small(spec, self.effect) and may_scan(spec, 0)

    def _times(self, entry: InputSegments, reads: InputPlan) -> TimesOfInput | None:
        if reads.time is None:
            return None
        of = MicroBatchId(self.effect.vertex, self.effect.generation, self.effect.micro_batch)
        return TimesOfInput(of, entry.input, self.observed)


def may_scan(spec: Spec, number: int) -> bool:
    """Return whether a task can carry out all work on the rows of this input before the operator."""
    if isinstance(spec, StatelessSpec):
        judges = spec.quarantine is None or not left_to_spark(spec.rules)
        return judges and not spec.emits_changes
    keyed = spec.inputs[number]
    if keyed.is_broadcast:
        return False
    schema = arrow_schema(keyed.schema)
    return all(_is_hashed(keyed.schema[key].dataType, schema.field(key).type) for key in keyed.keys)


def _is_hashed(kind: DataType, arrow: pa.DataType) -> bool:
    """Return whether a task can compute the hash.

    Spark hashes texts alike that are equal by a collation, and Arrow knows no collations.
    """
    collated = isinstance(kind, StringType) and kind.simpleString() != "string"
    return can_hash(arrow) and not collated


class Exchange(Enum):
    """How the rows of a keyed micro-batch reach the subtasks that own their key groups."""

    NONE = auto()
    BY_READING = auto()
    BLOCKS = auto()


def exchange(
    spec: KeyedSpec, effect: RunMicroBatch, warehouse: Root, scans: Collection[KeyedScan], *, by_tasks: bool
) -> Exchange:
    """Return how rows reach their subtasks. `scans` are the inputs that tasks read.

    `by_tasks`: there are no other inputs.
    """
    if is_in_one_task(spec, effect, warehouse):
        return Exchange.NONE
    few = _has_at_most(effect, _READ_BY_ALL_ROWS, _READ_BY_ALL_BYTES) and spec.parallelism <= _READERS
    again = by_tasks and not misfits(spec, effect) and all(scan.may_repeat for scan in scans)
    return Exchange.BY_READING if few and again and not isinstance(warehouse, StoreUrl) else Exchange.BLOCKS


def is_in_one_task(spec: KeyedSpec, effect: RunMicroBatch, warehouse: Root) -> bool:
    """Return whether one task runs all subtasks in turn."""
    return is_small(spec, effect) and spec.parallelism <= _FEW_SUBTASKS and not isinstance(warehouse, StoreUrl)


def is_small(spec: Spec, effect: RunMicroBatch) -> bool:
    """Return whether a job costs more than a micro-batch's own work. How many rows misfits have is not known."""
    fits_all = isinstance(spec, StatelessSpec) or not misfits(spec, effect)
    return fits_all and _has_at_most(effect, _FEW_ROWS, _FEW_BYTES)


def _has_at_most(effect: RunMicroBatch, rows: int, size: int) -> bool:
    segments = [segment for entry in effect.inputs for segment in entry.segments]
    return sum(each.rows for each in segments) <= rows and sum(each.bytes for each in segments) <= size
