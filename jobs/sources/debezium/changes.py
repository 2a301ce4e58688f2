"""Reads the changes of MariaDB and MySQL tables with Debezium's engine (ADR 25)."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from pyspark.sql.types import StructType

from checkpointing.identifiers import SplitId
from jobs.sources.debezium.server import ANEW, BinlogServer
from jobs.sources.debezium.staging import FORMAT, DebeziumNote, DebeziumReading, DebeziumStaging
from jobs.sources.port import SourceDescription, SourceError
from jobs.sources.python.ddl import schema_of_text
from jobs.sources.secrets import refuse_open_secrets
from jobs.sources.staged.log import StagedLog, Words
from jobs.sources.staged.position import ChangesPosition
from jobs.sources.staged.source import StagedChanges
from jobs.sources.staged.tracked_tables import NewColumns, SnapshotMode, TrackedColumn, TrackedTable, is_type
from jobs.spark.jars import DEBEZIUM

_FIXED: Final = (
    *("connector.class", "offset.", "schema.history", "name", "topic.prefix", "table.", "snapshot.mode"),
    "database.ssl.",
)
"""Settings of the engine that the source itself sets."""


class DebeziumSource(StagedChanges[DebeziumNote]):
    """The rows of a database's tables, then every change of them (see `port.Source`)."""

    jar_sets = (DEBEZIUM,)

    def __init__(  # noqa: PLR0913 - each says one thing about the source
        self,
        url: str,
        tables: Sequence[str],
        *,
        staged: Path | str,
        schema: Mapping[str, StructType | str] | None = None,
        snapshot: SnapshotMode = "whole",
        new_columns: NewColumns = "fail",
        keep: timedelta | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Read these tables of the database in the URL, with their changes.

        `url` is `mariadb://USER:PASSWORD@HOST:PORT/DATABASE`, `mysql://...` for MySQL, or `env:NAME` for an environment
        variable that holds the URL. At the end of the URL, `?ssl-mode=verify-ca&ssl-ca=FILE` requires an encrypted
        connection. `staged` is a folder for the files of changes. All processes of the job must reach this folder.
        `schema` gives the columns of each table, as in `{"giro": "id int, balance decimal(12,2)"}`. Then the pipeline
        can be built without the server. `snapshot` says whether the first rows of the tables come in one cut, in parts,
        or not at all. `new_columns` says what happens to a column that is added to a table later. With `evolve` the
        next tick reads the new column as a column of the source such as `shop_giro__note`. `keep` says how long the
        source keeps files that were read. None means for ever. `settings` are further settings of Debezium's connector,
        such as `{"snapshot.locking.mode": "none"}`. Raises SourceError for a bad name, and for a setting that the
        source itself sets.
        """
        if isinstance(tables, str) or not tables or len({*tables}) < len(tables) or any("." in each for each in tables):
            raise SourceError(
                f"tables={tables!r}: name each table once, without its database, as in tables=['giro', 'savings']"
            )
        more = dict(settings or {})
        refuse_open_secrets(more, "DebeziumSource")
        for name in more:
            if name.startswith(_FIXED):
                raise SourceError(f"settings= has {name!r}, which DebeziumSource makes itself: leave it out")
        server = BinlogServer(url)
        self._reading = DebeziumReading(
            server=server, tables=tuple(tables), snapshot=snapshot, new_columns=new_columns, settings=more
        )
        log = StagedLog(Path(staged).absolute(), DebeziumNote, FORMAT, Words("Debezium's", ANEW))
        declared = None if schema is None else _declared(server.database, tuple(tables), schema)
        wanted = [f"{server.database}.{name}" for name in tables] if declared else None
        super().__init__(log, wanted, declared, snapshot=snapshot, keep=keep)
        self._staging = DebeziumStaging(self._reading, log)

    def __repr__(self) -> str:
        """Return what is read, without user and password."""
        return f"DebeziumSource({self._reading.server.place}, {', '.join(self._reading.tables)})"

    def described(self) -> SourceDescription:
        """Return the kind of source, server and tables; see `port.DescribesItself`."""
        reading = self._reading
        return SourceDescription("debezium", f"{', '.join(reading.tables)} of {reading.server.place}")

    def named(self, split: SplitId, position: str) -> str:
        """Return a position as the place in the server's log and the rows read there; see `port.NamesPositions`."""
        del split
        found = ChangesPosition.parse(position)
        if found.lsn <= 1 or not found.row:
            return f"row {found.row:,}, in or behind the snapshot" if found.row else "the start"
        return f"binary log {found.lsn >> 32}, place {found.lsn & 0xFFFFFFFF:,}, {found.row:,} rows"

    def health(self) -> str:
        """Return up to which place of the server's log changes are staged; see `port.ReportsHealth`.

        Also raises SourceError if the server has removed the part of its log that follows the staged changes.
        """
        last = self._log.look().last
        with self._reading.server.connected() as asked:
            end = asked.end()
            if last is None:
                return "the first tick reads the snapshot"
            file = str(last.note.offset.get("file", end.file))
            asked.must_hold(file)
        return (
            f"staged up to {file}:{last.note.offset.get('pos')}, and the server's log ends at {end.file}:{end.position}"
        )

    def close(self) -> None:
        """End the engine; see `port.Closes`."""
        with self._lock:
            self._staging.close()

    # -------------------------------------------------------------- details

    def _discovered(self) -> tuple[TrackedTable, ...]:
        with self._reading.server.connected() as asked:
            return asked.tables(self._reading.tables)

    def _must_be_of(self, note: DebeziumNote) -> None:
        server, origin, folder = self._reading.server, note.origin, self._log.folder
        here = [("tables", _listed(table.name for table in origin.tables), _listed(self._reading.tables))]
        with suppress(SourceError):  # a URL that is not known yet is an error when the source asks the server
            here += [("connector", origin.connector, server.connector), ("database", origin.database, server.database)]
        for what, before, after in here:
            if before != after:
                raise SourceError(
                    f"{folder} has changes of {what} {before}, and this one is {after}: name what it was before, or "
                    f"{ANEW}"
                )

    def _begin(self, tables: tuple[TrackedTable, ...]) -> None:
        self._staging.begin(tables)

    def _append(self, tables: tuple[TrackedTable, ...], position: ChangesPosition, changes: int) -> bool:  # noqa: ARG002
        return self._staging.append(changes)

    def _let_go(self, *, rests: bool) -> None:
        """Do nothing. The server removes its binary log by its own settings, whatever has been read."""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _declared(
    database: str, names: tuple[str, ...], schema: Mapping[str, StructType | str]
) -> tuple[TrackedTable, ...]:
    """Return the tables that a user declares. Raise SourceError for a type that the source never gives to a column."""
    if sorted(schema) != sorted(names):
        raise SourceError(
            f"schema= gives columns of {', '.join(schema)}, and tables= names {', '.join(names)}: name the same tables"
        )
    found = []
    for name in names:
        declared = schema[name]
        columns = []
        for field in schema_of_text(declared) if isinstance(declared, str) else declared:
            text = field.dataType.simpleString()
            if not is_type(text):
                raise SourceError(
                    f"schema= gives column {field.name} of table {name} the type {text}, which no column gets: leave "
                    "schema= out once, and the source says the types itself"
                )
            columns.append(TrackedColumn(name=field.name, type=text))
        found.append(TrackedTable(schema_=database, name=name, columns=tuple(columns)))
    return tuple(found)
