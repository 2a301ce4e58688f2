"""Reads changes from a replication slot without consuming them, and advances the slot when a checkpoint allows it.

The changes come from a temporary copy of the slot, which belongs to one connection. The copy consumes the changes that
it returns, so the server decodes each transaction only once, while the slot itself is not moved. When the connection
ends, the server drops the copy, and the next copy begins at the slot again.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import psycopg

from jobs.sources.port import SourceError
from jobs.sources.postgres.connection import Connection, Server
from jobs.sources.postgres.way_out import ANEW
from jobs.sources.staged.lsn import parsed, written

PLUGIN: Final = "pgoutput"
_NAME: Final = re.compile(r"[a-z0-9_]{1,50}")
_ROWS_AT_A_TIME: Final = 1_000

_CHANGES: Final = """
SELECT data FROM pg_logical_slot_get_binary_changes(
  %s, NULL, %s, 'proto_version', '1', 'publication_names', %s)
"""
_STATE: Final = """
SELECT slot_type, plugin, database, confirmed_flush_lsn::text, wal_status,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True)
class SlotState:
    """The horizon to which a slot was advanced, and the bytes of the log that the server keeps for the slot."""

    confirmed: int
    retained_bytes: int


def slot_name(text: str) -> str:
    """Return a slot's name. Raise SourceError for a name that is invalid for PostgreSQL or for a copy of the slot."""
    if not _NAME.fullmatch(text):
        raise SourceError(f"slot {text!r}: a name has 1 to 50 lower-case letters, digits and underscores")
    return text


def state_of(connection: Connection, slot: str) -> SlotState | None:
    """Return a slot's state, or None if there is no such slot. Raise SourceError for a slot of another kind."""
    row = connection.execute(_STATE, [slot]).fetchone()
    if row is None:
        return None
    kind, plugin, database, confirmed, wal, retained = row
    if kind != "logical" or plugin != PLUGIN:
        raise SourceError(
            f"slot {slot} is {f'of the plugin {plugin}' if plugin else 'physical'}, and PostgresChanges reads slots of "
            f"{PLUGIN}: name another slot. It is made if it is missing"
        )
    if database != connection.info.dbname:
        raise SourceError(
            f"slot {slot} belongs to database {database}, and the URL names {connection.info.dbname}: name another "
            "slot, or correct the URL"
        )
    if wal == "lost" or confirmed is None:
        raise SourceError(
            f"slot {slot} lost changes: the server removed its log, as max_slot_wal_keep_size or idle timeouts say. "
            f"Drop the slot, and {ANEW}"
        )
    return SlotState(parsed(confirmed), int(retained or 0))


def state_at(connection: Connection, slot: str, start: int) -> SlotState:
    """Return the state of a slot. Raise SourceError if the slot does not have all changes since `start`."""
    state = state_of(connection, slot)
    if state is None:
        raise SourceError(f"slot {slot} is gone, and with it the changes since {written(start)}: {ANEW}")
    if state.confirmed > start:
        raise SourceError(
            f"slot {slot} was moved to {written(state.confirmed)} by another program, and the staged files "
            f"end at {written(start)}: the changes between are lost here. Put newer staged files back, or {ANEW}"
        )
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    if row is not None and parsed(row[0]) < start:
        raise SourceError(
            f"the server's log ends at {row[0]}, and changes up to {written(start)} were read: this is another "
            f"server, or it was restored from an older backup. Correct the URL, or {ANEW}"
        )
    return state


def create(connection: Connection, slot: str) -> None:
    """Create the slot. The server waits for running transactions first."""
    connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [slot, PLUGIN])


def advance(server: Server, slot: str, horizon: int) -> None:
    """Advance the slot, so that the server may remove all transactions before the horizon from its log.

    An older horizon changes nothing.
    """
    with server.connect() as connection:
        state = state_of(connection, slot)
        if state is not None and state.confirmed < horizon:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [slot, written(horizon)])


class SlotCopy:
    """The temporary copy of a slot."""

    def __init__(self, server: Server, slot: str, publication: str) -> None:
        """Do not connect yet."""
        self._server, self._slot = server, slot
        self._publication = '"' + publication.replace('"', '""') + '"'
        self._connection: Connection | None = None
        self._name = ""
        self._start = -1
        """The horizon after which the next read returns transactions."""

    def connection(self, start: int) -> Connection:
        """Return the connection of a copy that reads the transactions after this horizon.

        Raises SourceError if the slot cannot be copied.
        """
        if self._connection is not None and (self._connection.closed or self._start != start):
            self.close()
        if self._connection is None:
            self._connection = self._copied(start)
            self._start = start
        return self._connection

    def read(self, start: int, changes: int) -> Iterator[bytes]:
        """Yield the messages of whole transactions: at least `changes` changes, or all that are committed."""
        connection = self.connection(start)
        self._start = -1
        with connection.cursor() as cursor:
            values = [self._name, changes, self._publication]
            for (data,) in cursor.stream(_CHANGES, values, binary=True, size=_ROWS_AT_A_TIME):
                yield data

    def reached(self) -> int:
        """Return the horizon up to which the copy has read everything."""
        if self._connection is None:
            raise SourceError(f"slot {self._slot} was not read")
        state = state_of(self._connection, self._name)
        if state is None:
            raise SourceError(f"the copy of slot {self._slot} is gone: run again")
        return state.confirmed

    def go_on(self, start: int) -> None:
        """Continue with the same copy after `start`.

        The last read must have returned all transactions before `start`.
        """
        self._start = start

    def close(self) -> None:
        """Close the connection, which ends the copy."""
        connection, self._connection, self._start = self._connection, None, -1
        if connection is not None:
            connection.close()

    def _copied(self, start: int) -> Connection:
        connection = self._server.connect()
        try:
            state = state_at(connection, self._slot, start)
            self._name = f"{self._slot}_{connection.info.backend_pid}"
            connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s, true)", [self._slot, self._name])
            if state.confirmed < start:
                connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [self._name, written(start)])
        except psycopg.errors.ConfigurationLimitExceeded:
            connection.close()
            raise SourceError(
                "all replication slots of the server are in use, and reading needs a temporary one: drop an unused "
                "slot, or raise max_replication_slots and restart the server"
            ) from None
        except BaseException:
            connection.close()
            raise
        return connection
