"""Runs the programs that the rows need, each in a process of its own, by a command that a person could type too."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

Result = Mapping[str, Any]
"""A program's printed result, with the time of its whole process as the runner measured it: `process_s`."""

TIMEOUT_S: Final = 1_800
_ROOT: Final = Path(__file__).resolve().parents[1]
_WORDS_KEPT: Final = 15


class ProgramFailedError(RuntimeError):
    """A program ended without a result. The message has its name and its last lines."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its command. With `once`, one round of it is enough."""

    name: str
    command: tuple[str, ...]
    once: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module of this folder in this Python."""
    return (sys.executable, "-m", name, *arguments)


@dataclass(frozen=True, slots=True)
class Measured:
    """Keeps results of programs in a folder, so that a run that was interrupted can go on.

    A result is valid for its round as long as the program has the same command, the files of its code below `root` are
    the same, and the machine has not been restarted. A restart is noticed only on Linux.
    """

    folder: Path
    root: Path = _ROOT

    def find(self, program: Program, in_round: int = 1) -> Result | None:
        """Return the result that the program has had in a round, or None."""
        path = self._path(program, in_round)
        return json.loads(path.read_text()) if path.exists() else None

    def keep(self, program: Program, result: Result, in_round: int = 1) -> None:
        """Keep a result of a round."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(program, in_round).write_text(json.dumps(result))

    def _path(self, program: Program, in_round: int) -> Path:
        of_peer = any("peers" in word for word in program.command)
        code = _hashed(self.root, _PEERS if of_peer else _OURS)
        started = _BOOT.read_text() if _BOOT.exists() else ""
        said = (program.command, sorted(program.environment.items()), code, in_round, started)
        return self.folder / f"{sha256(repr(said).encode()).hexdigest()[:32]}.json"


_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PEERS: Final = ("bench/peers", "bench/nexmark", "bench/measures.py", "bench/timed_workload.py", "bench/workload.py")
_OURS: Final = ("bench", "checkpointing", "jobs", "orchestration", "tidemark", "requirements.lock")


def _hashed(root: Path, places: Iterable[str]) -> str:
    """Return a hash of the files at these paths, without compiled files and the bench's own results."""
    found = sha256()
    for place in places:
        for path in sorted([root / place, *(root / place).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts and path.stem != "results":
                found.update(f"{path.relative_to(root)} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def run(program: Program) -> Result:
    """Run a program to its end. Return its result. Raise ProgramFailedError if it has none."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    started = time.monotonic()
    with TemporaryFile("w+", errors="replace") as said:  # a JVM that outlives its program would hold a pipe open
        try:
            done = subprocess.run(  # noqa: S603 - programs of this folder
                program.command,
                check=False,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                cwd=_ROOT,
                env=environment | dict(program.environment),
            )
        except subprocess.TimeoutExpired as error:
            raise ProgramFailedError(f"{program.name} was still at work after {TIMEOUT_S} s") from error
        took = time.monotonic() - started
        said.seek(0)
        lines = said.read().splitlines()
    results = [line for line in lines if line.startswith('{"program"')]
    if done.returncode or not results:
        words = "\n".join(lines[-_WORDS_KEPT:])
        raise ProgramFailedError(f"{program.name} ended with exit code {done.returncode}; its last words:\n{words}")
    return {**json.loads(results[-1]), "process_s": took}
