"""Computes a number that equal states of a door share. Statistics decide nothing, so they are left out."""

from collections import OrderedDict, deque
from contextlib import suppress
from types import FunctionType, MethodType

from checkpointing.coordinator.statistics import StatisticsTracker


def digest(values):
    """Return a number that equal states share, whatever the order of the values."""
    return hash(frozenset(_of(value, {}) for value in values))


def _of(value, seen):
    kind = type(value)
    if isinstance(value, StatisticsTracker | MethodType | FunctionType) or id(value) in seen:
        return 0
    if isinstance(value, dict):
        items = [(key, _of(each, seen)) for key, each in value.items()]
        return hash(tuple(items) if isinstance(value, OrderedDict) else frozenset(items))
    if isinstance(value, list | tuple | deque | set | frozenset):
        parts = [_of(each, seen) for each in value]
        return hash(frozenset(parts) if isinstance(value, set | frozenset) else tuple(parts))
    if kind.__hash__ not in (None, object.__hash__):
        with suppress(TypeError):  # something inside cannot be hashed
            return hash(value)
    seen[id(value)] = value
    slots = (getattr(base, "__slots__", ()) for base in kind.__mro__)
    names = [name for own in slots for name in ((own,) if isinstance(own, str) else own)]
    own = [getattr(value, name, None) for name in names] + [*getattr(value, "__dict__", {}).values()]
    return hash(tuple(_of(each, seen) for each in own))
