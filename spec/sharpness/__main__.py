"""Measures how sharp the judges are: `python -m spec.sharpness --sample 1000 --seed 1 --results FILE`.

Draws slips that a maintainer could make in `checkpointing`, plants each, and records all judges that find it: each
module of unit or property tests, each file of vectors, the simulator, and each machine. Ends with the figures of each
package, with a table of the slips that each judge finds and that it alone finds, and with every slip that survived all
judges. The exit code is 1 if all judges together find fewer than 98 %, or if the spec proper (property tests,
simulator, machines) finds fewer than 90 % of the slips whose lines it runs. Each result is written to FILE at once. A
later run with the same FILE skips the slips in it. `--first` looks for one finder among the tests and one in the spec
proper, which is enough for both figures, and faster. The table of finders then counts first finders.
"""

import gc
import sys
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Final

from spec.machines.extra import must_have_hypothesis

must_have_hypothesis()

from spec.sharpness.differing import probes
from spec.sharpness.judges import (
    JUDGES,
    PROPERTIES,
    SIMULATOR,
    SPEC,
    UNIT_TESTS,
    Result,
    Results,
    Trial,
    judged,
    reach,
    trials,
    unit_tests,
)
from spec.sharpness.reach import Kept, Reach
from spec.sharpness.slips import Slip, all_slips, is_equivalent, lines_of
from spec.simulate import GARBAGE_MAX

BY_SPEC: Final = 0.90
BY_ALL: Final = 0.98
BOUND_S: Final = 600
_Task = tuple[Slip, bool, Sequence[Trial], float, bool]
"""A slip, whether the spec proper runs its lines, its trials, the CPU seconds, and whether first finders are enough."""


def main(arguments: list[str] | None = None) -> int:
    """Judge the sample that the command line asks for. Return 0 if the judges find enough of its slips, else 1."""
    given = _options(arguments)
    counted = [slip for slip in all_slips() if not is_equivalent(slip) and given.only in str(slip)]
    sample = sorted(counted, key=lambda slip: _lot(given.seed, slip))[: given.sample]
    known = Results(given.results)
    done = known.of(sample)
    waiting = [slip for slip in sample if slip not in done or (given.again and done[slip].escapes)][: given.portion]
    for slip, result in found(waiting, given.processes, known.finds(), given.results, given.bound, first=given.first):
        known.add(slip, result)
        sys.stderr.write(f"[{len(known.of(sample))} of {len(sample)}] {result}: {slip}\n")
    sys.stdout.write("\n".join(report(known.of(sample))) + "\n")
    return 0 if sharp_enough(known.of(sample)) else 1


def _lot(seed: int, slip: Slip) -> bytes:
    """Return the slip's place in the sample's order.

    The place depends on this slip alone, so a change of the core moves no other slip.
    """
    return blake2b(f"{seed} {slip.identity}".encode()).digest()


def _options(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m spec.sharpness", description=__doc__)
    parser.add_argument("--sample", type=int, default=1000, metavar="N", help="how many slips, 1000 by default")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--only", default="", metavar="TEXT", help="only slips whose place contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, metavar="FILE", help="write each result there, and go on after those")
    parser.add_argument("--again", action="store_true", help="judge those again that the spec proper ran and missed")
    parser.add_argument("--first", action="store_true", help="only the first finder of the tests, and of the spec")
    parser.add_argument("--bound", type=float, default=BOUND_S, metavar="S", help="CPU seconds for each slip at most")
    parser.add_argument("--portion", type=int, metavar="N", help="judge so many slips now; 0 only reports")
    return parser.parse_args(arguments)


def found(
    slips: Sequence[Slip],
    processes: int,
    finds: Mapping[str, int],
    results: Path | None = None,
    bound_s: float = BOUND_S,
    *,
    first: bool = False,
) -> Iterator[tuple[Slip, Result]]:
    """Yield each slip with its finders, once the slip was judged. Each slip is judged in a fresh copy of this process.

    `finds` has how many slips each trial has found so far. The lines that the trials reach are kept beside the results.
    """
    if not slips:
        return
    _prepare_to_fork()
    with get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        reached = dict(_reached(pool, (*trials(), *unit_tests()), Kept.of(results)))
        yield from pool.imap_unordered(_judged, (_task(slip, reached, finds, bound_s, first=first) for slip in slips))


def _prepare_to_fork() -> None:
    """Make the objects that each process needs.

    Exempt them from garbage collection, which becomes rare for the rest.
    """
    probes()
    gc.set_threshold(GARBAGE_MAX)
    gc.freeze()


def _task(
    slip: Slip, reached: Mapping[Trial, Reach], finds: Mapping[str, int], bound_s: float, *, first: bool
) -> _Task:
    running = {trial: ran for trial, ran in reached.items() if runs(slip, ran)}
    applies = any(trial.judge in SPEC for trial in running)
    return slip, applies, worth_trying(slip, running, finds, first=first), bound_s, first


