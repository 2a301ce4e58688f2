"""Fixtures for the tests of ticks: warehouses, ticks without Spark, and the tables of an undisturbed run."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from jobs.storage.address import Root, parsed
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import boundary_names
from tests.scenarios.runtime.sequence_job import LocalEngine, build, read_cut

RARE = {"RollForward", "RollForwardCut", "NotifyAborted", "LookForRival", "DiscardFiles"}
"""Effects that the first tick of the job `numbers` may lack."""

ONCE = {"Claim", "Lease", "EnsureTables", "DiscardLeftovers", "CompactFiles", "Cleanup", "Release"}
"""Effects that a tick has once. It has all other effects for each of its three checkpoints."""

FIRST_TICKS_BOUNDARIES = [
    (name, occurrence)
    for name in boundary_names(build().graph)
    if (effect := name.split(":")[1]) not in RARE
    for occurrence in ((1,) if effect in ONCE else (1, 2))
]
"""Every boundary that the first tick of the job `numbers` certainly reaches, with the number of the occurrence."""


@pytest.fixture
def tick(tmp_path: Path) -> Callable[..., TickReport]:
    """Return a function that runs a tick of the sequence pipeline in this test's warehouse, without Spark."""

    def run(**how: object) -> TickReport:
        planned = how.pop("plan", None) or build()
        listener, boundary, inbox = how.pop("listener", None), how.pop("boundary", None), how.pop("inbox", None)
        engine = how.pop("engine", None) or LocalEngine()
        settings = RuntimeSettings(warehouse=tmp_path, **how)
        return run_tick(planned, settings, listener, engine=engine, boundary=boundary, inbox=inbox)

    return run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[object, ...]]]:
    root = tmp_path_factory.mktemp("undisturbed")
    run_tick(build(), RuntimeSettings(warehouse=root), engine=LocalEngine())
    return read_cut(root)


@pytest.fixture
def url(each_store, monkeypatch: pytest.MonkeyPatch) -> Root:
    """Return a warehouse of this test in an object store of each kind."""
    for name, value in each_store.environment.items():
        monkeypatch.setenv(name, value)
    return parsed(f"{each_store.url()}/{uuid4().hex}/warehouse")
