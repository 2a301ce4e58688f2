"""Stores simulated entries as the product does: as text in any format, and with manifests.

Each appended entry is encoded and stored. Every process that reads it decodes it, with its manifests. The bounds are so
low that even small entries have several manifests. The codec also reads each entry in some format, and a false one.
"""

import json
from hashlib import sha256
from random import Random
from typing import Final

from pydantic_core import from_json

from checkpointing.commit import manifests
from checkpointing.commit.manifests import Manifest, Sizes, Stored, counted_by, handles_in, path_of
from checkpointing.identifiers import VertexId
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, decode_stored, encode, kind_of
from checkpointing.metadata.record import CheckpointRecord, Row
from spec.lies import falsify
from spec.moves import Moves
from spec.older_formats import Fields, formats_of, read_otherwise, written
from spec.rest_events import EntryRead, EntryStored, EntryTranslated, LieTold
from spec.table_log import Written
from spec.world import World

LOW: Final = Sizes(inline=2, recent=1, manifest=3, sparse=2, few=1)
MANIFEST: Final = VertexId("manifest")


def store_entries(world: World, moves: Moves, random: Random) -> None:
    """Store the entries of this world as its moves say: in older formats, with manifests, or unchanged."""
    if moves.older_formats:
        world.as_stored = _Texts(world, random).as_stored
    if moves.manifests:
        store = _Entries(world)
        world.as_stored, world.as_read = store.as_stored, store.as_read


class _Texts:
    """Takes each entry through the codec: in a format that its kind had, and with a lie."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random

    def as_stored(self, row: Row) -> Row:
        kind = kind_of(row).value
        number = self._random.choice(formats_of(kind))
        envelope, meant, says_all = written(row, number)
        text = json.dumps(envelope)
        try:
            read = decode(text)
            differs = read_otherwise(meant, read)
        except ValueError as error:
            read, differs = row, str(error)
        self._world.history.add(EntryTranslated(kind, number, differs))
        false: Fields = from_json(text)
        self._tell(false, falsify(false, self._random))
        return read if says_all else decode(encode(row, writer="spec"))

    def _tell(self, envelope: Fields, lie: str) -> None:
        """Let the codec read a false entry."""
        try:
            decode(json.dumps(envelope))
        except (UnreadableRowError, UnknownFormatError):
            answer = "refused"
        except Exception as error:  # noqa: BLE001 - the codec must find the words for each text
            answer = f"answered with {type(error).__name__}: {error}"
        else:
            answer = "believed"
        self._world.history.add(LieTold(str(envelope["kind"]), lie, answer))


class _Entries:
    def __init__(self, world: World) -> None:
        self._world = world
        self._before = world.as_stored
        self._content: dict[str, bytes] = {}
        self._stored: dict[str, CheckpointRecord] = {}
        """Maps each nonce to its entry."""
        self._whole: dict[tuple[str, bool, tuple[bytes, ...]], CheckpointRecord] = {}
        """What reading an entry with these contents of its manifests gave. Many processes read the same."""

    def as_stored(self, row: Row) -> Row:
        row = self._before(row)
        if not isinstance(row, CheckpointRecord):
            return row
        rows = (self._stored.get(known.nonce, known) for _, known in reversed(self._world.log))
        newest = manifests.newest_stored(rows)
        form = manifests.stored(row, self._form(newest) if newest is not None else None, LOW)
        for path, content in form.new.items():
            self._write(path, content, row)
        entry = decode_stored(encode(form.entry, writer="spec"))
        if isinstance(entry, CheckpointRecord) and entry.manifests:
            self._note(row, entry, tuple(form.new))
            self._stored[row.nonce] = entry
        return row.model_copy(update={"held_in": form.held_in})

    def as_read(self, row: Row) -> Row:
        entry = self._stored.get(row.nonce)
        if entry is None or not isinstance(row, CheckpointRecord):
            return row
        if all(known.nonce != row.nonce for _, known in self._world.log):
            return row
        missing = tuple(path for path in self._named(entry) if not self._is_there(path))
        entry = entry.model_copy(update={"abandoned": row.abandoned})
        read = row if missing else self._read(entry)
        self._world.history.add(EntryRead(row.checkpoint, missing, read != row))
        return read

    def _write(self, path: str, content: bytes, row: CheckpointRecord) -> None:
        """Write a durable file, unless a file of that name exists."""
        if path in self._world.files and path not in self._world.gone:
            return
        self._world.gone.discard(path)
        self._world.files[path] = Written(row.generation, MANIFEST, 0, at_ms=self._world.now_ms)
        self._world.durable.add(path)
        self._content[path] = content

    def _form(self, entry: CheckpointRecord) -> Stored:
        return Stored(self._read(entry), entry, self._of(entry))

    def _read(self, entry: CheckpointRecord) -> CheckpointRecord:
        """Return an entry with all its handles."""
        contents = tuple(self._content.get(path_of(entry, each), b"") for each in entry.manifests)
        read = entry.nonce, entry.abandoned, contents
        if read not in self._whole:
            self._whole[read] = manifests.whole(entry, self._of(entry))
        return self._whole[read]

    def _of(self, entry: CheckpointRecord) -> tuple[Manifest, ...]:
        found = ((each, self._content.get(path_of(entry, each), b"")) for each in entry.manifests)
        return tuple(counted_by(entry, each, handles_in(entry, each, content)) for each, content in found)

    def _named(self, entry: CheckpointRecord) -> tuple[str, ...]:
        """Return the paths of an entry's manifests, computed without the product's own list."""
        folder = f"_tidemark/{entry.job}/manifests/_data"
        return tuple(f"{folder}/{each.generation}/{each.digest}.json.zst" for each in entry.manifests)

    def _note(self, row: CheckpointRecord, entry: CheckpointRecord, new: tuple[str, ...]) -> None:
        named = self._named(entry)
        own = f"_tidemark/{entry.job}/manifests/_data/{row.generation}/"
        unfit = [path for path in named if not self._is_sound(path)] + [path for path in new if own not in path]
        before = next((known for known in reversed(self._world.checkpoints()) if known.nonce in self._stored), None)
        changed = before is None or _handles(before) != _handles(row)
        self._world.history.add(EntryStored(row.checkpoint, named, new, tuple(unfit), changed))

    def _is_there(self, path: str) -> bool:
        return path in self._content and path not in self._world.gone

    def _is_sound(self, path: str) -> bool:
        return self._is_there(path) and sha256(self._content[path]).hexdigest() in path


def _handles(record: CheckpointRecord) -> list[object]:
    subtasks = ((vertex.vertex, each) for vertex in record.vertices for each in vertex.subtasks)
    return [(vertex, each.state, tuple(own.files for own in each.ranges)) for vertex, each in subtasks]
