"""The port of a sink outside the warehouse. A tick gives it the rows of each completed checkpoint once (ADR 17)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import pyarrow as pa


class SinkError(Exception):
    """A sink cannot take rows. The message says what is wrong, and what to do."""


class Sink(ABC):
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
