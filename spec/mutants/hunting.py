"""Hunts one mutant: plants the bug, and runs its judge with one seed after the other until the invariant breaks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from time import monotonic

from spec.mutants.judges import Judge
from spec.mutants.known_seeds import KNOWN_SEEDS
from spec.mutants.planting import Mutant, planted
from spec.mutants.registry import MUTANTS

HEALTHY_FAILS = "the untouched core fails with that seed"


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result of a hunt. `seed` is None if the mutant survived.

    `healthy` is True if the unchanged core passes with the same seed.
    """

    name: str
    seed: int | None
    healthy: bool
    seconds: float

    @property
    def passed(self) -> bool:
        """Return True if the bug was found, and the unchanged core broke nothing."""
        return self.seed is not None and self.healthy

    def __str__(self) -> str:
        """Return the line that the command prints."""
        bug = MUTANTS[self.name]
        by = f"seed {self.seed} of the {bug.judge.name}" if self.seed is not None else f"SURVIVED the {bug.judge.name}"
        real = f" ({', '.join(bug.flink)})" if bug.flink else ""
        wrong = "" if self.healthy else f"; {HEALTHY_FAILS}"
        return f"{self.name}{real}: {bug.breaks}, {by}, {self.seconds:.1f} s{wrong}"


def hunt(name: str, seeds_max: int | None = None) -> Hunt:
    """Hunt one mutant, with its known seed first. If `seeds_max` is None, try as many seeds as its judge sets."""
    bug, begun = MUTANTS[name], monotonic()
    with planted(bug):
        found = next((seed for seed in _seeds(bug, seeds_max) if finds(bug, seed)), None)
    healthy = found is None or _core_passes(bug.judge, found)
    return Hunt(name, found, healthy, monotonic() - begun)


def finds(bug: Mutant, seed: int) -> bool:
    """Return True if the seed finds the planted bug, because the named invariant breaks."""
    return bug.breaks in bug.judge.broken(seed)


@cache
def _core_passes(judge: Judge, seed: int) -> bool:
    """Return True if the unchanged core breaks nothing with this seed. It is computed once for all mutants."""
    return not judge.broken(seed)


def _seeds(bug: Mutant, seeds_max: int | None) -> Iterator[int]:
    known: Iterable[int] = (KNOWN_SEEDS[bug.name],) if bug.name in KNOWN_SEEDS else ()
    yield from known
    most = bug.judge.seeds_max if seeds_max is None else min(seeds_max, bug.judge.seeds_max)
    yield from (seed for seed in range(most) if seed not in known)
