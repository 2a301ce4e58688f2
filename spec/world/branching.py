"""Branches a running job: copies all that can change, and computes a digest that equal states share.

`copy.deepcopy` also copies what never changes, and takes many times as long. The digest leaves out the statistics,
which decide nothing, and the past. So two ways into the same state lead to one state.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TypeVar

from pydantic import BaseModel

from checkpointing.coordinator.statistics import StatisticsTracker
from checkpointing.gate.input_gate import InputGate
from checkpointing.job.drafts import EpochLog
from checkpointing.messages import AppendRow
from checkpointing.metadata.record import CheckpointRecord
from spec.history import History

_T = TypeVar("_T")
_Memo = dict[int, object]
_PLAIN: tuple[type, ...] = (str, int, float, bytes, type(None), frozenset, tuple, range, type, Enum, BaseModel)
_PLAIN += (FunctionType, BuiltinFunctionType, Random)  # nothing is random, because the driver makes every choice
_KNOWN: dict[int, tuple[object, int]] = {}
"""Digests of objects that never change, by identity. Branches share them, and hashing them takes most of the time."""
KNOWN_MAX = 300_000
_HASHED = frozenset({str, int, float, bool, type(None)})
_LEFT_OUT = (StatisticsTracker, EpochLog, History, MethodType, Counter)


def branch(value: _T) -> _T:
    """Return a copy that shares only unchangeable objects with the original. What is one object stays one."""
    return _branch(value, {})  # type: ignore[return-value]


def digest(values: Iterable[object]) -> int:
    """Return a number that equal states share, whatever the order of the values."""
    return hash(frozenset(_digest(value, {}) for value in values))


@cache
def _never_changes(kind: Hashable) -> bool:
    if not isinstance(kind, type):
        raise TypeError(f"{kind!r} is no type")
    frozen = is_dataclass(kind) and bool(getattr(kind, "__dataclass_params__").frozen)  # noqa: B009 - not typed
    return frozen or issubclass(kind, _PLAIN)


@cache
def _fields(kind: Hashable) -> tuple[str, ...]:
    """Return the slots of a type and of its bases. Attributes in `__dict__` come in addition."""
    slots = (getattr(base, "__slots__", ()) for base in getattr(kind, "__mro__", ()))
    return tuple(name for names in slots for name in ((names,) if isinstance(names, str) else names))


# ------------------------------------------------------------------ copying


def _branch(value: object, memo: _Memo) -> object:
    kind: type = type(value)
    if _never_changes(kind):
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    copier = _COPIERS.get(kind, _branch_object)
    return copier(value, memo)


def _branch_object(value: object, memo: _Memo) -> object:
    kind: type = type(value)
    copy: object = object.__new__(kind)
    memo[id(value)] = copy
    for name in _fields(kind):
        if hasattr(value, name):
            object.__setattr__(copy, name, _branch(getattr(value, name), memo))
    for name, attribute in getattr(value, "__dict__", {}).items():
        copy.__dict__[name] = _branch(attribute, memo)
    return copy


def _branch_list(value: list[object], memo: _Memo) -> object:
    copy: list[object] = []
    memo[id(value)] = copy
    copy.extend(_branch(each, memo) for each in value)
    return copy


def _branch_deque(value: deque[object], memo: _Memo) -> object:
    memo[id(value)] = copy = deque((_branch(each, memo) for each in value), value.maxlen)
    return copy


def _branch_dict(value: dict[object, object], memo: _Memo) -> object:
    memo[id(value)] = copy = type(value)()
    for key, each in value.items():
        copy[key] = _branch(each, memo)
    return copy


def _branch_set(value: set[object], memo: _Memo) -> object:
    memo[id(value)] = copy = set(value)
    return copy


def _branch_method(value: MethodType, memo: _Memo) -> object:
    return MethodType(value.__func__, _branch(value.__self__, memo))


_COPIERS: dict[type, Callable[..., object]] = {
    list: _branch_list,
    deque: _branch_deque,
    dict: _branch_dict,
    OrderedDict: _branch_dict,
    Counter: _branch_dict,
    set: _branch_set,
    MethodType: _branch_method,
}

# ------------------------------------------------------------------ digests


def _digest(value: object, seen: _Memo) -> int:
    kind: type = type(value)
    if kind in _HASHED:
        return hash(value)
    digester = _DIGESTERS.get(kind)
    if digester is not None:
        return digester(value, seen)
    if _never_changes(kind):
        return _digest_plain(value, seen)
    if kind in _LEFT_OUT or id(value) in seen:
        return 0
    seen[id(value)] = value
    own = [getattr(value, name, None) for name in _fields(kind)]
    own += getattr(value, "__dict__", {}).values()
    return _digest_all(own, seen)


def _digest_all(values: Iterable[object], seen: _Memo) -> int:
    return hash(tuple([hash(each) if type(each) in _HASHED else _digest(each, seen) for each in values]))


def _digest_dict(value: dict[object, object], seen: _Memo) -> int:
    """Take a plain dict as a mapping. Where order matters, the code uses an OrderedDict."""
    return hash(frozenset([(key, _digest(each, seen)) for key, each in value.items()]))


def _digest_ordered(value: OrderedDict[object, object], seen: _Memo) -> int:
    return hash((tuple(value), _digest_all(value.values(), seen)))


def _digest_gate(value: InputGate, seen: _Memo) -> int:  # noqa: ARG001 - the form of a digester
    """Ask the gate for its canonical state. Inside, places count everything that was ever taken."""
    return hash(value.snapshot())


def _digest_plain(value: object, seen: _Memo) -> int:
    known = _KNOWN.get(id(value))
    if known is not None and known[0] is value:
        return known[1]
    found = _hash(value, seen)
    if len(_KNOWN) > KNOWN_MAX:
        _KNOWN.clear()
    _KNOWN[id(value)] = (value, found)
    return found


def _hash(value: object, seen: _Memo) -> int:
    kind: type = type(value)
    try:
        return hash(value)
    except TypeError:
        parts = value if isinstance(value, tuple) else [getattr(value, name) for name in _fields(kind)]
        return _digest_all(parts, seen)


def _digest_record(value: CheckpointRecord, seen: _Memo) -> int:  # noqa: ARG001 - the form of a digester
    return hash((value.checkpoint, value.parent, value.nonce, value.kind, value.vertices, value.tables))


def _digest_append(value: AppendRow, seen: _Memo) -> int:
    return hash((_digest(value.row, seen), value.at_version, value.subsumed))


_DIGESTERS: dict[type, Callable[..., int]] = {
    CheckpointRecord: _digest_record,
    AppendRow: _digest_append,
    dict: _digest_dict,
    OrderedDict: _digest_ordered,
    InputGate: _digest_gate,
    list: _digest_all,
    deque: _digest_all,
    set: lambda value, _: hash(frozenset(value)),
}
