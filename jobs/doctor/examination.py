"""Examines a job and its machine, and returns all sections in order."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.graph import TableMode
from checkpointing.identifiers import JobName, VertexId
from checkpointing.metadata.record import Row
from jobs.catalogs.known import open_catalog
from jobs.catalogs.port import CatalogSettings
from jobs.catalogs.registering import differences, tables_in_catalog
from jobs.credentials import without_credentials
from jobs.distribution import DISTRIBUTION
from jobs.doctor.findings import Finding, Section, command
from jobs.doctor.job_health import Sinks, job_section, no_sinks, sink_sections
from jobs.doctor.table_health import file_section, key_section, table_section
from jobs.showing.quantities import count, plural, seconds
from jobs.sources.port import DescribesItself, ReportsHealth, Source, begins_of, every_layer, layers
from jobs.spark.jars import JAR_SETS, jars_folder, not_fetched
from jobs.spark.programs import Program, java, worker_python
from jobs.spark.session import SparkConfig, is_local
from jobs.storage.copy_folder import free_bytes
from jobs.storage.objects import StoreError
from jobs.tick.discovery import Discovered, InputLook, discover, look_at_input
from jobs.user_code import message_of
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.cleanup import job_tables
from jobs.warehouse.cut_check import TableLogDamagedError
from jobs.warehouse.internal_tables import OwnTableChangedError
from jobs.warehouse.job_stores import JobStores, has_run, state_of
from jobs.warehouse.refusals import UnusableWarehouseError
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse, kind_at, obstacles

# ------------------------------------------------------------------
# Checks what a tick reads and writes: how far the job is behind each source, and the folders of both.


Sources = Callable[[], Mapping[VertexId, Source]]
"""Loads a pipeline and returns its sources. This runs a user's code, which may raise."""


_AS_SAID: Final = "do what the message says; a tick would meet it too"


def no_sources() -> Mapping[VertexId, Source]:
    """Return no sources, for an unknown pipeline."""
    return {}


def input_sections(sources: Sources, rows: tuple[Row, ...]) -> Iterator[Section]:
    """Yield a section about the sources; nothing for a pipeline without any."""
    newest = newest_checkpoint(rows)
    try:
        known = sources()
        looks = look_at_input(known, newest)
    except Exception as error:  # noqa: BLE001 - a user's code, and the next tick would meet it too
        first = (str(error).splitlines() or [""])[0]
        what = f"the pipeline cannot be loaded, so its input was not looked at: {first}"
        yield Section("input", (), (Finding(what, "correct the pipeline's code"),))
        return
    if not known:
        skipped = "sources and sinks: the code of the pipeline is not registered here"
        yield Section("input", not_looked=(skipped,))
        return
    values: dict[str, object] = {}
    seen: list[tuple[str, str]] = []
    findings = [Finding(*told) for look in looks for told in look.findings()]
    for name, source in known.items():
        said = [*_described(source, [look for look in looks if look.source == name])]
        try:
            found = discover({name: source}, newest)[name]
            said.append(_behind(found))
            values[str(name)] = {
                "unread": found.any,
                "rows": found.rows,
                "seconds": found.seconds,
                "ended": found.ended,
            }
            said += (each.health() for each in every_layer(source) if isinstance(each, ReportsHealth))
        except Exception as error:  # noqa: BLE001 - a user's code, and the next tick would meet it too
            first = (str(error).splitlines() or [type(error).__name__])[0]
            findings.append(Finding(f"source {name} cannot be looked at: {first}", _AS_SAID))
            values[str(name)] = None
        seen.append((str(name), "; ".join(filter(None, said))))
    yield Section("input", tuple(seen), tuple(findings), values)


def _described(source: Source, looks: Sequence[InputLook]) -> Iterator[str]:
    about = next((each.described() for each in layers(source) if isinstance(each, DescribesItself)), None)
    if about is not None and (begins_of(source) or not looks):
        yield f"{about.kind}: {about.place}"
    for folder in (look.folder for look in looks):
        passed = f", {folder.count} passed over" if folder.count else ""
        yield f"{folder.files} files in {folder.splits} splits of {folder.root}{passed}"


def _behind(found: Discovered) -> str:
    """Return how far the job is behind a source."""
    if not found.any:
        return "has ended" if found.ended else "nothing unread"
    rows = "unread rows, not counted" if found.rows is None else f"{count(found.rows)} rows unread"
    return rows if found.seconds is None else f"{rows}, the oldest since {seconds(round(found.seconds * 1000))}"


def place_section(warehouse: Warehouse) -> Section:
    """Return the section about files and folders because of which the next tick would be refused.

    Writes no named file.
    """
    found = tuple(Finding(each.what, each.way_out) for each in obstacles(warehouse, thorough=True))
    seen = (("writable", "no" if found else "yes"),)
    return Section("places", seen, (*found, *_lease(warehouse)), {"writable": not found})


def _lease(warehouse: Warehouse) -> Iterator[Finding]:
    name = warehouse.paths.lease
    kind = kind_at(warehouse, name)
    if kind not in {None, "a file"}:
        what = f"the lease {warehouse.place(name)} is {kind}, not a file: ticks ignore it"
        yield Finding(what, f"rm -r {warehouse.place(name)}")


