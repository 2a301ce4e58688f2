"""Stages the server's rows in files of the staged log: first the snapshot, then whole transactions."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus

from jobs.sources.change_rows import SNAPSHOT
from jobs.sources.port import SourceError
from jobs.sources.postgres.catalog import (
    CatalogFacts,
    Note,
    Origin,
    PublishedTable,
    SourceTable,
    catalog_facts,
    must_decode,
    must_go_on,
    published,
    source_column,
    system_of,
)
from jobs.sources.postgres.connection import Connection, Server, simple, timeline_of
from jobs.sources.postgres.slot import PLUGIN, SlotCopy, create, state_of
from jobs.sources.postgres.transactions import TableGrewError, TextBatches, Transactions
from jobs.sources.postgres.way_out import ANEW
from jobs.sources.staged.log import ChangeFile, Heads, StagedLog, TableRows
from jobs.sources.staged.lsn import parsed, written
from jobs.sources.staged.position import ChangesPosition
from jobs.sources.staged.tracked_tables import NewColumns, SnapshotMode

# ------------------------------------------------------------------
# Reads all rows of the tables at the exact moment at which the changes begin.
#
# A slot that is created over a replication connection exports a snapshot, which shows exactly the transactions before
# the slot's consistent point. An ordinary snapshot is not enough. A transaction may wait between its commit record and
# the moment at which snapshots show it, for example for a synchronous standby. Such a transaction would be neither in
# an ordinary snapshot nor in the changes.
#
# The slot for the snapshot is temporary. The slot of the changes may be older, and another program may have created it.


_ROWS_PER_BATCH: Final = 50_000


@contextmanager
def snapshot(server: Server, slot: str) -> Iterator[tuple[Connection, int]]:
    """Yield a connection that shows the database at a horizon, and this horizon. Raises SourceError."""
    with server.connect(replication=True) as exporter:
        horizon, name = _exported(server, exporter, slot)
        with server.connect() as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
            yield reader, horizon
            reader.execute("COMMIT")


def copied_rows(
    reader: Connection, tables: Sequence[PublishedTable], horizon: int, batches: TextBatches
) -> Iterator[pa.RecordBatch]:
    """Yield all published rows of the tables."""
    for number, each in enumerate(tables):
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in each.table.columns)
        query = sql.SQL("COPY (SELECT {} FROM {}").format(columns, sql.Identifier(each.table.schema_, each.table.name))
        if each.row_filter is not None:
            query += sql.SQL(" WHERE ") + sql.SQL(each.row_filter)
        with reader.cursor() as cursor, cursor.copy(query + sql.SQL(") TO STDOUT")) as copy:
            rows = copy.rows()
            while part := list(islice(rows, _ROWS_PER_BATCH)):
                numbers = np.arange(len(part))
                heads = Heads(
                    kinds=[SNAPSHOT] * len(part),
                    tables=np.full_like(numbers, number),
                    lsns=np.full_like(numbers, horizon),
                    unchanged={},
                )
                values = [pa.array(texts, pa.string()) for texts in zip(*part, strict=True)]
                yield batches.made(heads, {number: TableRows(numbers, values)})


def _exported(server: Server, exporter: Connection, slot: str) -> tuple[int, str]:
    """Create the temporary slot. Return its horizon and the name of its snapshot."""
    name = f"{slot}_{exporter.info.backend_pid}"
    command = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL {PLUGIN} (SNAPSHOT 'export')"
    result = simple(exporter, command)
    if result.status != ExecStatus.TUPLES_OK:
        said = server.told(psycopg.OperationalError(result.error_message.decode(errors="replace")))
        raise SourceError(
            f"the server at {server.place} makes no snapshot ({said}): the user needs REPLICATION, and one replication "
            "slot and one WAL sender must be free (max_replication_slots, max_wal_senders)"
        )
    horizon, exported = result.get_value(0, 1), result.get_value(0, 2)
    if horizon is None or exported is None:
        raise SourceError(f"the server at {server.place} exported no snapshot")
    return parsed(horizon.decode()), exported.decode()


_ATTEMPTS: Final = 3
_MESSAGES_AT_ONCE: Final = 50_000
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
_QUIET_BYTES: Final = 16 * 1024 * 1024
"""After this many bytes of the server's log without a change of the tables, an empty file is staged.

