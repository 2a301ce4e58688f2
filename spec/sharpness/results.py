"""Keeps who found each slip, in a file that a later run goes on with."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from spec.sharpness.judges import SPEC, Trial
from spec.sharpness.slips import Slip


@dataclass(frozen=True, slots=True)
class Result:
    """Who found a slip, and in which trial; nobody, if it survived.

    `applies`: some seed or machine runs the slip's lines. The spec proper cannot find another slip.
    """

    judge: str
    trial: str = ""
    applies: bool = True

    @classmethod
    def of(cls, found: Trial | None, *, applies: bool) -> "Result":
        """Return the result of a slip that this trial has found, or none."""
        return cls(found.judge, found.name, applies) if found is not None else cls("", "", applies)

    @property
    def escapes(self) -> bool:
        """True if the spec proper runs the slip's lines, and does not find it."""
        return self.applies and self.judge not in SPEC

    def __str__(self) -> str:
        """Return who found it."""
        return f"{self.judge}, {self.trial}" if self.judge else "SURVIVED"


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
                self._known[slip] = Result(**row)

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
        return Counter(str(result) for result in self._known.values())
