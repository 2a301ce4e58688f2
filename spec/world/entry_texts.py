"""Writes an entry as any older version of Tidemark wrote it, and gives the meaning of that text.

The judge of the codec reads the text with the product's code, and compares the result with this meaning. This module
and the codec share no code: this module only knows in which format a field appeared, and what an entry without the
field means.
"""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from random import Random
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from checkpointing.commit import manifests
from checkpointing.commit.manifests import Manifest, Sizes, Stored, counted_by, handles_in, path_of
from checkpointing.identifiers import VertexId
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, decode_stored, encode, kind_of
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind
from spec.history import EntryRead, EntryStored, EntryTranslated, LieTold
from spec.world.draw import Moves
from spec.world.stores import World, Written

Fields = dict[str, Any]
"""A JSON object."""

PRESENT: Final = 7
OLDEST: Final = 6
"""The format of version 0.1.0. No released version wrote an older format."""
_LATER: Final[tuple[tuple[int, str, object], ...]] = (
    (7, "columns.dropped", []),
    (7, "columns.columns.first", ""),
    (7, "tables.renamed", []),
    (7, "tables.in_order", False),
    (7, "tables.compactions", []),
    (7, "vertices.table_keys.mode", "upsert"),
    (7, "vertices.coordinator", None),
    (7, "vertices.outputs_read", None),
    (7, "vertices.time", None),
    (7, "vertices.expiry", None),
    (7, "vertices.subtasks.due_ms", None),
    (7, "vertices.subtasks.state.touched_ms", None),
    (7, "vertices.subtasks.ranges.files.touched_ms", None),
    (7, "vertices.subtasks.in_flight.segments.offered_ms", 0),
    (7, "outside", []),
    (7, "erased", []),
    (7, "barriers", []),
    (7, "statistics.failed", []),
)
"""The format in which a field appeared, the field's place, and its value in an entry of an older format.

Some versions added fields to format 6 without a new number. So entries of format 6 may have these fields or not. Here
they count as fields of format 7.
"""


class WrittenOfOlderFormats(NamedTuple):
    """An entry in some format."""

    envelope: Fields
    meant: Fields
    """The meaning of the entry, in the present format."""
    says_all: bool
    """True if this format can hold everything in the entry, so that nothing was left out."""


def written(row: Row, number: int) -> WrittenOfOlderFormats:
    """Return the entry as a version with this format wrote it."""
    text = encode(row, writer="spec")
    envelope: Fields = from_json(text)
    meant, older = from_json(text)["row"], envelope["row"]
    if envelope["kind"] not in ("claim", "release"):
        for since, place, says in _LATER:
            if number < since:
                _leave_out(older, place)
                _say(meant, place, says)
    envelope["format"] = older["format"] = number
    return WrittenOfOlderFormats(envelope, meant, says_all=number == PRESENT or meant == from_json(text)["row"])


def read_otherwise(meant: Fields, read: Row) -> str:
    """Return the first field that is read differently from its meaning, or an empty text."""
    said: Fields = from_json(read.model_dump_json())
    names = sorted({*meant, *said}) if meant != said else ()
    return next((name for name in names if meant.get(name, names) != said.get(name, names)), "")


def _leave_out(document: Fields, place: str) -> None:
    for owner, name in _owners(document, place):
        del owner[name]


def _say(document: Fields, place: str, says: object) -> None:
    for owner, name in _owners(document, place):
        owner[name] = says


def _owners(document: Fields, place: str) -> Iterator[tuple[Fields, str]]:
    """Yield each object that has the field, with the name that the field has in it.

    Kinds of segments have different fields.
    """
    *outer, name = place.split(".")
    owners = [document]
    for each in outer:
        inner = [owner[each] for owner in owners]
        owners = [one for found in inner for one in (found if isinstance(found, list) else [found])]
    yield from ((owner, name) for owner in owners if name in owner or outer[-1:] != ["segments"])


# ------------------------------------------------------------------
# Falsifies the text of an entry, so that Tidemark cannot have written it. The codec must refuse each such text.
#
# A falsified text is still well-formed JSON. One thing in it is wrong that a reader might believe: the kind on the
# envelope, a name that occurs twice, a number out of range, or a path outside the job's folders. Such an error is
# called a lie.


Lie = Callable[[Fields, Random], bool]
"""Falsifies an envelope. Returns False, and changes nothing, if the lie does not fit this entry."""

_KINDS: Final = ("claim", "release", "checkpoint", "savepoint", "rollback", "reset")
_NAMED_ONCE: Final = ("vertices", "tables", "columns", "hooks")
_MUST_BE_THERE: Final = (
    *("generation", "nonce", "at_ms", "holder", "first_id", "last_id", "next_id"),
    *("job", "checkpoint", "parent", "max_parallelism", "vertices", "tables", "statistics"),
)
_NUMBERS: Final = ("generation", "checkpoint", "parent", "first_id", "last_id", "next_id", "at_ms")
_TOO_LARGE: Final = 2**53
_NAMES: Final = ("vertex", "table", "upstream", "downstream", "hook")
"""Fields that hold a name, wherever they are."""
_MAY_BE_NEGATIVE: Final = ("crc32", "alignment_ms", "busy_ms", "start_delay_ms", "bytes_processed", "async_ms")
"""Fields that may be negative: durations, as clocks are set back, and the checksum of a file that nobody has read."""
_EVENT_TIMES: Final = ("watermark_ms", "rows_ms", "due_ms", "touched_ms", "now_ms")
DEEP: Final = 0.7
"""The probability that a lie about a name or a number is placed anywhere in the entry, and not in its first fields."""