# ------------------------------------------------------------------
# Checks the catalog: whether it has an entry for each table, and whether each entry agrees with its table.


def catalog_sections(stores: JobStores, rows: tuple[Row, ...], settings: CatalogSettings | None) -> Iterator[Section]:
    """Yield a section about the catalog that the settings name, or nothing if they name none."""
    newest = newest_checkpoint(rows)
    if settings is None or newest is None:
        return
    warehouse = stores.warehouse
    names = [table.table for table in newest.tables if table.mode is not TableMode.STATE]
    again = f"{command('run', warehouse)}, which enters it anew"
    try:
        catalog = open_catalog(settings, warehouse.paths.job)
        with closing(catalog):
            wrong = list(differences(catalog, tables_in_catalog(warehouse, TableLogs(warehouse), names)))
    except Exception as error:  # noqa: BLE001 - a library's errors, and the next tick would meet them too
        what = (
            f"the catalog {settings.name} cannot be looked at: {without_credentials(message_of(error).splitlines()[0])}"
        )
        yield Section("catalog", (), (Finding(what, _AS_SAID),), {"entries": None})
        return
    found = tuple(Finding(f"{settings.name}: the entry of {name} {what}", again) for name, what in wrong)
    seen = f"{len(names) - len(wrong)} of {plural(len(names), 'table')} as they are"
    yield Section("catalog", ((settings.name, seen),), found, {"entries": dict(wrong)})


# ------------------------------------------------------------------
# Checks the machine: Java, the pinned versions, the jars, the free space. No Spark is started.


PINNED: Final = ("pyspark", "deltalake")
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
            yield Finding(f"package {name} is {found}, and Tidemark needs {name}{rules}", _install(name, rules))


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
    """Return which sets of jars are installed.

    A tick fetches the sets that it needs, so a missing set is no finding.
    """
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


@dataclass(frozen=True, slots=True)
class Examination:
    """The result. `looked` is False if the job could not be examined: it never ran, or is damaged or unreachable."""

    job: JobName
    warehouse: str
    has_run: bool
    """False only if it is certain that the job never ran."""
    looked: bool
    sections: tuple[Section, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return all findings, in the order of the page."""
        return tuple(finding for section in self.sections for finding in section.findings)


def examine(
    warehouse: Warehouse,
    grace_ms: int,
    spark: SparkConfig,
    *,
    verify: bool,
    sources: Sources = no_sources,
    sinks: Sinks = no_sinks,
    catalog: CatalogSettings | None = None,
) -> Examination:
    """Examine a job, and the machine for ticks with this Spark. Changes nothing, and starts no Spark.

    `sources` and `sinks` return the sources and sinks of the pipeline, or none if the pipeline is unknown. Sources,
    sinks and the catalog are examined too.
    """
    machine = machine_section(warehouse, spark)
    places = place_section(warehouse)
    ran, looked = True, False
    sections: tuple[Section, ...] = ()
    try:
        ran = has_run(warehouse)
        sections = (
            tuple(_of_job(warehouse, grace_ms, sources, sinks, catalog, verify=verify))
            if ran
            else (_never_run(warehouse),)
        )
        looked = ran
    except UnusableWarehouseError:  # the section of the places says so
        pass
    except StoreError as error:
        sections = () if places.findings else (_section(error.what, error.way_out),)
    except (TableLogDamagedError, OwnTableChangedError) as error:
        sections = (_section(error.what, error.way_out),)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        first = (str(error).splitlines() or [""])[0]
        folder = warehouse.place(warehouse.paths.folder)
        what = f"the job cannot be looked at ({type(error).__name__}: {first})"
        sections = (_section(what, f"restore {folder} from a backup"),)
    return Examination(warehouse.paths.job, str(warehouse.root), ran, looked, (*sections, places, machine))


def _section(what: str, way_out: str) -> Section:
    """Return the section of a job that cannot be examined, with the reason as its only finding."""
    return Section("job", (), (Finding(what, way_out),))


def _never_run(warehouse: Warehouse) -> Section:
    what = f"{warehouse.paths.job} has never run in {warehouse.root}, so there is nothing to look at yet"
    return _section(what, f"{command('run', warehouse)}, or name the warehouse that you mean with --warehouse")


def _of_job(
    warehouse: Warehouse,
    grace_ms: int,
    sources: Sources,
    sinks: Sinks,
    catalog: CatalogSettings | None,
    *,
    verify: bool,
) -> Iterator[Section]:
    stores = JobStores(warehouse, cross_freely)
    rows, cuts = stores.entries.rows(), stores.cuts.all()
    state = state_of(warehouse, rows)
    yield job_section(warehouse, rows, cuts, state)
    yield table_section(stores, job_tables(stores.held), rows)
    yield key_section(warehouse, rows, verify=verify)
    yield file_section(warehouse, rows, cuts, grace_ms, verify=verify)
    yield from input_sections(sources, rows)
    yield from sink_sections(warehouse, sinks, state, rows)
    yield from catalog_sections(stores, rows, catalog)
