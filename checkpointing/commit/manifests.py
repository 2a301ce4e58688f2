"""Keeps the handles of large entries in manifests, so that an entry does not grow with the state (ADR 14).

A manifest is an immutable list of handles. Its name is the generation that wrote it, and the SHA-256 of its content. An
entry with few handles has no manifest. `stored` decides which manifests a large entry keeps, which it writes anew, and
which handles stay in the entry. `whole` is its inverse. The invariants:

- An entry that is read with its manifests is the entry that was appended.
- An entry keeps only manifests that are named by an entry at the version of `checkpoints` onto which it is appended.
  It writes all others itself, under its own generation, before it is appended.
- No manifest is ever changed. A manifest may be deleted when no entry names it and its generation no longer holds the
  job. No later entry can name it then.

A subtask's files are the files in the manifests, in order, and then the files in the entry. A subtask appends its new
files, so only new files are written. A bit in the entry leaves out a file that the subtask no longer has. If the entry
leaves out more than three quarters of a manifest's handles, the manifest is written anew.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain, repeat
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.live_files import are_shown
from checkpointing.commit.net_files import keyed_lists, keyed_tables
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.metadata.codec import WAY_OUT, UnreadableRowError, must_be_ours, named
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, ManifestReference, Row, VertexRecord

# ------------------------------------------------------------------
# Goes through the lists of keyed files in an entry: each subtask's state, and the files of each of its upsert tables.


Forms = Mapping[VertexId, Sequence[SubtaskSnapshot | None]]
"""For each vertex and each of its subtasks: the stored form if it stays the same, or None if a new one is needed."""


class HandleList(NamedTuple):
    """Names one list of files in an entry: a subtask's state (`part` 0), or its n-th upsert table (`part` n)."""

    vertex: VertexId
    subtask: int
    part: int


def count_files(snapshot: SubtaskSnapshot) -> int:
    """Return how many keyed files a subtask has."""
    there = len(snapshot.state)
    return there + sum(len(ranges.files) for ranges in snapshot.ranges) if snapshot.ranges else there


def beside(vertex: VertexRecord, forms: Forms) -> Iterator[tuple[SubtaskSnapshot, SubtaskSnapshot | None]]:
    """Yield each subtask of a vertex with its stored form in `forms`, or with None."""
    return zip(vertex.subtasks, chain(forms.get(vertex.vertex, ()), repeat(None)), strict=False)


def lists_in(record: CheckpointRecord, without: Forms) -> Iterator[tuple[HandleList, tuple[KeyedFile, ...]]]:
    """Yield the lists of an entry that are not empty.

    Lists of the subtasks that have a form in `without` are left out.
    """
    for vertex in record.vertices:
        for subtask, (snapshot, bare) in enumerate(beside(vertex, without)):
            if bare is None:
                for part, files in enumerate(_files_of(snapshot)):
                    if files:
                        yield HandleList(vertex.vertex, subtask, part), files


def _files_of(snapshot: SubtaskSnapshot) -> Iterator[tuple[KeyedFile, ...]]:
    yield snapshot.state
    for ranges in snapshot.ranges:
        yield ranges.files