def another_kind_outside(envelope: Fields, random: Random) -> bool:
    """Put another kind of entry on the envelope."""
    envelope["kind"] = random.choice([kind for kind in _KINDS if kind != envelope["kind"]])
    return True


def a_kind_or_format_of_nobody(envelope: Fields, random: Random) -> bool:
    """Write a kind or a format that no released version has written."""
    field, value = random.choice([("kind", "barrier"), ("format", PRESENT + 1), ("format", OLDEST - 1), ("format", 0)])
    envelope[field] = value
    return True


def a_name_twice(envelope: Fields, random: Random) -> bool:
    """Make a list name one thing twice."""
    row = envelope["row"]
    lists = [row[name] for name in _NAMED_ONCE if row.get(name)]
    lists += [vertex["splits"] for vertex in row.get("vertices", ()) if vertex["splits"]]
    lists += [table["columns"] for table in row.get("columns", ()) if table["columns"]]
    if not lists:
        return False
    chosen = random.choice(lists)
    chosen.insert(random.randint(0, len(chosen)), random.choice(chosen))
    return True


def a_field_less(envelope: Fields, random: Random) -> bool:
    """Leave out a field that every format has."""
    del envelope["row"][random.choice([name for name in _MUST_BE_THERE if name in envelope["row"]])]
    return True


def a_field_more(envelope: Fields, _: Random) -> bool:
    """Add a field that no format has."""
    envelope["row"]["colour"] = "blue"
    return True


def a_number_out_of_range(envelope: Fields, random: Random) -> bool:
    """Write a number that no counter of Tidemark reaches, somewhere in the entry."""
    row = envelope["row"]
    owner, field = random.choice([(row, name) for name in _NUMBERS if name in row])
    if random.random() < DEEP:
        places = _fields(row)
        owner, field = random.choice([(each, name) for each, name in places if _counts(each, name)])
    if field in _EVENT_TIMES:
        owner[field] = random.choice([-(2**63) - 1, 2**63])
    else:
        owner[field] = _TOO_LARGE if field in _MAY_BE_NEGATIVE else random.choice([-1, _TOO_LARGE])
    return True


def an_end_before_its_beginning(envelope: Fields, _: Random) -> bool:
    """Make a checkpoint its own parent, or a block of ids end before it begins."""
    row = envelope["row"]
    if "parent" in row:
        row["parent"] = row["checkpoint"]
    elif "last_id" in row:
        row["last_id"] = row["first_id"] - 1
    return "parent" in row or "last_id" in row


def a_path_that_leads_out(envelope: Fields, random: Random) -> bool:
    """Put a file outside the job's folders."""
    files = list(_objects(envelope["row"], "path"))
    if not files:
        return False
    file = random.choice(files)
    file["path"] = random.choice([f"../{file['path']}", f"/{file['path']}", file["path"].replace("_data", "..")])
    return True


def a_file_of_impossible_size(envelope: Fields, random: Random) -> bool:
    """Write a size, a checksum or statistics that no file has."""
    files = list(_objects(envelope["row"], "crc32"))
    if not files:
        return False
    random.choice(files).update([random.choice([("bytes", -1), ("rows", -1), ("crc32", 2**32), ("stats", "[]")])])
    return True


def key_groups_of_nobody(envelope: Fields, random: Random) -> bool:
    """Assign a file to key groups that the job does not have."""
    files = list(_objects(envelope["row"], "first_key_group"))
    if not files:
        return False
    file = random.choice(files)
    most = envelope["row"]["max_parallelism"]
    file.update([random.choice([("first_key_group", file["last_key_group"] + 1), ("last_key_group", most)])])
    return True


def a_name_that_is_none(envelope: Fields, random: Random) -> bool:
    """Give the job, a vertex or a table a name that nobody can declare, or give such a nonce to the entry."""
    row = envelope["row"]
    owner, field = random.choice([(row, "nonce"), *([(row, "job")] if "job" in row else [])])
    if random.random() < DEEP:
        named = [place for place in _fields(row) if place[1] in _NAMES and place[0][place[1]] is not None]
        owner, field = random.choice(named) if named else (owner, field)
    owner[field] = "..\n"
    return True


LIES: Final[tuple[Lie, ...]] = (
    another_kind_outside,
    another_kind_outside,  # there are as many kinds as lists of names
    a_kind_or_format_of_nobody,
    a_name_twice,
    a_name_twice,
    a_field_less,
    a_field_more,
    a_number_out_of_range,
    an_end_before_its_beginning,
    a_path_that_leads_out,
    a_file_of_impossible_size,
    key_groups_of_nobody,
    a_name_that_is_none,
)


