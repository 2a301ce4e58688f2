"""A witness, which watches a real warehouse from outside and records what happens there, for the invariants.

It trusts no answer of the stores. It reads each version of each Delta log as any reader would, by delta-rs and from the
log's own JSON. It takes rows and states from the Parquet files. A file that has vanished from the disk counts as
deleted.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from os.path import exists
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from checkpointing.commit.manifests import path_of, whole
from checkpointing.commit.recovery import publications
from checkpointing.config import CheckpointConfig
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.codec import decode_stored
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import is_data_file, is_manifest_name
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row
from jobs.warehouse.checkpoints import ManifestFiles
from jobs.warehouse.log_entries import METADATA_KEY
from jobs.warehouse.warehouse import Warehouse
from spec.history import (
    CutWritten,
    FileMissed,
    FilesDiscarded,
    History,
    JobClaimed,
    JobReleased,
    RowCommitted,
    Rows,
    TableChanged,
)
from spec.reference.pipeline import MAX_PARALLELISM
from tests.conformance.pipeline import BRONZE, PATHS, SCHEMAS, TABLES, key_of_label, spec_name

StateRows = dict[int, tuple[object, ...] | None]


@dataclass(slots=True)
class _Seen:
    """A table's log as far as it was read: the active files of each version, as paths relative to the warehouse."""

    versions: list[frozenset[str]] = field(default_factory=list)
    columns: list[frozenset[str]] = field(default_factory=list)
    """The names of its columns at each version."""

    @property
    def active(self) -> frozenset[str]:
        return self.versions[-1] if self.versions else frozenset()


