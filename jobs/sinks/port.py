"""The port of a sink outside the warehouse. A tick gives it the rows of each completed checkpoint once (ADR 17)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from checkpointing.commit.outside_sinks import SinkTransaction
from checkpointing.identifiers import VertexId


class SinkError(Exception):
    """A sink cannot take rows. The message says what is wrong, and what to do."""


class SinkAwayError(SinkError):
    """The target's server does not answer.

    The rows are not the cause, so the next tick can succeed without any change.
    """


class OutsideSink:
    """The common base of `Sink` and `UpsertSink`: what the tick may ask before a checkpoint is committed."""

    def check(self, job: str, table: str, checkpoint: int, rows: "Iterable[pa.RecordBatch] | TableChanges") -> None:
        """Raise SinkError, which names a row, if the target would refuse these rows. Change nothing in the target.

        The tick calls this before the checkpoint is committed. `rows` is what `publish` or `apply` will get. If this
        raises, the checkpoint is declined. By default a sink is not asked. Without this method, a row that the target
        always refuses fails each further tick, until somebody changes the target or rolls the job back.
        """
        del job, table, checkpoint, rows

    def newest(self, job: str, table: str) -> int | None:
        """Return the newest checkpoint that the target has of this job's table, or 0. Change nothing.

        None, the default, means that this is unknown before `prepare`. A restore and `tidemark doctor` call this.
        """
        del job, table
        return None

    def take(self, job: str, table: str, warehouse: str, *, over: bool = False) -> bool:
        """Store which warehouse publishes into the target. Raise SinkError if another warehouse does, unless `over`.

        Return True if the target belonged to another warehouse and is empty now, so that it no longer has a checkpoint.
        The tick calls this after `prepare`. By default nothing is stored, and a second warehouse is noticed only by its
        checkpoint numbers.
        """
        del job, table, warehouse, over
        return False

    @classmethod
    def is_asked(cls) -> bool:
        """Return whether the class has a `check` of its own."""
        return cls.check is not OutsideSink.check


class Sink(OutsideSink, ABC):
    """A target outside the warehouse, for the rows of one append table.

    The target stores the number of the newest checkpoint that it has, for each job and table. Only one tick at a time
    calls the sink, in the tick's process. But a tick whose job was taken over may still call `publish`, for a
    checkpoint that the target already has.
    """

    @abstractmethod
    def prepare(self, job: str, table: str, schema: pa.Schema) -> int:
        """Create or check the target, and return the newest checkpoint that it has of this job's table, or 0.

        The tick calls this before it claims the job. Raises SinkError if the target does not fit the columns in
        `schema`. Then the tick does not begin.
        """
        ...

    @abstractmethod
    def publish(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch]) -> None:
        """Write the rows and the checkpoint's number, in one transaction.

        If the target has this checkpoint or a newer one, do nothing. `rows` may be read several times, and are read
        from files each time. If this raises any error, the checkpoint stays committed, and the next tick calls this
        again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """What has changed in an upsert table since a checkpoint: new and changed rows, and the deleted keys."""

    rows: pa.Table
    deleted: pa.Table


class TableChanges(ABC):
    """The content of an upsert table at a checkpoint. `keys` are its key columns.

    Each method reads files when called.
    """

    keys: tuple[str, ...]

    @abstractmethod
    def since(self, checkpoint: int) -> Difference | None:
        """Return what has changed since an older checkpoint, or None if that is not known."""
        ...

    @abstractmethod
    def whole(self) -> Iterable[pa.RecordBatch]:
        """Return all rows. They may be read several times."""
        ...


class UpsertSink(OutsideSink, ABC):
    """A target outside the warehouse that shows an upsert table. It also follows a rollback of the table.

    The target stores the number of the newest checkpoint that it shows, for each job and table. No other program may
    change its rows. `apply` is called for every checkpoint, in order.
    """

    @abstractmethod
    def prepare_upsert(self, job: str, table: str, schema: pa.Schema, keys: tuple[str, ...]) -> int:
        """Create or check the target, and return the newest checkpoint that it shows, or 0; see `Sink.prepare`."""
        ...

    @abstractmethod
    def apply(self, job: str, table: str, checkpoint: int, changes: TableChanges) -> None:
        """Make the target show this checkpoint, and store the checkpoint's number, in one transaction.

        If the target has this checkpoint or a newer one, do nothing. If `changes.since` returns what has changed since
        the target's checkpoint, apply that. Or else replace all rows of the target. Errors have the same effect as in
        `Sink.publish`.
        """
        ...


class TwoPhaseSink(ABC):
    """A `Sink` or `UpsertSink` that commits in two phases (Flink: `TwoPhaseCommitSinkFunction`).

    The sink writes a checkpoint's rows before the checkpoint is committed, so it can decline the checkpoint. Tidemark
    decides which transaction is committed or rolled back, and when (`checkpointing.commit.outside_sinks`).
    """

    two_phase: bool = True
    """False: the sink does not vote on checkpoints. Transactions that it has pre-committed before are still ended."""

    @abstractmethod
    def pre_commit(self, transaction: SinkTransaction, rows: Iterable[pa.RecordBatch] | TableChanges) -> None:
        """Write the rows and the checkpoint's number into a transaction that can be committed in any case from now on.

        `rows` is what `publish` or `apply` would get. No reader may see the rows yet. If the target has this
        checkpoint, or has pre-committed this transaction, do nothing. If this raises, the checkpoint is declined. The
        error's message should name the row.
        """
        ...

    @abstractmethod
    def pre_committed(self, job: str, table: str) -> Iterable[SinkTransaction]:
        """Return the transactions of this job's table that were pre-committed, and neither committed nor rolled back.

        Transactions outlive the process that has pre-committed them.
        """
        ...

    def left_elsewhere(self, job: str, table: str) -> Iterable[tuple[SinkTransaction, str]]:
        """Return transactions of the job in other targets of this server, each with its name and how a user ends it.

        An example are the transactions of a former target, which no tick ends. `tidemark doctor` shows them.
        """
        del job, table
        return ()

    @abstractmethod
    def commit(self, transaction: SinkTransaction) -> None:
        """Commit a transaction, if it still exists.

        The tick then calls `publish` or `apply`, which reads the stored number.
        """
        ...

    @abstractmethod
    def roll_back(self, transaction: SinkTransaction) -> None:
        """Roll a transaction back, if it still exists."""
        ...


@dataclass(frozen=True, slots=True)
class AppendedTable:
    """An append table with its columns, its sink, and the vertex that writes it."""

    sink: Sink
    schema: pa.Schema
    vertex: VertexId


@dataclass(frozen=True, slots=True)
class UpsertedTable:
    """An upsert table with its columns, its keys, its sink, and the vertex that writes it."""

    sink: UpsertSink
    schema: pa.Schema
    keys: tuple[str, ...]
    vertex: VertexId


TableSink = AppendedTable | UpsertedTable


# ------------------------------------------------------------------
# What a pipeline declares about an output table: comments and properties.


@dataclass(frozen=True, slots=True)
class Description:
    """The comment of a table, a dict from its columns to their comments, and a dict of its properties.

    An empty comment is not written. Nothing is written about columns and properties that are not named here.
    """

    comment: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


NOTHING_SAID: Final = Description()
