"""Decides whether old state still has the meaning that the pipeline gives its columns now (D6).

Names and types do not distinguish a count from a maximum. So for every state column each checkpoint records the
function that computed it, the input columns of the function, and a version. A restore compares them before anything
runs. Flink leaves this to the user: it compares only serializers, so a changed function goes on with old state.

Nobody can know what a user's own function computes. The function may declare `state_version`. Without it, only its
columns are compared. Expressions and filters before the operator are not compared either. If such a change affects what
the state holds, give the operator's input column another name, or raise the version.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from checkpointing.state_evolution import Change, ChangeKind

NOT_RECORDED: Final = "not recorded"
"""Shown for a column whose checkpoint does not record its meaning."""

PROCESS: Final = "process"
"""The function of state that a user's own keyed function writes."""

BROADCAST: Final = "newest_broadcast_rows"
"""The function of broadcast state, which keeps the row of each key with the greatest value of a column."""

_START_ANEW: Final = (
    "or give the operator another id and start it without state (--allow-non-restored-state; 'tidemark reset' then "
    "reads earlier rows again), or fill an empty warehouse (--warehouse EMPTY_FOLDER)"
)


@dataclass(frozen=True, slots=True)
class Argument:
    """An input column from which a state column is computed. `type` is written as in SQL and only shown."""

    column: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMeaning:
    """How a state column was computed. `version` is None if a user's function declares none."""

    column: str
    function: str
    arguments: tuple[Argument, ...] = ()
    version: int | None = 1

    def __str__(self) -> str:
        """Return the meaning as a user reads it: `max(v bigint)`, `process() version 2`, `session("30m") by at`."""
        if self.called:
            first, *others = (one.column for one in self.arguments)
            return " by ".join([f"{self._kind}, {as_written(first)}" if self._kind else as_written(first), *others])
        arguments = ", ".join(f"{one.column} {one.type}" for one in self.arguments)
        shows_version = self.version is not None and (self.version > 1 or self.function == PROCESS)
        version = f" version {self.version}" if shows_version else ""
        return f"{self.function}({arguments}){version}"

    @property
    def called(self) -> str:
        """The user's word for the column if its meaning defines windows or a join. Otherwise ''."""
        first = self.arguments[0].column if self.arguments else ""
        if self.function in _OF_WINDOWS:
            return "the window" if as_written(first) != first else ""
        return "the join" if first and self._kind else ""

    @property
    def _kind(self) -> str:
        """The type of the join in time, such as `inner`, or ''."""
        return self.function.removesuffix(_OF_JOIN) if self.function.endswith(_OF_JOIN) else ""


_OF_WINDOWS: Final = frozenset({"windows", "first_until_it_closes"})
_OF_JOIN: Final = "_join_in_time"
_SESSION: Final = re.compile(r"session (\d+) ms")
_PERIODIC: Final = re.compile(r"(tumbling|hopping|cumulative) (\d+) ms every (\d+) ms from (\d+) ms (\S+)")
_RANGE: Final = re.compile(r"within (-?\d+) (-?\d+)")
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def as_written(meaning: str) -> str:
    """Return recorded windows, or the recorded range of a join, as a pipeline writes them: `session("30m")`."""
    if found := _SESSION.fullmatch(meaning):
        return f"session({_duration(found[1])})"
    if found := _RANGE.fullmatch(meaning):
        return f"within=({_duration(found[1])}, {_duration(found[2])})"
    if found := _PERIODIC.fullmatch(meaning):
        kind, size, step, offset, zone = found.groups()
        every = [] if kind == "tumbling" else [f"every={_duration(step)}"]
        begins = [] if offset == "0" else [f"offset={_duration(offset)}"]
        where = [] if zone == "UTC" else [f'tz="{zone}"']
        return f"{kind}({', '.join([_duration(size), *every, *begins, *where])})"
    return meaning


