"""Judges when a tick asks to compact small files: at its first slice, and again when enough files have come.

When a tick begins, it does not know how many small files its tables have. So all append tables are due at the first
slice. A table that the pipeline has renamed is not due until an entry has published it under its new name. Later, a
table is due again when checkpoints have added as many files as the setting says, or when the last compaction left small
files behind.
"""

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import CompactFiles, Effect, Fact, FilesCompacted, NotifyComplete, SliceOffered
from checkpointing.metadata.record import CheckpointRecord
from spec.steps import Begun
from spec.watching import DoorJudge, Watched, drafted


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

    @property
    def applies(self) -> bool:
        """Return whether the job compacts small files."""
        return self.door.setup.config.compact_files_min is not None

    def told(self, fact: Begun | Fact) -> None:
        """Note the first slice. A tick that stops drops slices, so only one that certainly reads is judged.

        If a checkpoint completed before that slice, nothing is judged here. Its entry may have published a renamed
        table, which is then due. `CompactsAgain` judges that case.
        """
        offered = isinstance(fact, SliceOffered)
        self._is_first = offered and not self._has_read and self.door.reads and not self.door.completed
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


class CompactsAgain(DoorJudge):
    """Judges every request of a door to compact files. It must name the due tables, and only one may run at a time."""

    def __init__(self, door: Watched) -> None:
        """Begin with all tables due, except renamed ones."""
        super().__init__(door)
        self._min = door.setup.config.compact_files_min
        tables = [table.name for table in door.setup.graph.tables() if table.mode is TableMode.APPEND]
        self._added = {name: 0 if name in door.setup.renamed else self._min or 0 for name in tables}
        """How many files each table got since the last request to compact it."""
        self._runs = False
        """A compaction is under way."""
        self._waits = False
        """The last compaction wrote files. The door may wait until a checkpoint has them before it asks again."""
        self._reads = False
        """The judged step offers rows to a door that goes on reading."""
        self._entries: dict[CheckpointId, CheckpointRecord] = {}

    @property
    def applies(self) -> bool:
        """Return whether the job compacts small files."""
        return self.door.setup.config.compact_files_min is not None

    def told(self, fact: Begun | Fact) -> None:
        """Note whether rows are offered, and what a compaction wrote or left."""
        self._reads = isinstance(fact, SliceOffered) and self.door.reads
        if isinstance(fact, FilesCompacted):
            self._runs, self._waits = False, bool(fact.found)
            self._added |= dict.fromkeys(fact.more, self._min or 0)

    def asked(self, effect: Effect) -> None:
        """Judge a request, and count the files of a checkpoint that is complete."""
        match effect:
            case CompactFiles():
                due = self._due()
                if self._runs:
                    self.wrong("a second compaction begins while one is under way")
                if {*effect.tables} != due:
                    self.wrong(f"{sorted(effect.tables)} are compacted, due are {sorted(due)}")
                if (effect.files_min, effect.bytes_max) != (self._min, self.door.setup.config.compacted_bytes_max):
                    self.wrong(f"files are compacted as {effect} says, not as the settings say")
                self._added |= dict.fromkeys(effect.tables, 0)
                self._runs, self._waits = True, False
            case NotifyComplete() if effect.checkpoint in self._entries:
                self._complete(self._entries.pop(effect.checkpoint))
            case _ if self._min is not None and (record := drafted(effect)) is not None:
                self._entries[record.checkpoint] = record

    def rested(self, given: tuple[CheckpointId, ...]) -> None:  # noqa: ARG002 - the form of a judge
        """Judge a step that offers rows and asks for no compaction."""
        if self._reads and not (self._runs or self._waits) and self._min is not None and self._due():
            self.wrong(f"nothing is compacted, due are {sorted(self._due())}")
        self._reads = False

    def _due(self) -> set[TableName]:
        return {table for table, files in self._added.items() if files >= (self._min or 1)}

    def _complete(self, record: CheckpointRecord) -> None:
        for table in record.tables:
            if table.table in self._added:
                self._added[table.table] += len(table.adds)
            self._waits &= not table.compactions
