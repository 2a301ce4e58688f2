"""Keeps who found each slip, in a file that a later run goes on with."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from spec.sharpness.judges import SIMULATOR, SPEC, Found
from spec.sharpness.slips import Slip


@dataclass(frozen=True, slots=True)
class Result:
    """Who found a slip.

    `applies`: some seed, machine or world runs the slip's lines. The spec proper cannot find another slip. `stopped`:
    the CPU bound came before all trials had run.
    """

    found: tuple[str, ...]
    """The trials that found it. Of the simulator's seeds, only the first."""
    applies: bool = True
    stopped: bool = False

    @classmethod
    def of(cls, found: Found, *, applies: bool) -> "Result":
        """Return the result of a slip that these trials have found."""
        return cls(tuple(map(str, found.trials)), applies, found.stopped)

    @property
    def judges(self) -> frozenset[str]:
        """The judges that found it."""
        return frozenset(each.partition(",")[0] for each in self.found)

    @property
    def finders(self) -> frozenset[str]:
        """The trials that found it. The simulator counts as one."""
        return frozenset(SIMULATOR if each.startswith(f"{SIMULATOR},") else each for each in self.found)

    @property
    def is_found_by_spec(self) -> bool:
        """True if the spec proper found it."""
        return not self.judges.isdisjoint(SPEC)

    @property
    def escapes(self) -> bool:
        """True if the spec proper runs the slip's lines, and does not find it."""
        return self.applies and not self.is_found_by_spec

    def __str__(self) -> str:
        """Return who found it."""
        return "; ".join(self.found) or "SURVIVED"


class Results:
    """The results by slip. Without a file, they are kept for this run only."""

    def __init__(self, file: Path | None) -> None:
        """Read what an earlier run has written."""
        self._file = file
        self._known: dict[str, Result] = {}
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                slip = row.pop("slip")
                self._known[slip] = Result(**row | {"found": tuple(row["found"])})

    def of(self, slips: list[Slip]) -> dict[Slip, Result]:
        """Return the results of these slips, as far as they are known."""
        return {slip: self._known[slip.identity] for slip in slips if slip.identity in self._known}

    def add(self, slip: Slip, result: Result) -> None:
        """Keep a result."""
        self._known[slip.identity] = result
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"slip": slip.identity, **asdict(result)}) + "\n")

    def finds(self) -> Mapping[str, int]:
        """Return how many slips each trial has found."""
        return Counter(trial for result in self._known.values() for trial in result.found)
