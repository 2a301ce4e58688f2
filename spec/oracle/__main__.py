"""Compares Tidemark with Flink's own classes on random input: `python -m spec.oracle [COMPONENT ...] --seeds 0:2000`.

Each line names a component, the number of its cases, and in how many of them the two answered differently. `--keep
FOLDER` writes those cases there, as files for `python -m spec.flink.vectors`. Exits with 1 if there is any difference.
"""

import json
import sys
from argparse import ArgumentParser
from pathlib import Path

from spec.oracle.components import COMPONENTS, Case, Component, ask
from spec.oracle.flink import FlinkError

_SHOWN = 3


def main(arguments: list[str] | None = None) -> int:
    """Carry out the command line. Return 0 if Tidemark answers as Flink does, else 1."""
    parser = ArgumentParser(prog="python -m spec.oracle", description=__doc__)
    parser.add_argument("components", nargs="*", metavar="COMPONENT", help=f"{', '.join(COMPONENTS)}; all by default")
    parser.add_argument("--seeds", type=_seeds, default=range(2000), metavar="FIRST:END", help="0:2000 by default")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the cases that differ as files of vectors")
    given = parser.parse_args(arguments)
    unknown = next((name for name in given.components if name not in COMPONENTS), None)
    if unknown is not None:
        parser.error(f"there is no component {unknown!r}: the components are {', '.join(COMPONENTS)}")
    try:
        asked = ask([COMPONENTS[name] for name in given.components or COMPONENTS], given.seeds)
        return 1 if sum(_compare(COMPONENTS[name], cases, given.keep) for name, cases in asked.items()) else 0
    except FlinkError as error:
        _say(f"tidemark: {error}")
        return 1


def _compare(component: Component, cases: list[Case], keep: Path | None) -> int:
    differing = [
        (case, outcome) for case, outcome in zip(cases, component.judge(cases), strict=True) if not outcome.passed
    ]
    _say(f"{component.name}: {len(cases)} cases, {len(differing)} answered differently")
    for _, outcome in differing[:_SHOWN]:
        _say(f"  {outcome.name}: {'; '.join(outcome.problems)}")
    if keep is not None and differing:
        keep.mkdir(parents=True, exist_ok=True)
        kept = {"legend": component.legend, "cases": [case for case, _ in differing]}
        (keep / f"{component.name}.json").write_text(json.dumps(kept), encoding="utf-8")
    return len(differing)


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
