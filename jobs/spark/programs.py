"""Checks the programs that Spark starts: Java, and the Python of its workers. An unfit one is refused by name.

A tick checks them before it claims the job, so that an unfit machine changes nothing. The doctor uses the same checks.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.holding.failures import TickRefusedError
from jobs.spark.temporary import private_folder

JAVA_VERSIONS: Final = (17, 21)
WORKER_VARIABLE: Final = "PYSPARK_PYTHON"

_SAID: Final = re.compile(r'version "(?P<major>\d+)(?P<rest>[^"]*)"')
_RELEASE: Final = re.compile(r'^JAVA_VERSION="(?P<major>\d+)(?P<rest>[^"]*)"', re.MULTILINE)
_INSTALL: Final = "install a JDK 17 or 21 (Debian: openjdk-17-jdk-headless), on PATH or named by JAVA_HOME"
_ANSWER_S: Final = 60


class UnfitProgramError(TickRefusedError):
    """A program that Spark needs is missing or has the wrong version. The message names it and the way out."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, as a report shows it, and its problem if it has one."""

    shown: str
    problem: str = ""
    way_out: str = ""


def must_start_spark(*, workers_here: bool = True) -> None:
    """Raise UnfitProgramError if Spark cannot start its JVM here, and its Python workers if they run here too.

    The Python of a cluster's workers need not be on this machine: `jobs.spark.workers` looks at it on theirs. Raises
    UnsafeFolderError if Spark's log and temporary files have no private folder.
    """
    private_folder()
    for found in (java(), worker_python()) if workers_here else (java(),):
        if found.problem:
            raise UnfitProgramError(f"{found.problem}: {found.way_out}")


def java(*, thorough: bool = False) -> Program:
    """Return the Java that Spark would start. `thorough` also starts it with the module that Spark needs."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None or shutil.which(path) is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java is on PATH"
        return Program("none", f"{where}, and Spark needs Java 17 or 21", _INSTALL)
    found = _SAID.search(_say(path)) if thorough else _by_release(path) or _SAID.search(_say(path))
    if found is None:
        return Program("none", f"{path} is no working Java, and Spark needs Java 17 or 21", _INSTALL)
    shown = f"{found['major']}{found['rest']}, {path}"
    if int(found["major"]) not in JAVA_VERSIONS:
        return Program(shown, f"{path} is Java {found['major']}, and Spark needs 17 or 21", _INSTALL)
    if thorough and not _say(path, "--add-modules", "jdk.incubator.vector"):
        return Program(shown, f"{path} lacks the module jdk.incubator.vector, so Spark does not start", _INSTALL)
    return Program(shown)


def worker_python() -> Program:
    """Return the Python of Spark's workers: this one, unless PYSPARK_PYTHON names another one.

    Both must have the same version, because functions travel between them as bytecode.
    """
    path = os.environ.get(WORKER_VARIABLE) or sys.executable
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    way_out = f"unset {WORKER_VARIABLE}, or set it to {sys.executable}"
    if path == sys.executable:
        return Program(f"{mine}, {path}")
    program = shutil.which(path)
    if program is None:
        return Program("none", f"{WORKER_VARIABLE}={path} is no program, and Spark's workers need a Python", way_out)
    said = _say(program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    if said != mine:
        problem = f"{WORKER_VARIABLE}={path} is Python {said or 'of no version'}, and this tick runs on {mine}"
        return Program(f"{said or 'none'}, {path}", problem, way_out)
    return Program(f"{said}, {path}")


def _by_release(path: str) -> re.Match[str] | None:
    """Return the version in a JDK's `release` file. No program needs to be started for that."""
    try:
        return _RELEASE.search((Path(path).resolve().parents[1] / "release").read_text(encoding="utf-8"))
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def _say(program: str, *options: str) -> str:
    """Return a program's output, empty if it fails. Without options, ask for its version."""
    asked = options if "-c" in options else (*options, "-version")
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark would start
            [program, *asked], capture_output=True, text=True, check=False, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout + done.stderr
