"""Stages what Debezium's engine delivers as files of the staged log: first the snapshot, then whole transactions.

A file's footer has the offset and the schema history that the engine had at the file's end. So rows, offset and history
become durable in one step. The next engine begins exactly behind the newest file, on any machine.
"""

import json
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pydantic import Field
from pyspark.sql.types import StructField, StructType

from jobs.sources.change_rows import SNAPSHOT
from jobs.sources.debezium.columns import Encodings, RowColumns
from jobs.sources.debezium.connect_types import NoEventError
from jobs.sources.debezium.envelope import boundary_of, event_of, rows_of
from jobs.sources.debezium.running import EngineFailedError, EngineSettings, RunningEngine, Said
from jobs.sources.debezium.server import ANEW, GRANTS, BinlogServer, LogPlace, described_table
from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.staged.log import Batches, Heads, StagedLog, StagedNote, StagedOrigin, TableRows, UnfinishedFile
from jobs.sources.staged.tracked_tables import NewColumns, SnapshotMode, TrackedTable, arrow_type, spark_type

FORMAT: Final = 1
"""The newest format of a file's footer that this version reads, and the format that it writes."""
_ROWS_PER_BATCH: Final = 20_000
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 1.0
_EVOLVE: Final = (
    'To read it from here on: DebeziumSource(..., new_columns="evolve"). To go on without it: new_columns="ignore"'
)
_QUIET_BYTES: Final = 16 * 1024 * 1024
"""After this many bytes of the server's log without a change of the tables, an empty file is staged.

Then the server may remove this part of its log.
"""
_CONNECTORS: Final[Mapping[str, Mapping[str, str]]] = {
    "mariadb": {"connector.class": "io.debezium.connector.mariadb.MariaDbConnector"},
    "mysql": {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.allowPublicKeyRetrieval": "true",
    },
}
_PROPERTIES: Final[Mapping[str, str]] = {
    "schema.history.internal.store.only.captured.tables.ddl": "true",
    "provide.transaction.metadata": "true",
    "include.schema.changes": "true",
    "skipped.operations": "none",  # truncates come too
    "tombstones.on.delete": "false",
    "decimal.handling.mode": "precise",
    "bigint.unsigned.handling.mode": "precise",
    "binary.handling.mode": "base64",
    "time.precision.mode": "microseconds",
    "converters": "boolean",
    "boolean.type": "io.debezium.connector.binlog.converters.TinyIntOneToBooleanConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "errors.max.retries": "0",  # the next tick tries again
    "poll.interval.ms": "20",
    "heartbeat.interval.ms": "0",
}


class DebeziumOrigin(StagedOrigin):
    """Where the rows of a file come from. `server` is the unique id of the server, if the server has one."""

    connector: str
    database: str
    server: str = ""


class DebeziumNote(StagedNote):
    """The footer of a file, with the engine's offset and schema history at the file's end.

    `start` and `end` are numbers of files. All changes before the place `reached` of the server's log are staged.
    """

    format: int = FORMAT
    origin: DebeziumOrigin
    offset: dict[str, str | int | bool | None] = Field(default_factory=dict)
    history: tuple[str, ...] = ()
    reached: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumReading:
    """What to read, and how."""

    server: BinlogServer
    tables: Sequence[str]
    snapshot: SnapshotMode
    new_columns: NewColumns
    settings: Mapping[str, str]

    def engine(self, offset: Mapping[str, object], history: Sequence[str]) -> EngineSettings:
        """Return the settings of an engine that resumes from this offset. Each engine gets a random server id."""
        server, connector = self.server, self.server.connector
        return EngineSettings(
            connector=connector,
            properties={
                **_PROPERTIES,
                **_CONNECTORS[connector],
                **server.properties(),
                "database.include.list": _exactly(server.database),
                "table.include.list": ",".join(_exactly(f"{server.database}.{name}") for name in self.tables),
                "database.server.id": str(random.randrange(1 << 30, 1 << 31)),  # noqa: S311 - no secret
                "snapshot.mode": "no_data" if self.snapshot == "none" else "initial",
                **self.settings,
            },
            offset=offset,
            history=history,
            secrets=server.secrets,
            certificates=server.encryption.certificates(),
        )


class _TableGrewError(Exception):
    """The rows that follow have more columns, which the source reads. These rows need another file."""

    def __init__(self, tables: tuple[TrackedTable, ...]) -> None:
        super().__init__(tables)
        self.tables = tables


class _TableChangedError(Exception):
    """The rows that follow cannot be read like the rows before them. The message says why, and the way out."""