def places_in(entry: CheckpointRecord) -> Iterator[HandleList]:
    """Yield the names of all lists of an entry, also of empty ones."""
    for vertex in entry.vertices:
        for subtask, snapshot in enumerate(vertex.subtasks):
            for part in range(len(snapshot.ranges) + 1):
                yield HandleList(vertex.vertex, subtask, part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bounds, counted in handles.

    An entry with at most `inline` handles has no manifests. Up to `recent` new handles stay in an entry. A manifest has
    at most `manifest` handles. If the entry uses less than one in `sparse` of its handles, the manifest is written
    anew. Small neighbouring manifests are merged if there are more than `few` manifests, plus one for each `recent`
    handles.
    """

    inline: int = 1_024
    recent: int = 256
    manifest: int = 4_096
    sparse: int = 4
    few: int = 64


SIZES: Final = Sizes()


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A handle in a manifest, and the list of the entry to which the handle belongs."""

    vertex: VertexId
    subtask: int
    part: int
    keyed: KeyedFile

    @property
    def place(self) -> HandleList:
        """The list to which the handle belongs."""
        return HandleList(self.vertex, self.subtask, self.part)


class ManifestContent(BaseModel):
    """The content of a manifest file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True)
class Handles:
    """The handles in a manifest, in order."""

    files: tuple[PlacedFile, ...]

    @cached_property
    def at(self) -> Mapping[HandleList, Sequence[int]]:
        """The indices of each list's handles, in order. They are computed once, since a manifest never changes."""
        found: dict[HandleList, list[int]] = {}
        for index, file in enumerate(self.files):
            found.setdefault(file.place, []).append(index)
        return found


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that an entry names, and which of its handles the entry leaves out: a bit for each."""

    generation: Generation
    digest: str
    handles: Handles
    left_out: int = 0

    @property
    def size(self) -> int:
        """How many handles the manifest has. The entry uses `counts` of them."""
        return len(self.handles.files)

    @property
    def counts(self) -> int:
        """How many of the manifest's handles the entry uses."""
        return self.size - self.left_out.bit_count()

    @property
    def counted_files(self) -> Iterator[PlacedFile]:
        """The manifest's handles that the entry uses, in order."""
        bits = f"{self.left_out:0{self.size}b}"
        return (file for file, bit in zip(self.handles.files, reversed(bits), strict=True) if bit == "0")


@dataclass(frozen=True, slots=True)
class Stored:
    """A whole entry, its stored form, its manifests in order, and the content of the manifests to write before it."""

    record: CheckpointRecord
    entry: CheckpointRecord
    manifests: tuple[Manifest, ...] = ()
    new: Mapping[str, bytes] = field(default_factory=dict)
    """Maps each path to its content."""

    @property
    def held_in(self) -> tuple[str, ...]:
        """The paths of the entry's manifests."""
        return tuple(path_of(self.entry, each) for each in self.manifests)


def path_of(entry: CheckpointRecord, manifest: Manifest | ManifestReference) -> str:
    """Return the path of a manifest that an entry names."""
    return ProtocolPaths(JobName(entry.job)).manifest(manifest.generation, manifest.digest)


# ------------------------------------------------------------------ whole -> stored


def stored(record: CheckpointRecord, before: Stored | None = None, sizes: Sizes = SIZES) -> Stored:
    """Return the stored form of a whole entry.

    `before` is an entry at the version onto which this one is appended. Its manifests may be kept.
    """
    record = record.model_copy(update={"held_in": ()})
    handles = sum(count_files(each) for vertex in record.vertices for each in vertex.subtasks)
    if handles <= sizes.inline:
        return Stored(record, record)
    same = _unchanged(record, before)
    kept, recent = _kept(record, before, same)
    parts: list[Manifest | list[PlacedFile]] = list(_without_sparse(kept, sizes))
    fresh = [PlacedFile(*place, keyed) for place, files in recent.items() for keyed in files]
    if len(fresh) > sizes.recent:
        parts += _chunks(fresh, sizes)
        recent = {}
    new: dict[str, bytes] = {}
    manifests = []
    for part in _merged(parts, sizes.few + handles // sizes.recent, sizes):
        if isinstance(part, Manifest):
            manifests.append(part)
            continue
        content = ManifestContent.model_construct(files=tuple(part)).model_dump_json().encode()
        manifests.append(Manifest(record.generation, sha256(content).hexdigest(), Handles(tuple(part))))
        new[path_of(record, manifests[-1])] = content
    return Stored(record, _bare(record, recent, manifests, same), tuple(manifests), new)


def newest_stored(rows: Iterable[Row]) -> CheckpointRecord | None:
    """Return the newest entry that has manifests. The next entry may name these manifests too.

    `rows` are all entries at the version onto which the next entry is appended, in their stored form, newest first.
    """
    return next((row for row in rows if isinstance(row, CheckpointRecord) and row.manifests), None)


def _unchanged(record: CheckpointRecord, before: Stored | None) -> Forms:
    """Return the stored form of each subtask that did not change since the entry before and has all files in manifests.

    So the files of such a subtask are not looked at.
    """
    if before is None:
        return {}
    were = {each.vertex: each.subtasks for each in before.record.vertices}
    bare = {each.vertex: each.subtasks for each in before.entry.vertices}
    return {
        vertex.vertex: [
            form if (now is was or now == was) and not (form.state or (form.ranges and count_files(form))) else None
            for (now, was), form in zip(beside(vertex, were), bare.get(vertex.vertex, ()), strict=False)
        ]
        for vertex in record.vertices
    }


def _kept(
    record: CheckpointRecord, before: Stored | None, same: Forms
) -> tuple[list[Manifest], dict[HandleList, tuple[KeyedFile, ...]]]:
    """Return the previous entry's manifests with the handles still in use, and the files that are in no manifest."""
    lists = dict(lists_in(record, same))
    if before is None:
        return [], lists
    recent = dict(lists_in(before.entry, same))
    gone: dict[HandleList, list[int]] = {}
    for place, were in lists_in(before.record, same):
        files = lists.get(place, ())
        in_manifests = were[: len(were) - len(recent.get(place, ()))]
        gone[place] = _places_gone(in_manifests, files)
        if place in lists:
            lists[place] = files[len(in_manifests) - len(gone[place]) :]
    counted = dict.fromkeys((place for place, places in gone.items() if places), 0)
    kept = [_left_out_too(manifest, gone, counted) for manifest in before.manifests]
    return kept, {place: files for place, files in lists.items() if files}


def _places_gone(were: tuple[KeyedFile, ...], files: tuple[KeyedFile, ...]) -> list[int]:
    """Return the places in `were` of the files that have left the list.

    The remaining files must begin `files`, in order.
    """
    if files[: len(were)] == were:
        return []
    gone, at = [], 0
    for place, keyed in enumerate(were):
        if at < len(files) and (files[at] is keyed or files[at] == keyed):  # comparing fields takes longer
            at += 1
        else:
            gone.append(place)
    return gone


def _left_out_too(
    manifest: Manifest, gone: Mapping[HandleList, Sequence[int]], counted: dict[HandleList, int]
) -> Manifest:
    """Leave out the handles whose files have left their lists.

    `counted` has these lists, and how far each was followed. A list is followed through the manifests as far as the
    last handle to leave out.
    """
    left_out = manifest.left_out
    for list_of in manifest.handles.at.keys() & counted.keys():
        at, places = counted[list_of], gone[list_of]
        for index in manifest.handles.at[list_of]:
            if manifest.left_out >> index & 1:
                continue
            if at in places:
                left_out |= 1 << index
            at += 1
            if at > places[-1]:
                del counted[list_of]
                break
        else:
            counted[list_of] = at
    return replace(manifest, left_out=left_out)


def _without_sparse(kept: Iterable[Manifest], sizes: Sizes) -> Iterator[Manifest | list[PlacedFile]]:
    """Yield the manifests. In place of sparse manifests, yield chunks of their handles that are still used."""
    sparse: list[PlacedFile] = []
    for manifest in kept:
        if manifest.counts * sizes.sparse < manifest.size:
            sparse += manifest.counted_files
            continue
        yield from _chunks(sparse, sizes)
        sparse = []
        yield manifest
    yield from _chunks(sparse, sizes)


def _chunks(files: list[PlacedFile], sizes: Sizes) -> Iterator[list[PlacedFile]]:
    return (files[start : start + sizes.manifest] for start in range(0, len(files), sizes.manifest))


def _merged(parts: list[Manifest | list[PlacedFile]], most: int, sizes: Sizes) -> list[Manifest | list[PlacedFile]]:
    """Merge the two smallest neighbours until at most `most` parts are left, or until no two fit into one manifest."""
    while len(parts) > most:
        counts = [part.counts if isinstance(part, Manifest) else len(part) for part in parts]
        at = min(range(len(parts) - 1), key=lambda place: counts[place] + counts[place + 1])
        if counts[at] + counts[at + 1] > sizes.manifest:
            break
        files = [
            file for part in parts[at : at + 2] for file in (part.counted_files if isinstance(part, Manifest) else part)
        ]
        parts = [*parts[:at], files, *parts[at + 2 :]]
    return parts


def _bare(
    record: CheckpointRecord,
    recent: Mapping[HandleList, tuple[KeyedFile, ...]],
    manifests: Iterable[Manifest],
    same: Forms,
) -> CheckpointRecord:
    """Return the entry with only those handles that are in no manifest."""
    shown = {name: lists for name, _, lists in keyed_lists(record, JobName(record.job))}
    tables = tuple(
        table.model_copy(update={"files": (), "of_snapshots": True})
        if table.mode is not TableMode.APPEND and table.table in shown and are_shown(table.files, shown[table.table])
        else table
        for table in record.tables
    )
    entry = _with_files(record, recent, same)
    return entry.model_copy(update={"tables": tables, "manifests": tuple(map(_reference, manifests))})


def _shown_by_snapshots(record: CheckpointRecord) -> dict[TableName, tuple[FileHandle, ...]]:
    """Return the files of the upsert and state tables, as the snapshots list them."""
    return {name: table.files for name, table in keyed_tables(record, JobName(record.job))}


def _reference(manifest: Manifest) -> ManifestReference:
    return ManifestReference(
        generation=manifest.generation,
        digest=manifest.digest,
        handles=manifest.size,
        left_out=f"{manifest.left_out:x}" if manifest.left_out else "",
    )


def _with_files(
    record: CheckpointRecord, lists: Mapping[HandleList, tuple[KeyedFile, ...]], same: Forms
) -> CheckpointRecord:
    """Return the entry with only these files in its lists. The subtasks in `same` get their stored form from there."""
    vertices = []
    for vertex in record.vertices:
        each = enumerate(beside(vertex, same))
        subtasks = tuple(bare or _snapshot(vertex.vertex, at, now, lists) for at, (now, bare) in each)
        vertices.append(vertex.model_copy(update={"subtasks": subtasks}))
    return record.model_copy(update={"vertices": tuple(vertices)})


def _snapshot(
    vertex: VertexId, subtask: int, snapshot: SubtaskSnapshot, lists: Mapping[HandleList, tuple[KeyedFile, ...]]
) -> SubtaskSnapshot:
    state = lists.get(HandleList(vertex, subtask, 0), ())
    if not snapshot.ranges and not state and not snapshot.state:
        return snapshot
    ranges = tuple(
        RangeFiles(each.table, lists.get(HandleList(vertex, subtask, part), ()))
        for part, each in enumerate(snapshot.ranges, start=1)
    )
    return replace(snapshot, state=state, ranges=ranges)


# ------------------------------------------------------------------ stored -> whole


def handles_in(entry: CheckpointRecord, reference: ManifestReference, content: bytes) -> Handles:
    """Return the handles in a manifest. Raise UnreadableRowError if the content is not what the entry names."""
    path = path_of(entry, reference)
    if sha256(content).hexdigest() != reference.digest:
        raise unfit(entry, f"{path} was changed")
    try:
        return Handles(ManifestContent.model_validate_json(content).files)
    except ValidationError as error:
        raise unfit(entry, f"{path} is no manifest ({error.error_count()} errors)") from error


def counted_by(entry: CheckpointRecord, reference: ManifestReference, handles: Handles) -> Manifest:
    """Return a manifest as the entry names it. Raise UnreadableRowError if the two do not match."""
    left_out, there = int(reference.left_out or "0", 16), len(handles.files)
    if there != reference.handles or left_out.bit_length() > there:
        raise unfit(entry, f"{path_of(entry, reference)} has {there} handles, not {reference.handles}")
    return Manifest(reference.generation, reference.digest, handles, left_out)


def whole(entry: CheckpointRecord, manifests: Sequence[Manifest]) -> CheckpointRecord:
    """Return an entry with all its handles. `manifests` are the manifests that it names, in order.

    Raises UnreadableRowError for an entry that Tidemark cannot have written.
    """
    if entry.is_whole:
        return entry
    lists: dict[HandleList, list[KeyedFile]] = {}
    for manifest in manifests:
        for file in manifest.counted_files:
            lists.setdefault(file.place, []).append(file.keyed)
    strange = lists.keys() - set(places_in(entry))
    if strange:
        raise unfit(entry, f"a manifest has files of {min(strange)}, which the entry does not have")
    for place, recent in lists_in(entry, {}):
        lists.setdefault(place, []).extend(recent)
    record = _with_files(entry, {place: tuple(files) for place, files in lists.items()}, {})
    shown = _shown_by_snapshots(record)
    tables = tuple(
        table.model_copy(update={"files": shown.get(table.table, ()), "of_snapshots": False})
        if table.of_snapshots
        else table
        for table in record.tables
    )
    held_in = tuple(path_of(entry, each) for each in manifests)
    record = record.model_copy(update={"tables": tables, "manifests": (), "held_in": held_in})
    must_be_ours(record, "an unknown version")
    return record


def unfit(entry: CheckpointRecord, why: str) -> UnreadableRowError:
    """Return the error that says why an entry cannot be made whole."""
    return UnreadableRowError(f"{named(entry)} cannot be made whole: {why}. {WAY_OUT}")
