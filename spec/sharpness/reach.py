"""Finds out what a trial reaches in the core: which lines it runs, and which slips make a difference to it.

Running all trials takes minutes. So a run with a results file also stores what each trial reaches, in a file beside it.
The next run reads this file, as long as neither the core nor its judges have changed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import process_time
from typing import Any, Final, Self

from coverage import Coverage

from spec.sharpness.differing import Probes
from spec.sharpness.slips import ROOT

_CORE: Final = str(ROOT / "checkpointing" / "*")
_CODE: Final = ("checkpointing/**/*.py", "spec/**/*.py", "tests/unit/**/*.py", "tests/vectors/*.json")
"""The files on which a trial's lines depend."""
Lines = Mapping[str, frozenset[int]]
"""Maps each file, as a path from the root of the project, to some of its lines."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The lines that a trial runs on the unchanged core, and the CPU seconds that it takes.

    `differing` are the slips whose probe has recorded a difference.
    """

    lines: Lines
    seconds: float
    differing: frozenset[str] = frozenset()


def reached_by(trial: Callable[[], object], probes: Probes) -> Reach:
    """Run the trial. Return what it reaches, and the CPU seconds that it took."""
    measured = Coverage(data_file=None, config_file=False, include=[_CORE])
    measured.set_option("run:disable_warnings", ["no-data-collected"])
    began = process_time()
    with probes.planted() as differing, measured.collect():
        trial()
    seconds, found = process_time() - began, measured.get_data()
    lines = {str(Path(file).relative_to(ROOT)): frozenset(found.lines(file) or ()) for file in found.measured_files()}
    return Reach(lines, seconds, frozenset(differing))


class Kept:
    """What trials reach, kept in a file with a line for each trial.

    The first line is a digest of the code that they ran.

    A trial without a Reach fails on the unchanged core.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[str, Reach | None] = {}

    @classmethod
    def of(cls, results: Path | None) -> Self:
        """Return what the file beside these results holds."""
        kept = cls(results.with_suffix(".lines") if results is not None else None)
        kept._read()
        return kept

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> Reach | None:
        return self._known[name]

    def add(self, name: str, reach: Reach | None) -> None:
        """Store what a trial reaches."""
        self._known[name] = reach
        lines = {file: sorted(ran) for file, ran in reach.lines.items()} if reach is not None else None
        seconds, differing = (reach.seconds, sorted(reach.differing)) if reach is not None else (0, [])
        self._write({"trial": name, "seconds": seconds, "lines": lines, "differing": differing})

    def _read(self) -> None:
        code, rows = _code(), list(self._rows())
        if not rows or rows[0] != {"code": code}:
            if self._file is not None:
                self._file.unlink(missing_ok=True)
            self._write({"code": code})
            return
        for row in rows[1:]:
            lines = row["lines"]
            found = {file: frozenset(ran) for file, ran in lines.items()} if lines is not None else None
            differing = frozenset(row["differing"])
            self._known[row["trial"]] = Reach(found, row["seconds"], differing) if found is not None else None

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self._file is not None and self._file.exists():
            yield from map(json.loads, self._file.read_text(encoding="utf-8").splitlines())

    def _write(self, row: object) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _code() -> str:
    """Return a digest of the core and of everything that judges it."""
    found = blake2b()
    for file in sorted(each for pattern in _CODE for each in ROOT.glob(pattern)):
        found.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return found.hexdigest()
