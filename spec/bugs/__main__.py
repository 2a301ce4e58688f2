"""Plants the bugs one at a time and hunts each: `python -m spec.bugs [--only NAME] [--processes N] [--refit|--table]`.

A bug is found if its judge reports the rule that it names. Each judge tries its seeds from 0 on. The command ends with
`N found, N lost`, and with exit code 1 if any was lost. `--refit` hunts nothing: if a bug's lines have moved to another
module, it writes the path of that module into the bug's file. `--table` writes the table of rules into
`spec/README.md`.
"""

import ast
import inspect
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Final

from spec.machines.extra import must_have_hypothesis

must_have_hypothesis()

from spec.bugs.plant import Bug, BugDoesNotFitError, bugs, files, planted, replaced
from spec.rules import DOOR_JUDGES
from spec.rules.invariants import INVARIANTS


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result of a hunt. `seed` is None if the bug was lost. `others` are the other rules that broke meanwhile."""

    bug: str
    seed: int | None
    others: frozenset[str]
    seconds: float

    def __str__(self) -> str:
        bug = bugs()[self.bug]
        real = f" ({', '.join(bug.flink)})" if bug.flink else ""
        by = f"seed {self.seed} of" if self.seed is not None else f"LOST, broken is {sorted(self.others)}, by"
        return f"{bug.name}{real}: {bug.rule}, {by} the {bug.judge}, {self.seconds:.1f} s"


def hunt(bug: Bug) -> Hunt:
    """Plant a bug, and run its judge with one seed after the other until the rule breaks."""
    begun, others = process_time(), set[str]()
    with planted(bug):
        for seed in range(bug.judged_by.seeds_max):
            broken = bug.judged_by.broken(seed)
            if bug.rule in broken:
                return Hunt(bug.name, seed, frozenset(others), process_time() - begun)
            others |= broken
    return Hunt(bug.name, None, frozenset(others), process_time() - begun)


def refitted() -> Iterator[str]:
    """Write into each bug's file the module to which its lines have moved. Yield each change, and each bug not found.

    A bug's lines must occur once, in one module.
    """
    root = Path(__file__).parents[2]
    modules = {
        path: path.read_text(encoding="utf-8")
        for top in ("checkpointing", "jobs", "spec")
        for path in sorted((root / top).rglob("*.py"))
    }
    for file in files():
        text = file.read_text(encoding="utf-8")
        for bug in bugs().values():
            if _fits(bug, modules.get(root / bug.file, "")) or f'name = "{bug.name}"\n' not in text:
                continue
            found = [path for path, source in modules.items() if _fits(bug, source)]
            if len(found) != 1:
                yield f"{bug.name}: {len(found)} modules have its lines"
                continue
            head, name, tail = text.partition(f'name = "{bug.name}"\n')
            moved = found[0].relative_to(root).as_posix()
            text = head + name + tail.replace(f'file = "{bug.file}"', f'file = "{moved}"', 1)
            yield f"{bug.name}: {bug.file} -> {moved}"
        file.write_text(text, encoding="utf-8")


README: Final = Path(__file__).parents[1] / "README.md"
_HEAD: Final = """# Rules
What every run of Tidemark must fulfil. The simulator judges each rule, or a machine, or property tests beside the unit
tests. An error is planted for each rule, because a rule that finds nothing may be unable to find anything. A sentence
that begins with *Yield* says what breaks the rule. `python -m spec.bugs --table` writes this table anew.
[docs/SPEC.md](../docs/SPEC.md) is the guide.

| rule | sentence | where it is judged | planted bug |
|---|---|---|---|
"""


def table() -> str:
    """Return the text of `spec/README.md`: all rules, in the order of their names."""
    root, stated = Path(__file__).parents[2], _stated()
    planted_bugs: dict[str, list[Bug]] = {}
    for bug in bugs().values():
        planted_bugs.setdefault(bug.rule, []).append(bug)
    rows = []
    for name in sorted({*planted_bugs, *INVARIANTS}):
        judge = DOOR_JUDGES.get(name) or INVARIANTS.get(name)
        if judge is None:
            place, sentence = stated[name]
        else:
            place = Path(inspect.getfile(judge)).relative_to(root).as_posix()
            sentence = inspect.getdoc(judge) or ""
        first = " ".join(sentence.partition("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {first} | {place} | {'; '.join(bug.name for bug in planted_bugs[name])} |")
    return _HEAD + "\n".join(rows) + "\n"


def _stated() -> dict[str, tuple[str, str]]:
    """Return where machines and property tests state their rules: a constant with the id, and its docstring."""
    root, found = Path(__file__).parents[2], dict[str, tuple[str, str]]()
    for file in sorted([*root.glob("spec/**/*.py"), *root.glob("tests/unit/**/test_*.py")]):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for node, after in pairwise(body):
            match getattr(node, "value", None), after:
                case ast.Constant(value=str(name)), ast.Expr(value=ast.Constant(value=str(sentence))):
                    found[name] = file.relative_to(root).as_posix(), inspect.cleandoc(sentence)
                case _:
                    pass
    return found


def _fits(bug: Bug, source: str) -> bool:
    try:
        return bool(replaced(bug, source))
    except BugDoesNotFitError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Hunt the bugs that the command line names. Return 0 if all were found, else 1."""
    options = _options(arguments)
    if options.refit:
        sys.stdout.write("".join(f"{line}\n" for line in refitted()))
        return 0
    if options.table:
        README.write_text(table(), encoding="utf-8")
        return 0
    chosen = [bug for bug in bugs().values() if options.only in bug.name]
    lost = 0
    for done in _hunts(chosen, options.processes):
        lost += done.seed is None
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - lost} found, {lost} lost\n")
    return 1 if lost or not chosen else 0


def _options(arguments: list[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m spec.bugs", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="only bugs whose name contains this")
    parser.add_argument("--processes", type=int, default=2, help="how many bugs are hunted at a time")
    parser.add_argument("--refit", action="store_true", help="correct the modules' paths after a move")
    parser.add_argument("--table", action="store_true", help="write the table of rules into spec/README.md")
    return parser.parse_args(arguments)


def _hunts(chosen: list[Bug], processes: int) -> Iterator[Hunt]:
    if processes == 1:
        yield from map(hunt, chosen)
        return
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(hunt, bug) for bug in chosen]):
            yield future.result()


if __name__ == "__main__":
    raise SystemExit(main())
