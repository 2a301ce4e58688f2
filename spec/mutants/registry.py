"""All mutants by name, in the order of their rooms."""

from typing import Final

from spec.mutants import (
    barriers,
    cleaning,
    columns,
    committing,
    contents,
    coordinating,
    declining,
    descriptions,
    flowing,
    gates,
    holding,
    hooks,
    judging,
    keeping,
    letting_in,
    living,
    measuring,
    mishaps,
    names,
    needing,
    nonces,
    outside,
    positions,
    publishing,
    reservations,
    resets,
    rollbacks,
    savepoints,
    shapes,
    stops,
)
from spec.mutants.planting import Mutant

_ROOMS = (
    contents,
    descriptions,
    barriers,
    gates,
    flowing,
    coordinating,
    committing,
    holding,
    keeping,
    cleaning,
    living,
    savepoints,
    stops,
    rollbacks,
    resets,
    columns,
    names,
    shapes,
    mishaps,
    hooks,
    judging,
    declining,
    letting_in,
    positions,
    publishing,
    outside,
    measuring,
    reservations,
    needing,
    nonces,
)

MUTANTS: Final[dict[str, Mutant]] = {
    bug.name: bug for room in _ROOMS for bug in vars(room).values() if isinstance(bug, Mutant)
}