class EventRows:
    """Collects the rows of events, and writes them to a file in batches.

    The newest row stays in memory until `flush`, so that it can still be marked as the last row of its transaction.
    """

    def __init__(self, tables: Sequence[TrackedTable], draft: UnfinishedFile[DebeziumNote]) -> None:
        self._tables, self._draft = tables, draft
        self._numbers = {table.full_name: number for number, table in enumerate(tables)}
        self._columns = [RowColumns(_row_type(table), Encodings("precise", "micros")) for table in tables]
        self._batches = Batches(tables)
        self._begin()
        self.open = False
        """True if the newest row's transaction has not ended."""
        self.written = 0

    def _begin(self) -> None:
        self._kinds: list[str] = []
        self._at: list[int] = []
        self._lsns: list[int] = []
        self._committed: list[int] = []
        self._ends: list[int | None] = []
        self._values: dict[int, tuple[list[int], list[list[Any]]]] = {}

    @property
    def total(self) -> int:
        """Return how many rows there are so far."""
        return self.written + len(self._kinds)

    def take(self, said: Said) -> None:
        """Add the rows of an event. Raises SourceError for a value that does not fit its column."""
        try:
            types = said.types
            event = event_of(json.loads(said.text), None, types)
            number = None if event is None else self._numbers.get(event.table)
            if event is None or number is None:
                return
            for row in rows_of(event):
                values, _ = self._columns[number].values(row.values, event.types)
                at, columns = self._values.setdefault(number, ([], [[] for _ in values]))
                at.append(len(self._kinds))
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
                self._kinds.append(row.kind)
                self._at.append(number)
                self._lsns.append(event.lsn or 0)
                self._committed.append(event.committed_us or 0)
                self._ends.append(None)
        except NoEventError as error:
            place = "" if event is None else f", in the {event.kind} at {event.place}"
            table = "" if event is None else f"table {event.table}: "
            raise SourceError(f"{table}{error}{place}. Change the row, or read it with another type") from None
        self.open = True
        if len(self._kinds) > _ROWS_PER_BATCH:
            self._write(len(self._kinds) - 1)

    def end(self) -> None:
        """Mark the newest row as the last row of its transaction."""
        if self.open:
            self._ends[-1] = self._lsns[-1]
        self.open = False

    def flush(self) -> None:
        """Write all rows."""
        self._write(len(self._kinds))

    def _write(self, count: int) -> None:
        """Write the first `count` rows, and keep the others in memory."""
        if not count:
            return
        tables = np.array(self._at[:count])
        is_snapshot = self._kinds[0] == SNAPSHOT
        heads = Heads(
            kinds=self._kinds[:count],
            tables=tables,
            lsns=np.array(self._lsns[:count]),
            committed_us=None if is_snapshot else np.array(self._committed[:count]),
            unchanged={},
            ends=pa.array(self._ends[:count], pa.int64()),
        )
        rows = {number: self._rows_of(number, at, columns, count) for number, (at, columns) in self._values.items()}
        self._draft.write(
            self._batches.made(heads, {number: each for number, each in rows.items() if each.numbers.size})
        )
        values, kinds, numbers = self._values, self._kinds[count:], self._at[count:]
        lsns, committed, ends = self._lsns[count:], self._committed[count:], self._ends[count:]
        self._begin()
        self._kinds, self._at, self._lsns, self._committed, self._ends = kinds, numbers, lsns, committed, ends
        for number, (at, columns) in values.items():
            first = int(np.searchsorted(at, count))
            if first < len(at):
                self._values[number] = ([each - count for each in at[first:]], [column[first:] for column in columns])
        self.written += count

    def _rows_of(self, number: int, at: list[int], columns: list[list[Any]], count: int) -> TableRows:
        end, table = int(np.searchsorted(at, count)), self._tables[number]
        arrays = []
        for column, values in zip(table.columns, columns, strict=True):
            try:
                arrays.append(pa.array(values[:end], arrow_type(column.type)))
            except (pa.ArrowException, OverflowError) as error:
                raise SourceError(
                    f"table {table.full_name}, column {column.name}: a value is no {column.type} ({error})"
                ) from None
        return TableRows(np.array(at[:end]), arrays)


def _row_type(table: TrackedTable) -> StructType:
    return StructType([StructField(column.name, spark_type(column.type)) for column in table.columns])


