"""Tests that each field of an entry is checked at its bounds, and that a true entry is read back unchanged (H1).

Each step changes an entry that has every field. Either one field gets each of its values, one after the other, or
several fields contradict each other. An entry that Tidemark may have written is read back unchanged. Every other entry
is refused.
"""

import json
from typing import Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.metadata.codec import UnknownFormatError, UnreadableRowError, decode, decode_stored, encode
from spec.false_entries import Told, told
from spec.fields_of_entries import places
from spec.full_entry import Fields, claim, full_entry, release
from spec.machines.judging import expect
from spec.older_formats import PRESENT, formats_of, read_otherwise, written

FIELDS: Final = "entries-are-checked"
"""An entry is believed exactly if Tidemark may have written it. It is then read back unchanged."""
_ENTRIES: Final = {"checkpoint": full_entry, "claim": claim, "release": release}


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
_EVERYTHING: Final = (*_PATTERNS, *told(), *_OLDER)


class EntriesMachine(RuleBasedStateMachine):
    """Entries, one after the other. Nothing is kept in between."""

    runs_short = True

    @rule(case=st.sampled_from(_EVERYTHING), number=st.integers(0, 3))
    def read(self, case: OfPattern | Told | Older, number: int) -> None:
        """Read a changed entry. Of several fields with the same names, `number` chooses one."""
        match case:
            case OfPattern():
                _change(case, number)
            case Older():
                _read_older(case)
            case Told():
                _judge(case)


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
    envelope, meant = written(row, case.format)
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
        why = f"format {number}" if number > PRESENT else f"kind {kind!r}"
        named = f"by spec in {why}" in str(error) and "install spec or newer" in str(error)
        expect(case.newer and named, FIELDS, f"{case.what}: {error}")
        return
    except UnreadableRowError as error:
        expect(not case.is_true and not case.newer, FIELDS, f"{case.what} is refused: {error}")
        named = where in str(error) or "row." in str(error)
        expect(named, FIELDS, f"{case.what} is refused without naming {where}: {error}")
        return
    expect(case.is_true, FIELDS, f"{case.what} is believed")
    again: Fields = json.loads(encode(row, writer="spec"))
    for name, said in case.envelope["row"].items():
        expect(again["row"][name] == said, FIELDS, f"{case.what}: {name} is read otherwise")
    expect(again["kind"] == case.envelope["kind"], FIELDS, f"{case.what} is written as {again['kind']}")
