"""A changed pipeline can use old state and tables exactly if their types, names and meanings still fit."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns, is_delta_type
from checkpointing.commit.columns import (
    columns_at,
    table_changes,
)
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId
from checkpointing.metadata.record import (
    CheckpointRecord,
    Rename,
    RenameKind,
    VertexRecord,
)
from checkpointing.renamed_columns import ColumnRenames, renamed_columns, unrenamable
from checkpointing.state_evolution import (
    NOT_WRITTEN,
    Change,
    ChangeKind,
    Column,
    Compatibility,
    StateSchema,
    changes,
    first_refused,
    is_wider,
    parsed,
    reads_narrower,
    renamed_inside,
    shown,
    under_new_names,
    verdict,
    with_hints,
)
from checkpointing.state_meaning import (
    Argument,
    ColumnMeaning,
    meaning_changes,
    renaming_of,
    still_held,
)
from checkpointing.state_meaning import (
    under_new_names as under_new_names_of_meanings,
)
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

WIDER: Final = "types-become-wider"
"""A type can hold old values only if each plain type inside it is the same or a wider one.

Fields of structs may come and go, but not inside the key of a map. Delta's readers handle only some of these changes by
themselves."""
STATE: Final = "state-keeps-its-key"
"""Columns of a state are compared by name. The key's columns, their order and their types may not change."""
TYPES: Final = "types-are-read"
"""A text is read as a type exactly if Delta knows the type. Messages show types as in SQL.

Renamed fields inside a type are found."""

_WIDER: Final = {
    ("byte", "short"): True,
    ("byte", "integer"): True,
    ("byte", "long"): True,
    ("byte", "double"): False,
    ("short", "integer"): True,
    ("short", "long"): True,
    ("short", "double"): False,
    ("integer", "long"): True,
    ("integer", "double"): False,
    ("float", "double"): True,
    ("date", "timestamp_ntz"): False,
}
"""The changes that Delta's type widening allows. The value is whether readers handle the change by themselves."""
_DIGITS: Final = {"byte": 10, "short": 10, "integer": 10, "long": 20}
_SQL: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_Kind = str | dict[str, Any]
_numbers = st.sampled_from(["byte", "short", "integer", "long", "float", "double"])
_others = st.sampled_from(["date", "timestamp", "timestamp_ntz", "string"])
_decimals = st.sampled_from([(9, 0), (10, 0), (11, 0), (12, 2), (13, 2), (20, 0), (21, 1), (21, 0), (11, 1)])
_plain = st.one_of(_numbers, _decimals.map(lambda said: f"decimal({said[0]},{said[1]})"), _numbers, _others)


def _struct(fields: dict[str, _Kind]) -> _Kind:
    named = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": named}


def _array(element: _Kind) -> _Kind:
    return {"type": "array", "elementType": element, "containsNull": True}


def _map(of: tuple[_Kind, _Kind]) -> _Kind:
    return {"type": "map", "keyType": of[0], "valueType": of[1], "valueContainsNull": True}


_names = st.sampled_from(["p", "q", "r"])
_types: st.SearchStrategy[_Kind] = st.recursive(
    _plain,
    lambda inner: st.one_of(
        st.dictionaries(_names, inner, min_size=1, max_size=2).map(_struct),
        inner.map(_array),
        st.tuples(inner, inner).map(_map),
    ),
    max_leaves=4,
)
_columns = st.dictionaries(st.sampled_from(["a", "b", "c"]), _plain, min_size=1, max_size=3)
_pick = st.integers(0, 9)


@settings(max_examples=5 * settings.default.max_examples)
@given(was=_types, plain=_plain, picks=st.lists(_pick, min_size=4, max_size=4))
def test_types_change_a_type(was, plain, picks):
    """A type changes somewhere inside, or becomes another one."""
    now = _changed(was, plain, iter(picks))
    _compare(was, now)
    _compare(was, was)


@settings(max_examples=5 * settings.default.max_examples)
@given(was=_plain, now=_plain)
def test_types_change_a_plain_type(was, now):
    """A column gets another plain type, alone or in an array."""
    _compare(was, now)
    _compare(_array(was), _array(now))
    _compare(_map(("string", was)), _map(("string", now)))
    _compare(_map((was, "string")), _map((now, "string")))
    _compare(_struct({"p": was}), _struct({"q": "string", "p": now}))
    _compare(was, _array(now))
    _compare(_array(was), now)


def _compare(was: _Kind, now: _Kind) -> None:
    wider, read = _serves(was, now)
    made = (is_wider(was, now), reads_narrower(was, now))
    expect(made == (wider, read), WIDER, f"from {was} to {now}: {made}, due are {(wider, read)}")


