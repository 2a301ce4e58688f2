"""Tests that each field of an entry is checked at its bounds, and that a true entry is read back unchanged (H1).

It also tests which files an entry names, wherever in the entry they are.

Each step changes an entry that has every field. Either one field gets each of its values, one after the other, or
several fields contradict each other. An entry that Tidemark may have written is read back unchanged. Every other entry
is refused.
"""

import json
from typing import Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.channel_items import ChannelState, RangeFiles, StagedSegment, SubtaskSnapshot
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, TableName, VertexId
from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, decode_stored, encode
from checkpointing.metadata.files import files_of, handles_to_restore
from checkpointing.metadata.record import CheckpointRecord, FileCompaction, RowKind, TableRecord, VertexRecord
from spec.false_entries import Told, told
from spec.fields_of_entries import places
from spec.full_entry import Fields, claim, full_entry, release
from spec.machines.judging import expect
from spec.machines.plain_entry import plain_entry
from spec.older_formats import PRESENT, formats_of, read_otherwise, written

FIELDS: Final = "entries-are-checked"
"""An entry is believed exactly if Tidemark may have written it. It is then read back unchanged."""
NAMED: Final = "entries-name-files"
"""An entry names every file in it, and tells which of them a restore needs. So nobody deletes one, and copies have all.
"""
_KINDS: Final = frozenset(each.value for each in RowKind)
_ENTRIES: Final = {"checkpoint": full_entry, "claim": claim, "release": release}


_TABLE: Final = TableName("gold/sums")


class Older(NamedTuple):
    """An entry as a version with this older format wrote it."""

    kind: str
    format: int


class OfPattern(NamedTuple):
    """The fields of an entry to which these names lead."""

    kind: str
    pattern: str


_PATTERNS: Final = tuple(
    OfPattern(kind, pattern)
    for kind, make in _ENTRIES.items()
    for pattern in dict.fromkeys(place.pattern for place in places(make()["row"]))
)
_OLDER: Final = tuple(Older(kind, number) for kind in _ENTRIES for number in formats_of(kind))
_RESTORED: Final = ("state", "ranges", "in_flight")
_PLACES: Final = (*_RESTORED, "staged", "adds", "files", "compacted")
_numbers = st.lists(st.integers(0, 2), max_size=3)
_files = st.fixed_dictionaries(dict.fromkeys(_PLACES, _numbers))
_EVERYTHING: Final[tuple[OfPattern | Told | Older, ...]] = (*_PATTERNS, *told(), *_OLDER)
_AT_ONCE: Final = 5
"""So many changes a step tries, one after the other. A short run then tries nine of ten."""


class EntriesMachine(RuleBasedStateMachine):
    """Entries, one after the other. Nothing is kept in between."""

    runs_short = True

    @rule(first=st.integers(0, len(_EVERYTHING) - 1), number=st.integers(0, 3))
    def read(self, first: int, number: int) -> None:
        """Read some changed entries. Of several fields with the same names, `number` chooses one."""
        for place in range(first, first + _AT_ONCE):
            match _EVERYTHING[place % len(_EVERYTHING)]:
                case OfPattern() as pattern:
                    _change(pattern, number)
                case Older() as older:
                    _read_older(older)
                case Told() as changed:
                    _judge(changed)

    @rule(numbers=_files)
    def name_files(self, numbers: dict[str, list[int]]) -> None:
        """An entry has so many files in each list of each of its places."""
        files = {
            place: [
                [FileHandle(f"{place}-{at}-{one}", 1, 1, 1) for one in range(many)] for at, many in enumerate(lists)
            ]
            for place, lists in numbers.items()
        }
        record, paths = (
            _entry_of(files),
            {place: {one.path for each in files[place] for one in each} for place in files},
        )
        due = set().union(*paths.values())
        expect(files_of(record) == due, NAMED, f"{sorted(files_of(record) ^ due)} of {sorted(due)}")
        needed = {each.path for each in handles_to_restore(record)}
        due = set().union(*(paths[place] for place in _RESTORED))
        expect(needed == due, NAMED, f"a restore needs {sorted(due)}, and not {sorted(needed)}")


