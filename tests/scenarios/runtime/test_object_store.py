"""A warehouse in an object store: ticks, kills, commands and readers, against real servers of S3, Azure and GCS."""

import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from bench.tick_trace import commits, first_micro_batch_ms
from checkpointing.identifiers import CheckpointId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import StopKind, StopRequested, TickOutcome
from checkpointing.metadata.record import Claim
from jobs.cli.errors import ExitCode
from jobs.reading import Cuts
from jobs.spark.connect_server import connect_server
from jobs.spark.jars import fetch, jar_set, jars_folder
from jobs.spark.session import SparkConfig, s3a_settings
from jobs.storage.address import StoreUrl, parsed
from jobs.storage.objects import ObjectStore
from jobs.storage.place import place_in, storage_of
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.cleaning import clean_up
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.checkpoints import Appended, CheckpointStore, Refused
from jobs.warehouse.lease import this_process
from jobs.warehouse.savepoint_copy import copy_savepoint, read_manifest
from tests.cloud_stores import STORES
from tests.scenarios.processes import Running, killed
from tests.scenarios.runtime import newest_job, sequence_job
from tests.scenarios.runtime.conftest import FIRST_TICKS_BOUNDARIES
from tests.scenarios.runtime.kept_job import AGAIN, BACK, DROPPED, JOB, RENAMED, TABLE, newest, numbers, tick
from tests.scenarios.runtime.kept_job import at as kept_at
from tests.scenarios.runtime.sequence_job import (
    GOLD,
    LocalEngine,
    at,
    build,
    dies_copying,
    read_cut,
    records,
    run,
    ticked,
)
from tests.store_proxy import Fault, Harm, Proxy, longest_chain

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/deploy.md"
S3_ONLY = pytest.mark.parametrize("each_store", STORES[:1], indirect=True)
PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"


@pytest.fixture(scope="session")
def s3_jars():
    fetch(jars_folder(), jar_set("s3a"))


def test_a_tick_leaves_in_a_store_what_it_leaves_in_a_folder(url, undisturbed):
    """The tables, states and cuts are the same. A second tick restores and finds nothing new. Readers read by cut."""
    assert TickOutcome.CAUGHT_UP is run(url).outcome
    assert undisturbed == read_cut(url)
    assert TickOutcome.CAUGHT_UP is run(url).outcome
    cut = Cuts(url, "numbers").latest()
    gold = sorted(cut.polars("gold/by_key").collect().rows())
    assert undisturbed["gold/by_key"] == gold
    assert len(gold) == cut.state("by_key").arrow().num_rows
    assert cut.arrow("bronze/numbers").num_rows == 300
    names = [each.name for each in storage_of(url).list("_tidemark/numbers/traces")]
    assert {"1.ndjson", "2.ndjson"} == set(names)
    assert not place_in(url, "_tidemark/numbers/lease").exists()


@pytest.mark.dear
def test_a_reader_keeps_its_cut_in_a_store(url, undisturbed):
    """A reserved cut stays readable, although a later tick subsumes it, and deletes files that are not needed."""
    run(url)
    with Cuts(url, "numbers").reserved() as cut:
        run(url, reader_grace_ms=0, plan=sequence_job.build({"a": 400, "b": 400}))
        assert cut.checkpoint not in records(url)
        assert undisturbed["gold/by_key"] == sorted(cut.polars("gold/by_key").collect().rows())
        assert len(undisturbed["gold/by_key"]) == cut.state("by_key").arrow().num_rows
    assert [] == [each.name for each in place_in(url, "_tidemark/numbers/reservations").entries()]


def test_of_several_claims_exactly_one_is_in(url):
    """Five times, six stores of one job append an entry to the same version at the same moment."""
    stores = [CheckpointStore(at(url)) for _ in range(6)]
    for turn in range(5):
        version, _ = stores[0].observe()
        start = threading.Barrier(len(stores))

        def claim(number, turn=turn, version=version, start=start):
            row = Claim(
                generation=turn + 1,
                holder=this_process(),
                first_id=1_000 * turn + 1,
                last_id=1_000 * turn + 1_000,
                at_ms=1,
                nonce=f"{turn}-{number}",
            )
            stores[number].observe()
            start.wait()
            return stores[number].append(row, version)

        with ThreadPoolExecutor(len(stores)) as pool:
            done = [type(each) for each in pool.map(claim, range(len(stores)))]
        assert 1 == done.count(Appended)
        assert 5 == done.count(Refused)


