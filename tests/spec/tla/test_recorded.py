"""Traces of real ticks are behaviours of the TLA+ specification. Tampered traces are not."""

from dataclasses import replace

import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.messages import (
    AppendRow,
    CutRecorded,
    NotifyComplete,
    RecordCut,
    RowAppended,
    RowRefused,
    SavepointKind,
    SavepointRequested,
    TablePublished,
)
from checkpointing.trace import TickStarted, encode, read
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from spec.tla.__main__ import main
from spec.tla.traces import judge
from tests.scenarios.processes import killed
from tests.scenarios.runtime.sequence_job import LocalEngine, at, build, run, ticked


def files(root):
    return sorted((root / "_tidemark/numbers/traces").iterdir(), key=lambda path: int(path.stem))


def bodies(path):
    with path.open("rb") as lines:
        return [entry.body for entry in read(lines)]


def lines(entries):
    return [encode(number, 1, body) for number, body in enumerate(entries, start=1)]


def places(entries, kind):
    return [place for place, body in enumerate(entries) if isinstance(body, kind)]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    root = tmp_path_factory.mktemp("short")
    run(root, 1)
    run(root)
    return [bodies(path) for path in files(root)]


@pytest.fixture(scope="module")
def overtaken(tmp_path_factory):
    """Return the traces of two ticks: the first one wakes up after the second one has taken the job over."""
    root = tmp_path_factory.mktemp("overtaken")
    left = [build()]

    def boundary(name: str) -> None:
        while left and name == "before:AppendRow":
            run_tick(left.pop(), RuntimeSettings(warehouse=root, take_over=True), engine=LocalEngine())

    run_tick(build(), RuntimeSettings(warehouse=root), engine=LocalEngine(), boundary=boundary)
    return [bodies(path) for path in files(root)]


def test_a_job_with_savepoints_that_was_killed_and_rolled_forward_is_accepted(tmp_path, capsys):
    """The second tick was killed after its commit point, and the trace of that tick is empty."""
    inbox = Inbox()
    inbox.put(SavepointRequested("plain", SavepointKind.PLAIN))
    limits = TickLimits(checkpoints=1)
    run_tick(build(), RuntimeSettings(warehouse=tmp_path, limits=limits), engine=LocalEngine(), inbox=inbox)
    killed(ticked, tmp_path, kill_at="after:AppendRow")
    inbox.put(SavepointRequested("stop", SavepointKind.SUSPEND))
    run_tick(build(), RuntimeSettings(warehouse=tmp_path), engine=LocalEngine(), inbox=inbox)
    run(tmp_path)
    assert 0 == main(["trace", *map(str, files(tmp_path))])
    assert "are a behaviour of the protocol" in capsys.readouterr().out


@pytest.mark.dear
def test_ticks_with_a_savepoint_and_a_rollback_between_them_are_accepted(tmp_path):
    """Commands write no traces. The next tick's observation shows what they did."""
    run(tmp_path, 1)
    savepoint = savepoint_at_rest(at(tmp_path))
    roll_back(at(tmp_path), savepoint.checkpoint)
    run(tmp_path)
    assert [1, 4] == [int(path.stem) for path in files(tmp_path)]
    judgement = judge(path.read_bytes().splitlines(keepends=True) for path in files(tmp_path))
    assert judgement.accepted, judgement.problem


@pytest.mark.matrix
def test_two_ticks_that_ended_in_order_are_accepted(short):
    """These are the traces that the tests below tamper with."""
    judgement = judge(map(lines, short))
    assert judgement.accepted, judgement.problem


def test_a_tick_that_was_taken_over_is_accepted(overtaken):
    """The sleeping tick's last append is refused, because the other tick's claim has taken the version."""
    assert places(overtaken[0], RowRefused)
    judgement = judge(map(lines, overtaken))
    assert judgement.accepted, judgement.problem


def the_entry_after_its_publication(ticks):
    entries = ticks[1]
    entries.insert(places(entries, RowAppended)[0], entries.pop(places(entries, TablePublished)[0]))


def the_commits_swapped(ticks):
    """The second checkpoint is committed before the first."""
    entries = ticks[1]
    one, two = places(entries, AppendRow)
    entries[one], entries[two] = entries[two], entries[one]
    one, two = places(entries, RowAppended)
    entries[one], entries[two] = entries[two], entries[one]


def an_id_used_twice(ticks):
    """The second tick uses the ids of the first one again."""
    started = ticks[1][0]
    assert isinstance(started, TickStarted)
    claim = started.setup.claim
    again = claim.model_copy(update={"first_id": 1, "last_id": claim.last_id - claim.first_id + 1})
    ticks[1][0] = replace(started, setup=replace(started.setup, claim=again))


def a_cut_without_a_publication(ticks):
    del ticks[1][places(ticks[1], TablePublished)[0]]


def a_cut_of_another_version(ticks):
    place = places(ticks[1], RecordCut)[0]
    ((table, version), *others) = ticks[1][place].versions
    ticks[1][place] = replace(ticks[1][place], versions=((table, version + 1), *others))


def told_before_its_cut(ticks):
    entries = ticks[1]
    entries.insert(places(entries, CutRecorded)[0], entries.pop(places(entries, NotifyComplete)[0]))


def an_older_checkpoint_restored(ticks):
    started = ticks[1][0]
    ticks[1][0] = replace(started, setup=replace(started.setup, restored=None, retained=(), versions={}))


def a_version_taken_twice(ticks):
    place = places(ticks[1], RowAppended)[0]
    ticks[1][place] = replace(ticks[1][place], version=2)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "tamper",
    [
        the_entry_after_its_publication,
        the_commits_swapped,
        an_id_used_twice,
        a_cut_without_a_publication,
        a_cut_of_another_version,
        told_before_its_cut,
        an_older_checkpoint_restored,
        a_version_taken_twice,
    ],
)
def test_a_tampered_trace_is_refused_at_its_line(short, tamper):
    """The specification has no behaviour with these events, and the verdict names the line."""
    ticks = [list(entries) for entries in short]
    tamper(ticks)
    assert judge(map(lines, ticks)).problem.startswith("generation 2, line ")


@pytest.mark.matrix
def test_a_tick_without_a_fence_is_refused(overtaken):
    """Its trace reports its entry as appended, although the other tick claimed the job first."""
    zombie, other = (list(entries) for entries in overtaken)
    (place,) = places(zombie, RowRefused)
    zombie[place] = RowAppended(zombie[place].nonce, 3)
    assert judge([lines(zombie), lines(other)]).problem.startswith("generation 1, line ")


def test_a_file_that_is_no_trace_is_refused_by_name(short, tmp_path, capsys):
    """Such input is a damaged line, a generation that comes twice, or a file that cannot be read."""
    assert "line 1: no JSON" in judge([[b"nothing\n"]]).problem
    assert "two traces are of generation 1" == judge([lines(short[0]), lines(short[0])]).problem
    assert "the traces are empty" == judge([[]]).problem
    assert (
        "the first trace is of generation 2: give the traces from generation 1 on" == judge([lines(short[1])]).problem
    )
    assert 1 == main(["trace", str(tmp_path / "gone")])
    assert f"{tmp_path}/gone cannot be read: No such file" in capsys.readouterr().out
