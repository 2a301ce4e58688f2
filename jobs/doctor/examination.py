"""Examines a job and its machine, and returns all sections in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from checkpointing.identifiers import JobName
from jobs.cleanup.tables import job_tables
from jobs.doctor.file_health import file_section
from jobs.doctor.findings import Finding, Section, command
from jobs.doctor.folder_health import Sources, input_sections, no_sources, place_section
from jobs.doctor.job_health import job_section
from jobs.doctor.key_health import key_section
from jobs.doctor.machine_health import machine_section
from jobs.doctor.sink_health import Sinks, no_sinks, sink_sections
from jobs.doctor.table_health import table_section
from jobs.holding.boundaries import cross_freely
from jobs.holding.failures import UnusableWarehouseError
from jobs.holding.job_state import has_run, state_of
from jobs.holding.job_stores import JobStores
from jobs.spark.session import SparkConfig
from jobs.storage.failures import StoreError
from jobs.stores.own_tables import OwnTableChangedError
from jobs.stores.standing import TableLogDamagedError
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Examination:
    """The result. `looked` is False if the job could not be examined: it never ran, is damaged, or is out of reach."""

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
) -> Examination:
    """Examine a job, and what its ticks with this Spark need of the machine. Changes nothing, and starts no Spark.

    `sources` and `sinks` return those of the pipeline, none if the pipeline is unknown. They are examined too.
    """
    machine = machine_section(warehouse, spark)
    places = place_section(warehouse)
    ran, looked = True, False
    sections: tuple[Section, ...] = ()
    try:
        ran = has_run(warehouse)
        sections = (
            tuple(_of_job(warehouse, grace_ms, sources, sinks, verify=verify)) if ran else (_never_run(warehouse),)
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
    """Return the job's section if all that is known of the job is why nobody can look at it."""
    return Section("job", (), (Finding(what, way_out),))


def _never_run(warehouse: Warehouse) -> Section:
    what = f"{warehouse.paths.job} has never run in {warehouse.root}, so there is nothing to look at yet"
    return _section(what, f"{command('run', warehouse)}, or name the warehouse that you mean with --warehouse")


def _of_job(warehouse: Warehouse, grace_ms: int, sources: Sources, sinks: Sinks, *, verify: bool) -> Iterator[Section]:
    stores = JobStores(warehouse, cross_freely)
    rows, cuts = stores.rows(), stores.recorded_cuts()
    state = state_of(warehouse, rows)
    yield job_section(warehouse, rows, cuts, state)
    yield table_section(stores, job_tables(stores), rows)
    yield key_section(warehouse, rows, verify=verify)
    yield file_section(warehouse, rows, cuts, grace_ms, verify=verify)
    yield from input_sections(sources, rows)
    yield from sink_sections(warehouse, sinks, state, rows)
