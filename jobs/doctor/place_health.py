"""Checks the job's folders and files: whether the next tick can write them, and whether each is a folder or a file."""

from collections.abc import Iterator

from jobs.doctor.findings import Finding, Section
from jobs.stores.obstacles import kind_of, obstacles
from jobs.stores.warehouse import Warehouse


def place_section(warehouse: Warehouse) -> Section:
    """Return the section about places because of which the next tick would be refused. It writes no named file."""
    found = tuple(Finding(each.what, each.way_out) for each in obstacles(warehouse))
    return Section("places", (("writable", "no" if found else "yes"),), (*found, *_lease(warehouse)))


def _lease(warehouse: Warehouse) -> Iterator[Finding]:
    path = warehouse.path(warehouse.paths.lease)
    kind = kind_of(path)
    if kind not in {None, "a file"}:
        what = f"the lease {path} is {kind}, not a file: ticks ignore it"
        yield Finding(what, f"rm -r {path}")
