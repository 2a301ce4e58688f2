"""Measures how sharp the spec is: `python -m spec.sharpness --sample 1000 --seed 1 --results FILE`.

Draws slips that a maintainer could make in `checkpointing`. Plants each in a process of its own, and says which judge
finds it. Ends with the figures of each package, and with every slip that survived all judges. Exits with 1 if fewer
than 85 % are found by the spec proper (simulator and machines), or fewer than 95 % by all judges. Writes each result to
FILE at once. A later run with the same FILE goes on after the slips that are in it.
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Final

from spec.extra import must_have_hypothesis

must_have_hypothesis()

from spec.sharpness.core import all_slips, lines_of
from spec.sharpness.equivalent import EQUIVALENT
from spec.sharpness.judges import JUDGES, SPEC, UNIT_TESTS, Trial, judged, reach, rooms, trials, unit_tests
from spec.sharpness.reach import Lines
from spec.sharpness.slips import Slip

BY_SPEC: Final = 0.85
BY_ALL: Final = 0.95


def main(arguments: list[str] | None = None) -> int:
    """Judge the sample that the command line asks for. Return 0 if the judges find enough of it, else 1."""
    given = _options(arguments)
    counted = [slip for slip in all_slips() if slip.key not in EQUIVALENT and given.only in str(slip)]
    sample = sorted(counted, key=lambda slip: _lot(given.seed, slip))[: given.sample]
    known = _read(given.results)
    finders = {slip: known[slip.identity] for slip in sample if slip.identity in known}
    waiting = [slip for slip in sample if slip not in finders][: given.portion]
    for slip, trial in found(waiting, given.processes):
        finders[slip] = trial.judge if trial is not None else ""
        sys.stderr.write(f"[{len(finders)} of {len(sample)}] {trial or 'SURVIVED'}: {slip}\n")
        _write(given.results, slip, trial)
    sys.stdout.write("\n".join(report(finders)) + "\n")
    return 0 if sharp_enough(finders) else 1


def _lot(seed: int, slip: Slip) -> bytes:
    """Return the slip's place in the sample's order.

    It depends on this slip alone, so a change of the core moves no other.
    """
    return blake2b(f"{seed} {slip.identity}".encode()).digest()


def _options(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m spec.sharpness", description=__doc__)
    parser.add_argument("--sample", type=int, default=1000, metavar="N", help="how many slips, 1000 by default")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--only", default="", metavar="TEXT", help="only slips whose place contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, metavar="FILE", help="write each result there, and go on after those")
    parser.add_argument("--portion", type=int, metavar="N", help="judge so many slips now; 0 only reports")
    return parser.parse_args(arguments)


def found(slips: Sequence[Slip], processes: int) -> Iterator[tuple[Slip, Trial | None]]:
    """Yield each slip with the trial that found it, as soon as it is known.

    Each slip gets a fresh copy of this process.
    """
    if not slips:
        return
    with get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        reached = dict(_reached(pool, (*trials(), *rooms())))
        yield from pool.imap_unordered(_judged, ((slip, tuple(_worth_trying(slip, reached))) for slip in slips))


def _reached(pool: Pool, tried: Sequence[Trial]) -> Iterator[tuple[Trial, Lines]]:
    """Yield the lines that each trial runs.

    Raise AssertionError if the spec or a vector fails on the unchanged core.
    """
    for trial, lines in zip(tried, pool.imap(reach, tried), strict=True):
        if lines is not None:
            yield trial, lines
        elif trial.judge == UNIT_TESTS:
            sys.stderr.write(f"left out, since they fail on the core as it is: {trial}\n")
        else:
            raise AssertionError(f"{trial} finds the core wrong as it is")


def _worth_trying(slip: Slip, reached: Mapping[Trial, Lines]) -> Iterator[Trial]:
    """Yield the trials that run what the slip changes. The unit tests are a single trial, and come last."""
    file, lines = lines_of(slip)
    worth = [trial for trial, ran in reached.items() if lines & ran.get(file, frozenset())]
    yield from (trial for trial in worth if trial.judge != UNIT_TESTS)
    names = [trial.name for trial in worth if trial.judge == UNIT_TESTS]
    if names:
        yield unit_tests(slip, names)


def _judged(task: tuple[Slip, Sequence[Trial]]) -> tuple[Slip, Trial | None]:
    slip, tried = task
    return slip, judged(slip, tried)


def _read(results: Path | None) -> Mapping[str, str]:
    """Return the judge that found each slip, by the slip's identity. A slip that survived has no judge."""
    if results is None or not results.exists():
        return {}
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {row["slip"]: row["judge"] for row in rows}


def _write(results: Path | None, slip: Slip, trial: Trial | None) -> None:
    if results is not None:
        judge, name = (trial.judge, trial.name) if trial is not None else ("", "")
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"slip": slip.identity, "judge": judge, "trial": name}) + "\n")


def sharp_enough(finders: Mapping[Slip, str]) -> bool:
    """Return True if the spec proper and all judges together find as many slips as they should."""
    by_spec = sum(finder in SPEC for finder in finders.values())
    by_all = sum(bool(finder) for finder in finders.values())
    return by_spec >= BY_SPEC * len(finders) and by_all >= BY_ALL * len(finders)


def report(finders: Mapping[Slip, str]) -> Iterator[str]:
    """Yield a table of the packages with their sum at the end, then the slips that survived."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for slip, finder in finders.items():
        for row in (".".join(slip.module.split(".")[:2]), "all"):
            counts[row][finder or "survived"] += 1
    names = (*JUDGES, "survived")
    yield f"| package | slips | {' | '.join(names)} | spec proper | all judges |"
    yield f"|---|{'---|' * (len(names) + 3)}"
    for row in (*sorted(set(counts) - {"all"}), "all"):
        total, spec = counts[row].total(), sum(counts[row][name] for name in SPEC)
        shares = f"{spec / max(1, total):.0%} | {1 - counts[row]['survived'] / max(1, total):.0%}"
        yield f"| `{row}` | {total} | {' | '.join(str(counts[row][name]) for name in names)} | {shares} |"
    yield from (f"survived: {slip}" for slip, finder in finders.items() if not finder)


if __name__ == "__main__":
    raise SystemExit(main())
