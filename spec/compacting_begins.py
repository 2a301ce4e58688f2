"""Judges when a tick begins to compact: with its first slice, for every append table that its entries have published.

Nobody knows at a tick's beginning how many small files its tables have. So all are due, unless the pipeline has renamed
a table and no entry has published it under its new name yet.
"""

from checkpointing.graph import TableMode
from checkpointing.messages import CompactFiles, Effect, Fact, SliceOffered
from spec.steps import Begun
from spec.watching import DoorJudge, Watched


class CompactsFirst(DoorJudge):
    """Judges the first request of a door to compact files."""

    def __init__(self, door: Watched) -> None:
        """Begin without a slice."""
        super().__init__(door)
        self._is_first = False
        """The step that is judged brings the first slice."""
        self._has_read = False
        tables = (table for table in door.setup.graph.tables() if table.mode is TableMode.APPEND)
        self._due = {table.name for table in tables} - set(door.setup.renamed)
        if door.setup.config.compact_files_min is None:
            self._due = set()

    def told(self, fact: Begun | Fact) -> None:
        """Note the first slice. A tick that stops drops slices, so only one that certainly reads is judged."""
        offered = isinstance(fact, SliceOffered)
        self._is_first = offered and not self._has_read and self.door.reads
        self._has_read |= offered

    def asked(self, effect: Effect) -> None:
        """Judge what is to be compacted."""
        if isinstance(effect, CompactFiles) and self._is_first:
            if set(effect.tables) != self._due:
                self.wrong(f"{sorted(effect.tables)} are compacted first, due are {sorted(self._due)}")
            self._is_first = False

    def rested(self, given: tuple[object, ...]) -> None:  # noqa: ARG002 - the form of a judge
        """Judge a step that asks for nothing."""
        if self._is_first and self._due:
            self.wrong(f"nothing is compacted at the first slice, due are {sorted(self._due)}")
        self._is_first = False
