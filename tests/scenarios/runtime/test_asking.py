"""A running tick is asked for savepoints and stops through its job's folder, and answers; without Spark."""

import threading
import time
from contextlib import contextmanager

import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, StopKind, StopRequested, TickOutcome
from checkpointing.metadata.record import RowKind
from jobs.tick.at_rest.import_entry import import_row
from jobs.tick.at_rest.request_client import NothingRunsError, stop, take_savepoint
from jobs.tick.driver import Inbox
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.lease import this_process
from jobs.warehouse.refusals import SavepointRefusedError
from jobs.warehouse.requests import RequestFolder
from jobs.warehouse.savepoint_copy import copy_savepoint, named_files
from tests.scenarios.runtime.savepoint_job import at, records, run, wanted
from tests.scenarios.runtime.sequence_job import LocalEngine, build, read_cut


class Running:
    """A tick that waits for more, in a thread of this process."""

    def __init__(self, root, **how):
        self.root = root
        self.inbox = Inbox()
        self.report = None
        engine = how.pop("engine", None) or LocalEngine()
        settings = RuntimeSettings(warehouse=root, limits=TickLimits(until_caught_up=False))
        self._thread = threading.Thread(target=self._run, args=(settings, engine))

    def _run(self, settings, engine):
        self.report = run_tick(build(), settings, engine=engine, inbox=self.inbox)

    def start(self):
        self._thread.start()
        limit = time.monotonic() + 60
        while not (self.root / "_tidemark/numbers/lease").exists():
            assert time.monotonic() < limit
            time.sleep(0.01)
        return self

    def end(self):
        self.inbox.put(StopRequested(StopKind.NOW))
        self.join()

    def join(self):
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


@contextmanager
def running(root, **how):
    """Run a tick within this block."""
    tick = Running(root, **how).start()
    try:
        yield tick
    finally:
        tick.end()


def requests(root):
    """Return what lies in the job's folder of requests."""
    return sorted(path.name for path in (root / "_tidemark/numbers/requests").iterdir())


def patiently(waiting):
    """Wait for half a minute and no longer."""
    assert waiting.seconds < 30, waiting


def test_a_running_tick_takes_a_savepoint_and_goes_on(tmp_path, undisturbed):
    """The tick answers with the savepoint's id and leaves no request file. Its result is that of an undisturbed run."""
    with running(tmp_path) as tick:
        taken = take_savepoint(at(tmp_path), patiently)
        assert this_process() == taken.by
        assert RowKind.SAVEPOINT is records(tmp_path)[taken.record.checkpoint].kind
        assert tick.report is None
        assert [] == requests(tmp_path)
    run(tmp_path)
    assert undisturbed == read_cut(tmp_path)


def test_a_savepoint_of_a_running_tick_forks_into_the_same_result(tmp_path, undisturbed):
    """Taken in the middle of the input, copied and restored elsewhere, it goes on exactly from there."""
    root, fork = tmp_path / "warehouse", tmp_path / "fork"
    with running(root):
        taken = take_savepoint(at(root), patiently)
        copy = tmp_path / "copy"
        copy_savepoint(at(root), taken.record.checkpoint, copy)
        assert [] == [
            path for path in named_files(records(root)[taken.record.checkpoint]) if not (root / path).exists()
        ]
    import_row(wanted(str(copy), fork))
    run(fork)
    assert undisturbed == read_cut(fork)


@pytest.mark.parametrize("kind", [SavepointKind.SUSPEND, SavepointKind.DRAIN])
def test_a_stop_ends_the_tick_with_a_published_savepoint(tmp_path, undisturbed, kind):
    """Once the stop returns the job is released, and the next tick begins from that savepoint."""
    tick = Running(tmp_path).start()
    taken = stop(at(tmp_path), kind, patiently)
    tick.join()
    row = records(tmp_path)[taken.record.checkpoint]
    assert TickOutcome.STOPPED is tick.report.outcome
    assert (RowKind.CHECKPOINT, True, max(records(tmp_path))) == (row.kind, row.pinned, row.checkpoint)
    report = run(tmp_path)
    assert undisturbed == read_cut(tmp_path)
    assert [row.checkpoint] == [each.parent for each in report.completed[:1]] or () == report.completed


def test_a_tick_that_ends_leaves_the_asker_to_do_it_at_rest(tmp_path):
    """Asked too late, the tick says that it ended; a savepoint is then taken at rest, a stop has nothing to stop."""
    run(tmp_path, 1)
    asked = threading.Event()
    gate = tmp_path / "gate"
    tick = Running(tmp_path, engine=LocalEngine(gate=gate)).start()

    def end_it(waiting):
        del waiting
        if not asked.is_set():
            asked.set()
            tick.inbox.put(StopRequested(StopKind.NOW))
            gate.touch()

    taken = take_savepoint(at(tmp_path), end_it)
    tick.join()
    assert RowKind.SAVEPOINT is records(tmp_path)[taken.record.checkpoint].kind
    assert [] == requests(tmp_path)
    with pytest.raises(NothingRunsError):
        stop(at(tmp_path), SavepointKind.DRAIN, patiently)


def test_a_malformed_request_harms_no_tick(tmp_path, undisturbed):
    """The answer says what is wrong. The tick ends as it would without the request."""
    run(tmp_path, 1)
    folder = tmp_path / "_tidemark/numbers/requests"
    folder.mkdir()
    (folder / "broken.json").write_text('{"kind": "explode"}')
    run(tmp_path)
    assert "cannot be read" in RequestFolder(at(tmp_path)).answer_to("broken").message
    assert undisturbed == read_cut(tmp_path)


def test_whoever_stops_waiting_takes_the_request_back(tmp_path):
    """Ctrl-C while waiting leaves no request and no answer."""
    gate = tmp_path / "gate"

    def interrupt(waiting):
        raise KeyboardInterrupt

    with running(tmp_path, engine=LocalEngine(gate=gate)):
        with pytest.raises(KeyboardInterrupt):
            take_savepoint(at(tmp_path), interrupt)
        assert [] == requests(tmp_path)
        gate.touch()


def test_a_failing_savepoint_is_told_with_the_reason(tmp_path, monkeypatch):
    """The user reads the reason that the tick gives."""
    run(tmp_path, 1)
    with running(tmp_path):
        monkeypatch.setattr("jobs.tick.at_rest.request_client.RequestFolder.answer_to", refused)
        with pytest.raises(SavepointRefusedError, match=r"process \d+ on .* took no savepoint: a suite said no"):
            take_savepoint(at(tmp_path), patiently)


def refused(folder, request):
    """Answer as a tick does whose savepoint failed."""
    from jobs.warehouse.requests import AnswerStatus, SavepointAnswer

    del folder
    return SavepointAnswer(request=request, status=AnswerStatus.FAILED, message="a suite said no", answered_at_ms=1)
