"""A tick on an object store behind a proxy: how many requests a checkpoint waits for, and what their faults leave."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from bench.tick_trace import commits, first_micro_batch_ms
from checkpointing.messages import TickOutcome
from jobs.reading import Cuts
from jobs.storage.address import StoreUrl
from jobs.storage.place import storage_of
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import KILL_VARIABLE
from tests.scenarios.runtime import sequence_job
from tests.scenarios.runtime.conftest import FIRST_TICKS_BOUNDARIES
from tests.scenarios.runtime.savepoint_job import run
from tests.scenarios.runtime.sequence_job import GOLD, LocalEngine, build, read_cut
from tests.store_proxy import Fault, Harm, Proxy, longest_chain

REQUESTS_MAX = 6
STARTS_MAX = 26
BESIDE = ("/lease", "/requests", "/traces")
"""What no checkpoint waits for."""

WRITES = {
    "claim": r"checkpoints/_rows/0*1-",
    "entry of the claim": r"checkpoints/_delta_log/0*1\.json",
    "staged file": r"bronze/numbers/_data/",
    "file of the row": r"checkpoints/_rows/0*3-",
    "commit of the row": r"checkpoints/_delta_log/0*3\.json",
    "commit of a table": r"gold/by_key/_delta_log/0*2\.json",
    "commit of a state": r"state/by_key/_delta_log/0*1\.json",
    "file of the cut": r"cuts/_rows/0*2-",
    "commit of the cut": r"cuts/_delta_log/0*2\.json",
    "lease": r"/lease$",
    "trace": r"/traces/",
    "release": r"checkpoints/_delta_log/0*5\.json",
}
"""Every write that a tick of three checkpoints needs, by its key."""


class Slow(LocalEngine):
    """Its micro-batches last as long as a look at all logs."""

    def run(self, *asked):
        time.sleep(0.4)
        return super().run(*asked)


@pytest.fixture(scope="module")
def proxy(store_server):
    with Proxy(store_server) as proxy:
        yield proxy


@pytest.fixture
def url(proxy, monkeypatch):
    """Return an empty warehouse's URL; the environment reaches the server by the proxy."""
    for name, value in proxy.environment.items():
        monkeypatch.setenv(name, value)
    proxy.harm()
    return StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")


def test_a_checkpoint_waits_for_few_requests(url, proxy):
    """A look, two writes of its entry, one of the tables, two of the cut: what is independent goes at the same time."""
    report = run_tick(build(), RuntimeSettings(warehouse=url, reader_grace_ms=None), engine=Slow())
    times = commits(report.trace)
    assert 3 == len(times)
    seen = [each for each in proxy.seen() if not any(word in each.key for word in BESIDE)]
    waited = [
        [each for each in seen if one.worked_ms <= 1000 * each.began and 1000 * each.ended <= one.recorded_ms]
        for one in times
    ]
    assert min(longest_chain(each) for each in waited) <= REQUESTS_MAX, waited[-1]


def test_a_start_waits_for_few_requests(url, proxy):
    """Before its first micro-batch, a tick looks at all tables at the same time, and opens and maintains none."""
    run(url, checkpoints=2)
    before = len(proxy.seen())
    report = run(url, checkpoints=1)
    began = first_micro_batch_ms(report.trace) / 1000
    asked = [each for each in proxy.seen()[before:] if each.ended <= began]
    assert longest_chain(asked) <= STARTS_MAX, [(each.kind, each.key) for each in asked]
    opened = [each for each in asked if each.kind == "LIST" and re.search("(bronze|gold)/.*/_delta_log", each.key)]
    assert [] == opened


def test_the_trace_of_a_finished_tick_is_in_the_store(url):
    """It was written on this machine, and is whole in its place when the attempt has ended."""
    report = run(url, checkpoints=1)
    assert report.trace.read_bytes() == storage_of(url).read("_tidemark/numbers/traces/1.ndjson").bytes


@pytest.mark.matrix
@pytest.mark.parametrize(
    "harm",
    [Harm.CUT_AFTER, *(pytest.param(each, marks=pytest.mark.dear) for each in Harm if each is not Harm.CUT_AFTER)],
)
@pytest.mark.parametrize("write", WRITES)
def test_a_tick_survives_each_fault_of_each_write(url, proxy, undisturbed, write, harm):
    """The tick itself goes on: the rows are exact, each is there once, and no file is left over."""
    proxy.harm(Fault(harm, "PUT", WRITES[write], times=2))
    report = run(url)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert [True] == proxy.struck()
    assert undisturbed == read_cut(url)
    assert TickOutcome.CAUGHT_UP is run(url).outcome
    assert undisturbed == read_cut(url)


@pytest.mark.dear
@pytest.mark.parametrize("write", ["staged file", "file of the row", "commit of the row", "commit of a table"])
@pytest.mark.parametrize("harm", [Harm.BUSY, Harm.CUT_BEFORE])
def test_a_fault_that_lasts_fails_the_checkpoint_by_name_and_loses_nothing(url, proxy, undisturbed, write, harm):
    """Retries have a bound. No reader sees a part of the checkpoint. The next tick makes up for it."""
    proxy.harm(Fault(harm, "PUT", WRITES[write], times=1_000_000))
    report = run(url)
    assert TickOutcome.FAILED is report.outcome
    assert str(url) in report.message
    cuts = Cuts(url, "numbers").all()
    if cuts:
        newest = cuts[-1]
        gold = newest.polars(str(GOLD)).collect()
        assert gold["rows"].sum() == newest.arrow("bronze/numbers").num_rows
    proxy.harm()
    assert TickOutcome.CAUGHT_UP is run(url).outcome
    assert undisturbed == read_cut(url)


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize(("name", "occurrence"), FIRST_TICKS_BOUNDARIES)
def test_a_tick_killed_at_any_boundary_loses_nothing_in_a_store(url, undisturbed, name, occurrence):
    """SIGKILL there, and a second tick: the tables are an undisturbed run's."""
    assert -signal.SIGKILL == _program(url, **{KILL_VARIABLE: f"{name}#{occurrence}"}).returncode
    done = _program(url)
    assert "caught_up" == json.loads(done.stdout.splitlines()[-1])["outcome"], done.stderr
    assert undisturbed == read_cut(url)


def _program(url, **environment):
    """Run a tick in a process of its own."""
    return subprocess.run(
        [sys.executable, sequence_job.__file__, str(url)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
