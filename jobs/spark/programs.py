"""Checks the programs that Spark starts: Java, and the workers' Python. The error for an unfit program names it.

A tick checks them before it claims the job, so that an unfit machine changes nothing. The doctor uses the same checks.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from pyspark.sql import SparkSession

from jobs.distribution import PYTHON
from jobs.spark.session import private_folder
from jobs.storage.address import Root
from jobs.storage.place import place_in
from jobs.warehouse.refusals import TickRefusedError

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

    The Python of a cluster's workers need not be on this machine. `must_suit` checks it on the machines of the workers.
    Raises UnsafeFolderError if Spark's log and temporary files have no private folder.
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
    mine = _mine()
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


def _mine() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _by_release(path: str) -> re.Match[str] | None:
    """Return the version in a JDK's `release` file. No program needs to be started for that."""
    try:
        return _RELEASE.search((Path(path).resolve().parents[1] / "release").read_text(encoding="utf-8"))
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def _say(program: str, *options: str) -> str:
    """Return a program's output, or an empty text if the program fails. Without options, ask for its version."""
    asked = options if "-c" in options else (*options, "-version")
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark would start
            [program, *asked], capture_output=True, text=True, check=False, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout + done.stderr


# ------------------------------------------------------------------
# Compares the workers of a cluster with this process, before the first micro-batch runs there.
#
# Spark sends functions to its workers, but not the packages that the functions use. If a worker has another version of
# a package, it can compute or write different results. If it lacks the store's credentials, it fails in the middle of a
# micro-batch. So a tiny job checks the workers first. Spark sends its code to the workers, since a worker may lack this
# very package.


_LOOKS_PER_CORE: Final = 2
_PAUSE_S: Final = 0.2
"""The least duration of a check. If checks were shorter, one free worker could take all of them."""
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '(?P<name>\w+)")
_NO_PROGRAM: Final = re.compile(r'Cannot run program "(?P<name>[^"]+)"')
_OTHER_PYTHON: Final = re.compile(r"Python in worker has different version: (?P<found>\d+\.\d+)")
"""Spark's messages if a worker cannot even start the check."""
_NAME_ITS_PYTHON: Final = "name the worker's own Python in PYSPARK_PYTHON"
_WAY_OUT: Final = f"install the same versions there, or {_NAME_ITS_PYTHON}"
_log = structlog.get_logger(__name__)

Batches = Iterator[Any]


class UnfitWorkerError(Exception):
    """A worker of the cluster lacks something, or has another version. The message names the host and the way out."""


def must_suit(session: SparkSession, warehouse: Root, folder: str, cores: int, ours: Mapping[str, str]) -> None:
    """Raise UnfitWorkerError unless the workers have the versions `ours` and can read the warehouse's `folder`.

    Spark decides which workers run the checks. There are twice as many checks as `cores`. On a busy cluster, a worker
    may still get no check. `must_agree` compares its versions when its first task reports.
    """
    look = _look(dict(ours), PYTHON, place_in.__module__, str(warehouse), folder, _PAUSE_S)
    looks = max(1, cores) * _LOOKS_PER_CORE
    answers = session.range(0, looks, 1, looks).mapInArrow(look, "host string, found string, wrong string")
    try:
        seen = sorted(answers.collect(), key=lambda row: row.host)
    except Exception as error:
        lack = _lacking(error)
        if lack is None:
            raise
        raise lack from error
    _log.debug("workers compared", hosts=sorted({row.host for row in seen}))
    for row in seen:
        _must_have(row.host, json.loads(row.found), ours)
        if row.wrong:
            raise UnfitWorkerError(f"worker {row.host} {row.wrong}")


def must_agree(workers: Iterable[str], ours: Mapping[str, str]) -> None:
    """Raise UnfitWorkerError unless workers whose tasks reported (`jobs.operators.reports`) have the versions `ours`.

    This also finds a worker that joined after `must_suit`, or that `must_suit` did not reach.
    """
    for worker in sorted(workers):
        said = json.loads(worker)
        _must_have(said["host"], said["versions"], ours)


def _must_have(host: str, found: Mapping[str, str], ours: Mapping[str, str]) -> None:
    for name, wanted in ours.items():
        if found[name] != wanted:
            raise UnfitWorkerError(_differs(host, name, found[name], wanted))


def _lacking(error: Exception) -> UnfitWorkerError | None:
    """Return what a worker lacks if this error says that it could not even start the check, or else None."""
    program, package = _NO_PROGRAM.search(str(error)), _MISSING.search(str(error))
    python = _OTHER_PYTHON.search(str(error))
    if python is not None:
        return UnfitWorkerError(f"a worker has {PYTHON} {python['found']}, and this process has {_mine()}: {_WAY_OUT}")
    if program is not None:
        return UnfitWorkerError(f"a worker has no program {program['name']}: {_NAME_ITS_PYTHON}")
    return UnfitWorkerError(f"the Python of a worker has no package {package['name']}: {_WAY_OUT}") if package else None


def _differs(host: str, name: str, theirs: str, ours: str) -> str:
    has = f"has {name} {theirs}" if theirs else f"has no {name}"
    return f"worker {host} {has}, and this process has {ours or 'none'}: {_WAY_OUT}"


def _look(
    ours: dict[str, str], python: str, storage_module: str, warehouse: str, folder: str, pause_s: float
) -> Callable[[Batches], Batches]:
    """Return the function that checks a worker. It is a closure, so that Spark sends its code."""

    def look(batches: Batches) -> Batches:
        import json  # noqa: PLC0415 - on the worker
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import time  # noqa: PLC0415
        from importlib import import_module  # noqa: PLC0415
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        found = {}
        for name in ours:
            try:
                found[name] = ".".join(platform.python_version_tuple()[:2]) if name == python else version(name)
            except PackageNotFoundError:
                found[name] = ""
        wrong = ""
        if found == ours:
            try:
                place = import_module(storage_module).place_in(warehouse, folder)
                if not any(True for _ in place.entries()):
                    wrong = (
                        f"does not see {warehouse}: the workers must reach the warehouse. Name a folder that they "
                        "see under the same path, or an object store"
                    )
            except ImportError as error:
                wrong = f"cannot import {storage_module} ({error}): install there what this process runs"
            except OSError as error:
                wrong = f"cannot read {warehouse}: {error}"
        for _ in batches:
            time.sleep(pause_s)
        yield pa.RecordBatch.from_pydict(
            {"host": [socket.gethostname()], "found": [json.dumps(found)], "wrong": [wrong]}
        )

    return look