def _duration(ms: str) -> str:
    unit, of = next((unit, of) for unit, of in _UNITS if not int(ms) % of)
    return f'"{int(ms) // of}{unit}"'


def meaning_changes(
    thing: str, was: Sequence[ColumnMeaning] | None, now: Iterable[ColumnMeaning], held: Collection[str]
) -> tuple[Change, ...]:
    """Return how the meanings of state columns changed, in the order of the new columns.

    `held` are the columns that the state's files have. A column that no file has is new. It begins empty, so its
    meaning is not compared. If a meaning was not recorded (`was` is None, or does not have the column), the present
    meaning is assumed.
    """
    before = {meaning.column: meaning for meaning in was or ()}
    return tuple(
        change
        for meaning in now
        if meaning.column in held
        for change in _of_column(thing, before.get(meaning.column), meaning)
    )


def under_new_names(was: Sequence[ColumnMeaning] | None, then: Mapping[str, str]) -> tuple[ColumnMeaning, ...] | None:
    """Return recorded meanings under the columns' new names. `then` maps new names to the old names in the files.

    A checkpoint can record both names, if it was taken before any range was written again. The files have the old name.
    """
    if was is None:
        return None
    now, known = {old: new for new, old in then.items()}, {meaning.column for meaning in was}
    kept = (meaning for meaning in was if then.get(meaning.column) not in known)
    return tuple(replace(meaning, column=now.get(meaning.column, meaning.column)) for meaning in kept)


def renaming_of(was: Sequence[ColumnMeaning] | None, now: Iterable[ColumnMeaning], old: str, new: str) -> str | None:
    """Return what a user writes to rename state column `old` to `new`, or None if `new` has another meaning."""
    before = next((one for one in was or () if one.column == old), None)
    after = next((one for one in now if one.column == new), None)
    if after is None or (before is not None and replace(before, column=new) != after):
        return None
    return f"columns_renamed_from={{{new!r}: {old!r}}}" if after.function == PROCESS else f"renamed_from={old!r}"


def still_held(
    was: Sequence[ColumnMeaning] | None, now: Sequence[ColumnMeaning], held: Collection[str]
) -> tuple[ColumnMeaning, ...]:
    """Return the meanings to record in the next checkpoint: the present ones, and those of dropped columns in files.

    State files keep a dropped column until their range is written again. If the column comes back before that, its old
    values are read again. So their meaning must still be known.
    """
    declared = {meaning.column for meaning in now}
    return (*now, *(one for one in was or () if one.column in held and one.column not in declared))


def _of_column(thing: str, was: ColumnMeaning | None, now: ColumnMeaning) -> Iterator[Change]:
    if was == now:
        return
    refused = "" if was is None else _refusal(was, now)
    becomes = "taken as it is: its checkpoint is of an older format" if was is None else "old values serve as they are"
    yield Change(
        kind=ChangeKind.STATE_MEANING,
        thing=thing,
        column=now.column,
        was=NOT_RECORDED if was is None else str(was),
        now=str(now),
        becomes="" if refused else becomes,
        refused=refused,
        called=now.called,
    )


def _refusal(was: ColumnMeaning, now: ColumnMeaning) -> str:
    if was.function != now.function or _columns(was) != _columns(now):
        renamed = "or give the new column another name, which begins with the next row, "
        ours = now.column.startswith("_")  # the user does not name it, as the time at which a join is due
        return f"its old values cannot become that; keep {was}, {'' if ours else renamed}{_START_ANEW}"
    if was.version is not None and was.version != now.version:
        declares = "declares no state_version now" if now.version is None else f"declares state_version {now.version}"
        return (
            f"state of version {was.version} is there and the function {declares}; go back to version {was.version}, "
            f"{_START_ANEW}"
        )
    return ""


def _columns(meaning: ColumnMeaning) -> tuple[str, ...]:
    return tuple(argument.column for argument in meaning.arguments)
