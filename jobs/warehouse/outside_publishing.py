"""Reads a checkpoint's staged files for an outside sink, and computes what changed in an upsert table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.outside_sinks import SinkTransaction, to_commit, to_roll_back
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, JobName, TableName
from checkpointing.messages import CheckTables, Publication, PublishFailed, TablePublished
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from jobs.sinks.port import Difference, SinkAwayError, SinkError, TableChanges, TableSink, TwoPhaseSink, UpsertedTable
from jobs.state.key_joins import join_by_key
from jobs.storage.parquet import parquet_of
from jobs.user_code import message_of
from jobs.warehouse.boundaries import PRE_COMMIT, Boundary, around
from jobs.warehouse.refusals import TickRefusedError
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class RowsOfFiles:
    """The rows of staged files. Each iteration reads the files again, batch by batch."""

    warehouse: Warehouse
    files: tuple[FileHandle, ...]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, file by file."""
        for file in self.files:
            with pq.ParquetFile(parquet_of(self.warehouse.place(file.path))) as parquet:
                yield from parquet.iter_batches()

    def frame(self) -> pl.DataFrame:
        """Return all rows. A column that only some files have is null in the rows of the other files."""
        frames = [pl.from_arrow(batch) for batch in self]
        return pl.concat((each for each in frames if isinstance(each, pl.DataFrame)), how="diagonal_relaxed")


@dataclass(frozen=True, slots=True)
class ChangesOfFiles(TableChanges):
    """An upsert table at a checkpoint, by the files of the checkpoint.

    All changes since the checkpoint before are in files that only one of the two checkpoints has. The files of both are
    read at once, so this takes about as much memory as the ranges that the checkpoint has written anew.
    """

    warehouse: Warehouse
    publication: Publication
    keys: tuple[str, ...]

    def since(self, checkpoint: int) -> Difference | None:
        """Return the changes since that checkpoint if it is the one before this one, and None for any other."""
        if self.publication.since != checkpoint:
            return None
        new, old = self._only_now(), self._only_before()
        now = RowsOfFiles(self.warehouse, new).frame() if new else None
        was = RowsOfFiles(self.warehouse, old).frame() if old else None
        return difference(now, was, self.keys)

    def whole(self) -> RowsOfFiles:
        """Return all rows."""
        return RowsOfFiles(self.warehouse, self.publication.files)

    def _only_now(self) -> tuple[FileHandle, ...]:
        were = {file.path for file in self.publication.before}
        return tuple(file for file in self.publication.files if file.path not in were)

    def _only_before(self) -> tuple[FileHandle, ...]:
        now = {file.path for file in self.publication.files}
        return tuple(file for file in self.publication.before if file.path not in now)


def difference(now: pl.DataFrame | None, was: pl.DataFrame | None, keys: Sequence[str]) -> Difference:
    """Return the rows of `now` that are not in `was` with the same values, and the keys that are only in `was`.

    Both have each key only once. A null is equal to a null, and a NaN to a NaN. If a column is new or has another type
    now, all rows are returned as changed.
    """
    nothing = pa.table({})
    if now is None:
        return Difference(nothing, nothing if was is None else was.select(keys).to_arrow())
    if was is None:
        return Difference(now.to_arrow(), nothing)
    kinds = pl.Schema({name: now.schema[name] for name in keys})
    gone = was.select(keys).cast(kinds).join(now.select(keys), on=list(keys), how="anti", nulls_equal=True)
    if any(was.schema.get(name) != kind for name, kind in now.schema.items()):
        return Difference(now.to_arrow(), gone.to_arrow())
    numbers = {name: str(number) for number, name in enumerate(now.columns)}  # no name of a user's meets another one
    by, others = [numbers[name] for name in keys], [numbers[name] for name in now.columns if name not in keys]
    named = {name: f"{number} before" if name not in keys else number for name, number in numbers.items()}
    before = was.select(now.columns).rename(named).with_columns(pl.lit(value=True).alias("known"))
    joined = join_by_key(now.rename(numbers), before, by, "left")
    differs = [pl.col(name).ne_missing(pl.col(f"{name} before")) for name in others]
    changed = joined.filter(pl.any_horizontal(pl.col("known").is_null(), *differs)).select(numbers.values())
    return Difference(changed.rename({number: name for name, number in numbers.items()}).to_arrow(), gone.to_arrow())


