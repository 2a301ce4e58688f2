"""Judges what a publication says has changed in an upsert or state table since the parent's cut.

The store writes only these files if the table still shows the parent's cut. Without them, it compares all files. So
wrong changes can go unnoticed, and missing ones only cost time. This rule looks at the entries alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.messages import Effect, Publication, PublishTable
from checkpointing.metadata.record import CheckpointRecord, RowKind, TableRecord
from spec.watching import DoorJudge, Watched, drafted


class ChangesSaid(DoorJudge):
    """Judges the publications of a door's own entries."""

    def __init__(self, door: Watched) -> None:
        """Begin with the restored entry."""
        super().__init__(door)
        restored = door.setup.restored
        self._entries: dict[CheckpointId, CheckpointRecord] = {restored.checkpoint: restored} if restored else {}

    def asked(self, effect: Effect) -> None:
        """Note an entry, and judge a publication of it."""
        record = drafted(effect)
        if record is not None:
            self._entries[record.checkpoint] = record
        elif isinstance(effect, PublishTable) and effect.checkpoint in self._entries:
            entry = self._entries[effect.checkpoint]
            for what in self._wrong(entry, self._entries.get(entry.parent), effect.publication):
                self.wrong(f"checkpoint {entry.checkpoint}: {what}")

    def _wrong(
        self, entry: CheckpointRecord, parent: CheckpointRecord | None, publication: Publication
    ) -> Iterator[str]:
        if publication.mode is TableMode.APPEND or publication.outside:
            return
        if len(_paths(publication.files)) != len(publication.files):
            yield f"the publication of {publication.table} lists a file twice"
        said, before = publication.changes, _table(parent, publication.table)
        if said is None:
            if parent is not None and before is not None and self._compares(entry, parent, publication.table):
                yield f"{publication.table} is published, and nothing is said of what changed since {parent.checkpoint}"
            return
        were, are = _paths(before.files if before is not None else ()), _paths(publication.files)
        if (_paths(said.new), _paths(said.gone)) != (are - were, were - are):
            yield f"{publication.table} is said to get {_paths(said.new)} and to lose {_paths(said.gone)}"
        now = _table(entry, publication.table)
        if now is None or said.version != now.parent_version:
            yield f"the changes of {publication.table} count from version {said.version}"

    def _compares(self, entry: CheckpointRecord, parent: CheckpointRecord, table: TableName) -> bool:
        """Return whether the parent published the table under its name, and no two subtasks share one of its files."""
        if parent.kind is not RowKind.CHECKPOINT or table in self.door.setup.renamed:
            return False
        operators = self.door.setup.graph.operators()
        writers = {vertex.id for vertex in operators if any(each.name == table for each in vertex.tables)}
        both = [list(_held(row, table, writers)) for row in (entry, parent)]
        return all(held and max(Counter(held).values()) == 1 for held in both)


def _held(row: CheckpointRecord, table: TableName, writers: set[VertexId]) -> Iterator[str]:
    """Yield the files of a table as the subtasks have them."""
    for vertex in (each for each in row.vertices if each.vertex in writers):
        for subtask in vertex.subtasks:
            keyed = [each for entry in subtask.ranges if entry.table == table for each in entry.files]
            yield from (each.file.path for each in keyed or subtask.state)


def _table(record: CheckpointRecord | None, name: TableName) -> TableRecord | None:
    return next((each for each in (record.tables if record is not None else ()) if each.table == name), None)


def _paths(files: Iterable[FileHandle]) -> frozenset[str]:
    return frozenset(file.path for file in files)