def _entry_of(files: dict[str, list[list[FileHandle]]]) -> CheckpointRecord:
    """Return an entry of two subtasks and one table, with these files."""

    def keyed(found: list[FileHandle]) -> tuple[KeyedFile, ...]:
        return tuple(KeyedFile(each, KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1)) for each in found)

    def flat(place: str) -> list[FileHandle]:
        return [each for found in files[place] for each in found]

    channel = ChannelId(EdgeId(VertexId("rows"), VertexId("sums")), 0)
    held = ChannelState(channel, tuple(StagedSegment(tuple(found)) for found in files["in_flight"]))
    first = SubtaskSnapshot(state=keyed(flat("state")), in_flight=(held,))
    second = SubtaskSnapshot(
        ranges=tuple(RangeFiles(_TABLE, keyed(found)) for found in files["ranges"]),
        staged=tuple(StagedFile(_TABLE, each, CheckpointId(3)) for each in flat("staged")),
    )
    table = TableRecord(
        table=_TABLE,
        mode=TableMode.APPEND,
        adds=tuple(flat("adds")),
        files=tuple(flat("files")),
        compactions=tuple(FileCompaction(into=each, of=("small",)) for each in flat("compacted")),
        parent_version=0,
    )
    sums = VertexRecord(vertex=VertexId("sums"), micro_batch=1, subtasks=(first, second))
    return plain_entry(vertices=(sums,), tables=(table,))


def _change(case: OfPattern, number: int) -> None:
    """Give one of the fields each of its values."""
    entry = _ENTRIES[case.kind]()
    alike = [place for place in places(entry["row"]) if place.pattern == case.pattern]
    place = alike[number % len(alike)]
    for is_true, values in ((True, place.values.true), (False, place.values.false)):
        for value in values:
            place.owner[place.key] = value
            _judge(Told(f"{case.pattern} {str(value)[:80]!r}", entry, is_true), place.where)


def _read_older(case: Older) -> None:
    row = decode(json.dumps(_ENTRIES[case.kind]()))
    envelope, meant, _ = written(row, case.format)
    try:
        differs = read_otherwise(meant, decode(json.dumps(envelope)))
    except ValueError as error:
        differs = str(error)
    expect(not differs, FIELDS, f"a {case.kind} of format {case.format} is read otherwise: {differs}")


def _judge(case: Told, where: str = "") -> None:
    """Raise if a false entry is believed, if a true entry is refused, or if its fields are read with other values.

    A refusal must say where the wrong field is, or which version wrote an entry that this version cannot read.
    """
    read = decode_stored if case.stored else decode
    try:
        row = read(json.dumps(case.envelope))
    except UnknownFormatError as error:
        kind, number = case.envelope["kind"], case.envelope["format"]
        other = f"in kind {kind!r}" if kind not in _KINDS else "newer than this version"
        why = f"in format {number}" if number > PRESENT else other
        named = why in str(error) and "by spec" in str(error) and "install spec or newer" in str(error)
        expect(case.newer and named, FIELDS, f"{case.what}: {error}")
        return
    except UnreadableRowError as error:
        expect(not case.is_true and not case.newer, FIELDS, f"{case.what} is refused: {error}")
        named = where in str(error) or "row." in str(error)
        expect(named, FIELDS, f"{case.what} is refused without naming {where}: {error}")
        expect("(and 0 more)" not in str(error), FIELDS, f"{case.what} is refused with more than is wrong: {error}")
        return
    expect(case.is_true, FIELDS, f"{case.what} is believed")
    again: Fields = json.loads(encode(row, writer="spec"))
    for name, said in case.envelope["row"].items():
        expect(again["row"][name] == said, FIELDS, f"{case.what}: {name} is read otherwise")
    expect(again["kind"] == case.envelope["kind"], FIELDS, f"{case.what} is written as {again['kind']}")