class Witness:
    """Watches one warehouse. `look` records what is new since the last look."""

    def __init__(self, root: Path, config: CheckpointConfig) -> None:
        self._root = root
        self.history = History(
            config.mode, config.kept, MAX_PARALLELISM, self.rows_of, self.state_of, tolerable=config.tolerable_failures
        )
        self._tables = {table: _Seen() for table in SCHEMAS}
        self._rows_seen = _Seen()
        self._cuts_seen = _Seen()
        self._contents: dict[str, list[dict[str, Any]]] = {}
        self._on_disk: set[str] = set()
        self._missed: set[str] = set()
        self.committed: dict[CheckpointId, CheckpointRecord] = {}
        """Every checkpoint and savepoint that was ever committed."""
        self.rows: tuple[Row, ...] = ()
        """The entries of the table `checkpoints`, oldest first."""
        self.manifests = 0
        """How many manifests all entries seen so far have named."""
        self.cuts: dict[CheckpointId, dict[TableName, int]] = {}
        """The entries of the table `cuts`."""

    @property
    def generation(self) -> Generation:
        claims = (row.generation for row in self.rows if isinstance(row, Claim))
        return max(claims, default=Generation(0))

    def checkpoints(self) -> list[CheckpointRecord]:
        return [row for row in self.rows if isinstance(row, CheckpointRecord)]

    # -------------------------------------------------------------- contents

    def rows_of(self, path: str) -> Rows:
        """Return a table file's rows in the reference's form, also of a deleted file."""
        table = next((name for name in TABLES if path.startswith(f"{name}/")), None)
        return tuple(self.as_row(table, row) for row in self._contents.get(path, ())) if table else ()

    def as_row(self, table: TableName, row: dict[str, Any]) -> tuple[int, ...]:
        if table in BRONZE.values():
            return (row["row"],)
        return (key_of_label(row["key"]), *(row[name] for name in SCHEMAS[table].names[1:]))

    def state_of(self, keyed: KeyedFile) -> StateRows:
        return {
            key_of_label(row["key"]): None if row["_deleted"] else _state(row)
            for row in self._contents.get(keyed.file.path, [])
        }

    def keep(self, path: str, wanted_by: str) -> None:
        try:
            self._read(path)
        except FileNotFoundError:
            self.miss(path, wanted_by)

    def _read(self, path: str) -> list[dict[str, Any]]:
        """Return a file's rows. Files never change, so each is read once. A manifest has no rows, but it must exist."""
        if path not in self._contents:
            place = self._root / path
            if is_manifest_name(place.name):
                place.stat()
                self._contents[path] = []
            else:
                self._contents[path] = pq.read_table(place).to_pylist()
        return self._contents[path]

    def miss(self, path: str, wanted_by: str) -> None:
        if path not in self._missed:
            self._missed.add(path)
            self.history.add(FileMissed(path, wanted_by))

    # -------------------------------------------------------------- looking

    def look(self) -> None:
        for version in self._new_versions(PATHS.checkpoints, self._rows_seen):
            self._see_rows(version)
        for name, seen in self._tables.items():
            for version in self._new_versions(PATHS.table(name), seen):
                self._see_table(name, version)
        for _ in self._new_versions(PATHS.cuts, self._cuts_seen):
            self._see_cuts()

    def look_at_files(self) -> None:
        self.look()
        there = set(self._staged())
        gone = tuple(sorted(self._on_disk - there))
        self._on_disk = there
        if gone:
            needed = self._needed()
            self.history.add(FilesDiscarded(gone, tuple(path for path in gone if path in needed)))

    def active_at(self, version_by_table: dict[TableName, int]) -> tuple[tuple[TableName, frozenset[str]], ...]:
        return tuple((spec_name(name), self.active(name, version)) for name, version in version_by_table.items())

    def newest(self) -> dict[TableName, int]:
        return {name: len(seen.versions) - 1 for name, seen in self._tables.items()}

    def note_cut(self, checkpoint: CheckpointId, versions: dict[TableName, int]) -> None:
        columns = tuple((name, self._tables[name].columns[version]) for name, version in versions.items() if version)
        cut = CutWritten(checkpoint, tuple(sorted(versions.items())), self.active_at(versions), columns)
        self.history.add(cut)

    def active(self, name: TableName, version: int) -> frozenset[str]:
        versions = self._tables[name].versions
        return versions[version] if 0 <= version < len(versions) else frozenset()

    def _new_versions(self, folder: str, seen: _Seen) -> Iterator[int]:
        place = f"{self._root}/{folder}"
        while exists(f"{place}/_delta_log/{len(seen.versions):020d}.json"):  # noqa: PTH110 - asked very often
            version = len(seen.versions)
            table = DeltaTable(place, version=version)
            paths = pa.table(table.get_add_actions()).column("path").to_pylist()
            seen.versions.append(frozenset(f"{folder}/{unquote(path)}" for path in paths))
            seen.columns.append(frozenset(field.name for field in table.schema().fields))
            yield version

    def _see_rows(self, version: int) -> None:
        before = {row.nonce: row for row in self.rows}
        entries = [entry for path in sorted(self._rows_seen.versions[version]) for entry in self._read(path)]
        entries.sort(key=lambda entry: entry["version"])
        self.rows = tuple(
            before.get(entry["nonce"]) or self._whole(decode_stored(entry["payload"])) for entry in entries
        )
        for row in self.rows:
            if row.nonce not in before:
                self._see_row(row)

    def _whole(self, row: Row) -> Row:
        if not isinstance(row, CheckpointRecord) or row.is_whole:
            return row
        named = tuple(path_of(row, each) for each in row.manifests)
        for path in named:
            self.keep(path, f"row {row.checkpoint}")
        if not self._missed.isdisjoint(named):
            return row
        files = ManifestFiles(Warehouse(self._root, PATHS))
        files.read([row])
        self.manifests += len(named)
        return whole(row, files.of(row))

    def _see_row(self, row: Row) -> None:
        if isinstance(row, Claim):
            self.history.add(JobClaimed(row))
        elif isinstance(row, Release):
            self.history.add(JobReleased(row))
        elif isinstance(row, CheckpointRecord):
            self.committed[row.checkpoint] = row
            for path in sorted(files_of(row)):
                self.keep(path, f"row {row.checkpoint}")
            self.history.add(RowCommitted(row, tuple(record.checkpoint for record in self.checkpoints())))

    def _see_table(self, name: TableName, version: int) -> None:
        active = self.active(name, version)
        for path in sorted(active):
            self.keep(path, f"version {version} of {name}")
        checkpoint = self._checkpoint_of(name, version)
        if checkpoint is not None:
            publication = self._publication(name, checkpoint, self.active(name, version - 1), active)
            columns = self._tables[name].columns[version]
            self.history.add(TableChanged(checkpoint, publication, version, active, columns))

    def _checkpoint_of(self, name: TableName, version: int) -> CheckpointId | None:
        entry = self._root / PATHS.table(name) / "_delta_log" / f"{version:020d}.json"
        for line in entry.read_text().splitlines():
            ours = json.loads(line).get("commitInfo", {}).get(METADATA_KEY)
            ours = json.loads(ours) if isinstance(ours, str) else ours
            if ours and "checkpoint" in ours:
                return CheckpointId(ours["checkpoint"])
        return None

    def _publication(
        self, name: TableName, checkpoint: CheckpointId, before: frozenset[str], active: frozenset[str]
    ) -> Publication:
        row = self.committed.get(checkpoint)
        due = [each for each in publications(row) if each.table == name] if row is not None else []
        for publication in due:
            if active == _after(publication, before):
                return publication
        strange = tuple(FileHandle(path, 0, 0, 0) for path in sorted(active - before))
        return Publication(name, TABLES.get(name, TableMode.STATE), adds=strange)

    def _see_cuts(self) -> None:
        entries = [entry for path in sorted(self._cuts_seen.active) for entry in self._read(path)]
        before, self.cuts = self.cuts, {}
        for entry in entries:
            self.cuts.setdefault(CheckpointId(entry["checkpoint"]), {})[TableName(entry["table"])] = entry["version"]
        for checkpoint in sorted(self.cuts.keys() - before.keys()):
            self.note_cut(checkpoint, self.cuts[checkpoint])

    # -------------------------------------------------------------- the disk

    def _staged(self) -> Iterator[str]:
        for name in (*self._tables, PATHS.manifests):
            for file in (self._root / PATHS.staged_root(name)).rglob("*"):
                if is_data_file(file.name) or is_manifest_name(file.name):
                    yield str(file.relative_to(self._root))

    def _needed(self) -> set[str]:
        """Return the files that an entry names, a table shows, or an output table showed at a recorded cut.

        State may be deleted with its entry. A cut may outlive its entry, for the tables of a plain savepoint taken
        after it.
        """
        needed = {path for seen in self._tables.values() for path in seen.active}
        for record in self.checkpoints():
            needed |= files_of(record)
        for versions in self.cuts.values():
            for name in versions.keys() & TABLES.keys():
                needed |= self.active(name, versions[name])
        return needed


def _after(publication: Publication, before: frozenset[str]) -> frozenset[str]:
    if publication.mode is not TableMode.APPEND:
        return frozenset(file.path for file in publication.files)
    adds, removes = ({file.path for file in files} for files in (publication.adds, publication.removes))
    return (before | adds) - removes


def _state(row: dict[str, Any]) -> tuple[object, ...]:
    if "orders" in row:
        return (tuple(row["orders"]), tuple(row["payments"]), row["number"])
    return (row["count"], row["total"])