def _history_at(offset: Mapping[str, Any], lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines of the schema history that an engine needs to resume from this offset.

    Without GTIDs, lines from behind the offset are left out. An engine that has them treats their changes as processed,
    and does not report these changes again. With GTIDs all lines are returned. Then the engine itself ignores later
    lines, and places of two servers could not be compared.
    """
    place = offset.get("file"), offset.get("pos")
    if offset.get("gtids") or None in place:
        return tuple(lines)
    return tuple(line for line in lines if _place(json.loads(line).get("position") or {}) <= _place(offset))


def _key(position: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """Return the key by which a statement's line of the history and the statement's event are matched."""
    place = {name: value for name, value in position.items() if name != "ts_sec"}
    return json.dumps([place, said.get("databaseName"), said.get("ddl")], sort_keys=True)


def _place(said: Mapping[str, Any]) -> tuple[int, int]:
    """Return a place of the server's log as a pair of numbers that can be compared."""
    number = str(said.get("file", "")).rpartition(".")[2]
    return (int(number) if number.isdecimal() else -1, int(said.get("pos") or 0))


class DebeziumStaging:
    """Appends to a staged log. After an error no partial file remains, and the next call starts a new engine."""

    def __init__(self, reading: DebeziumReading, log: StagedLog[DebeziumNote]) -> None:
        """Store the arguments. No engine is started yet."""
        self._reading, self._log = reading, log
        self._engine: RunningEngine | None = None
        self._behind = -1
        """The number of the file behind which the engine continues."""
        self._offset: dict[str, Any] = {}
        self._history: dict[str, str] = {}
        self._reached: LogPlace | None = None
        self._refused: SourceError | None = None

    def begin(self, tables: tuple[TrackedTable, ...]) -> None:
        """Write the first file: the snapshot, or an empty file if no snapshot is read. Raises SourceError."""
        with self._guarded():
            with self._reading.server.connected() as asked:
                asked.must_log()
                asked.must_let_read()
                if asked.tables(self._reading.tables) != tables:
                    raise SourceError(f"the tables of {self._reading.server.named()} have just changed: run again")
                identity = asked.identity()
            server = self._reading.server
            origin = DebeziumOrigin(
                connector=server.connector, database=server.database, server=identity, tables=tables
            )
            note = DebeziumNote(start=0, end=0, before=0, origin=origin)
            with self._log.writing(note, Batches(tables).schema) as draft:
                rows = EventRows(tables, draft)
                self._take_snapshot(self._started(0, {}, ()), rows, tables)
                rows.end()
                rows.flush()
                self._publish(draft)

    def append(self, changes: int) -> bool:
        """Write whole transactions with at least `changes` changes, or all there are. Return True if there may be more.

        If a table gets new columns and the source reads such columns, their rows begin a new file. If the engine ends,
        for example because the server was restarted, the method starts another engine. Raises SourceError.
        """
        if self._refused is not None:
            raise self._refused
        with self._guarded():
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._append(changes)
                except EngineFailedError:
                    self.close()
                    time.sleep(_PAUSE_S)
            return self._append(changes)

    def close(self) -> None:
        """End the engine."""
        engine, self._engine = self._engine, None
        self._reached = self._refused = None
        if engine is not None:
            engine.close()

    # -------------------------------------------------------------- details

    def _append(self, changes: int) -> bool:
        last = self._log.last
        if last is None:
            raise SourceError(
                f"{self._log.folder} is gone, and with it the engine's offset: put it back from a backup, or {ANEW}"
            )
        note = last.note
        with self._reading.server.connected() as asked:
            end = asked.end()
            if end == (self._reached if self._behind == note.end else note.reached):
                return False
            missing = asked.missing(note.origin.tables)
            if self._engine is None or self._behind != note.end:
                asked.must_log()
                self._must_be_the_same(asked.identity(), end, note)
                asked.must_hold(str(note.offset.get("file", end.file)))
        engine = self._engine
        if engine is None or self._behind != note.end:
            self.close()
            engine = self._started(note.end, note.offset, note.history)
        engine.read_to(*end)
        tables: tuple[TrackedTable, ...] | None = tuple(note.origin.tables)
        while tables is not None:
            more, tables = self._appended_file(engine, tables, note.origin, end, changes)
        if not more and missing and self._refused is None:  # Debezium does not tell that a table got another name
            self._refused = SourceError(_gone(missing[0]))
            if self._log.last is last:
                raise self._refused
        return more

    def _appended_file(
        self,
        engine: RunningEngine,
        tables: tuple[TrackedTable, ...],
        origin: DebeziumOrigin,
        end: LogPlace,
        changes: int,
    ) -> tuple[bool, tuple[TrackedTable, ...] | None]:
        """Write a file, if there are rows for it. Return whether there may be more, and the tables of the next file."""
        last = self._log.last
        note = DebeziumNote(
            start=self._behind,
            end=0,
            before=0 if last is None else last.after,
            origin=origin.model_copy(update={"tables": tables}),
        )
        with self._log.writing(note, Batches(tables).schema) as draft:
            rows, grown = EventRows(tables, draft), None
            try:
                more = self._take(engine, rows, tables, end, changes)
            except _TableGrewError as grew:
                more, grown = True, grew.tables
            except _TableChangedError as changed:
                self._refused, more = SourceError(str(changed)), False
            else:
                self._reached = None if more else end
            rows.flush()
            keeps = rows.written > 0 or (not more and self._refused is None and self._is_far(end))
            if keeps and not self._publish(draft):
                self.close()  # another process was first, and this one goes on behind its file
                return True, None
        if self._refused is not None and not rows.written:
            raise self._refused
        return more, grown

    def _take_snapshot(self, engine: RunningEngine, rows: EventRows, tables: tuple[TrackedTable, ...]) -> None:
        for said in engine.said():
            match said.kind:
                case "E":
                    rows.take(said)
                case "H":
                    self._note_history(said.text)
                case "D":
                    self._compared(said, tables, now=True)
                case "N" if json.loads(said.text).get("type") == "COMPLETED":
                    self._offset = json.loads(said.offset)
                    return
                case _:
                    pass

    def _take(
        self, engine: RunningEngine, rows: EventRows, tables: tuple[TrackedTable, ...], end: LogPlace, changes: int
    ) -> bool:
        """Take rows until there are at least `changes` (True), or until the engine has read up to `end` (False).

        Rows are taken in whole transactions. The offset is always one between two transactions, from which another
        engine can resume.
        """
        for said in engine.said():
            match said.kind:
                case "E":
                    rows.take(said)
                case "T":
                    boundary = boundary_of(said.text)
                    rows.end()  # a begin ends a transaction whose end the log does not have
                    self._offset = json.loads(said.offset)
                    if boundary is not None and boundary.is_end and rows.total >= changes:
                        return True
                case "C":
                    rows.end()
                    self._offset = json.loads(said.offset)
                    if rows.total >= changes:
                        return True
                case "H":
                    self._note_history(said.text)
                case "D":
                    grown = self._compared(said, tables)
                    if grown != tables:
                        raise _TableGrewError(grown)
                    rows.end()
                    self._offset = json.loads(said.offset)
                case "I" if not rows.open and said.text == f"{end.file} {end.position}":
                    return False
                case _:
                    pass
        return False

    def _compared(self, said: Said, tables: tuple[TrackedTable, ...], *, now: bool = False) -> tuple[TrackedTable, ...]:
        """Return the tables after a change of their columns. With `now`, the columns must not have changed.

        Only the history has a table's name from before a RENAME. The event does not have it. If an earlier engine has
        already written the RENAME into the history, the event describes no change at all.

        Raises _TableChangedError for a change after which the rows cannot be read any more.
        """
        found, told = list(tables), json.loads(said.text)
        recorded = json.loads(self._history.get(_key(json.loads(said.offset), told), "{}")).get("tableChanges") or ()
        before = {each["id"]: each.get("previousId") for each in recorded}
        changes = told.get("tableChanges") or ()
        for change in changes or recorded:
            names = {_full_name(each) for each in (change["id"], before.get(change["id"])) if each}
            number = next((n for n, each in enumerate(found) if each.full_name in names), None)
            if number is None or (now and change["type"] == "DROP"):
                continue
            if not now and (change["type"] != "ALTER" or len(names) > 1):
                raise _TableChangedError(_gone(found[number].full_name))
            if not changes:
                continue
            described = described_table(found[number].schema_, change)
            if now and described != found[number]:
                raise SourceError(f"the tables of {self._reading.server.named()} have just changed: run again")
            found[number] = _grown(found[number], described, self._reading.new_columns)
        return tuple(found)

    def _note_history(self, line: str) -> None:
        """Keep a line, unless it is known. An engine that resumes from an older offset writes later lines once more."""
        said = json.loads(line)
        self._history.setdefault(_key(said.get("position") or {}, said), line)

    def _started(self, behind: int, offset: Mapping[str, Any], history: Sequence[str]) -> RunningEngine:
        self.close()
        self._behind, self._offset, self._history = behind, dict(offset), {}
        for line in history:
            self._note_history(line)
        self._engine = RunningEngine(self._reading.engine(offset, history))
        return self._engine

    def _is_far(self, end: LogPlace) -> bool:
        """Return True if the engine has read so much without a row that its offset should be staged."""
        last = self._log.last
        before = {} if last is None else last.note.offset
        position = before.get("pos")
        return (
            before.get("file") != end.file
            or end.position - (position if isinstance(position, int) else 0) >= _QUIET_BYTES
        )

    def _publish(self, draft: UnfinishedFile[DebeziumNote]) -> bool:
        place = self._reached
        is_first = draft.publish(
            self._behind + 1,
            offset=self._offset,
            history=_history_at(self._offset, self._history.values()),
            reached=None if place is None else (place.file, place.position),
        )
        self._behind += 1
        self._log.look()
        return is_first

    def _must_be_the_same(self, identity: str, end: LogPlace, note: DebeziumNote) -> None:
        """Raise SourceError if the log of this server is not the log from which the staged changes come."""
        server, before = self._reading.server, note.origin.server
        if before and identity and before != identity and not note.offset.get("gtids"):
            raise SourceError(
                f"{server.named()} is another server than the one whose changes were read, and only with GTIDs one "
                f"can go on where the other stopped: correct the URL, or {ANEW}"
            )
        reached = LogPlace(*(note.reached or (str(note.offset.get("file", "")), int(note.offset.get("pos") or 0))))
        if before == identity and reached.file == end.file and reached.position > end.position:
            raise SourceError(
                f"the binary log of {server.named()} ends at {end.file}:{end.position}, and changes up to "
                f"{reached.file}:{reached.position} were read: it was restored from a backup, or its log was reset. "
                f"To go on, {ANEW}"
            )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raise errors of the engine and of writing as SourceErrors."""
        server = self._reading.server
        try:
            yield
        except EngineFailedError as error:
            self.close()
            raise _refusal(server, str(error)) from None
        except OSError as error:
            self.close()
            raise SourceError(
                f"{self._log.folder} cannot be written ({error}): run again when this is mended"
            ) from None
        except BaseException as error:
            refused = self._refused
            self.close()
            self._refused = refused if error is refused else None
            raise


def _refusal(server: BinlogServer, told: str) -> SourceError:
    """Return the error to raise when the engine has ended with this message."""
    words = told.lower()
    if "access denied" in words or "privilege" in words:
        return SourceError(
            f"{server.named()} does not let its user read changes ({told}): GRANT {GRANTS} ON *.* TO the user"
        )
    if "no longer available on the server" in words or "purged" in words or "first log file" in words:
        return SourceError(
            f"{server.named()} has removed the part of its binary log that follows the staged changes ({told}). To go "
            f"on, {ANEW}, and let the server keep its log longer (binlog_expire_logs_seconds)"
        )
    return SourceAwayError(
        f"Debezium's engine for {server.named()} ended ({told}): nothing is lost, run again when this is mended"
    )


def _grown(table: TrackedTable, now: TrackedTable, new_columns: NewColumns) -> TrackedTable:
    """Return the table, with its new columns if the source reads these. Raise _TableChangedError for other changes."""
    name, columns = table.full_name, {column.name: column for column in now.columns}
    if now.keys != table.keys:
        raise _TableChangedError(
            f"table {name} has another primary key: it was {', '.join(table.keys)}, and is {', '.join(now.keys)}. "
            f"To go on, {ANEW}"
        )
    for column in table.columns:
        found = columns.pop(column.name, None)
        if found is None and not column.later:
            raise _TableChangedError(f"column {column.name} of table {name} was dropped or renamed. To go on, {ANEW}")
        if found is not None and found.type != column.type:
            raise _TableChangedError(
                f"column {column.name} of table {name} has another type: it was read as {column.type}, and is now "
                f"{found.type}. To go on, {ANEW}"
            )
    if columns and new_columns == "fail":
        raise _TableChangedError(f"table {name} has the new column {next(iter(columns))}. {_EVOLVE}")
    new = tuple(each.model_copy(update={"later": True}) for each in columns.values())
    return table.model_copy(update={"columns": (*table.columns, *new)}) if new and new_columns == "evolve" else table


def _gone(name: str) -> str:
    return f"table {name} was dropped, renamed or created again. To go on, {ANEW}"


def _full_name(said: str) -> str:
    """Return the full name of a table, which Debezium writes as `"shop"."orders"`."""
    return said.replace('"', "")


def _exactly(name: str) -> str:
    """Return the regular expression that matches only this name."""
    return re.sub(r"([^A-Za-z0-9_])", r"\\\1", name)
