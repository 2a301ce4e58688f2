"""Draws moves that a seed must have, so that many occur together: `python -m spec.simulate --crowd`.

Most seeds lack most moves, so few seeds have two rare ones. A crowd forces two to twelve moves on each seed. The seed
draws all other moves as usual. Run the command for a night, with seeds that nobody has run yet.
"""

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from spec.mishaps import Mishaps

FORCED: Final[Mapping[str, tuple[Any, ...]]] = {
    "savepoints_max": (2, 4),
    "rollbacks_max": (2, 4),
    "resets_max": (1, 2),
    "imports": (True,),
    "savepoints_at_rest_max": (1, 3),
    "clean_ups_max": (1, 3),
    "readers_max": (5, 8),
    "arrivals_max": (3,),
    "releases": (True,),
    "splits": (True,),
    "vertices": (True,),
    "leases": (True,),
    "clocks_jump": (True,),
    "long": (True,),
    "lists_lag": (True,),
    "stores_fail": (True,),
    "older_formats": (True,),
    "manifests": (True,),
    "limits": (True,),
    "hooks": (True,),
    "restarts": (True,),
    "declines": (True,),
    "rejects": (True,),
    "held_bytes_max": (1, None),
    "backs_up": (True,),
    "stops": (True,),
    "dries_up": (True,),
    "rests": (True,),
    "polls_fail": (True,),
    "sources_end": (1, 2),
    "reopens": (True,),
    "parts": (True,),
    "mishaps": (Mishaps(1, 2), Mishaps(1, 3), Mishaps(2, 2)),
    "pause_ms": (40, 150),
    "transaction_rows": (3, 5),
    "cuts": (True,),
    "outside": (True,),
    "votes": (True,),
    "compacts": (2, 3),
    "broadcasts": (True,),
    "holds": (True,),
    "overwrites": (True,),
    "orders_max": (6,),
}
"""The moves that a crowd may force, each with its values."""
_OFTEN: Final = frozenset({"stores_fail", "lists_lag", "leases", "restarts", "mishaps", "clocks_jump"})
"""A crowd chooses these moves more often. With them, a process often sees something else than what the stores hold.
Most real bugs needed one of them."""
_WEIGHTS: Final = {name: 3.0 if name in _OFTEN else 0.15 if name == "long" else 1.0 for name in FORCED}
"""How likely a crowd is to choose a move, compared with the others. Long runs are chosen seldom, as they take long."""


def crowd(seed: int) -> dict[str, Any]:
    """Return the moves that are forced on a seed: two to twelve, each with its value."""
    random = Random(f"crowd of {seed}")  # noqa: S311 - a run must be repeatable
    most = random.choice([2, 3, 4, 5, 6, 8, 12])
    names: set[str] = set()
    while len(names) < most:
        names.update(random.choices(list(FORCED), list(_WEIGHTS.values())))
    return {name: random.choice(FORCED[name]) for name in sorted(names)}
