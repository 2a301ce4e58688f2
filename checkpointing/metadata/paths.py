"""Knows all names of objects: where a job's tables, entries, state and staged files lie.

Every name is relative to the warehouse, with `/` between its parts. So a warehouse can be moved, and the same names
serve a folder and an object store. Staged files lie in a folder with a leading underscore. VACUUM leaves such a folder
alone, in Spark and in delta-rs, and all readers read the files in it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.identifiers import (
    Generation,
    JobName,
    TableName,
    VertexId,
    has_control_characters,
    job_name,
    table_name,
    vertex_id,
)
from checkpointing.partitions import FOLDER, PARTITION, Value, is_escaped, values_of

ROOT = "_tidemark"
"""The folder in the warehouse for everything that belongs to jobs and not to tables."""

STAGED = "_data"

LOG = "_delta_log"
"""The folder of a table's log. It holds no data file, even if an entry or the log says so."""

_STAGED_FILE = re.compile(
    rf"(?:(?P<partition>{PARTITION}(?:/{PARTITION})*)/)?"
    rf"(?:(?P<version>{FOLDER})/)?"
    r"(?P<vertex>[a-z][a-z0-9_]{0,62})-(?P<micro_batch>[0-9]+)-(?P<unique>[0-9a-f-]{32,36})\.parquet"
)
_FOREIGN_FILE = re.compile(rf"(?:{PARTITION}/)*others-[0-9a-f]{{32}}\.parquet")
"""The name of a file in which Tidemark wrote the rows of another writer's file again."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
"""The beginning of a path that is a URL of its own, and so lies in no table's folder."""

_MANIFEST_SUFFIX = ".json.zst"
_MANIFEST = re.compile(rf"[0-9a-f]{{64}}{re.escape(_MANIFEST_SUFFIX)}")

PART_BYTES_MAX = 255

_GENERATION = re.compile(r"[1-9][0-9]*")
_FOLDERS = re.compile(rf"(?:.*?/)??((?:{PARTITION}/)*)[^/]+")
_STAGED_PATH = re.compile(rf"(?P<folder>.+)/{STAGED}/{_GENERATION.pattern}/(?P<name>{_STAGED_FILE.pattern})")


@dataclass(frozen=True, slots=True)
class StagedName:
    """What the name of a staged file contains: the vertex and the micro-batch that wrote it.

    `partition` is the folder of the file's partition (`checkpointing.partitions`), if its table has any. `version` is
    the folder of its version inside (`checkpointing.partitions`), if it belongs to an overwrite table.
    """

    vertex: VertexId
    micro_batch: int
    unique: str
    partition: str = ""
    version: str = ""

    def __str__(self) -> str:
        """Return the file's path in the folder of its generation."""
        name = f"{self.vertex}-{self.micro_batch}-{self.unique}.parquet"
        return "/".join(part for part in (self.partition, self.version, name) if part)


def parse_staged_name(name: str) -> StagedName | None:
    """Return the content of a file's path in its generation's folder, or None if no micro-batch writes such names."""
    found = _STAGED_FILE.fullmatch(name)
    if found is None or not _is_canonical(found):
        return None
    vertex, micro_batch, unique = VertexId(found["vertex"]), int(found["micro_batch"]), found["unique"]
    return StagedName(vertex, micro_batch, unique, found["partition"] or "", found["version"] or "")


def _is_canonical(name: re.Match[str]) -> bool:
    """Return whether the folders in a path have exactly the names that Tidemark gives.

    If one partition could have two folder names, readers would see two partitions.
    """
    partition, version = name["partition"], name["version"]
    columns = (part for folder in partition.split("/") for part in folder.split("=", 1)) if partition else ()
    return all(map(is_escaped, columns)) and (not version or is_escaped(version.split(".", 2)[-1]))


def is_foreign_name(name: str) -> bool:
    """Return whether a file's path in its generation's folder shows that its rows come from another writer."""
    return _FOREIGN_FILE.fullmatch(name) is not None