@pytest.mark.spark
@pytest.mark.dear
@pytest.mark.usefixtures("s3_jars")
def test_spark_reads_and_writes_a_store(url, undisturbed):
    alone = SparkConfig(cores=1, memory="512m")
    killed(ticked, url, on_spark=alone, kill_at="after:AppendRow#2")
    assert "caught_up" == Running(ticked, url, on_spark=alone).wait().said["outcome"]
    assert undisturbed == read_cut(url)


@pytest.mark.dear
def test_a_savepoint_moves_between_folder_and_store(url, undisturbed, typed, tmp_path):
    run(url, checkpoints=2)
    where = ("--warehouse", str(url))
    other = StoreUrl(f"{url}-copy")
    for to in (other, tmp_path / "copy"):
        code, out, err = typed("savepoint", PIPELINE, "--to", to, *where)
        assert (0, "") == (code, err), err
        assert "copied whole to" in out
    code, _, err = typed("savepoint", PIPELINE, "--to", other, *where)
    assert code != 0
    assert "is not empty" in err
    for origin, target in ((other, tmp_path / "from_store"), (tmp_path / "copy", StoreUrl(f"{url}-from-folder"))):
        code, _, err = typed("run", PIPELINE, "--from", origin, "--warehouse", target)
        assert 0 == code, err
        assert undisturbed == read_cut(target)


@pytest.mark.dear
def test_every_command_works_on_a_store(url, typed):
    """Each command prints the same as for a folder, with the URL in place of the folder."""
    run(url)
    where, oldest = ("--warehouse", str(url)), min(records(url))
    shown = {
        command: typed(*command.split()[:1], PIPELINE, *command.split()[1:], *where)
        for command in ("cut", "state by_key", "cleanup --dry-run", "doctor", f"rollback {oldest}")
    }
    for command, (code, _, err) in shown.items():
        assert 0 == code, f"{command}: {err}"
    assert f"{url}/gold/by_key" in shown["cut"][1]
    code, out, err = typed("checkpoints", "list", PIPELINE, *where)
    assert 0 == code, err
    newest = max(records(url))
    assert str(newest) in out
    code, _, err = typed("cleanup", PIPELINE, *where)
    assert 0 == code, err


@pytest.mark.kill
@pytest.mark.dear
def test_a_killed_copy_in_a_store_is_deleted_by_the_next_one(url, undisturbed, monkeypatch):
    """This also holds if the deletion breaks off. The note that names the copy's maker is deleted last of all."""
    run(url)
    savepoint, to = CheckpointId(max(records(url))), StoreUrl(f"{url}-copy")
    killed(dies_copying, url, savepoint, to, 6)
    assert read_manifest(at(to)) is None
    place_in(to, "silver/left").write(b"a table whose name comes after that of the note")
    with monkeypatch.context() as broken:
        delete = ObjectStore.delete
        broken.setattr(ObjectStore, "delete", lambda *asked: deleted_or_broken(delete, *asked))
        with pytest.raises(OSError, match="broken off"):
            copy_savepoint(at(url), savepoint, to)
    copy_savepoint(at(url), savepoint, to)
    assert undisturbed == read_cut(to)
    assert not place_in(to, "maker.json").exists()


def deleted_or_broken(delete, store, name):
    if name == "silver/left":
        raise OSError("broken off")
    delete(store, name)


@S3_ONLY
@pytest.mark.dear
def test_the_doctor_names_a_writer_without_conditional_puts(url, typed):
    """Spark's Delta library does not ask S3 whether a log entry exists."""
    run(url)
    info = {"timestamp": 1, "operation": "WRITE", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}
    log = place_in(url, "bronze/numbers/_delta_log")
    newest = max(int(each.name.partition(".")[0]) for each in log.entries() if each.name.endswith(".json"))
    (log / f"{newest + 1:020d}.json").write(json.dumps({"commitInfo": info}).encode())
    code, out, _ = typed("doctor", PIPELINE, "--warehouse", url)
    assert code != 0
    said = re.sub(r"\s+", " ", out)
    assert f"WRITE at version {newest + 1} was written by Apache-Spark/4.2.0 Delta-Lake/4.4.0, whose commits" in said
    assert "let other programs write to it by delta-rs" in said
    assert "by Tidemark/" not in said


