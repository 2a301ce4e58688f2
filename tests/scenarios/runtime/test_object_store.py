"""A warehouse in an object store: ticks, kills, commands and readers, against a real S3 server."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from checkpointing.messages import TickOutcome
from jobs.holding.boundaries import KILL_VARIABLE
from jobs.reading import Cuts
from jobs.storage.address import StoreUrl
from jobs.storage.location import place_in, storage_of
from tests.object_store import KEY, SECRET
from tests.scenarios.runtime import sequence_job
from tests.scenarios.runtime.savepoint_job import at, records, run
from tests.scenarios.runtime.sequence_job import read_cut

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"


@pytest.fixture
def url(store_server, monkeypatch):
    """Return an empty warehouse's URL; the environment reaches the server."""
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl(f"s3://lake/{uuid4().hex}/warehouse")


def program(url, **environment):
    """Run a tick in a process of its own."""
    words = [sys.executable, sequence_job.__file__, str(url)]
    root = str(Path(__file__).resolve().parents[3])
    return subprocess.run(
        words,
        env=os.environ | {"PYTHONPATH": root} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_tick_leaves_in_a_store_what_it_leaves_in_a_folder(url, undisturbed):
    """Tables, states and cuts; a second tick finds nothing new and restores; readers read by cut."""
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


@pytest.mark.kill
@pytest.mark.parametrize(
    "boundary",
    ["after:Claim", "before:AppendRow#2", "after:AppendRow#2", "after:PublishTable:gold/by_key", "before:RecordCut#2"],
)
def test_a_killed_tick_loses_nothing_in_a_store(url, undisturbed, boundary):
    """The next tick takes over, publishes what was committed, and reads the rest again."""
    assert -signal.SIGKILL == program(url, **{KILL_VARIABLE: boundary}).returncode
    done = program(url)
    assert "caught_up" == json.loads(done.stdout)["outcome"], done.stderr
    assert undisturbed == read_cut(url)


@pytest.mark.dear
def test_a_savepoint_moves_between_folder_and_store(url, undisturbed, typed, tmp_path):
    """`savepoint --to` a URL and a folder, `run --from` each of them, into the other kind of warehouse."""
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
    """It shows the same as on a folder, and names the URL where it names a folder."""
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


@pytest.mark.dear
def test_a_clean_up_leaves_a_stores_newest_cut_whole(url, undisturbed):
    """Files that nobody needs are deleted; the newest cut stays."""
    run(url)
    run(url, reader_grace_ms=0, plan=sequence_job.build({"a": 400, "b": 400}))
    from jobs.runtime.cleaning import clean_up

    assert clean_up(at(url), 0).notes == ()
    assert read_cut(url)["gold/by_key"] != undisturbed["gold/by_key"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "the store cannot be reached: check AWS_ENDPOINT_URL"),
        ({}, "the bucket does not exist: make it, or name another one"),
    ],
)
def test_a_store_that_cannot_serve_is_refused_before_the_claim(url, typed, monkeypatch, change, said):
    """In one sentence, by each command."""
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    named = url if change else StoreUrl("s3://nowhere/w")
    for words in (("run", PIPELINE), ("cut", PIPELINE)):
        code, _, err = typed(*words, "--warehouse", named)
        assert code != 0
        assert said in re.sub(r"\s+", " ", err)
        assert "Traceback" not in err


def test_no_secret_is_in_the_store_nor_in_what_a_command_says(url, typed, monkeypatch):
    """Not in an entry, a log, a trace or an error."""
    said = []
    said.append(typed("run", PIPELINE, "--warehouse", url))
    said.append(typed("doctor", PIPELINE, "--warehouse", url))
    storage = storage_of(url)
    for each in storage.list("", deep=True):
        content = storage.read(each.name).bytes
        assert SECRET.encode() not in content, each.name
        assert KEY.encode() not in content, each.name
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    said.append(typed("run", PIPELINE, "--warehouse", f"{url}-2", "--debug"))
    assert SECRET not in str(said)
    assert KEY not in str(said)