Then the slot can be advanced.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What to read, and how."""

    server: Server
    slot: str
    publication: str
    tables: Sequence[str] | None
    snapshot: SnapshotMode
    new_columns: NewColumns
    nulls_for_unfit: bool

    def published(self, connection: Connection) -> tuple[PublishedTable, ...]:
        """Return the published tables. Raise SourceError if the server cannot provide their changes."""
        must_decode(connection)
        return published(connection, self.publication, self.tables)


class Staging:
    """Appends to a staged log. After an error no partial file remains, and the next call makes a new connection."""

    def __init__(self, reading: Reading, log: StagedLog[Note]) -> None:
        """Do not connect yet."""
        self._reading, self._log = reading, log
        self._copy = SlotCopy(reading.server, reading.slot, reading.publication)
        self._origin: Origin | None = None
        self._connection: Connection | None = None

    def begin(self, tables: Sequence[SourceTable]) -> None:
        """Write the first file: the snapshot, or an empty file if no snapshot is read. Raises SourceError."""
        with self._guarded(), self._reading.server.connect() as connection:
            found = self._reading.published(connection)
            if [each.table for each in found] != list(tables):
                raise SourceError(f"the tables of publication {self._reading.publication} have just changed: run again")
            confirmed = self._confirmed(connection)
            origin = self._with_catalog(connection, self._origin_at(connection, tables))
            note = Note(start=0, end=0, before=0, origin=origin)
            if self._reading.snapshot == "none":
                with self._log.writing(note, self._batches(tables).schema) as draft:
                    draft.publish(confirmed)
            else:
                self._snapshot(found, note)

    def append(self, tables: Sequence[SourceTable], position: ChangesPosition, changes: int) -> bool:
        """Write whole transactions with at least `changes` changes, or all there are. Return True if there may be more.

        An empty log begins at the position. If a table has new columns and the source reads such columns, the new file
        has them. If a connection breaks, the method waits for the server and connects again. Raises SourceError.
        """
        with self._guarded():
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._grown(tables, position, changes)
                except psycopg.OperationalError:
                    self.close()
            return self._grown(tables, position, changes)

    def close(self) -> None:
        """Close the connection."""
        self._copy.close()
        self._origin = None

    def _grown(self, tables: Sequence[SourceTable], position: ChangesPosition, changes: int) -> bool:
        """Append with the tables' present columns. A new column is found only when its table has a change."""
        last = self._log.last
        known = list(tables if last is None else last.note.origin.tables)
        while True:
            try:
                return self._append(known, position, changes)
            except TableGrewError as grew:
                self._copy.close()  # the rows are dropped, and read again with the new columns
                table = known[grew.number]
                with self._reading.server.connect() as connection:
                    new = [
                        source_column(connection, column.name, column.oid, column.typmod, later=True)
                        for column in grew.columns
                    ]
                known[grew.number] = table.model_copy(update={"columns": (*table.columns, *new)})

    def _append(self, tables: Sequence[SourceTable], position: ChangesPosition, changes: int) -> bool:
        last = self._log.last
        start, before = (position.lsn, position.row) if last is None else (last.note.end, last.after)
        origin = self._checked(self._copy.connection(start), tables)
        batches = self._batches(tables)
        with self._log.writing(Note(start=start, end=0, before=before, origin=origin), batches.schema) as draft:
            messages = 0
            transactions = Transactions(
                tuple(tables), batches, draft.write, self._reading.new_columns, _identities(tables, self._known())
            )
            for part in _parts(self._copy.read(start, changes)):
                transactions.take(part)
                messages += len(part)
            transactions.finish()
            reached = self._copy.reached()
            if draft.rows == 0 and reached - start < _QUIET_BYTES:
                self._copy.go_on(start)
                return False
            if draft.publish(reached):
                self._copy.go_on(reached)
        self._log.look()
        return messages >= changes

    def _known(self) -> CatalogFacts | None:
        """Return the facts of the catalog at the time when the newest file was written."""
        return None if self._log.last is None else self._log.last.note.origin.catalog

    def _snapshot(self, tables: Sequence[PublishedTable], note: Note) -> None:
        batches = self._batches([each.table for each in tables])
        with (
            self._log.writing(note, batches.schema) as draft,
            snapshot(self._reading.server, self._reading.slot) as (reader, horizon),
        ):
            for batch in copied_rows(reader, tables, horizon, batches):
                draft.write(batch)
            draft.publish(horizon)

    def _batches(self, tables: Sequence[SourceTable]) -> TextBatches:
        return TextBatches(tables, nulls_for_unfit=self._reading.nulls_for_unfit)

    def _confirmed(self, connection: Connection) -> int:
        """Return the horizon of the slot. Make the slot if it is missing."""
        slot = self._reading.slot
        state = state_of(connection, slot)
        if state is None:
            create(connection, slot)
            state = state_of(connection, slot)
        if state is None:
            raise SourceError(f"slot {slot} has just been dropped: run again")
        return state.confirmed

    def _origin_at(self, connection: Connection, tables: Sequence[SourceTable]) -> Origin:
        return Origin(
            system=system_of(connection),
            database=connection.info.dbname,
            slot=self._reading.slot,
            publication=self._reading.publication,
            tables=tuple(tables),
            timeline=timeline_of(connection),
        )

    def _with_catalog(self, connection: Connection, origin: Origin) -> Origin:
        """Return the origin with the catalog's present facts. Raise SourceError if the changes cannot be continued."""
        publication = self._reading.publication
        catalog = must_go_on(
            publication,
            origin.tables,
            self._known(),
            catalog_facts(connection, publication),
            new=self._reading.new_columns == "fail",
        )
        return origin.model_copy(update={"catalog": catalog})

    def _checked(self, connection: Connection, tables: Sequence[SourceTable]) -> Origin:
        """Return the origin of the changes. Raise SourceError if they cannot follow the changes in the staged log."""
        last = self._log.last
        if self._origin is None or self._connection is not connection:
            must_decode(connection)
            self._connection, self._origin = connection, self._origin_at(connection, tables)
            if last is not None:
                last.note.origin.must_be(self._origin, self._log.folder)
                self._must_be_of_the_same_history(last)
        return self._with_catalog(connection, self._origin.model_copy(update={"tables": tuple(tables)}))

    def _must_be_of_the_same_history(self, last: ChangeFile[Note]) -> None:
        """Raise SourceError if the server was restored to a moment before the end of the staged log.

        Such a server has another timeline. The history of that timeline says where each older timeline ended.
        """
        before, now = last.note.origin.timeline, None if self._origin is None else self._origin.timeline
        if before is None or now is None or before == now:
            return
        left = self._reading.server.left_timeline(before, now)
        if left is None or left < last.note.end:
            where = "is not of its history" if left is None else f"was left at {written(left)}"
            raise SourceError(
                f"the server was restored from a backup, or another one took over: its timeline is {now}, timeline "
                f"{before} {where}, and changes up to {written(last.note.end)} of that were read: {ANEW}"
            )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raise errors of the server and of writing as SourceErrors."""
        try:
            yield
        except SourceError:
            self.close()
            raise
        except (psycopg.Error, OSError) as error:
            self.close()
            server = self._reading.server
            raise SourceError(
                f"slot {self._reading.slot} of {server.place} cannot be read ({server.told(error)}): nothing is lost, "
                "run again when this is mended"
            ) from None
        except BaseException:
            self.close()
            raise


def _identities(tables: Sequence[SourceTable], known: CatalogFacts | None) -> tuple[frozenset[str], ...]:
    """Return the columns that old rows of each table must have."""
    if known is not None and not known.names_rows:
        return tuple(frozenset[str]() for _ in tables)
    whole = {name for name, facts in known.tables.items() if facts.full} if known is not None else set[str]()
    return tuple(
        frozenset(column.name for column in table.first) if table.full_name in whole else frozenset(table.keys)
        for table in tables
    )


def _parts(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the messages in lists that are not too large."""
    part, size = [], 0
    for message in messages:
        part.append(message)
        size += len(message)
        if len(part) >= _MESSAGES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