@pytest.mark.dear
def test_a_clean_up_leaves_a_stores_newest_cut_whole(url, undisturbed):
    """Files that no cut needs are deleted, and the newest cut stays."""
    run(url)
    run(url, reader_grace_ms=0, plan=sequence_job.build({"a": 400, "b": 400}))
    from jobs.tick.cleaning import clean_up

    assert clean_up(at(url), 0).notes == ()
    assert read_cut(url)["gold/by_key"] != undisturbed["gold/by_key"]


@pytest.mark.parametrize("bucket", ["lake", "nowhere"])
def test_a_store_that_cannot_serve_is_refused_before_the_claim(each_store, url, typed, monkeypatch, bucket):
    """The server does not answer, or the bucket does not exist."""
    named, said = parsed(f"{each_store.url(bucket)}/w"), "the bucket does not exist: make it, or name another one"
    if bucket == "lake":
        named, said = url, f"the store cannot be reached: check {each_store.named}"
        for name, value in each_store.unreachable.items():
            monkeypatch.setenv(name, value)
    for words in (("run", PIPELINE), ("cut", PIPELINE)):
        code, _, err = typed(*words, "--warehouse", named)
        assert code != 0
        assert said in re.sub(r"\s+", " ", err)
        assert "Traceback" not in err


def test_the_doctor_says_once_why_a_store_cannot_serve(each_store, url, typed, monkeypatch):
    """The doctor names the way out. It does not advise to restore a backup of a job that it could not read."""
    for name, value in each_store.unreachable.items():
        monkeypatch.setenv(name, value)
    code, out, err = typed("doctor", PIPELINE, "--warehouse", url)
    assert (ExitCode.USAGE, "") == (code, err)
    said = re.sub(r"\s+", " ", out)
    assert 1 == said.count("the store cannot be reached")
    assert f"repair: check {each_store.named}" in said
    assert "backup" not in said


def test_no_secret_is_in_the_store_nor_in_what_a_command_says(each_store, url, typed, monkeypatch):
    """No entry, log, trace or error contains a secret."""
    said = []
    said.append(typed("run", PIPELINE, "--warehouse", url))
    said.append(typed("doctor", PIPELINE, "--warehouse", url))
    storage = storage_of(url)
    for each in storage.list("", deep=True):
        content = storage.read(each.name).bytes
        assert not any(secret.encode() in content for secret in each_store.secrets), each.name
    for name, value in each_store.unreachable.items():
        monkeypatch.setenv(name, value)
    said.append(typed("run", PIPELINE, "--warehouse", f"{url}-2", "--debug"))
    assert not any(secret in str(said) for secret in each_store.secrets)


@S3_ONLY
@pytest.mark.dear
def test_a_checkpoint_costs_the_requests_that_the_guide_says(url, store_server):
    """The server counts the requests of ticks with three and with nine checkpoints. The difference gives the cost."""

    def counted(root, rows):
        before = store_server.requests()
        done = run(root, reader_grace_ms=None, plan=sequence_job.build({"a": rows, "b": rows}))
        return store_server.requests() - before, len(done.completed)

    (few, first), (many, second) = counted(url, 150), counted(StoreUrl(f"{url}-2"), 450)
    said = re.search(r"^\| a checkpoint \| (.*) \|$", GUIDE.read_text(), re.MULTILINE)
    for kind, most in zip(("GET", "HEAD", "LIST", "PUT", "DELETE"), said[1].split(" | "), strict=True):
        assert (many[kind] - few[kind]) / (second - first) <= 1.1 * int(most) + 1, kind


@S3_ONLY
@pytest.mark.dear
def test_a_waiting_tick_looks_for_requests_every_two_seconds(url, store_server):
    """Each look for requests costs one LIST. Apart from these, the tick only renews the lease."""
    inbox, seen = Inbox(), []

    def watch():
        for _ in range(2):
            time.sleep(8)
            seen.append(store_server.requests())
        inbox.put(StopRequested(StopKind.NOW))

    threading.Thread(target=watch, daemon=True).start()
    settings = RuntimeSettings(warehouse=url, limits=TickLimits(until_caught_up=False))
    run_tick(sequence_job.build(), settings, engine=LocalEngine(), inbox=inbox)
    idle = seen[1] - seen[0]
    assert idle["LIST"] <= 5
    assert idle["HEAD"] + idle["DELETE"] == 0
    assert idle["GET"] + idle["PUT"] <= 4


# ------------------------------------------------------------------
# Overwrite tables, and append tables whose columns change, in a warehouse on real object stores.


HALF = 20