def staged_name_in(path: str) -> StagedName | None:
    """Return the content of a staged file's name, from its whole path, or None if no micro-batch gives such paths."""
    found = _STAGED_PATH.fullmatch(path)
    return None if found is None else parse_staged_name(found["name"])


def partition_of(path: str) -> tuple[Value, ...]:
    """Return the partition of a staged file from its path. Empty if the table has no partition columns."""
    name = staged_name_in(path)
    return () if name is None else values_of(name.partition)


def laid_out_otherwise(by: Iterable[str], paths: Iterable[str]) -> str | None:
    """Return the first staged file whose partition does not have exactly these columns, or None if there is none."""
    columns = tuple(by)
    return next((path for path in paths if tuple(column for column, _ in partition_of(path)) != columns), None)


def staging_folder(path: str) -> str | None:
    """Return the folder of the table for which a file was staged, or None if no micro-batch gives such paths.

    The folder itself is not checked: see `ProtocolPaths.known_table`.
    """
    found = _STAGED_PATH.fullmatch(path)
    return None if found is None or not _is_canonical(found) else found["folder"]


def is_manifest_name(name: str) -> bool:
    """Return whether a file has a manifest's name."""
    return _MANIFEST.fullmatch(name) is not None


def parse_generation(folder: str) -> Generation | None:
    """Return the generation to which a folder under `_data` belongs, or None if it belongs to none."""
    return Generation(int(folder)) if _GENERATION.fullmatch(folder) else None


def table_of_state(job: JobName, operator: VertexId) -> TableName:
    """Return the name under which an operator's state is published as a table."""
    return TableName(f"{ROOT}/{job}/state/{vertex_id(operator)}")


def table_of_broadcast(job: JobName, operator: VertexId) -> TableName:
    """Return the name under which an operator's broadcast state is published as a table (D1)."""
    return TableName(f"{ROOT}/{job}/state/{broadcast_of(operator)}")


def broadcast_of(operator: VertexId) -> VertexId:
    """Return the name of an operator's broadcast state. Under it, the state can be read as an operator's state.

    If the operator's id is very long, no vertex may have this name. Such an operator gets no broadcast state.
    """
    return VertexId(f"{operator}_broadcast")


def is_state_table(table: TableName) -> bool:
    """Return whether a table shows state of an operator: keyed state, or broadcast state."""
    return table.startswith(f"{ROOT}/")