# ------------------------------------------------------------------
# Publishes committed checkpoints into the outside sinks of a job's tables (ADR 17).


NO_SINKS: Final[Mapping[TableName, TableSink]] = MappingProxyType({})


class SinkRefusedError(TickRefusedError):
    """An outside sink cannot accept the rows of a table. The message names the table, the problem and the way out."""


class OutsideSinks:
    """The outside sinks of one job. Each sink is found by its table."""

    def __init__(
        self,
        warehouse: Warehouse,
        sinks: Mapping[TableName, TableSink],
        identity: Callable[[], str],
        *,
        are_all: bool = False,
    ) -> None:
        """Publish from the files of that warehouse. With `are_all`, the pipeline is known, and has no other sinks."""
        self._identity = identity
        self._warehouse = warehouse
        self._sinks = sinks
        self._are_all = are_all

    def prepare(self, tables: Iterable[TableName] | None = None) -> dict[TableName, CheckpointId]:
        """Prepare the targets of these tables, or of all tables. Return the newest checkpoint that each target has.

        Raises SinkRefusedError, also for a table whose sink is not known.
        """
        return {table: self._prepared(table) for table in (self._sinks if tables is None else tables)}

    def _prepared(self, table: TableName) -> CheckpointId:
        job, bound = self._warehouse.paths.job, self._sinks.get(table)
        if bound is None:
            raise SinkRefusedError(
                f"the sink of table {table} goes back too, and no pipeline of {job} was found that has it; nothing was "
                "changed. Name the pipeline as module:attribute, or leave the sink as it is with --leave-outside"
            )
        try:
            if isinstance(bound, UpsertedTable):
                newest = bound.sink.prepare_upsert(job, table, bound.schema, bound.keys)
            else:
                newest = bound.sink.prepare(job, table, bound.schema)
            return NO_CHECKPOINT if bound.sink.take(job, table, self._identity()) else CheckpointId(newest)
        except Exception as error:
            raise SinkRefusedError(f"the sink of table {table}: {_told(error)}") from error

    def take_over(self, sinks: Mapping[TableName, TableSink]) -> None:
        """Take the targets of these sinks over from any warehouse that has published into them before."""
        for table, bound in sinks.items():
            try:
                bound.sink.take(self._warehouse.paths.job, table, self._identity(), over=True)
            except Exception as error:
                raise SinkRefusedError(f"the sink of table {table}: {_told(error)}") from error

    def publish(self, publication: Publication, checkpoint: CheckpointId) -> TablePublished | PublishFailed:
        """Publish a checkpoint's rows into the table's sink exactly once, whatever earlier attempts have done."""
        table = publication.table
        bound = self._sinks.get(table)
        job = self._warehouse.paths.job
        waits = f"the sink of table {table} does not have checkpoint {checkpoint} yet, which is committed"
        if bound is None and self._are_all:
            note = f"the pipeline has no sink for it any more, so no sink gets checkpoint {checkpoint}"
            return TablePublished(checkpoint, table, 0, note, outside=True)
        if bound is None:
            return PublishFailed(
                checkpoint,
                table,
                f"{waits}: start 'tidemark run {job}' with the pipeline that has this sink, which publishes it",
            )
        try:
            if isinstance(bound.sink, TwoPhaseSink):
                settle(bound.sink, job, table, checkpoint)
            self._give(bound, publication, checkpoint)
        except Exception as error:  # noqa: BLE001 - a sink is a user's code
            first = "Correct the target and start again"
            if isinstance(error, SinkAwayError):
                first = "The next tick publishes it when the server answers"
            way_out = (
                f"{first}. You may also take the sink out of the pipeline, or go back with "
                f"'tidemark rollback {job} N --leave-outside' ('tidemark checkpoints list {job}' shows each N)"
            )
            return PublishFailed(checkpoint, table, f"{waits}: {_told(error)}. {way_out}")
        return TablePublished(checkpoint, table, 0, outside=True)

    def pre_commit(self, effect: CheckTables, by: Generation, boundary: Boundary) -> str | None:
        """Have the sinks vote on a checkpoint. Two-phase sinks pre-commit the checkpoint, all of them or none.

        Return why a sink refuses, or None.
        """
        done: list[tuple[TwoPhaseSink, SinkTransaction]] = []
        why = None
        for publication in effect.pre_commits:
            table, bound = publication.table, self._sinks[publication.table]
            transaction = SinkTransaction(self._warehouse.paths.job, table, by, effect.checkpoint)
            try:
                with around(boundary, f"{PRE_COMMIT}:{table}"):
                    if isinstance(bound.sink, TwoPhaseSink) and bound.sink.two_phase:
                        done.append((bound.sink, transaction))  # also if the reply is lost
                        left = bound.sink.pre_committed(transaction.job, table)
                        rolled_back(bound.sink, to_roll_back(left, effect.checkpoint))
                        bound.sink.pre_commit(transaction, self._rows(bound, publication))
                    else:
                        bound.sink.check(transaction.job, table, effect.checkpoint, self._rows(bound, publication))
            except Exception as error:  # noqa: BLE001 - a sink is a user's code
                where = f"the sink of table {table}, which vertex {bound.vertex} writes,"
                if isinstance(error, SinkAwayError):
                    does = f"could not be asked about checkpoint {effect.checkpoint}"
                    way_out = "Start again when the server answers: no row is in the way"
                else:
                    does = f"refuses checkpoint {effect.checkpoint}"
                    way_out = "Correct the rows, the pipeline or the target, and start again"
                why = f"{where} {does}, so it is not committed: {_told(error)}. {way_out}"
                break
        if why is not None or not effect.keeps:
            for sink, transaction in done:
                with suppress(Exception):  # the next checkpoint or tick rolls it back
                    rolled_back(sink, [transaction])
        return why

    def roll_back(self, before: CheckpointId) -> None:
        """Roll back what sinks have pre-committed for older checkpoints, all of which are published or failed."""
        for table, bound in self._sinks.items():
            if isinstance(bound.sink, TwoPhaseSink):
                left = bound.sink.pre_committed(self._warehouse.paths.job, table)
                rolled_back(bound.sink, to_roll_back(left, before))

    def _rows(self, bound: TableSink, publication: Publication) -> ChangesOfFiles | RowsOfFiles:
        if isinstance(bound, UpsertedTable):
            return ChangesOfFiles(self._warehouse, publication, bound.keys)
        return RowsOfFiles(self._warehouse, publication.adds)

    def _give(self, bound: TableSink, publication: Publication, checkpoint: CheckpointId) -> None:
        job, table = self._warehouse.paths.job, publication.table
        if isinstance(bound, UpsertedTable):
            bound.sink.apply(job, table, checkpoint, ChangesOfFiles(self._warehouse, publication, bound.keys))
        else:
            bound.sink.publish(job, table, checkpoint, RowsOfFiles(self._warehouse, publication.adds))


