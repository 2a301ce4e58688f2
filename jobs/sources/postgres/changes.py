"""The source of a PostgreSQL publication's changes (ADR 13).

The source advances the slot after a checkpoint has completed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, cast

import psycopg
from pyspark.sql.types import StructType

from jobs.sources.port import SourceDescription, SourceError
from jobs.sources.postgres.catalog import (
    FORMAT,
    Note,
    SourceTable,
    declared_tables,
    tables_not_read,
)
from jobs.sources.postgres.connection import Server
from jobs.sources.postgres.slot import advance, slot_name, state_at, state_of
from jobs.sources.postgres.staging import Reading, Staging
from jobs.sources.postgres.way_out import ANEW
from jobs.sources.staged.log import StagedLog, Words
from jobs.sources.staged.position import ChangesPosition
from jobs.sources.staged.source import StagedChanges
from jobs.sources.staged.tracked_tables import NewColumns, SnapshotMode, TrackedTable

_MIB: Final = 1024 * 1024


class PostgresChanges(StagedChanges[Note]):
    """The rows of a publication's tables, then every change of them (see `port.Source`)."""

    def __init__(  # noqa: PLR0913 - each says one thing about the source
        self,
        url: str,
        publication: str,
        slot: str,
        tables: Sequence[str] | None = None,
        *,
        staged: Path | str,
        schema: Mapping[str, StructType | str] | None = None,
        snapshot: SnapshotMode = "whole",
        new_columns: NewColumns = "fail",
        unfit: Literal["fail", "null"] = "fail",
        keep: timedelta | None = None,
    ) -> None:
        """Read these tables of a publication (`schema.table`; None: all of them) through a slot.

        `url` is a URL, libpq's `key=value` pairs such as `service=bank`, or `env:NAME` for an environment variable that
        holds one of these. The slot is created if it is missing, and must serve only this source. `staged` is a folder
        for the files of changes. All processes of the job must reach this folder. `schema` gives the columns of each
        table, as in `{"public.giro": "id int, balance decimal(12,2)"}`. Then the pipeline can be built without the
        server, and the first poll compares these columns with the tables. `snapshot` says whether the first rows of the
        tables come in one cut, in parts, or not at all. `new_columns` says what happens to a column that is added to a
        table later. With `evolve` the next tick reads the new column as a column of the source such as
        `public_giro__note`. `unfit` says what happens to a value that Spark's type cannot hold. `keep` says how long
        the source keeps files that were read. None means for ever. A rollback to an older checkpoint needs its files.
        Raises SourceError for a bad name.
        """
        if schema is not None and tables is not None and sorted(schema) != sorted(tables):
            raise SourceError(
                f"schema= gives columns of {', '.join(schema)}, and tables= names {', '.join(tables)}: name the same "
                "tables in both, or leave tables= out"
            )
        read = tables if schema is None else tables or tuple(schema)
        log = StagedLog(Path(staged).absolute(), Note, FORMAT, Words("PostgreSQL", ANEW))
        declared = None if schema is None else declared_tables(schema)
        super().__init__(log, read, declared, snapshot=snapshot, keep=keep)
        self._reading = Reading(
            server=Server(url),
            slot=slot_name(slot),
            publication=publication,
            tables=None if read is None else tuple(read),
            snapshot=snapshot,
            new_columns=new_columns,
            nulls_for_unfit=unfit == "null",
        )
        self._staging = Staging(self._reading, self._log)

    def __repr__(self) -> str:
        """Return what is read, without user and password."""
        return f"PostgresChanges({self._reading.server.place}, {self._reading.publication}, {self._reading.slot})"

    def described(self) -> SourceDescription:
        """Return the kind of source, server, database and publication; see `port.DescribesItself`."""
        reading = self._reading
        return SourceDescription("postgres", f"publication {reading.publication} of {reading.server.place}")

    def health(self) -> str:
        """Return how many bytes of its log the server keeps for the slot; see `port.ReportsHealth`.

        If the source reads all tables of the publication, the text also names tables that were added later. Also raises
        SourceError if the slot is gone, or no longer has changes that are not staged yet.
        """
        slot, server, last = self._reading.slot, self._reading.server, self._log.look().last
        later: list[str] = []
        try:
            with server.connect() as connection:
                state = state_of(connection, slot) if last is None else state_at(connection, slot, last.note.end)
                if last is not None and self._reading.tables is None:
                    later = tables_not_read(connection, self._reading.publication, last.note.origin.tables)
        except psycopg.Error as error:
            raise SourceError(f"slot {slot} of {server.place} cannot be looked at ({server.told(error)})") from None
        if state is None:
            return f"slot {slot} is made by the first tick"
        kept = f"slot {slot} keeps {state.retained_bytes / _MIB:,.1f} MiB of the server's log"
        if not later:
            return kept
        publication = self._reading.publication
        return (
            f"{kept}; publication {publication} has tables that are not read, since they came later: {', '.join(later)}"
        )

    def close(self) -> None:
        """Close the connection to the server; see `port.Closes`."""
        with self._lock:
            self._staging.close()

    # -------------------------------------------------------------- details

    def _must_be_of(self, note: Note) -> None:
        """Raise SourceError if the staged files belong to another slot or to another publication."""
        reading, origin = self._reading, note.origin
        now = origin.model_copy(update={"slot": reading.slot, "publication": reading.publication})
        origin.must_be(now, self._log.folder)

    def _begin(self, tables: tuple[TrackedTable, ...]) -> None:
        self._staging.begin(_own(tables))

    def _append(self, tables: tuple[TrackedTable, ...], position: ChangesPosition, changes: int) -> bool:
        return self._staging.append(_own(tables), position, changes)

    def _discovered(self) -> tuple[SourceTable, ...]:
        server = self._reading.server
        try:
            with server.connect() as connection:
                return tuple(each.table for each in self._reading.published(connection))
        except psycopg.Error as error:
            raise SourceError(f"the tables of {server.place} cannot be read ({server.told(error)})") from None

    def _let_go(self, *, rests: bool) -> None:
        """Advance the slot. If the job is at rest, advance the slot only if the last file has no rows of the tables."""
        if not rests:
            self._move_slot()
            return
        last = self._log.last
        if last is not None and not last.rows and self._completed.row >= last.after:
            with suppress(SourceError):  # a failure only costs the server space
                self._move_slot()

    def _move_slot(self) -> None:
        """Advance the slot to the completed position.

        If the staged log has no rows after that position, advance the slot to the end of the staged log.
        """
        last, position = self._log.last, self._completed
        at_end = last is not None and position.row >= last.after
        horizon = last.note.end if last is not None and at_end else position.lsn
        server = self._reading.server
        try:
            advance(server, self._reading.slot, horizon)
        except psycopg.Error as error:
            raise SourceError(
                f"slot {self._reading.slot} of {server.place} was not moved ({server.told(error)}): the server keeps "
                "more of its log until a later checkpoint moves it"
            ) from None


def _own(tables: tuple[TrackedTable, ...]) -> tuple[SourceTable, ...]:
    """Return the tables as SourceTables. This source has made all of them."""
    return cast("tuple[SourceTable, ...]", tables)