def rows(url, *names):
    return Cuts(url, JOB).latest().polars(TABLE).collect().select(names).sort("n").rows()


def test_columns_of_an_append_table_change_in_a_store(url):
    """A column is renamed twice, rolled back and dropped.

    Old cuts keep their names, and a clean-up deletes no file of old cuts.
    """
    tick(url, HALF)
    first = newest(url).checkpoint
    tick(url, HALF + 2, RENAMED)
    assert numbers(range(HALF + 2)) == rows(url, "n", "amount")
    tick(url, HALF + 3, AGAIN)
    clean_up(kept_at(url), grace_ms=0)
    assert (
        numbers(range(HALF)) == Cuts(url, JOB).at(first).polars(TABLE).collect().select("n", "value").sort("n").rows()
    )
    assert numbers(range(HALF + 3)) == rows(url, "n", "sum")
    roll_back(kept_at(url), first)
    assert numbers(range(HALF)) == rows(url, "n", "value")
    tick(url, HALF + 4, RENAMED)
    tick(url, HALF + 5, BACK)
    assert numbers(range(HALF + 5)) == rows(url, "n", "value")
    tick(url, HALF + 6, DROPPED)
    assert ["key", "n"] == sorted(Cuts(url, JOB).latest().polars(TABLE).collect().columns)
    assert HALF + 6 == len(rows(url, "n"))


def test_an_overwrite_table_in_a_store_goes_on_after_a_rollback(url):
    """The table shows the rows of the greatest version, as in a folder."""
    newest_job.tick(url, HALF)
    first = Cuts(url, newest_job.JOB).latest().checkpoint
    assert newest_job.expected(HALF) == newest_job.shown(url)
    newest_job.tick(url, 2 * HALF)
    assert newest_job.expected(2 * HALF) == newest_job.shown(url)
    clean_up(newest_job.at(url), grace_ms=0)
    roll_back(newest_job.at(url), first)
    assert newest_job.expected(HALF) == newest_job.shown(url)
    newest_job.tick(url, 3 * HALF)
    assert newest_job.expected(3 * HALF) == newest_job.shown(url)


# ------------------------------------------------------------------
# A tick on an object store behind a proxy: how many requests a checkpoint waits for, and what faults of requests leave
# behind.


REQUESTS_MAX = 6
STARTS_MAX = 26
BESIDE = ("/lease", "/requests", "/traces")
"""Places for whose requests no checkpoint waits."""

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
"""Patterns of the keys of all writes that a tick of three checkpoints needs."""


class Slow(LocalEngine):
    """An engine whose micro-batches last as long as a look at all logs."""

    def run(self, *asked):
        time.sleep(0.4)
        return super().run(*asked)


@pytest.fixture(scope="session")
def proxy(each_store):
    with Proxy(each_store) as proxy:
        yield proxy


@pytest.fixture
def slow_url(proxy, monkeypatch):
    for name, value in proxy.environment.items():
        monkeypatch.setenv(name, value)
    proxy.harm()
    return parsed(f"{proxy.server.url()}/{uuid4().hex}/warehouse")


@S3_ONLY
def test_a_checkpoint_waits_for_few_requests(slow_url, proxy):
    """It waits for one read and five writes: two for its entry, one for the tables, two for the cut.

    Independent requests run at the same time.
    """
    report = run_tick(build(), RuntimeSettings(warehouse=slow_url, reader_grace_ms=None), engine=Slow())
    times = commits(report.trace)
    assert 3 == len(times)
    seen = [each for each in proxy.seen() if not any(word in each.key for word in BESIDE)]
    waited = [
        [each for each in seen if one.worked_ms <= 1000 * each.began and 1000 * each.ended <= one.recorded_ms]
        for one in times
    ]
    assert min(longest_chain(each) for each in waited) <= REQUESTS_MAX, waited[-1]


@S3_ONLY
def test_a_start_waits_for_few_requests(slow_url, proxy):
    """Before its first micro-batch, a tick looks at all tables at the same time, and opens and maintains none."""
    run(slow_url, checkpoints=2)
    before = len(proxy.seen())
    report = run(slow_url, checkpoints=1)
    began = first_micro_batch_ms(report.trace) / 1000
    asked = [each for each in proxy.seen()[before:] if each.ended <= began]
    assert longest_chain(asked) <= STARTS_MAX, [(each.kind, each.key) for each in asked]
    opened = [each for each in asked if each.kind == "LIST" and re.search("(bronze|gold)/.*/_delta_log", each.key)]
    assert [] == opened


