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
    """The target's server does not answer. No row is in the way: the next tick may succeed as it is."""


class OutsideSink:
    """What a `Sink` and an `UpsertSink` have in common: both may be asked before a checkpoint is committed."""

    def check(self, job: str, table: str, checkpoint: int, rows: "Iterable[pa.RecordBatch] | TableChanges") -> None:
        """Raise SinkError, naming a row, if the target could not take these rows. Change nothing in the target.

        It is called before the checkpoint is committed. `rows` is what `publish` or `apply` will get. If it raises, the
        checkpoint is declined. By default a sink is not asked. Without this method, a row that the target never takes
        fails each tick from then on, until somebody mends the target or rolls the job back.
        """
        del job, table, checkpoint, rows

    def newest(self, job: str, table: str) -> int | None:
        """Return the newest checkpoint that the target has of this job's table, or 0. Change nothing.

        None, the default, means that it cannot be told without `prepare`. A restore and `tidemark doctor` ask.
        """
        del job, table
        return None

    def take(self, job: str, table: str, warehouse: str, *, over: bool = False) -> bool:
        """Store which warehouse publishes into the target. Raise SinkError if another one does, unless `over`.

        Return True if the target was another warehouse's and is empty now, so that it has no checkpoint any more. It is
        called after `prepare`. By default nothing is stored, and two warehouses are noticed only by their numbers.
        """
        del job, table, warehouse, over
        return False

    @classmethod
    def is_asked(cls) -> bool:
        """Return whether the class has a `check` of its own."""
        return cls.check is not OutsideSink.check


class Sink(OutsideSink, ABC):
    """A target outside the warehouse, for the rows of one append table.

    The target stores the number of the newest checkpoint that it has, for each job and table. One tick at a time calls
    it, in the tick's process. A tick that was taken over may still call `publish` for a checkpoint that is there.
    """

    @abstractmethod
    def prepare(self, job: str, table: str, schema: pa.Schema) -> int:
        """Create or check the target, and return the newest checkpoint that it has of this job's table, or 0.

        It is called before the tick claims the job. Raises SinkError if the target does not fit the columns in
        `schema`. Then the tick does not begin.
        """
        ...

    @abstractmethod
    def publish(self, job: str, table: str, checkpoint: int, rows: Iterable[pa.RecordBatch]) -> None:
        """Write the rows and the checkpoint's number, in one transaction.

        If the target has this checkpoint or a newer one, do nothing. `rows` may be read several times, and are read
        from files only then. Whatever it raises, the checkpoint stays committed, and the next tick calls it again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """What has changed in an upsert table since a checkpoint: new and changed rows, and the keys that are gone."""

    rows: pa.Table
    deleted: pa.Table


class TableChanges(ABC):
    """How an upsert table is at a checkpoint. `keys` are its key columns. Files are read when a method is called."""

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
    """A target outside the warehouse that shows an upsert table. It follows a rollback of the table too.

    The target stores the number of the newest checkpoint that it shows, for each job and table, and nobody else changes
    its rows. `apply` is called for every checkpoint, in their order.
    """

    @abstractmethod
    def prepare_upsert(self, job: str, table: str, schema: pa.Schema, keys: tuple[str, ...]) -> int:
        """Create or check the target, and return the newest checkpoint that it shows, or 0; see `Sink.prepare`."""
        ...

    @abstractmethod
    def apply(self, job: str, table: str, checkpoint: int, changes: TableChanges) -> None:
        """Let the target show this checkpoint, and store its number, in one transaction.

        If the target has this checkpoint or a newer one, do nothing. If `changes` know what has changed since the one
        that it has, apply that. Else replace all its rows. Errors mean the same as in `Sink.publish`.
        """
        ...


class TwoPhaseSink(ABC):
    """A `Sink` or `UpsertSink` that commits in two phases (Flink: `TwoPhaseCommitSinkFunction`).

    It writes a checkpoint's rows before the checkpoint is committed, so it can decline the checkpoint. Tidemark decides
    which transaction is committed or rolled back, and when (`checkpointing.commit.outside_sinks`).
    """

    two_phase: bool = True
    """False: it votes on no checkpoint. Transactions from before are still ended."""

    @abstractmethod
    def pre_commit(self, transaction: SinkTransaction, rows: Iterable[pa.RecordBatch] | TableChanges) -> None:
        """Write the rows and the checkpoint's number into a transaction that can be committed in any case from now on.

        `rows` is what `publish` or `apply` would get. Nobody may see them yet. If the target has this checkpoint, or
        has pre-committed this transaction, do nothing. If it raises, the checkpoint is declined. The message should
        name the row.
        """
        ...

    @abstractmethod
    def pre_committed(self, job: str, table: str) -> Iterable[SinkTransaction]:
        """Return the transactions of this job's table that were pre-committed, and neither committed nor rolled back.

        Transactions outlive the process that has pre-committed them.
        """
        ...

    def left_elsewhere(self, job: str, table: str) -> Iterable[tuple[SinkTransaction, str]]:
        """Return transactions of the job in other targets of this place, each with its name and how a user ends it.

        Such as those of a former target, which no tick ends. `tidemark doctor` shows them.
        """
        del job, table
        return ()

    @abstractmethod
    def commit(self, transaction: SinkTransaction) -> None:
        """Commit a transaction. If it is gone, do nothing. `publish` or `apply` comes next and reads the number."""
        ...

    @abstractmethod
    def roll_back(self, transaction: SinkTransaction) -> None:
        """Drop a transaction. If it is gone, do nothing."""
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
# What a pipeline says of an output table: comments and properties.


@dataclass(frozen=True, slots=True)
class Description:
    """The comment of a table, the comments of its columns by name, and its properties by name.

    An empty comment, a column that is not named, and a property that is not named are not written.
    """

    comment: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


NOTHING_SAID: Final = Description()
