"""Checks the commit protocol's TLA+ specification with TLC: `python -m spec.tla check`, `python -m spec.tla trace`.

`check` explores small worlds to their ends, and looks for errors that are planted in the specification. `trace` checks
that traces of real ticks are behaviours of the specification. Exits with 1 if a check fails.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path

from spec.tla.planted import PLANTED
from spec.tla.tlc import TlcError
from spec.tla.traces import judge
from spec.tla.worlds import WORLDS
from spec.traces import lines_of


def main(arguments: list[str] | None = None) -> int:
    """Carry out the command line. Return 0 if every check passes, else 1."""
    parser = ArgumentParser(prog="python -m spec.tla", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="explore worlds, and find planted errors")
    checking.add_argument("worlds", nargs="*", metavar="WORLD", help=f"{', '.join(WORLDS)}; all of them by default")
    checking.add_argument("--planted", action="store_true", help="look for all planted errors too")
    tracing = commands.add_parser("trace", help="judge the traces of a job's ticks, from its first generation on")
    tracing.add_argument("files", nargs="+", type=Path, metavar="FILE", help="traces of ticks, NDJSON")
    given = parser.parse_args(arguments)
    try:
        if given.command == "trace":
            return _judge(given.files)
        return _check(given.worlds or list(WORLDS), planted=given.planted)
    except TlcError as error:
        _say(f"tidemark: {error}")
        return 1


def _check(names: Sequence[str], *, planted: bool) -> int:
    unknown = next((name for name in names if name not in WORLDS), None)
    if unknown is not None:
        raise TlcError(f"there is no world {unknown!r}: the worlds are {', '.join(WORLDS)}")
    failed = 0
    for name in names:
        world = WORLDS[name]
        found = world.explore()
        failed += bool(found.violated)
        _say(f"{name}: {found}, {f'{found.violated} is violated' if found.violated else 'holds'}")
        _say(f"  {', '.join((*world.invariants, *world.properties))}")
        _tell(found.path)
    for name, error in PLANTED.items() if planted else ():
        found = error.hunt()
        failed += not found.violated
        _say(f"{name}: {f'breaks {error.breaks}' if found.violated else 'NOT FOUND'}, {found}")
    _say(f"{failed} failed" if failed else "all as it must be")
    return 1 if failed else 0


def _judge(files: Iterable[Path]) -> int:
    try:
        judgement = judge([lines_of(file) for file in files])
    except OSError as error:
        _say(f"tidemark: {error.filename} cannot be read: {error.strerror}")
        return 1
    if not judgement.accepted:
        _say(f"refused: {judgement.problem}")
        return 1
    _say(f"accepted: {judgement.events} events are a behaviour of the protocol, {judgement.outcome}")
    return 0


def _tell(path: Iterable[str]) -> None:
    for number, places in enumerate(path, start=1):
        _say(f"  {number:3} {places}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
