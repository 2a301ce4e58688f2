"""The content of a simulated warehouse: staged files, and the logs of tables."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from checkpointing.identifiers import Generation, VertexId
from checkpointing.messages import Publication
from checkpointing.metadata.record import FileCompaction
from spec.history import Rows

StateRows = dict[int, tuple[object, ...] | None]


@dataclass(frozen=True, slots=True)
class Written:
    """A staged file: which generation wrote it, and its rows."""

    generation: Generation
    vertex: VertexId
    micro_batch: int
    rows: Rows = ()
    state: StateRows = field(default_factory=dict)
    columns: frozenset[str] = frozenset()
    """The names of its columns, if its operator's columns are renamed."""
    at_ms: int = 0


@dataclass(slots=True)
class TableLog:
    """A table's log: the active files at each version, and the checkpoint that it shows."""

    versions: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    shown: list[int] = field(default_factory=lambda: [0])
    """For each version, the checkpoint that it shows (the newest `txn`)."""
    columns: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    """For each version, the names of its columns."""
    at_ms: list[int] = field(default_factory=lambda: [0])
    """For each version, when it was committed."""
    durable: set[int] = field(default_factory=lambda: {0})
    """The versions whose entries survive a power cut."""
    again: set[int] = field(default_factory=set)
    """The versions whose entries were published again."""
    oldest: int = 0
    """The oldest version whose entry the log still has. Older ones were dropped in order."""
    backup: "TableLog | None" = None
    """The log as it was before it lost entries."""
    merged: dict[str, frozenset[str]] = field(default_factory=dict)
    """The files that a neighbour has merged, also step by step, by the file with their rows."""

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.versions) - 1

    @property
    def active(self) -> frozenset[str]:
        """The active files."""
        return self.versions[-1]

    def commit(self, active: frozenset[str], shown: int, at_ms: int, columns: frozenset[str] | None = None) -> None:
        """Add a version. Without columns, they stay as they are."""
        self.versions.append(active)
        self.at_ms.append(at_ms)
        self.shown.append(shown)
        self.columns.append(self.columns[-1] if columns is None else columns)

    def after(self, publication: Publication, compactions: Iterable[FileCompaction]) -> frozenset[str]:
        """Return the active files of an append table once this is published, with these of its compactions."""
        carried_out = tuple(compactions)
        into, of = {each.into.path for each in carried_out}, {path for each in carried_out for path in each.of}
        adds, leaving = ({file.path for file in files} for files in (publication.adds, publication.removes))
        return (self.active | adds | into) - leaving - of

    def undo_merges(self, leaving: Iterable[str], at_ms: int) -> None:
        """Undo each merge of a neighbour that took in one of these files: add a version with the files from before."""
        paths = set(leaving)
        for path, files in self.merged.items():
            if path in self.active and files & paths:
                self.commit(self.active - {path} | (files - self.merged.keys()), self.shown[-1], at_ms)

    def columns_after(self, publication: Publication) -> frozenset[str]:
        """Return the names of the columns that the table has once this is published."""
        said = frozenset(column.name for column in publication.columns)
        if publication.no_others and said:
            return said
        return (self.columns[-1] - frozenset(publication.leaving)) | said

    def shorten(self, to: int) -> None:
        """Lose every entry after this version."""
        del self.versions[to + 1 :], self.shown[to + 1 :], self.columns[to + 1 :], self.at_ms[to + 1 :]
        self.durable &= set(range(to + 1))
        self.again &= set(range(to + 1))

    def copy(self) -> "TableLog":
        """Return the log as it is now."""
        by_version = [*self.versions], [*self.shown], [*self.columns], [*self.at_ms]
        return TableLog(*by_version, {*self.durable}, {*self.again}, self.oldest, merged={**self.merged})

    def times_of(self, path: str) -> Iterator[tuple[int, int, int]]:
        """Yield each past period of a file in the table: its first version, the one that removed it, and when."""
        first: int | None = None
        for version, active in enumerate(self.versions):
            if path in active:
                first = version if first is None else first
            elif first is not None:
                yield first, version, self.at_ms[version]
                first = None
