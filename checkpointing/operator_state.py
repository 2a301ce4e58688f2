"""Redistribution of operator state: SPLIT, UNION, BROADCAST (Flink: `RoundRobinOperatorStateRepartitioner`)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby


class DistributionMode(Enum):
    """How a restore distributes the elements of a named operator state."""

    SPLIT = "SPLIT"
    """Each element goes to exactly one subtask. At the same parallelism nothing moves."""
    UNION = "UNION"
    """Every subtask gets all elements, also at the same parallelism."""
    BROADCAST = "BROADCAST"
    """All old subtasks hold the same elements. Each new one gets one whole copy."""


@dataclass(frozen=True, slots=True)
class OperatorStatePart:
    """Elements of one named state in one old subtask's file. An offset is the place where an element begins."""

    name: str
    mode: DistributionMode
    old_subtask: int
    offsets: tuple[int, ...]


class InvalidRescaleError(ValueError):
    """The parallelism is below one, or a part names a subtask that did not exist."""


def redistribute_operator_state(
    parts: Sequence[OperatorStatePart], old_parallelism: int, new_parallelism: int
) -> tuple[tuple[OperatorStatePart, ...], ...]:
    """Return the parts for each new subtask. SPLIT states are distributed in the order in which they are given.

    A broadcast state is taken from the old subtasks that have it. One that had finished, or that is empty, is skipped.
    No element of a SPLIT or UNION state is lost. If the parallelism changes, the numbers of SPLIT elements of two new
    subtasks differ by at most one, over all states. Raises InvalidRescaleError.
    """
    _check(parts, old_parallelism, new_parallelism)
    new: list[list[OperatorStatePart]] = [[] for _ in range(new_parallelism)]
    split = [part for part in parts if part.mode is DistributionMode.SPLIT]
    if old_parallelism == new_parallelism:
        for part in split:
            new[part.old_subtask].append(part)
    else:
        _split(split, new)
    union = [part for part in parts if part.mode is DistributionMode.UNION]
    broadcast = [part for part in parts if part.mode is DistributionMode.BROADCAST and part.offsets]
    holders = tuple(_by_name(broadcast).values())
    for subtask, got in enumerate(new):
        got.extend(union)
        got.extend(copies[subtask % len(copies)] for copies in holders)
    return tuple(tuple(got) for got in new)


def _check(parts: Sequence[OperatorStatePart], old_parallelism: int, new_parallelism: int) -> None:
    if old_parallelism < 1 or new_parallelism < 1:
        raise InvalidRescaleError(f"from parallelism {old_parallelism} to {new_parallelism}: both must be at least 1")
    for part in parts:
        if not 0 <= part.old_subtask < old_parallelism:
            raise InvalidRescaleError(
                f"state {part.name!r} of subtask {part.old_subtask}: the checkpoint had {old_parallelism} subtasks"
            )


def _by_name(parts: Iterable[OperatorStatePart]) -> dict[str, list[OperatorStatePart]]:
    named: dict[str, list[OperatorStatePart]] = {}
    for part in parts:
        named.setdefault(part.name, []).append(part)
    return {name: sorted(of_name, key=lambda part: part.old_subtask) for name, of_name in named.items()}


def _split(parts: list[OperatorStatePart], new: list[list[OperatorStatePart]]) -> None:
    """Distribute the elements in turn.

    Each state starts at the first subtask to which the last state gave one element less.
    """
    start = 0
    for of_name in _by_name(parts).values():
        elements = [(part, offset) for part in of_name for offset in part.offsets]
        base, rest = divmod(len(elements), len(new))
        taken = 0
        for turn in range(len(new)):
            count = base + 1 if turn < rest else base
            subtask = (start + turn) % len(new)
            new[subtask].extend(_merged(elements[taken : taken + count]))
            taken += count
        start = (start + rest) % len(new)


def _merged(elements: list[tuple[OperatorStatePart, int]]) -> Iterator[OperatorStatePart]:
    """Yield one part for each old subtask, with its elements in order."""
    for _, of_subtask in groupby(elements, key=lambda element: element[0].old_subtask):
        taken = list(of_subtask)
        yield replace(taken[0][0], offsets=tuple(offset for _, offset in taken))