def runs(slip: Slip, ran: Reach) -> bool:
    """Return whether a trial runs the lines that the slip changes."""
    file, lines = lines_of(slip)
    return bool(lines & ran.lines.get(file, frozenset()))


def _reached(pool: Pool, tried: Sequence[Trial], kept: Kept) -> Iterator[tuple[Trial, Reach]]:
    """Yield what each trial reaches. Raise AssertionError if the spec, or a vector, fails on the unchanged core."""
    new = [trial for trial in tried if str(trial) not in kept]
    for trial, reach_ in zip(new, pool.imap(reach, new), strict=True):
        kept.add(str(trial), reach_)
    for trial in tried:
        known = kept[str(trial)]
        if known is not None:
            yield trial, known
        elif trial.judge in (UNIT_TESTS, PROPERTIES):
            sys.stderr.write(f"left out, since they fail on the core as it is: {trial}\n")
        else:
            raise AssertionError(f"{trial} finds the core wrong as it is")


def worth_trying(
    slip: Slip, running: Mapping[Trial, Reach], finds: Mapping[str, int], *, first: bool = False
) -> tuple[Trial, ...]:
    """Return the trials to which the slip makes a difference: unit tests first, then vectors, then the spec proper.

    `running` are the trials that run the slip's lines. Among a judge's trials, those come first that have found most
    slips for their time. If the `first` finders are enough, this order holds among all tests and vectors, and among all
    trials of the spec proper.
    """
    always = slip.identity not in probes().slips
    worth = {trial: ran.seconds for trial, ran in running.items() if always or slip.identity in ran.differing}
    turn = [judge in SPEC for judge in JUDGES] if first else range(len(JUDGES))

    def place(trial: Trial) -> tuple[int, float]:
        return turn[JUDGES.index(trial.judge)], worth[trial] / (1 + finds.get(str(trial), 0))

    order = sorted(worth, key=place)
    return tuple(trial.within(worth[trial]) for trial in order)


def _judged(task: _Task) -> tuple[Slip, Result]:
    slip, applies, tried, bound_s, first = task
    return slip, Result.of(judged(slip, tried, bound_s, first=first), applies=applies)


def sharp_enough(results: Mapping[Slip, Result]) -> bool:
    """Return whether the spec proper, and all judges together, find as many slips as they should."""
    applying = [result for result in results.values() if result.applies]
    by_spec, by_all = (
        sum(each.is_found_by_spec for each in applying),
        sum(bool(each.found) for each in results.values()),
    )
    return by_spec >= BY_SPEC * len(applying) and by_all >= BY_ALL * len(results)


def report(results: Mapping[Slip, Result]) -> Iterator[str]:
    """Yield a table of the packages with the sum last, a table of the finders, and the slips that escape.

    The column `applies` counts the slips whose lines the spec proper runs.
    """
    rows: dict[str, list[Result]] = defaultdict(list)
    for slip, result in results.items():
        for row in (".".join(slip.module.split(".")[:2]), "all"):
            rows[row].append(result)
    yield f"| package | slips | applies | {' | '.join(JUDGES)} | survived | spec proper | all judges |"
    yield f"|---|{'---|' * (len(JUDGES) + 5)}"
    for row in (*sorted(set(rows) - {"all"}), "all"):
        every, applying = rows[row], [result for result in rows[row] if result.applies]
        by_judge = [sum(judge in result.judges for result in every) for judge in JUDGES]
        survived = sum(not result.found for result in every)
        spec = f"{sum(result.is_found_by_spec for result in applying) / max(1, len(applying)):.0%}"
        cells = [len(every), len(applying), *by_judge, survived, spec, f"{1 - survived / max(1, len(every)):.0%}"]
        yield f"| `{row}` | {' | '.join(map(str, cells))} |"
    yield ""
    yield from finders(results.values())
    yield ""
    yield from (f"stopped at the bound: {slip}" for slip, result in results.items() if result.stopped)
    yield from (f"not by the spec: {slip} ({result})" for slip, result in results.items() if result.escapes)
    yield from (f"survived: {slip}" for slip, result in results.items() if not result.found)


def finders(results: Iterable[Result]) -> Iterator[str]:
    """Yield a table of the judges and then the trials: how many slips each finds, and how many no other finds."""
    told = tuple(results)
    yield "| finder | slips found | found only by it |"
    yield "|---|---|---|"
    by_judge = [result.judges for result in told]
    yield from (f"| all {judge} | {_cells(judge, by_judge)} |" for judge in JUDGES)
    by_part = [result.finders for result in told]
    parts = {part for found in by_part for part in found} - {SIMULATOR}
    yield from (f"| {part} | {_cells(part, by_part)} |" for part in sorted(parts))


def _cells(finder: str, found: Sequence[frozenset[str]]) -> str:
    return f"{sum(finder in each for each in found)} | {sum(each == {finder} for each in found)}"


if __name__ == "__main__":
    raise SystemExit(main())
