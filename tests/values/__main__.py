"""Runs the judge of values for a long time: `python -m tests.values --seed 7 --minutes 60`.

It draws cases in batches, each with its own seed, and prints what the cases covered and every difference. `--case FILE`
runs a case that an earlier report has printed.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.values.cases import Case, cases
from tests.values.judge import TRIES, Judge, Judgement
from tests.values.operators import OPERATORS
from tests.values.ways import WAYS

BATCH = 20


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.values", description=__doc__)
    asked.add_argument("--seed", type=int, default=0, help="the first batch's; each further batch has the next one")
    asked.add_argument("--minutes", type=float, default=5)
    asked.add_argument("--ways", nargs="*", default=list(WAYS))
    asked.add_argument("--operators", nargs="*", default=list(OPERATORS))
    asked.add_argument("--case", type=Path, help="a file with a case of a report: run it only")
    asked.add_argument("--tries", type=int, default=TRIES, help="so often a case that differs runs with fewer rows")
    told = asked.parse_args()
    from jobs.spark.session import SparkConfig, open_session

    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(open_session(SparkConfig(jar_sets=("delta", "kafka"))), Path(folder), told.tries)
        if told.case:
            judge.judge(Case.read(told.case.read_text()))
        else:
            night(judge, told.seed, time.monotonic() + 60 * told.minutes, told.ways, told.operators)
        print(report(judge.judgement))
    return bool(judge.judgement.differences)


def night(judge: Judge, first: int, end: float, ways: list[str], operators: list[str]) -> None:
    number = first
    while time.monotonic() < end:
        before = len(judge.judgement.differences)

        def judged(case: Case, number: int = number) -> None:
            if time.monotonic() < end:
                start = time.monotonic()
                judge.judge(case)
                took = f"{time.monotonic() - start:.1f} s"
                print(f"seed {number}: {took} {case.way}: {', '.join(case.operators)}", file=sys.stderr, flush=True)

        drawn(number, judged, ways, operators)
        for found in judge.judgement.differences[before:]:
            print(f"seed {number}: {found.written()}", flush=True)
        number += 1


def drawn(
    number: int,
    judge: Callable[[Case], object],
    ways: list[str],
    operators: list[str],
    examples: int = BATCH,
    **told: Any,
) -> None:
    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(ways, operators, **told))
    def run(case: Case) -> None:
        judge(case)

    run()


def report(judgement: Judgement) -> str:
    triples = judgement.crossed
    operators, kinds, ways = ({key[place] for key in triples} for place in range(3))
    lines = [
        (
            f"{judgement.cases} cases crossed {len(operators)} of {len(OPERATORS)} operators x {len(kinds)} types x "
            f"{len(ways)} of {len(WAYS)} ways: {len(triples)} combinations, {sum(triples.values())} comparisons"
        ),
        f"operators not crossed: {', '.join(sorted(set(OPERATORS) - operators)) or 'none'}",
        f"ways not crossed: {', '.join(sorted(set(WAYS) - ways)) or 'none'}",
        f"types crossed: {', '.join(sorted(kinds))}",
        "refused:",
        *(f"  {times} x {said}" for said, times in judgement.refused.most_common()),
        f"differences: {len(judgement.differences)}",
        *(f"  {times} x {name}" for name, times in Counter(each.operator for each in judgement.differences).items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
