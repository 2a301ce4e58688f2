"""Compares the workers of a cluster with this process, before the first micro-batch runs there.

Spark sends functions to its workers, but not the packages that the functions use. If a worker has another version of a
package, it may compute or write different results. If it lacks the store's credentials, it fails in the middle of a
micro-batch. So a tiny job checks the workers first. Spark sends its code to the workers, since a worker may lack this
very package.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import structlog
from pyspark.sql import SparkSession

from jobs.distribution import PYTHON
from jobs.storage.address import Root
from jobs.storage.location import place_in

_LOOKS_PER_CORE: Final = 2
_PAUSE_S: Final = 0.2
"""Each check takes at least this long. Otherwise, one free worker could take all of them."""
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '(?P<name>\w+)")
_NO_PROGRAM: Final = re.compile(r'Cannot run program "(?P<name>[^"]+)"')
"""Spark's messages if it cannot even start the check."""
_NAME_ITS_PYTHON: Final = "name the worker's own Python in PYSPARK_PYTHON"
_WAY_OUT: Final = f"install the same versions there, or {_NAME_ITS_PYTHON}"
_log = structlog.get_logger(__name__)

Batches = Iterator[Any]


class UnfitWorkerError(Exception):
    """A worker of the cluster lacks something, or has another version. The message names the host and the way out."""


def must_suit(session: SparkSession, warehouse: Root, folder: str, cores: int, ours: Mapping[str, str]) -> None:
    """Raise UnfitWorkerError unless the workers have the versions `ours` and can read the warehouse's `folder`.

    Spark decides which workers run the checks. There are twice as many checks as `cores`. On a busy cluster, a worker
    may still get none. `must_agree` compares it when its first task reports.
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
    """Return what a worker lacks if it could not even start the check. Return None for any other error."""
    program, package = _NO_PROGRAM.search(str(error)), _MISSING.search(str(error))
    if program is not None:
        return UnfitWorkerError(f"a worker has no program {program['name']}: {_NAME_ITS_PYTHON}")
    return UnfitWorkerError(f"the Python of a worker has no package {package['name']}: {_WAY_OUT}") if package else None


def _differs(host: str, name: str, theirs: str, ours: str) -> str:
    has = f"has {name} {theirs}" if theirs else f"has no {name}"
    return f"worker {host} {has}, and this process has {ours or 'none'}: {_WAY_OUT}"


def _look(
    ours: dict[str, str], python: str, storage_module: str, warehouse: str, folder: str, pause_s: float
) -> Callable[[Batches], Batches]:
    """Return the function that checks a worker: a closure, so that Spark sends its code."""

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
