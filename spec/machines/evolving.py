"""Tests types. Columns of a state come, go and get other types, also deep inside structs, arrays and maps.

Its reference lists the plain type at each path inside a type. So it never has to walk through two types at once.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.columns import is_delta_type
from checkpointing.state_evolution import (
    ChangeKind,
    Column,
    StateSchema,
    changes,
    is_wider,
    parsed,
    reads_narrower,
    renamed_inside,
    shown,
    under_new_names,
)
from spec.machines.judging import expect

WIDER: Final = "types-become-wider"
"""A type serves old values only if each plain type inside it is the same or a wider one. Fields of structs
may come and go, but not inside the key of a map. Delta's readers handle only some of these changes by themselves."""
STATE: Final = "state-keeps-its-key"
"""Columns of a state are compared by name. The key's columns, their order and their types may not change."""
TYPES: Final = "types-are-read"
"""A text is read as a type exactly if Delta knows the type. Users see the type as in SQL. Renamed fields inside it are
found."""

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
"""The changes that Delta's type widening allows, and whether readers handle each by themselves."""
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


class EvolvingMachine(RuleBasedStateMachine):
    """One pair of types, or of states, after the other."""

    @rule(was=_types, plain=_plain, picks=st.lists(_pick, min_size=4, max_size=4))
    def change_a_type(self, was: _Kind, plain: str, picks: list[int]) -> None:
        """A type changes somewhere inside, or becomes another one."""
        now = _changed(was, plain, iter(picks))
        self._compare(was, now)
        self._compare(was, was)

    @rule(was=_plain, now=_plain)
    def change_a_plain_type(self, was: str, now: str) -> None:
        """A column gets another plain type, alone or in an array."""
        self._compare(was, now)
        self._compare(_array(was), _array(now))
        self._compare(_map(("string", was)), _map(("string", now)))
        self._compare(_map((was, "string")), _map((now, "string")))
        self._compare(_struct({"p": was}), _struct({"q": "string", "p": now}))
        self._compare(was, _array(now))
        self._compare(_array(was), now)

    def _compare(self, was: _Kind, now: _Kind) -> None:
        wider, read = _serves(was, now)
        made = (is_wider(was, now), reads_narrower(was, now))
        expect(made == (wider, read), WIDER, f"from {was} to {now}: {made}, due are {(wider, read)}")

    @rule(kind=_types, broken=_pick)
    def read_a_type(self, kind: _Kind, broken: int) -> None:
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

    @rule(
        was=_columns,
        now=_columns,
        plain=_plain,
        keys=st.integers(1, 2),
        keys_before=st.integers(1, 2),
        known=st.booleans(),
        same=st.lists(st.booleans(), min_size=3, max_size=3),
    )
    def change_a_state(
        self,
        *,
        was: dict[str, str],
        now: dict[str, str],
        plain: str,
        keys: int,
        keys_before: int,
        known: bool,
        same: list[bool],
    ) -> None:
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

    @rule(was=_columns, then=st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["a", "b"]), max_size=2))
    def call_otherwise(self, was: dict[str, str], then: dict[str, str]) -> None:
        """Columns of a state get new names."""
        schema = StateSchema(tuple(Column(*each) for each in was.items()), ("a",))
        made = under_new_names(schema, then)
        now = {old: new for new, old in then.items()}
        due = tuple(Column(now.get(name, name), kind) for name, kind in was.items())
        expect(made == StateSchema(due, ("a",)), STATE, f"{made} of {was} under {then}")

    @rule(kinds=st.lists(_types, min_size=1, max_size=2), renamed=st.dictionaries(_names, _names, max_size=2))
    def rename_upstream(self, kinds: list[_Kind], renamed: dict[str, str]) -> None:
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
    """Yield each path inside a type with what lies there: a plain type, or the kind of nesting."""
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
    """Return whether the new type is as wide as the old one, and whether readers read old files by it."""
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
    """Return whether this path lies in a field that came or went, and that field is not inside a map's key."""
    parts = path.split("/")
    above = ["/".join(parts[:at]) for at in range(1, parts.index("key") + 1)]
    return any((each in before) != (each in after) for each in above)


def plain_serves(was: str, now: str) -> tuple[bool, bool]:
    """Return whether a plain type is wider than another one, and whether readers read old files by it."""
    if (was, now) in _WIDER:
        return True, _WIDER[was, now]
    old, new = _decimal(was), _decimal(now)
    if old is None or new is None or not now.startswith("decimal"):
        return False, False
    wider = old[0] <= new[0] and old[1] <= new[1]
    return wider, was.startswith("decimal") and old[1] == new[1] and old[0] < new[0]


def _decimal(kind: str) -> tuple[int, int] | None:
    """Return how many digits a number of this type has before and behind the point."""
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
        case "map" if pick > 5:  # noqa: PLR2004 - more often the value than the key
            return _map((_changed(kind["keyType"], plain, picks), kind["valueType"]))
        case "map":
            return _map((kind["keyType"], _changed(kind["valueType"], plain, picks)))
        case _:
            fields = {field["name"]: field["type"] for field in kind["fields"]}
            if pick in (0, 1):
                fields[("p", "q")[pick]] = plain
            elif pick == 2 and len(fields) > 1:  # noqa: PLR2004 - one case of several
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
    """Yield (column, old, new) of the fields that have their old name in the files. Fields inside maps are ignored."""
    before, after = dict(_paths(was)), dict(_paths(now))
    for path, kind in before.items():
        if kind == "struct" and after.get(path) == "struct" and "/key" not in path and "/value" not in path:
            for new, old in renamed.items():
                then, there = f"{path}/field {old}", f"{path}/field {new}"
                if then in before and there in after and there not in before:
                    yield column, old, new
