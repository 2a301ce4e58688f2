"""A process's knowledge of a Delta table: a version that delta-rs loaded, and this process's commits since.

A `KnownTable` at version v is equal to version v as loaded from the log. Columns, properties and protocol are those of
the loaded version, since none of the commits since has changed them (`DeltaLog` reads the log after a commit that
does). The active files are the files of the loaded version, changed by the commits since. So a process need not read
the log for its own commits.
"""

from collections.abc import Collection, Iterable
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from jobs.storage.objects import DELTA_CLIENT
from jobs.storage.place import StoragePlace

Action = AddAction | RemoveAction


class KnownTable:
    """A table at one version. `loaded` has its columns, properties and protocol, but may be an older version."""

    def __init__(
        self, loaded: DeltaTable, folder: str, *, version: int | None = None, files: set[str] | None = None
    ) -> None:
        """Take a loaded table and its folder in the storage. A later `version` needs the names of its `files`."""
        self.loaded = loaded
        self._folder = folder
        self._prefix = f"{folder}/" if folder else ""
        self._version = loaded.version() if version is None else version
        self._files = files

    def version(self) -> int:
        """Return the version."""
        return self._version

    @property
    def files(self) -> set[str]:
        """The names of the active files in the table's storage. Only the next commit may change the set."""
        return self._known_files()

    def paths(self) -> list[str]:
        """Return the paths of the active files inside the table's folder, in order."""
        return sorted(name.removeprefix(self._prefix) for name in self.files)

    def without(self, paths: Iterable[str]) -> set[str]:
        """Return those of the paths inside the table's folder that are not paths of active files."""
        return {path for path in paths if f"{self._prefix}{path}" not in self.files}

    def with_deletion_vectors(self) -> frozenset[str]:
        """Return the paths of active files with a deletion vector. Tidemark's commits add none."""
        marked = paths_with_deletion_vectors(self.loaded)
        return marked.difference(self.without(marked))

    def after(self, actions: Collection[Action]) -> "KnownTable":
        """Return the table after a commit of these actions. The new object takes over the set of files."""
        files = self._known_files()
        files.difference_update(f"{self._prefix}{each.path}" for each in actions if isinstance(each, RemoveAction))
        files.update(f"{self._prefix}{each.path}" for each in actions if isinstance(each, AddAction))
        return KnownTable(self.loaded, self._folder, version=self._version + 1, files=files)

    def _known_files(self) -> set[str]:
        if self._files is None:
            self._files = {f"{self._prefix}{path}" for path in active_paths(self.loaded)}
        return self._files


def delta_table(folder: StoragePlace, version: int | None = None) -> DeltaTable:
    """Return a table as delta-rs reads it at a version, by default the newest.

    Raises OSError after 30 seconds if the table's store does not answer, and the error of delta-rs if there is no such
    table or version.
    """
    return DeltaTable(str(folder), version=version, storage_options=DELTA_CLIENT)


def active_paths(table: DeltaTable) -> list[str]:
    """Return the paths of the table's active files, decoded, since they are URL-encoded in the log."""
    return [unquote(str(path)) for path in pa.table(table.get_add_actions()).column("path").to_pylist()]


def paths_with_deletion_vectors(table: DeltaTable) -> frozenset[str]:
    """Return the paths, in the form of `active_paths`, of active files with a deletion vector.

    delta-rs cannot remove such files. For a table that never had the feature, this call costs nothing.
    """
    return frozenset(kept_rows(table))


def kept_rows(table: DeltaTable) -> dict[str, pa.ListScalar]:
    """Return for each active file with a deletion vector a list that is true for each row not marked by the vector.

    The keys are in the form of `active_paths`. Rows behind a list's end are not marked either. For a table that never
    had the feature, this call costs nothing. Raises OSError or DeltaError if a vector cannot be read, ValueError if it
    belongs to no file.
    """
    if not has_deletion_vectors(table):
        return {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    uris = map(_plain, vectors.column("filepath").to_pylist())
    left = dict(zip(uris, vectors.column("selection_vector"), strict=True))
    root = _plain(str(table.table_uri)).rstrip("/") + "/"
    places = {path: _plain(path) if "://" in path else root + path for path in active_paths(table)}
    found = {path: left.pop(place) for path, place in places.items() if place in left}
    if left:
        raise ValueError(f"there is a deletion vector of {min(left)}, which is no file of the table")
    return found


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Return True if files of the table may have deletion vectors."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def _plain(uri: str) -> str:
    """Return a path unchanged, and a URI decoded. A `file` URI becomes a path."""
    if "://" not in uri:
        return uri
    parts = urlparse(uri)
    return unquote(parts.path) if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}"
