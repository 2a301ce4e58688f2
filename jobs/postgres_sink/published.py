"""Keeps the number of the newest checkpoint that a target has, in the table `tidemark_published` of its schema.

A row belongs to a job, one of its tables, and a target. It says which table the target was: PostgreSQL's number of it,
which changes if it is dropped and created again, and the number of its file, which changes if it is emptied. So the
sink finds that a target has lost its rows, and several projects may have their targets in one schema. It also names the
warehouse, so that two warehouses with the same job do not both write to the target.
"""

from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from checkpointing.identifiers import NO_CHECKPOINT
from jobs.sources.postgres.connection import Connection

Cursor = psycopg.Cursor[TupleRow]
NAME: Final = "tidemark_published"
_TARGET: Final = """
SELECT concat(nspname, '.', relname), concat(c.oid, '/'), coalesce(pg_relation_filenode(c.oid), 0)::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)
"""
"""The target's name, its number, and the number of its file."""
_IS_OLD: Final = """
SELECT NOT EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'warehouse' AND NOT attisdropped
)
"""


_IS_MISSING: Final = "SELECT to_regclass(%s) IS NULL"
_MINE: Final = "job = %(job)s AND sink = %(sink)s AND target = %(target)s"
_FORMER: Final = "job = %(job)s AND sink = %(sink)s AND (target = '' OR starts_with(identity, %(number)s))"
"""A row that an older version has written, without a target, or of a target that was renamed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a target has: its newest checkpoint, and whether it is still as it was when that was written."""

    newest: int
    is_known: bool
    is_another: bool = False
    """Another table has the target's name now."""
    warehouse: str | None = None
    """The warehouse that publishes into it. None: an older version has written the row, or nobody has."""

    @property
    def known(self) -> int:
        """The checkpoint from which changes go on, or 0 if all rows are to be written."""
        return self.newest if self.is_known else NO_CHECKPOINT


@dataclass(frozen=True, slots=True)
class TargetNumbers:
    """The row of one job's table and one target."""

    connection: Connection
    schema: list[str]
    target: sql.Identifier
    job: str
    table: str

    def create(self) -> None:
        """Create the table of numbers. If an older version of Tidemark has created it, give it the new columns."""
        self._do(
            "CREATE TABLE IF NOT EXISTS {here} (job text, sink text, target text NOT NULL DEFAULT '', "
            "checkpoint bigint NOT NULL, published_at timestamptz NOT NULL DEFAULT now(), identity text, "
            "warehouse text, PRIMARY KEY (job, sink, target))"
        )
        if not self.is_new():
            self._do(
                "ALTER TABLE {here} ADD COLUMN IF NOT EXISTS target text NOT NULL DEFAULT '', "
                "ADD COLUMN IF NOT EXISTS identity text, ADD COLUMN warehouse text, "
                "DROP CONSTRAINT tidemark_published_pkey, ADD PRIMARY KEY (job, sink, target)"
            )

    def is_new(self) -> bool:
        """Return whether the table of numbers exists, in the form of this version."""
        return self.connection.execute(_IS_OLD, [self._place()]).fetchone() == (False,)

    def none_yet(self) -> int | None:
        """Return 0 if there is no table of numbers at all."""
        return NO_CHECKPOINT if self.connection.execute(_IS_MISSING, [self._place()]).fetchone() == (True,) else None

    def _place(self) -> str:
        return sql.Identifier(*self.schema, NAME).as_string(self.connection)

    def standing(self, *, lock: bool = False) -> Standing:
        """Return what the target has. With `lock`, nobody else changes that until the transaction ends."""
        if lock:
            self._do(
                "UPDATE {here} SET target = %(target)s WHERE {former} AND NOT EXISTS (SELECT FROM {here} WHERE {mine})"
            )
            self._do(
                "INSERT INTO {here} (job, sink, target, checkpoint) VALUES (%(job)s, %(sink)s, %(target)s, 0) "
                "ON CONFLICT (job, sink, target) DO NOTHING"
            )
            self._do("SELECT FROM {here} WHERE {mine} FOR UPDATE")
        found = self._do(
            "SELECT checkpoint, identity, warehouse FROM {here} WHERE ({mine}) OR ({former}) "
            "ORDER BY target = %(target)s DESC LIMIT 1"
        ).fetchone()
        newest, was, warehouse = found or (NO_CHECKPOINT, None, None)
        now = self._values()
        is_another = was is not None and not was.startswith(now["number"])
        return Standing(newest, is_known=was == now["identity"], is_another=is_another, warehouse=warehouse)

    def own(self, warehouse: str) -> None:
        """Store which warehouse publishes into the target. The row must be locked."""
        self._do("UPDATE {here} SET warehouse = %(warehouse)s WHERE {mine}", warehouse=warehouse)

    def store(self, checkpoint: int) -> None:
        """Store that the target has this checkpoint."""
        self._do(
            "UPDATE {here} SET checkpoint = %(checkpoint)s, identity = %(identity)s, published_at = now() WHERE {mine}",
            checkpoint=checkpoint,
        )

    def _values(self) -> dict[str, str]:
        """Return what statements are about."""
        found = self.connection.execute(_TARGET, [self.target.as_string(self.connection)]).fetchone()
        name, number, file = found or ("", "/", "")
        return {"job": self.job, "sink": self.table, "target": name, "number": number, "identity": f"{number}{file}"}

    def _do(self, statement: str, **given: object) -> Cursor:
        parts = {"here": sql.Identifier(*self.schema, NAME), "mine": sql.SQL(_MINE), "former": sql.SQL(_FORMER)}
        values = {**self._values(), **given} if "{mine}" in statement or "%(" in statement else None
        return self.connection.execute(sql.SQL(statement).format(**parts), values)