def falsify(envelope: Fields, random: Random) -> str:
    """Falsify an envelope. Return the name of the lie."""
    told = next(lie for lie in random.sample(LIES, len(LIES)) if lie(envelope, random))
    return told.__name__.replace("_", " ")


def _fields(found: Any) -> list[tuple[Fields, str]]:  # noqa: ANN401 - any JSON
    """Return each field of each object, however deep it lies."""
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    own = [(found, name) for name in found] if isinstance(found, dict) else []
    return own + [place for each in inner for place in _fields(each)]


def _counts(owner: Fields, field: str) -> bool:
    """Return whether the field is a number that a reader uses.

    The entry's own format is not used: the envelope has it.
    """
    return type(owner[field]) is int and field != "format"


def _objects(found: Any, field: str) -> Iterator[Fields]:  # noqa: ANN401 - any JSON
    """Yield each object that has this field, however deep it lies."""
    if isinstance(found, list):
        for each in found:
            yield from _objects(each, field)
    elif isinstance(found, dict):
        if field in found:
            yield found
        for each in found.values():
            yield from _objects(each, field)


# ------------------------------------------------------------------
# Stores simulated entries as the product does: as text in any format, and with manifests.
#
# Each appended entry is encoded and stored. Every process that reads it decodes it, with its manifests. The size limits
# are so low that even small entries have several manifests. The codec also reads each entry in some older format, and a
# falsified one.


LOW: Final = Sizes(inline=2, recent=1, manifest=3, sparse=2, few=1)
MANIFEST: Final = VertexId("manifest")


def store_entries(world: World, moves: Moves, random: Random) -> None:
    """Let this world store its entries as the moves say: in older formats, with manifests, or unchanged."""
    if moves.older_formats:
        world.as_stored = _Texts(world, random).as_stored
    if moves.manifests:
        store = _Entries(world)
        world.as_stored, world.as_read, world.as_rewritten = store.as_stored, store.as_read, store.as_rewritten


class _Texts:
    """Sends each entry through the codec: in a format that its kind had, and with a lie."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random

    def as_stored(self, row: Row) -> Row:
        kind = kind_of(row).value
        number = self._random.randint(OLDEST, PRESENT)
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
        """Let the codec read a falsified entry."""
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
        """Maps the text of an entry, with the contents of its manifests, to the entry that was read from them.

        Many processes read the same entry.
        """

    def as_stored(self, row: Row) -> Row:
        row = self._before(row)
        if not isinstance(row, CheckpointRecord):
            return row
        rows = (self._stored.get(known.nonce, known) for _, known in reversed(self._world.log))
        newest = None if row.kind is RowKind.FORGET else manifests.newest_stored(rows)
        form = manifests.stored(row, self._form(newest) if newest is not None else None, LOW)
        for path, content in form.new.items():
            self._write(path, content, row)
        entry = decode_stored(encode(form.entry, writer="spec"))
        if isinstance(entry, CheckpointRecord) and entry.manifests:
            self._note(row, entry, tuple(form.new))
            self._stored[row.nonce] = entry
        return row.model_copy(update={"held_in": form.held_in})

    def as_rewritten(self, row: CheckpointRecord, by: CheckpointRecord) -> CheckpointRecord:
        """Write an older entry again, with new manifests. These belong to the generation that erases rows."""
        form = manifests.stored(row.model_copy(update={"generation": by.generation}), None, LOW)
        for path, content in form.new.items():
            self._write(path, content, by)
        again = form.entry.model_copy(update={"generation": row.generation})
        entry = decode_stored(encode(again, writer="spec"))
        self._stored.pop(row.nonce, None)
        self._whole.clear()
        if isinstance(entry, CheckpointRecord) and entry.manifests:
            self._stored[row.nonce] = entry
        return row.model_copy(update={"held_in": form.held_in})

    def as_read(self, row: Row) -> Row:
        entry = self._stored.get(row.nonce)
        if entry is None or not isinstance(row, CheckpointRecord):
            return row
        there = (known for _, known in self._world.log if isinstance(known, CheckpointRecord))
        if all((known.nonce, known.held_in) != (row.nonce, row.held_in) for known in there):
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
        erases = row.kind is RowKind.FORGET  # it keeps no older manifest, since that has bounds of erased files
        changed = before is None or erases or _handles(before) != _handles(row)
        self._world.history.add(EntryStored(row.checkpoint, named, new, tuple(unfit), changed))

    def _is_there(self, path: str) -> bool:
        return path in self._content and path not in self._world.gone

    def _is_sound(self, path: str) -> bool:
        return self._is_there(path) and sha256(self._content[path]).hexdigest() in path


def _handles(record: CheckpointRecord) -> list[object]:
    subtasks = ((vertex.vertex, each) for vertex in record.vertices for each in vertex.subtasks)
    return [(vertex, each.state, tuple(own.files for own in each.ranges)) for vertex, each in subtasks]
