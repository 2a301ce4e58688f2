"""Checks the machine: Java, the pinned versions, the jars, the free space. Nothing of it is started."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from jobs.credentials import without_credentials
from jobs.distribution import DISTRIBUTION
from jobs.doctor.findings import Finding, Section, command
from jobs.spark.jar_sets import DELTA, JAR_SETS
from jobs.spark.jars import jars_folder, not_fetched
from jobs.spark.programs import Program, java, worker_python
from jobs.spark.session import SparkConfig, is_local
from jobs.storage.whole import free_bytes
from jobs.stores.warehouse import Warehouse

PINNED: Final = ("pyspark", "delta-spark", "deltalake", "pandas")
"""The packages whose versions must fit each other."""

FREE_BYTES_MIN: Final = 1024**3

_GIB: Final = 1024**3
_REQUIREMENT: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?P<rules>[^;]*)")
_RULE: Final = re.compile(r"(?P<how>==|>=|<=|<|>|!=)\s*(?P<version>[0-9][0-9.]*)")


def machine_section(warehouse: Warehouse, spark: SparkConfig) -> Section:
    """Return the section about what a tick with this Spark needs of the machine.

    A client of a Connect server starts no Java. The Python of a cluster's workers is on their machines.
    """
    jvm = None if spark.connect_url is not None else java(thorough=True)
    programs = (*((jvm,) if jvm else ()), *((worker_python(),) if is_local(spark) else ()))
    packages = ", ".join(f"{name} {_installed(name) or 'missing'}" for name in PINNED)
    free = free_bytes(warehouse.root)
    return Section(
        "machine",
        (
            ("Java", jvm.shown if jvm else f"not needed: Spark runs at {without_credentials(spark.connect_url or '')}"),
            ("Python", f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"),
            ("packages", packages),
            ("jars", _jars()),
            *((("free space", f"{free / _GIB:.1f} GiB"),) if free is not None else ()),
        ),
        (*_unfit(programs), *_pins(), *_space(warehouse, free)),
        {
            "java": None if jvm is None or jvm.problem else jvm.shown.partition(",")[0],
            "python": f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}",
            "packages": {name: _installed(name) for name in PINNED},
            "jar_sets": [jars.name for jars in JAR_SETS.values() if jars not in not_fetched(JAR_SETS)],
            "free_bytes": free,
        },
    )


def breaks(rules: str, found: str) -> bool:
    """Return whether a version breaks one of a requirement's rules, `>=1.6,<1.7`."""
    return any(not _holds(rule["how"], _numbers(found), _numbers(rule["version"])) for rule in _RULE.finditer(rules))


def _holds(how: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    length = max(len(found), len(wanted))
    left, right = (each + (0,) * (length - len(each)) for each in (found, wanted))
    order = (left > right) - (left < right)
    return order in {"==": (0,), ">=": (0, 1), "<=": (0, -1), "<": (-1,), ">": (1,), "!=": (1, -1)}[how]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0]))


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _pins() -> Iterator[Finding]:
    for name, rules in _required():
        found = _installed(name)
        if found is None:
            yield Finding(f"package {name} is not installed, and Tidemark needs {name}{rules}", _install(name, rules))
        elif breaks(rules, found):
            yield Finding(f"package {name} is {found}, and Tidemark is pinned to {name}{rules}", _install(name, rules))
    wheel, jar = _installed("delta-spark"), DELTA.coordinates[0].rpartition(":")[2]
    if wheel is not None and wheel != jar:
        repair = _install("delta-spark", f"=={jar}")
        yield Finding(f"the delta-spark package is {wheel} and its jar {jar}: they must be the same", repair)


def _install(name: str, rules: str) -> str:
    """Return the command that installs a package where this Python finds it."""
    return f"{sys.executable} -m pip install '{name}{rules}'"


def _required() -> Iterator[tuple[str, str]]:
    """Yield the pinned packages with the rules that the installed Tidemark declares."""
    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return
    for text in declared:
        found = _REQUIREMENT.match(text)
        if found and found["name"] in PINNED and "extra ==" not in text:
            yield found["name"], found["rules"].strip()


def _jars() -> str:
    """Return which sets of jars are here. A tick fetches those that it needs, so a missing set is not a finding."""
    missing = not_fetched(JAR_SETS)
    here = ", ".join(name for name, jars in JAR_SETS.items() if jars not in missing)
    absent = ", ".join(jars.name for jars in missing)
    found = f"{here} in {jars_folder()}" if here else ""
    unneeded = f"{absent}: no tick here has needed them, and one that does fetches them"
    return "; ".join(filter(None, [found, absent and unneeded]))


def _unfit(programs: Iterable[Program]) -> Iterator[Finding]:
    return (Finding(found.problem, found.way_out) for found in programs if found.problem)


def _space(warehouse: Warehouse, free: int | None) -> Iterator[Finding]:
    if free is not None and free < FREE_BYTES_MIN:
        what = f"only {free / _GIB:.2f} GiB are free where the warehouse lies"
        yield Finding(what, f"make room; {command('cleanup', warehouse)} shows what it can free with --dry-run")
