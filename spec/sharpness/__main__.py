"""Measures how sharp the spec is: `python -m spec.sharpness --sample 1000 --seed 1`.

Draws slips that a maintainer could make in `checkpointing`, plants each in a process of its own, and says which judge
finds it. Ends with the figures of each package, and with every slip that survived all judges. Exit 1 if fewer than
85 % are found by the spec proper (simulator and machines), or fewer than 95 % by all.
"""

import random
import sys
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from spec.extra import must_have_hypothesis

must_have_hypothesis()

from spec.sharpness.core import all_slips
from spec.sharpness.equivalent import EQUIVALENT
from spec.sharpness.judges import OTHERS, SPEC, judged
from spec.sharpness.slips import Slip

BY_SPEC: Final = 0.85
BY_ALL: Final = 0.95


def main(arguments: list[str] | None = None) -> int:
    """Judge the sample that the command line asks for; return 0 if enough of it is found, else 1."""
    parser = ArgumentParser(prog="python -m spec.sharpness", description=__doc__)
    parser.add_argument("--sample", type=int, default=1000, metavar="N", help="how many slips, 1000 by default")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--only", default="", metavar="TEXT", help="only slips whose place contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--survivors", type=Path, metavar="FILE", help="write the slips that nothing found there")
    given = parser.parse_args(arguments)
    counted = [slip for slip in all_slips() if slip.key not in EQUIVALENT and given.only in str(slip)]
    sample = random.Random(given.seed).sample(counted, min(given.sample, len(counted)))  # noqa: S311 - a sample
    finders: dict[Slip, str] = {}
    for slip, finder in found(sample, given.processes):
        finders[slip] = finder
        sys.stderr.write(f"[{len(finders)} of {len(sample)}] {finder or 'SURVIVED'}: {slip}\n")
    lines = list(report(finders))
    sys.stdout.write("\n".join(lines) + "\n")
    if given.survivors is not None:
        alive = [f"{slip}\n" for slip, finder in finders.items() if not finder]
        given.survivors.write_text("".join(alive), encoding="utf-8")
    return 0 if sharp_enough(finders) else 1


def found(sample: Sequence[Slip], processes: int) -> Iterator[tuple[Slip, str]]:
    """Yield each slip with the judge that found it, as they end; each in a fresh copy of this process."""
    with get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_judged, sample)


def _judged(slip: Slip) -> tuple[Slip, str]:
    return slip, judged(slip, {**SPEC, **OTHERS})


def sharp_enough(finders: Mapping[Slip, str]) -> bool:
    """Whether the spec proper, and all judges together, find as much as they should."""
    by_spec = sum(finder in SPEC for finder in finders.values())
    by_all = sum(bool(finder) for finder in finders.values())
    return by_spec >= BY_SPEC * len(finders) and by_all >= BY_ALL * len(finders)


def report(finders: Mapping[Slip, str]) -> Iterator[str]:
    """Yield a table of the packages, the sum last, and the survivors."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for slip, finder in finders.items():
        for row in (".".join(slip.module.split(".")[:2]), "all"):
            counts[row][finder or "survived"] += 1
    names = (*SPEC, *OTHERS, "survived")
    yield f"| package | slips | {' | '.join(names)} | spec proper |"
    yield f"|---|{'---|' * (len(names) + 2)}"
    for row in (*sorted(set(counts) - {"all"}), "all"):
        total, spec = counts[row].total(), sum(counts[row][name] for name in SPEC)
        yield f"| `{row}` | {total} | {' | '.join(str(counts[row][name]) for name in names)} | {spec / total:.0%} |"
    yield from (f"survived: {slip}" for slip, finder in finders.items() if not finder)


if __name__ == "__main__":
    raise SystemExit(main())