def settle(sink: TwoPhaseSink, job: JobName, table: TableName, checkpoint: CheckpointId) -> None:
    """Commit what was pre-committed for this checkpoint, and roll back what remains of older checkpoints."""
    left = tuple(sink.pre_committed(job, table))
    rolled_back(sink, to_roll_back(left, checkpoint))
    for transaction in to_commit(left, checkpoint):
        sink.commit(transaction)


def rolled_back(sink: TwoPhaseSink, transactions: Iterable[SinkTransaction]) -> None:
    """Roll back these transactions."""
    for transaction in transactions:
        sink.roll_back(transaction)


def must_not_be_ahead_outside(held: Mapping[TableName, CheckpointId], rows: tuple[Row, ...]) -> None:
    """Raise SinkRefusedError if a target has a newer checkpoint than this warehouse ever committed.

    In that case another warehouse has published the checkpoint, and the target would skip this warehouse's checkpoints
    as already known.
    """
    newest = max((row.checkpoint for row in rows if isinstance(row, CheckpointRecord)), default=CheckpointId(0))
    for table, checkpoint in held.items():
        if checkpoint > newest:
            raise SinkRefusedError(
                f"the sink of table {table} has checkpoint {checkpoint} of this job, and the newest one of this "
                f"warehouse is {newest}, so another warehouse has published into it: name that warehouse with "
                "--warehouse, or give the sink another target, such as a new table or topic"
            )


