"""The places of a job on the file system: whether the next tick can write there, and whether each is of its kind."""

from collections.abc import Iterator

from jobs.doctor.findings import Finding, Section
from jobs.stores.obstacles import kind_of, obstacles
from jobs.stores.warehouse import Warehouse


def place_section(warehouse: Warehouse) -> Section:
    """Return what the next tick would refuse to begin with. Nothing is written that has a name."""
    found = tuple(Finding(each.what, each.way_out) for each in obstacles(warehouse))
    return Section("places", (("writable", "no" if found else "yes"),), (*found, *_lease(warehouse)))


def _lease(warehouse: Warehouse) -> Iterator[Finding]:
    path = warehouse.path(warehouse.paths.lease)
    kind = kind_of(path)
    if kind not in {None, "a file"}:
        what = f"the lease {path} is {kind}, not a file: ticks ignore it"
        yield Finding(what, f"rm -r {path}")
