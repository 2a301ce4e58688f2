"""Runs the programs that the rows need, each as a command in a process of its own. A person could type it too."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

Result = Mapping[str, Any]
"""A program's printed result, with the time of its whole process as the runner measured it: `process_s`."""

TIMEOUT_S: Final = 1_800
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
                cwd=Path(__file__).resolve().parents[1],
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
