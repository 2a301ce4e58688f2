"""Runs many seeds of the simulator: `python -m spec.simulate --seeds 0:200`.

It shows progress, prints the transcript of the first seeds that fail, counts the seeds that met each rare move, and
ends with `N passed, N failed`. A seed decides its run completely: `--seeds 1234:1235 --transcript` repeats it.
"""

import gc
import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, Final

from spec.rare import RARE, judged_and_met
from spec.rules.invariants import Violation
from spec.world.draw import NO_MOVES, Moves, crowd, drawn
from spec.world.simulator import Outcome, simulate

TRANSCRIPTS_MAX = 3
LINES_MAX = 120
WIDTH_MAX = 240
BAR_WIDTH = 40
SEEDS_A_PROCESS = 50
"""With fewer seeds than this, another process costs more time than it saves."""
GARBAGE_MAX: Final = 200_000
"""How many objects are made between two garbage collections.

A seed leaves no cycles, and the search takes a tenth of the time.
"""
MOVES: Final = {
    each.name: type(value) for each in fields(Moves) if isinstance(value := getattr(NO_MOVES, each.name), int)
}
"""The moves that a flag forces, each with its type."""
Result = tuple[int, tuple[Violation, ...], frozenset[str]]
"""A seed, the violations, and the rare moves that occurred."""
RunAll = Callable[[Callable[[int], Result], Iterable[int]], Iterable[Result]]


def run_seed(seed: int, *, crowded: bool = False, **forced: Any) -> Result:  # noqa: ANN401 - fields of Moves
    """Run one seed. Return its violations and its rare moves."""
    outcome, met = judged_and_met(seed, _moves(seed, forced, crowded=crowded))
    return seed, outcome.violations, frozenset(met)


def transcript(seed: int, *, crowded: bool = False, **forced: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    """Yield the transcript of a seed: its scenario, every fact and effect in virtual time, and the violations."""
    lines: list[str] = []
    outcome = simulate(seed, lines.append, _moves(seed, forced, crowded=crowded))
    yield f"seed {seed}: {outcome.scenario} {outcome.moves}"
    yield from (line if len(line) <= WIDTH_MAX else f"{line[:WIDTH_MAX]}..." for line in lines)
    yield from _verdict(outcome)


def _moves(seed: int, forced: Mapping[str, Any], *, crowded: bool) -> Moves:
    """Return the moves of a seed. A move that the caller names overrides what the crowd forces."""
    return drawn(seed, **{**(crowd(seed) if crowded else {}), **forced})


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds that the command line names. Return 0 if all of them passed, else 1."""
    options = _options(arguments)
    first, last = options.seeds
    failed: list[int] = []
    met: Counter[str] = Counter()
    forced = {name: value for name, value in vars(options).items() if name in MOVES and value is not None}
    gc.set_threshold(GARBAGE_MAX)  # processes that are forked later have both
    gc.freeze()
    with _pool(options.processes or _processes(last - first)) as run_all:
        run = partial(run_seed, crowded=options.crowd, **forced)
        for done, (seed, broken, moves) in enumerate(run_all(run, range(first, last)), start=1):
            met.update(moves)
            if broken:
                failed.append(seed)
                _say(f"\nseed {seed} failed: {'; '.join(map(str, broken))}")
            _progress(done, last - first, len(failed))
    for seed in range(first, last) if options.transcript else failed[:TRANSCRIPTS_MAX]:
        lines = list(transcript(seed, crowded=options.crowd, **forced))
        shown = lines if options.transcript else [lines[0], *lines[1:][-LINES_MAX:]]
        _say("\n" + "\n".join(shown))
    _say("\nseeds that met each rare move:")
    for name in sorted(RARE, key=lambda each: (met[each], each)):
        _say(f"{met[name]:>8}  {name}")
    _say(f"\n{last - first - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m spec.simulate", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=(0, 200), help="FIRST:LAST, LAST not included")
    parser.add_argument("--processes", type=int, help="how many seeds run at a time; by default as the cores allow")
    parser.add_argument("--transcript", action="store_true", help="print the whole story of every seed")
    moves = parser.add_argument_group("moves", "what every seed has, instead of what it draws")
    moves.add_argument("--crowd", action="store_true", help="force two to twelve moves on each seed")
    for name, kind in MOVES.items():
        flag = f"--{name.removesuffix('_max')}"
        if kind is bool:
            moves.add_argument(flag, dest=name, action=BooleanOptionalAction)
        else:
            moves.add_argument(flag, dest=name, type=kind, metavar="MOST")
    return parser.parse_args(arguments)


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return (int(first), int(last)) if last else (int(first), int(first) + 1)


def _processes(seeds: int) -> int:
    return max(1, min(os.cpu_count() or 1, seeds // SEEDS_A_PROCESS))


@contextmanager
def _pool(processes: int) -> Iterator[RunAll]:
    if processes == 1:
        yield map
        return
    with ProcessPoolExecutor(processes) as pool:
        yield lambda run, seeds: pool.map(run, seeds, chunksize=10)


def _verdict(outcome: Outcome) -> Iterable[str]:
    return [f"broken: {violation}" for violation in outcome.violations] or ["nothing is broken"]


def _progress(done: int, total: int, failed: int) -> None:
    step = max(1, total // 200)
    if not sys.stderr.isatty() or (done % step and done < total):
        return
    filled = BAR_WIDTH * done // total
    bar = "#" * filled + "." * (BAR_WIDTH - filled)
    sys.stderr.write(f"\r[{bar}] {done} of {total} seeds, {failed} failed")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