def test_the_trace_of_a_finished_tick_is_in_the_store(slow_url):
    """The trace is written on this machine. After the attempt, the whole trace is in the store."""
    report = run(slow_url, checkpoints=1)
    assert report.trace.read_bytes() == storage_of(slow_url).read("_tidemark/numbers/traces/1.ndjson").bytes


@pytest.mark.matrix
@pytest.mark.parametrize(
    "harm",
    [Harm.CUT_AFTER, *(pytest.param(each, marks=pytest.mark.dear) for each in Harm if each is not Harm.CUT_AFTER)],
)
@pytest.mark.parametrize("write", WRITES)
def test_a_tick_survives_each_fault_of_each_write(slow_url, proxy, undisturbed, write, harm):
    """The tick goes on in spite of the fault. Each row is there once, also after the next tick."""
    proxy.harm(Fault(harm, "PUT", WRITES[write], times=2))
    report = run(slow_url)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert [True] == proxy.struck()
    assert undisturbed == read_cut(slow_url)
    assert TickOutcome.CAUGHT_UP is run(slow_url).outcome
    assert undisturbed == read_cut(slow_url)


@pytest.mark.dear
@pytest.mark.parametrize("write", ["staged file", "file of the row", "commit of the row", "commit of a table"])
@pytest.mark.parametrize("harm", [Harm.BUSY, Harm.CUT_BEFORE])
def test_a_fault_that_lasts_fails_the_checkpoint_by_name_and_loses_nothing(slow_url, proxy, undisturbed, write, harm):
    """Retries have a bound. No reader sees a part of the checkpoint. The next tick ends with exact tables."""
    proxy.harm(Fault(harm, "PUT", WRITES[write], times=1_000_000))
    report = run(slow_url)
    assert TickOutcome.FAILED is report.outcome
    assert str(slow_url) in report.message
    cuts = Cuts(slow_url, "numbers").all()
    if cuts:
        newest = cuts[-1]
        gold = newest.polars(str(GOLD)).collect()
        assert gold["rows"].sum() == newest.arrow("bronze/numbers").num_rows
    proxy.harm()
    assert TickOutcome.CAUGHT_UP is run(slow_url).outcome
    assert undisturbed == read_cut(slow_url)


OFTEN = {("after:Claim", 1), ("before:AppendRow", 2), ("after:AppendRow", 2), ("before:RecordCut", 2)}


@pytest.mark.kill
@pytest.mark.parametrize(
    ("name", "occurrence"),
    [pytest.param(*each, marks=() if each in OFTEN else pytest.mark.dear) for each in FIRST_TICKS_BOUNDARIES],
)
def test_a_tick_killed_at_any_boundary_loses_nothing_in_a_store(slow_url, undisturbed, name, occurrence):
    """After SIGKILL and a second tick, the tables are those of an undisturbed run."""
    killed(ticked, slow_url, kill_at=f"{name}#{occurrence}")
    assert TickOutcome.CAUGHT_UP is run(slow_url).outcome
    assert undisturbed == read_cut(slow_url)


@pytest.fixture(scope="module")
def connect_to_a_store(store_server, s3_jars, tmp_path_factory):
    """Return the Spark configuration for ticks on a warm Connect server that reads s3a.

    The server's tasks go on when a client has died.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name, value in store_server.environment.items():
            patched.setenv(name, value)
        config = SparkConfig(cores=2, memory="1g", jar_sets=("s3a",), settings=s3a_settings(os.environ))
        with connect_server(config, tmp_path_factory.mktemp("connect") / "server.log") as server:
            yield SparkConfig(cores=1, memory="512m", connect_url=server.url)


@S3_ONLY
@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "deaths",
    [
        ("after:RunMicroBatch#2",),
        ("after:AppendRow#2",),
        ("after:PublishTable:bronze/numbers#2",),
        pytest.param(("after:AppendRow#2", "before:RollForwardCut"), marks=pytest.mark.dear),
    ],
)
def test_a_client_of_spark_that_is_killed_loses_nothing_in_a_store(connect_to_a_store, url, undisturbed, deaths):
    """The client's death leaves jobs, staged files or half of the publications. The server lives on."""
    for kill_at in deaths:
        killed(ticked, url, on_spark=connect_to_a_store, kill_at=kill_at)
    assert "caught_up" == Running(ticked, url, on_spark=connect_to_a_store).wait().said["outcome"]
    assert undisturbed == read_cut(url)