def after_import(
    job: JobName, sinks: Mapping[TableName, TableSink], record: CheckpointRecord, *, regardless: bool
) -> Iterator[str]:
    """Yield a sentence on what happens to each outside sink if a job begins from this entry of another warehouse.

    Raises SinkRefusedError if the target of an append table would get rows twice, or never, unless `regardless`.
    """
    for table, bound in sinks.items():
        named = f"the sink of table {table} ({bound.sink!r})"
        if isinstance(bound, UpsertedTable):
            yield f"{named} shows the whole table with the next checkpoint, and loses all other rows"
            continue
        try:
            newest = bound.sink.newest(job, table)
        except Exception as error:
            raise SinkRefusedError(f"{named}: {_told(error)}") from error
        wrong = _wrong_after_import(table, record, newest or NO_CHECKPOINT)
        if wrong is not None and not regardless:
            raise SinkRefusedError(
                f"{named} {wrong}; nothing was changed. Restore another checkpoint, or give the sink a new target. "
                "With --allow-non-restored-state it stays as it is"
            )
        yield f"{named} {wrong or _after_import(newest)}"


def _wrong_after_import(table: TableName, record: CheckpointRecord, newest: int) -> str | None:
    cut = record.checkpoint if record.commits else record.parent
    said = f"{record.kind.value} {record.checkpoint}"
    if newest > cut:
        return f"has checkpoint {newest}, which is later than {said}: it gets the rows in between a second time"
    due = record.commits and table in record.outside
    if due and 0 < newest < cut and any(each.table == table and each.adds for each in record.tables):
        return f"does not have the rows of {said} yet, and never gets them: publish it in its own warehouse first"
    return None


def _after_import(newest: int | None) -> str:
    if newest is None:
        return "gets the rows from now on. Nobody knows whether it has some of them already: compare it with the table"
    if not newest:
        return "gets the rows from now on, and none of those that the table has already"
    return f"has checkpoint {newest}, and goes on from there"


def out_of_step(table: TableName, bound: TableSink, at: int, rows: Iterable[Row]) -> str | None:
    """Return how a target with this newest checkpoint differs from the job, or None if it does not differ."""
    records = tuple(row for row in rows if isinstance(row, CheckpointRecord))
    newest = newest_checkpoint(tuple(row for row in records if row.kind in (RowKind.CHECKPOINT, RowKind.ROLLBACK)))
    if newest is None:
        return None
    last = max(each.checkpoint for each in records)
    if at > last:
        return f"has checkpoint {at}, and the newest one of this warehouse is {last}: another warehouse writes to it"
    if isinstance(bound, UpsertedTable):
        return None if at == newest.checkpoint else f"shows checkpoint {at}, and the table shows {newest.checkpoint}"
    due = table in newest.outside and any(each.table == table and each.adds for each in newest.tables)
    if newest.kind is RowKind.CHECKPOINT and due and at < newest.checkpoint:
        return f"has checkpoint {at}, and not the rows of {newest.checkpoint}"
    if at and newest.kind is RowKind.CHECKPOINT and not newest.outside:
        return f"has checkpoint {at}, and the newest one of this warehouse, {newest.checkpoint}, was written without it"
    return None


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, SinkError) else message_of(error)
