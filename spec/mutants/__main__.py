"""Runs all mutants: `python -m spec.mutants [--only NAME] [--seeds N]`. Every one must be found.

A mutant passes if a seed breaks the invariant that it names, and if the unchanged core breaks none with the same seed.
The command ends with `N passed, N failed`, and with exit code 1 if any failed. After a change of what seeds mean,
`--find` prints the seeds for `known_seeds`.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TextIO

from spec.extra import must_have_hypothesis

must_have_hypothesis()

from spec.mutants.hunting import Hunt, hunt
from spec.mutants.registry import MUTANTS


def main(arguments: list[str] | None = None) -> int:
    """Hunt the mutants that the command line names. Return 0 if all were found, else 1."""
    options = _options(arguments)
    names = [name for name in MUTANTS if options.only.replace("_", " ") in name]
    hunts: dict[str, Hunt] = {}
    for done in _hunted(names, options):
        hunts[done.name] = done
        _say(sys.stderr, f"[{len(hunts)} of {len(names)}] {done}")
    if options.find:
        for name in names:
            if hunts[name].seed is not None:
                _say(sys.stdout, f'    "{name}": {hunts[name].seed},')
    else:
        for name in names:
            _say(sys.stdout, f"{'found   ' if hunts[name].passed else 'FAILED  '}{hunts[name]}")
    failed = sum(not each.passed for each in hunts.values())
    _say(sys.stderr if options.find else sys.stdout, f"{len(hunts) - failed} passed, {failed} failed")
    return 1 if failed or not hunts else 0


def _options(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m spec.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="only mutants whose name contains this")
    parser.add_argument("--seeds", type=int, default=None, metavar="N", help="search at most N seeds for each")
    parser.add_argument("--processes", type=int, default=2, help="how many mutants are hunted at a time")
    parser.add_argument("--find", action="store_true", help="print the seeds for known_seeds")
    return parser.parse_args(arguments)


def _hunted(names: list[str], options: Namespace) -> Iterator[Hunt]:
    """Yield the hunts as they end. Each mutant runs in a process in which no other mutant is planted."""
    if options.processes == 1:
        yield from (hunt(name, options.seeds) for name in names)
        return
    with ProcessPoolExecutor(options.processes) as pool:
        hunts: Iterable[Hunt] = (
            future.result() for future in as_completed([pool.submit(hunt, name, options.seeds) for name in names])
        )
        yield from hunts


def _say(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()


if __name__ == "__main__":
    raise SystemExit(main())