@dataclass(frozen=True, slots=True)
class ProtocolPaths:
    """The names of one job's objects. Raises InvalidNameError if the job's name may not become a folder."""

    job: JobName

    def __post_init__(self) -> None:
        """Refuse a job name that did not come through `job_name`."""
        job_name(self.job)

    @property
    def folder(self) -> str:
        """The folder with all that belongs to the job, except its output tables."""
        return f"{ROOT}/{self.job}"

    @property
    def checkpoints(self) -> str:
        """The Delta table of claims, checkpoints and savepoints. Every append is a compare-and-swap."""
        return f"{self.folder}/checkpoints"

    @property
    def cuts(self) -> str:
        """The Delta table of (checkpoint, table, Delta version)."""
        return f"{self.folder}/cuts"

    @property
    def lease(self) -> str:
        """The file of the lease, renewed by atomic replacement."""
        return f"{self.folder}/lease"

    @property
    def cleanup_looks(self) -> str:
        """The file in which clean-ups record which versions the tables showed, and when (K4)."""
        return f"{self.folder}/cleanup.json"

    @property
    def erasure(self) -> str:
        """The file with the generation that erased rows. It stays until a clean-up has deleted the last copies."""
        return f"{self.folder}/erasure.json"

    @property
    def requests(self) -> str:
        """The folder in which users ask a running tick for savepoints and stops, and in which the tick answers."""
        return f"{self.folder}/requests"

    @property
    def reservations(self) -> str:
        """The folder in which readers reserve cuts, so that clean-ups keep these cuts."""
        return f"{self.folder}/reservations"

    @property
    def savepoint_copy(self) -> str:
        """The file that says that this warehouse is a copy of a savepoint, and of which savepoint."""
        return f"{self.folder}/savepoint.json"

    @property
    def manifests(self) -> TableName:
        """The folder of the manifests of `checkpoints`. Each generation has a folder there, as in a table's."""
        return TableName(f"{self.folder}/manifests")

    def manifest(self, generation: Generation, digest: str) -> str:
        """Return the path of a manifest that this generation wrote, by the SHA-256 of its content."""
        return f"{self.staged_folder(self.manifests, generation)}/{digest}{_MANIFEST_SUFFIX}"

    @property
    def traces(self) -> str:
        """The folder of the traces, with one file for each generation."""
        return f"{self.folder}/traces"

    def trace(self, generation: Generation) -> str:
        """Return the path of one generation's trace, NDJSON of its facts and effects."""
        return f"{self.traces}/{generation}.ndjson"

    @property
    def states(self) -> str:
        """The folder of the operators' states, each a table."""
        return f"{self.folder}/state"

    @property
    def channels(self) -> str:
        """The folder for rows that vertices only send downstream. Each vertex has a folder in it, like a table's."""
        return f"{self.folder}/channels"

    def state_table(self, operator: VertexId) -> TableName:
        """Return the table that shows an operator's state (K3)."""
        return table_of_state(self.job, operator)

    def channel(self, vertex: VertexId) -> TableName:
        """Return the folder in which a vertex stages rows that it only sends downstream.

        The folder is like a table's, without a log.
        """
        return TableName(f"{self.channels}/{vertex_id(vertex)}")

    def known_table(self, text: str) -> TableName:
        """Return a name from outside as a table's name, if the job may have such an output or state table.

        Raises InvalidNameError naming the rule that it breaks.
        """
        state = f"{self.states}/"
        if not text.startswith(state):
            return table_name(text)
        return self.state_table(vertex_id(text.removeprefix(state)))

    def table(self, table: TableName) -> str:
        """Return the folder of an output or state table."""
        return str(table)

    def staged_root(self, table: TableName) -> str:
        """Return a table's folder of staged files. It has one folder for each generation that staged some."""
        return f"{self.table(table)}/{STAGED}"

    def staged_folder(self, table: TableName, generation: Generation) -> str:
        """Return the folder in which one generation stages files for a table."""
        return f"{self.staged_root(table)}/{generation}"

    def staged_file(self, table: TableName, generation: Generation, name: StagedName) -> str:
        """Return the path of one staged file."""
        return f"{self.staged_folder(table, generation)}/{name}"

    def foreign_file(self, table: TableName, generation: Generation, was: str, unique: str) -> str:
        """Return the path under which a generation writes another writer's file again. `was` is the file's path.

        No micro-batch gives such a path, so the rows still belong to the other writer. `unique` has 32 hex digits. The
        file stays in the folder of its partition, from which some readers take the values.
        """
        found = _FOLDERS.fullmatch(was)
        folders = found[1] if found is not None else ""
        return f"{self.staged_folder(table, generation)}/{folders}others-{unique}.parquet"

    def transaction_id(self, table: TableName) -> str:
        """Return the application id under which a table's log says which checkpoint the table shows."""
        return f"{self.job}/{table}"


def relative_to_table(table: TableName, path: str) -> str | None:
    """Return a warehouse-relative path as the table's log names it, or None if it can be no data file of the table."""
    prefix = f"{table}/"
    inside = path[len(prefix) :] if path.startswith(prefix) else ""
    return inside if is_data_file(inside) else None


def is_data_file(path: str) -> bool:
    """Return whether a path in a table's log may belong to a data file of the table.

    It must be relative and plain, and lie in the table's folder but not in its log. All code that reads a name and then
    deletes or writes that file calls this first.
    """
    if "\\" in path or has_control_characters(path):
        return False
    parts = path.split("/")
    plain = all(part not in ("", ".", "..") and len(part.encode()) <= PART_BYTES_MAX for part in parts)
    return plain and parts[0].casefold() != LOG and not _SCHEME.match(path)
