"""The invariants of what passes between a door and its driver."""

from collections.abc import Iterator
from typing import Final

from spec.at_one_cut import Announced
from spec.changes_said import ChangesSaid
from spec.compacting_begins import CompactsAgain, CompactsFirst
from spec.credit import Credit
from spec.ending_soon import EndsSoon
from spec.failing_splits import FailingSplits
from spec.giving_way import GivesWay
from spec.going_on import GoesOn
from spec.history import History
from spec.in_time import AtRest, HooksInTime, Wakes
from spec.inputs_end import InputsEnd
from spec.measured import Measured
from spec.pacing import Pacing
from spec.panel import watch
from spec.pauses import Pauses
from spec.timing import TooEarly, TooLate
from spec.waited_for import WaitsForSavepoints
from spec.watching import DoorJudge
from spec.whole_slices import WholeSlices
from spec.whys import Whys

DOOR_JUDGES: Final[dict[str, type[DoorJudge]]] = {
    "credit": Credit,
    "splits-fail-alone": FailingSplits,
    "paced": Pacing,
    "slices-whole": WholeSlices,
    "not-too-early": TooEarly,
    "not-too-late": TooLate,
    "measured": Measured,
    "cut-announced": Announced,
    "gives-way": GivesWay,
    "checkpoints-go-on": GoesOn,
    "inputs-end": InputsEnd,
    "savepoints-waited-for": WaitsForSavepoints,
    "ends-soon": EndsSoon,
    "pauses": Pauses,
    "changes-said": ChangesSaid,
    "compacts-first": CompactsFirst,
    "compacts-again": CompactsAgain,
    "hooks-in-time": HooksInTime,
    "wakes-in-time": Wakes,
    "at-rest": AtRest,
    "said-why": Whys,
}
"""The judge of each invariant, by the invariant's id."""


def badly_driven(history: History, name: str) -> Iterator[str]:
    """Yield what this judge finds wrong in the steps of any door."""
    steps = sum(map(len, history.steps.values()))
    if history.found_at_doors[0] != steps:
        found: dict[str, list[str]] = {name: [] for name in DOOR_JUDGES}
        for generation, taken in history.steps.items():
            for judge, by in zip(watch(taken, DOOR_JUDGES.values()), DOOR_JUDGES, strict=False):
                found[by] += (f"generation {generation}: {what}" for what in judge.found)
        history.found_at_doors = (steps, found)
    yield from history.found_at_doors[1].get(name, ())