@settings(max_examples=5 * settings.default.max_examples)
@given(kind=_types, broken=_pick)
def test_types_read_a_type(kind, broken):
    """An entry has a type as text, or a text that is no type."""
    text = kind if isinstance(kind, str) else json.dumps(kind, sort_keys=True)
    expect(is_delta_type(text), TYPES, f"{text} is no type")
    expect(parsed(text) == kind, TYPES, f"{text} is read as {parsed(text)}")
    expect(shown(kind) == sql(kind), TYPES, f"{kind} is shown as {shown(kind)}, due is {sql(kind)}")
    swaps = (
        ('"array"', '"list"'),
        ('"containsNull": true', '"containsNull": 1'),
        ('"nullable": true', '"nullable": "yes"'),
        ('"name": "', '"called": "'),
        ('"valueContainsNull": true', '"valueContainsNull": null'),
        ('"elementType"', '"element"'),
        ("long", "bigint"),
        ("decimal(10,0)", "decimal(39,0)"),
        ('"fields"', '"field"'),
        ('"keyType"', '"key"'),
    )
    false = text.replace(*swaps[broken], 1)
    expect(false == text or not is_delta_type(false), TYPES, f"{false} is taken for a type")
    expect(not is_delta_type(text[:-1] or "x"), TYPES, f"{text[:-1]} is taken for a type")


@settings(max_examples=5 * settings.default.max_examples)
@given(
    was=_columns,
    now=_columns,
    plain=_plain,
    keys=st.integers(1, 2),
    keys_before=st.integers(1, 2),
    known=st.booleans(),
    same=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_types_change_a_state(was, now, plain, keys, keys_before, known, same):
    """A state has other columns than before, and perhaps another key."""
    for stays, name in zip(same, [*now], strict=False):
        now[name] = was.get(name, plain) if stays else now[name]
    if same[0]:
        now = {name: now.get(name, plain) for name in [*was][:keys]} | now
    key = (*now,)[:keys]
    before = (*was,)[: keys_before if known else len(key)]
    old = StateSchema(tuple(Column(*each) for each in was.items()), before if known else None)
    new = StateSchema(tuple(Column(*each) for each in now.items()), key)
    made = [(each.column, each.was is None, each.now is None, each.becomes, bool(each.refused))
            for each in changes("state", old, new)]  # fmt: skip
    due = [*_key_changes(was, now, before, key), *_column_changes(was, now, key)]
    expect(made == due, STATE, f"{made}, due are {due}: from {was} {before} to {now} {key}")
    said = {each.kind for each in changes("state", old, new)}
    expect(said <= {ChangeKind.STATE_SCHEMA}, STATE, said)
    for each in changes("state", old, new):
        if each.column in was and each.column in now and each.column not in key:
            texts = (each.was, each.now)
            expect(texts == (sql(was[each.column]), sql(now[each.column])), STATE, f"{each}: {was} to {now}")


@settings(max_examples=5 * settings.default.max_examples)
@given(was=_columns, then=st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["a", "b"]), max_size=2))
def test_types_call_otherwise(was, then):
    """Columns of a state get new names."""
    schema = StateSchema(tuple(Column(*each) for each in was.items()), ("a",))
    made = under_new_names(schema, then)
    now = {old: new for new, old in then.items()}
    due = tuple(Column(now.get(name, name), kind) for name, kind in was.items())
    expect(made == StateSchema(due, ("a",)), STATE, f"{made} of {was} under {then}")


@settings(max_examples=5 * settings.default.max_examples)
@given(kinds=st.lists(_types, min_size=1, max_size=2), renamed=st.dictionaries(_names, _names, max_size=2))
def test_types_rename_upstream(kinds, renamed):
    """A column is renamed upstream, and state has its old name inside a value."""
    back = {old: new for new, old in renamed.items() if new != old}
    was = {f"c{at}": _struct({"x": kind}) for at, kind in enumerate(kinds)}
    now = {name: _named_otherwise(kind, back) for name, kind in was.items()}
    before, after = (StateSchema(tuple(Column(*each) for each in columns.items())) for columns in (was, now))
    made = sorted(renamed_inside(before, after, renamed))
    due = sorted(each for name in was for each in _due_inside(name, was[name], now[name], renamed))
    expect(made == due, TYPES, f"{made}, due are {due}: from {was} to {now} by {renamed}")


# ------------------------------------------------------------------ the reference


def _paths(kind: _Kind, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield each path inside a type, with the plain type or the kind of nesting at that path."""
    if isinstance(kind, str):
        yield at, kind
        return
    yield at, kind["type"]
    for name, inner in _inside(kind):
        yield from _paths(inner, f"{at}/{name}")


def _inside(kind: dict[str, Any]) -> list[tuple[str, _Kind]]:
    if kind["type"] == "struct":
        return [(f"field {field['name']}", field["type"]) for field in kind["fields"]]
    if kind["type"] == "array":
        return [("element", kind["elementType"])]
    return [("key", kind["keyType"]), ("value", kind["valueType"])]


def _serves(was: _Kind, now: _Kind) -> tuple[bool, bool]:
    """Return whether the new type is as wide as the old one, and whether readers can read old files with it."""
    before, after = dict(_paths(was)), dict(_paths(now))
    wider = read = True
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if "/key" in path and not _is_new_above(path, before, after):
            wider = read = False
        elif old is not None and new is not None:
            fits = plain_serves(old, new)
            wider, read = wider and fits[0], read and fits[1]
    return wider, read


def _is_new_above(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether this path lies in a field that was added or removed outside a map's key."""
    parts = path.split("/")
    above = ["/".join(parts[:at]) for at in range(1, parts.index("key") + 1)]
    return any((each in before) != (each in after) for each in above)


def plain_serves(was: str, now: str) -> tuple[bool, bool]:
    """Return whether the new plain type is wider than the old one, and whether readers can read old files with it."""
    if (was, now) in _WIDER:
        return True, _WIDER[was, now]
    old, new = _decimal(was), _decimal(now)
    if old is None or new is None or not now.startswith("decimal"):
        return False, False
    wider = old[0] <= new[0] and old[1] <= new[1]
    return wider, was.startswith("decimal") and old[1] == new[1] and old[0] < new[0]


def _decimal(kind: str) -> tuple[int, int] | None:
    """Return how many digits a number of this type has before and after the point."""
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return int(precision) - int(scale), int(scale)
    return (_DIGITS[kind], 0) if kind in _DIGITS else None


def sql(kind: _Kind) -> str:
    """Return a type as in SQL."""
    if isinstance(kind, str):
        return _SQL.get(kind, kind)
    inner = [(name, sql(each)) for name, each in _inside(kind)]
    if kind["type"] == "struct":
        return "struct<" + ", ".join(f"{name.removeprefix('field ')}: {text}" for name, text in inner) + ">"
    return f"{kind['type']}<" + ", ".join(text for _, text in inner) + ">"


_Found = tuple[str, bool, bool, str, bool]
"""The column, whether it is new, whether it is gone, what becomes of it, and whether it is refused."""


def _key_changes(
    was: Mapping[str, str], now: Mapping[str, str], before: tuple[str, ...], key: tuple[str, ...]
) -> Iterator[_Found]:
    if before != key:
        yield ", ".join(key), False, False, "", True
        return
    for name in key:
        if was[name] != now[name]:
            yield name, False, False, "", True


def _column_changes(was: Mapping[str, str], now: Mapping[str, str], key: tuple[str, ...]) -> Iterator[_Found]:
    for name in [each for each in now if each not in key]:
        if name not in was:
            yield name, True, False, "null in old rows", False
        elif was[name] != now[name]:
            wider = _serves(was[name], now[name])[0]
            yield name, False, False, "widened" if wider else "", not wider
    for name in [each for each in was if each not in key and each not in now]:
        yield name, False, True, "dropped", False


# ------------------------------------------------------------------ changed types


def _changed(kind: _Kind, plain: str, picks: Iterator[int]) -> _Kind:
    """Return a type with a change at the place to which the picks lead."""
    pick = next(picks, 0)
    if isinstance(kind, str):
        return _array(plain) if pick == 0 else plain
    match kind["type"]:
        case "array":
            return _array(_changed(kind["elementType"], plain, picks)) if pick else _map((plain, kind["elementType"]))
        case "map" if pick > 5:
            return _map((_changed(kind["keyType"], plain, picks), kind["valueType"]))
        case "map":
            return _map((kind["keyType"], _changed(kind["valueType"], plain, picks)))
        case _:
            fields = {field["name"]: field["type"] for field in kind["fields"]}
            if pick in (0, 1):
                fields[("p", "q")[pick]] = plain
            elif pick == 2 and len(fields) > 1:
                fields.popitem()
            else:
                name = [*fields][pick % len(fields)]
                fields[name] = _changed(fields[name], plain, picks)
            return _struct(fields)


def _named_otherwise(kind: _Kind, back: Mapping[str, str]) -> _Kind:
    """Return a type in which each field has its new name."""
    if isinstance(kind, str):
        return kind
    inner = [(name, _named_otherwise(each, back)) for name, each in _inside(kind)]
    if kind["type"] == "struct":
        names = [(name.removeprefix("field "), each) for name, each in inner]
        return _struct({back.get(name, name): each for name, each in names})
    return _array(inner[0][1]) if kind["type"] == "array" else _map((inner[0][1], inner[1][1]))


def _due_inside(column: str, was: _Kind, now: _Kind, renamed: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (column, old, new) for each field whose files have its old name. Fields inside maps are ignored."""
    before, after = dict(_paths(was)), dict(_paths(now))
    for path, kind in before.items():
        if kind == "struct" and after.get(path) == "struct" and "/key" not in path and "/value" not in path:
            for new, old in renamed.items():
                then, there = f"{path}/field {old}", f"{path}/field {new}"
                if then in before and there in after and there not in before:
                    yield column, old, new


# ------------------------------------------------------------------
# Tests changed state: a pipeline gives its state columns other names, functions and versions, and continues from a cut.
# The reference decides for each column what becomes of the old values. A change is refused if old values could be read
# with a wrong meaning.


MEANINGS: Final = "meanings-are-kept"
"""Old values of a column are kept only if its function, the names of its arguments and its version are the same.

Old values are also kept if the checkpoint recorded none of these.
"""
RENAMES: Final = "renames-are-clear"
"""A renamed column keeps its values.

A rename is refused if the files have both names, or if the files have neither name and a column would be dropped. A
pipeline is also refused if it undoes a rename of its cut without declaring so.
"""
HINTS: Final = "drops-get-hints"
"""The report on a dropped column has a hint if a new column may be the same one under another name."""

_NAMES: Final = ("a", "b", "c")
_Said = tuple[str, str, int | None, str, str]
"""A column, its function, its version, its argument, and the argument's type."""
_meaning = st.tuples(
    st.sampled_from(_NAMES),
    st.sampled_from(["max", "max", "process"]),
    st.sampled_from([None, 1, 1, 2]),
    st.sampled_from(["v", "v", "w"]),
    st.sampled_from(["int", "int", "bigint"]),
)
_meanings = st.lists(_meaning, max_size=3, unique_by=lambda said: said[0])
_held = st.lists(st.sampled_from(_NAMES), unique=True)
_columns_of_meanings = st.lists(st.sampled_from([*_NAMES, "d"]), unique=True)
_renames = st.dictionaries(st.sampled_from(_NAMES), st.sampled_from([*_NAMES, "d"]), max_size=2)


@settings(max_examples=5 * settings.default.max_examples)
@given(was=st.one_of(st.none(), _meanings), now=_meanings, held=_held)
def test_meanings_compute_otherwise(was, now, held):
    """State columns are computed by other functions, from other columns, or by another version."""
    made = meaning_changes("state", None if was is None else _all(was), _all(now), held)
    before = {said[0]: said for said in was or ()}
    due = []
    for said in now:
        old = before.get(said[0])
        if said[0] in held and old != said:
            due.append((said[0], *_verdict(old, said), None if old is None else _text(old), _text(said)))
    found = [
        (each.column, each.becomes, _reason(each), None if each.was == "not recorded" else each.was, each.now)
        for each in made
    ]
    expect(found == due, MEANINGS, f"{found}, due are {due}: from {was} to {now}, in files {held}")
    of = {(each.kind, each.thing) for each in made}
    expect(of <= {(ChangeKind.STATE_MEANING, "state")}, MEANINGS, of)


@settings(max_examples=5 * settings.default.max_examples)
@given(was=st.one_of(st.none(), _meanings), now=_meanings, held=_held, then=_renames)
def test_meanings_record(was, now, held, then):
    """The next checkpoint records meanings, and meanings get new names."""
    before = None if was is None else _all(was)
    recorded = [*now, *(said for said in was or () if said[0] in held and said[0] not in [each[0] for each in now])]
    made = still_held(before, _all(now), held)
    expect(made == _all(recorded), MEANINGS, f"{made} are recorded, due are {recorded}")
    names = [said[0] for said in was or ()]
    called = []
    for said in was or ():
        new = [new for new, old in then.items() if old == said[0]]
        if then.get(said[0]) not in names:  # else the cut has the old name too, and so have the files
            called.append((new[-1] if new else said[0], *said[1:]))
    renamed = under_new_names_of_meanings(before, then)
    due = None if was is None else _all(called)
    expect(renamed == due, MEANINGS, f"{renamed} of {was} under {then}, due are {due}")


@settings(max_examples=5 * settings.default.max_examples)
@given(was=st.one_of(st.none(), _meanings), now=_meanings, old=st.sampled_from(_NAMES), new=st.sampled_from(_NAMES))
def test_meanings_suggest(was, now, old, new):
    """A dropped column may have come back under another name."""
    made = renaming_of(None if was is None else _all(was), _all(now), old, new)
    before = next((said for said in was or () if said[0] == old), None)
    after = next((said for said in now if said[0] == new), None)
    due = None
    if after is not None and (before is None or before[1:] == after[1:]):
        by_name = f"columns_renamed_from={{{new!r}: {old!r}}}"
        due = by_name if after[1] == "process" else f"renamed_from={old!r}"
    expect(made == due, HINTS, f"{made} for {old} to {new}, due is {due}: from {was} to {now}")


@settings(max_examples=5 * settings.default.max_examples)
@given(
    now=_columns_of_meanings,
    then=_columns_of_meanings,
    renamed=_renames,
    of_cut=_renames,
    becomes=st.sampled_from(["", "moved"]),
)
def test_meanings_rename(now, then, renamed, of_cut, becomes):
    """A pipeline renames columns of files that have the columns `then`."""
    made = [
        *renamed_columns(ChangeKind.STATE_SCHEMA, "state", now, then, ColumnRenames(renamed, of_cut), becomes=becomes)
    ]
    keep = kept_names(now, then, renamed)
    due = renames_due(now, then, renamed, becomes)
    due += renames_undeclared(now, then, renamed, of_cut)
    found = [(each.column, each.was, each.becomes, _part(each, due)) for each in made]
    expect(found == due, RENAMES, f"{found}, due are {due}: {then} to {now}, {renamed}, of the cut {of_cut}")
    expect(all(each.now == each.column for each in made), RENAMES, made)
    refused = [*unrenamable("table", now, then, ColumnRenames(renamed, of_cut))]
    pairs = [(each.column, each.was) for each in refused if each.refused and each.column == each.now]
    expect(pairs == [*keep.items()], RENAMES, f"{pairs} are refused for an overwrite table, due are {keep}")


@settings(max_examples=5 * settings.default.max_examples)
@given(
    old=st.lists(st.tuples(st.sampled_from(["x", "y"]), st.sampled_from([None, NOT_WRITTEN, "int"])), max_size=2),
    new=st.lists(st.tuples(st.sampled_from(["p", "q"]), st.sampled_from(["x", "y"])), max_size=2),
    known=st.sets(st.tuples(st.sampled_from(["k0", "k1"]), st.sampled_from(["p", "q"]))),
    refused=st.sampled_from(["", "", "no"]),
)
def test_meanings_hint(old, new, known, refused):
    """Columns are dropped and added. A new column may be a dropped one under another name."""
    gone = [_change(f"k{at}", was, now, "dropped", "") for at, (was, now) in enumerate(old)]
    came = [_change(name, None, kind, "new", refused) for name, kind in new]
    made = with_hints([*gone, *came], lambda a, b: f"{a} to {b}" if (a, b) in known else None)
    due = []
    for each in gone:
        same = [
            one.column
            for one in came
            if each.now in (None, NOT_WRITTEN) and one.now == each.was and (each.column, one.column) in known
        ]
        said = f"dropped; if it has a new name, say {each.column} to {same[0]}" if same else "dropped"
        due.append(replace(each, becomes=said))
    expect(made == (*due, *came), HINTS, f"{made}, due are {(*due, *came)}")
    for each in made:
        said = "refused" if each.refused else each.becomes
        expect(each.verdict == said, MEANINGS, f"{each.verdict} is the result, due is {said}")
        comes, goes = f"({each.now}) is new, {each.becomes}", f"({each.was}) is dropped"
        differs = goes if each.now is None else f"was {each.was} and is now {each.now}"
        text = f"state: column {each.column} {comes if each.was is None else differs}"
        expect(str(each) == text + (f": {each.refused}" if each.refused else ""), MEANINGS, f"{each}, due is {text}")
    first = next((each for each in made if each.refused), None)
    expect(first_refused(made) == first, MEANINGS, f"{first_refused(made)} is refused first, due is {first}")
    kind = Compatibility.AFTER_MIGRATION if made else Compatibility.AS_IS
    kind = Compatibility.INCOMPATIBLE if first is not None else kind
    expect(verdict(made) is kind, MEANINGS, f"{verdict(made)} of {made}")


_Renamed = tuple[str, str, str, str]
"""The new name, the old one, what becomes of the column, and a part of the text that refuses it."""


def kept_names(now: Collection[str], then: Collection[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the renames that are due: the files have the old name and lack the new one."""
    return {new: old for new, old in renamed.items() if new in now and old in then and new not in then}


def renames_due(
    now: Sequence[str], then: Sequence[str], renamed: Mapping[str, str], becomes: str = ""
) -> list[_Renamed]:
    """Return what a restore must report about a pipeline's renames, for files with the columns `then`."""
    keep = kept_names(now, then, renamed)
    gone = [name for name in then if name not in now and name not in keep.values()]
    due = [(new, old, becomes or "renamed, with its values", "") for new, old in keep.items()]
    for new, old in renamed.items():
        if new in now and new in then and old in then:
            due.append((new, old, "", "both columns already"))
        if new in now and new not in then and old not in then and gone:
            due.append((new, old, "", f"neither of them, and {gone[0]} would be dropped"))
    return due


def renames_undeclared(
    now: Collection[str], then: Collection[str], renamed: Mapping[str, str], of_cut: Mapping[str, str]
) -> list[_Renamed]:
    """Return what a restore must report about renames in the cut that this pipeline undoes without saying so."""
    last = {was: name for name, was in of_cut.items()}
    return [
        (was, name, "", "does not say that it renames it back")
        for was, name in last.items()
        if was in now and was not in then and name in then and was not in renamed and name not in now
    ]


def _verdict(old: _Said | None, said: _Said) -> tuple[str, str]:
    """Return what becomes of a column's old values, and why they are refused."""
    if old is None:
        return "taken as it is: its checkpoint is of an older format", ""
    if old[1] != said[1] or old[3] != said[3]:
        return "", f"keep {_text(old)}"
    if old[2] is not None and old[2] != said[2]:
        now = "declares no state_version now" if said[2] is None else f"declares state_version {said[2]}"
        return "", f"state of version {old[2]} is there and the function {now}; go back to version {old[2]}"
    return "old values serve as they are", ""


def _reason(change: Change) -> str:
    """Return the part of a refusal that names the old meaning."""
    text = change.refused.removeprefix("its old values cannot become that; ")
    return text.partition(",")[0] if text.startswith("state of") else text.partition(", or")[0]


def _part(change: Change, due: Sequence[_Renamed]) -> str:
    """Return the due text if the refusal contains it, and otherwise the whole refusal."""
    parts = [said for column, _, _, said in due if said and column == change.column and said in change.refused]
    return parts[0] if parts else change.refused


def _text(said: _Said) -> str:
    _, function, version, argument, kind = said
    shows = version is not None and (version > 1 or function == "process")
    return f"{function}({argument} {kind})" + (f" version {version}" if shows else "")


def _all(said: Sequence[_Said]) -> tuple[ColumnMeaning, ...]:
    return tuple(
        ColumnMeaning(column=column, function=function, arguments=(Argument(argument, kind),), version=version)
        for column, function, version, argument, kind in said
    )


def _change(column: str, was: str | None, now: str | None, becomes: str, refused: str) -> Change:
    return Change(
        kind=ChangeKind.STATE_SCHEMA, thing="state", column=column, was=was, now=now, becomes=becomes, refused=refused
    )


# ------------------------------------------------------------------
# Tests changes of a table's columns between two pipelines: what a restore reports, and what the next cut lists. The
# reference checks the columns one by one. The machine of an append table's columns covers rollbacks.


SAID: Final = "table-changes-said"
"""A restore reports what becomes of each column of a table. It refuses a change that the table's files cannot serve."""
CUT: Final = "cuts-list-columns"
"""A cut lists the columns of each table that declares columns. Each column has the checkpoint from which it is valid.

If a table's files must be written again, the cut keeps the old columns while one of the old files is live."""

TABLE: Final = TableName("gold/totals")
VERTEX: Final = VertexId("totals")
_PARENT: Final = CheckpointId(7)
_pair_names = st.sampled_from(["a", "b", "c", "d"])
_kinds = st.sampled_from(["integer", "long", "long", "double", "decimal(10,2)", "decimal(12,2)", "string"])
_pair_columns = st.dictionaries(_pair_names, _kinds, min_size=1, max_size=3)
_few = st.lists(_pair_names, unique=True, max_size=2)
_modes = st.sampled_from([TableMode.APPEND, TableMode.APPEND, TableMode.UPSERT, TableMode.OVERWRITE, TableMode.STATE])
_rewritten = "renamed, with its values. The table's files are written again once"
_FoundChanges = tuple[str, str | None, str | None, str, bool]
"""The column, its old type, its new type, what becomes of it, and whether it is refused."""


@dataclass
class _Pair:
    """A table as an entry lists it, and as the pipeline declares it."""

    mode: TableMode
    was: dict[str, str]
    now: dict[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    in_order: bool = False
    outside: bool = False
    partitioned: tuple[str, ...] = ()
    of_cut: Mapping[str, str] = field(default_factory=dict)
    """The renames that the cut's pipeline declared for this vertex, from new to old names."""
    of_others: Mapping[str, str] = field(default_factory=dict)
    """Renames that another vertex declared. These change nothing for this table."""

    @property
    def appends(self) -> bool:
        return self.mode is TableMode.APPEND

    @property
    def keep(self) -> dict[str, str]:
        return kept_names(self.now, self.was, self.renamed)

    @property
    def leaving(self) -> list[str]:
        """The columns that the pipeline removes from a table that keeps its files."""
        return [name for name in self.was if name in self.drops and name not in self.now]


_pairs = st.builds(
    _Pair,
    mode=_modes,
    was=_pair_columns,
    now=_pair_columns,
    renamed=st.dictionaries(_pair_names, _pair_names, max_size=2),
    dropped=_few.map(lambda names: tuple(name.upper() for name in names)),
    drops=_few.map(tuple),
    in_order=st.booleans(),
    outside=st.sampled_from([False, False, True]),
    partitioned=st.lists(_pair_names, max_size=1).map(tuple),
    of_cut=st.dictionaries(_pair_names, _pair_names, max_size=2),
    of_others=st.dictionaries(_pair_names, _pair_names, min_size=1, max_size=4),
)


@settings(max_examples=5 * settings.default.max_examples)
@given(
    pair=_pairs,
    stays=st.lists(st.booleans(), min_size=3, max_size=3),
    listed=st.sampled_from([True, True, True, False]),
    means=st.sampled_from([None, None, "process", "max"]),
)
def test_table_changes_restore(pair, stays, listed, means):
    """Another pipeline is restored from a cut."""
    for same, name in zip(stays, [*pair.now], strict=False):
        pair.now[name] = pair.was.get(name, pair.now[name]) if same else pair.now[name]
    made = table_changes(_graph(pair, means), _cut(pair, listed=listed))
    due = sorted(_with_hints(pair, [*_due(pair)], means), key=str)
    if not listed or pair.mode is TableMode.STATE:
        due = []
    found = sorted(((each.column, each.was, each.now, each.becomes, bool(each.refused)) for each in made), key=str)
    expect(found == due, SAID, f"{found}, due are {due}: {pair}")
    of = {(each.kind, each.thing) for each in made}
    expect(of <= {(ChangeKind.TABLE_SCHEMA, f"table {TABLE}")}, SAID, of)


@settings(max_examples=5 * settings.default.max_examples)
@given(
    pair=_pairs,
    since=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    live=st.sampled_from(["old", "new", "both", "none"]),
    known=st.sampled_from(["listed", "listed", "listed", "not listed", "no parent", "other vertex"]),
)
def test_table_changes_commit(pair, since, live, known):
    """The pipeline's next checkpoint commits."""
    if pair.mode.keeps_files and pair.mode is not TableMode.OVERWRITE:
        pair.mode = TableMode.UPSERT
    pair.drops = ()
    after = dict(zip(("a", "b", "c", "d"), since, strict=True))
    parent = _cut(pair, listed=known != "not listed", after=after, vertex="other" if known[:2] == "ot" else VERTEX)
    files = {"old": ("f",), "new": ("g",), "both": ("g", "f"), "none": ()}[live]
    bare = Table(TableName("gold/bare"), TableMode.UPSERT)
    made = columns_at(
        _graph(pair, None, bare), {VERTEX: _vertex(VERTEX, files)}, None if known == "no parent" else parent
    )
    due = _next(pair, after, "f" in files and known == "listed", lists=known in ("listed", "other vertex"))
    said = [(each.name, each.type, each.after) for table in made for each in table.columns]
    expect(len(made) == 1 and said == due, CUT, f"{made}, due are {due}: {pair}, {live}, {known}")


# ------------------------------------------------------------------ the reference


def _due(pair: _Pair) -> Iterator[_FoundChanges]:
    """Yield what a restore must report about the columns, without hints."""
    names, keep = [*pair.now], pair.keep
    if pair.mode is TableMode.OVERWRITE:
        yield from ((new, old, new, "", True) for new, old in keep.items())
    else:
        for new, old, becomes, refused in renames_due(
            names, [*pair.was], pair.renamed, _rewritten if pair.appends else ""
        ):
            yield new, old, new, becomes, bool(refused)
        undeclared = renames_undeclared(names, pair.was, pair.renamed, pair.of_cut)
        yield from ((old, new, old, "", True) for old, new, _, _ in undeclared)
    if pair.appends:
        yield from _of_files(pair)
    left = dict(pair.was)
    for name, kind in pair.now.items():
        was = left.pop(keep.get(name, name), None)
        if was is None:
            yield name, None, sql(kind), f"holds only what comes after checkpoint {_PARENT}", False
        elif was != kind:
            wider, read = plain_serves(was, kind)
            serves = {TableMode.APPEND: read, TableMode.UPSERT: wider}.get(pair.mode, False)
            becomes = "widened. The files keep the narrower type, and readers convert it" if pair.appends else "widened"
            yield name, sql(was), sql(kind), becomes, not serves or name in pair.partitioned
    for name, kind in left.items():
        if pair.mode.keeps_files and name not in pair.leaving:
            stays = f". change_columns(drop=[{name!r}]) takes it out of the table" if pair.appends else ""
            yield name, sql(kind), NOT_WRITTEN, f"stays, null in new rows{stays}", False
        else:
            unseen = "dropped. Readers no longer see it, and its name cannot be used again in this table"
            yield name, sql(kind), None, unseen if pair.appends else "dropped", False


def _of_files(pair: _Pair) -> Iterator[_FoundChanges]:
    """Yield what a restore reports only about append tables: names in files, drops, sinks, order of columns."""
    keep = pair.keep
    for name, kind in pair.now.items():
        if name not in pair.was and name.upper() in pair.dropped:
            yield name, keep.get(name, "gone"), sql(kind), "", True
    unknown = [name for name in pair.drops if name not in pair.was and name.upper() not in pair.dropped]
    if unknown and [name for name in pair.was if name not in pair.now and name not in pair.drops]:
        yield unknown[0], "unknown", "dropped", "", True
    if pair.outside:
        yield from ((new, old, new, "", True) for new, old in keep.items())
    now = {old: new for new, old in keep.items()}
    stay = [now.get(name, name) for name in pair.was if name not in pair.leaving]
    whole = [*stay, *(name for name in pair.now if name not in stay)]
    if pair.in_order:
        ordered = [*(name for name in pair.now if name in whole), *(name for name in whole if name not in pair.now)]
        if [name for name in ordered if name in stay] != stay:
            yield "order", ", ".join(pair.was), ", ".join(ordered), "reordered", False


def _with_hints(pair: _Pair, due: list[_FoundChanges], means: str | None) -> Iterator[_FoundChanges]:
    """Yield the changes with hints. A dropped column may be a new column of the same type under another name."""
    new = [(name, now) for name, was, now, _, _ in due if was is None]
    for name, was, now, becomes, refused in due:
        same = [other for other, kind in new if kind == was]
        said = f"{{{same[0]!r}: {name!r}}}" if same else ""
        of_vertex = means is not None or pair.mode is TableMode.UPSERT
        how = f"columns_renamed_from={said}" if of_vertex else f"change_columns(renamed_from={said})"
        may_be = pair.mode is not TableMode.OVERWRITE and means != "max"
        hint = f"; if it has a new name, say {how}" if same and may_be and now in (None, NOT_WRITTEN) else ""
        yield name, was, now, becomes + hint, refused


def _next(pair: _Pair, after: Mapping[str, int], is_live: bool, *, lists: bool) -> list[tuple[str, str, int]]:
    """Return the columns at the next cut: name, type, and the checkpoint from which each is valid."""
    if not lists:
        return [(name, kind, 0) for name, kind in pair.now.items()]
    was = [(name, kind, after[name]) for name, kind in pair.was.items()]
    if pair.mode is TableMode.OVERWRITE:
        kept = [(name, pair.now.get(name, kind), since) for name, kind, since in was]
        new = [(name, kind, int(_PARENT)) for name, kind in pair.now.items() if name not in pair.was]
        places = [*pair.now]
        both = sorted([*kept, *new], key=lambda each: places.index(each[0]) if each[0] in places else len(places))
        return both if pair.in_order else [*kept, *new]
    keep = pair.keep
    now = []
    for name, kind in pair.now.items():
        old = keep.get(name, name)
        now.append((name, kind, after[old] if old in pair.was else int(_PARENT)))
    is_other = {each[:2] for each in was} != {each[:2] for each in now}
    return was if is_other and is_live else now


# ------------------------------------------------------------------ entries and graphs


def _graph(pair: _Pair, means: str | None, *others: Table) -> JobGraph:
    table = Table(
        TABLE,
        pair.mode,
        columns=tuple(TableColumn(name, kind) for name, kind in pair.now.items()),
        outside=pair.outside,
        partitioned_by=pair.partitioned,
        drops=pair.drops,
        in_order=pair.in_order,
    )
    meanings = (ColumnMeaning(column="a", function=means),) if means is not None else ()
    vertex = Vertex(
        VERTEX,
        VertexKind.KEYED,
        1,
        tables=(*others, table),
        meanings=meanings,
        columns_renamed_from=pair.renamed,
    )
    return JobGraph((vertex,), ())


def _cut(
    pair: _Pair, *, listed: bool, after: Mapping[str, int] | None = None, vertex: str = VERTEX
) -> CheckpointRecord:
    since = after or {}
    columns = tuple(TableColumn(name, kind, CheckpointId(since.get(name, 0))) for name, kind in pair.was.items())
    return plain_entry(
        checkpoint=_PARENT,
        vertices=(_vertex(VertexId(vertex), ("f",)),),
        columns=(TableColumns(TABLE, columns, pair.dropped),) if listed else (),
        renames=(*_pair_renames(pair.of_cut, VERTEX), *_pair_renames(pair.of_others, "other")),
    )


def _vertex(name: VertexId, paths: tuple[str, ...]) -> VertexRecord:
    files = tuple(
        KeyedFile(FileHandle(path, 1, 1, 1), KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1)) for path in paths
    )
    subtask = SubtaskSnapshot(state=files, ranges=(RangeFiles(TABLE, files),))
    return VertexRecord(vertex=name, micro_batch=1, subtasks=(subtask,))


def _pair_renames(names: Mapping[str, str], vertex: str) -> Iterator[Rename]:
    return (Rename(kind=RenameKind.COLUMN, was=was, now=now, vertex=vertex) for now, was in names.items())
