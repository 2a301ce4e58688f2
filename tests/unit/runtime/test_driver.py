"""The driver around the real job door. Its effects are carried out in memory."""

import itertools
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, EdgeId, Generation, JobName, SplitId, TableName, VertexId
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    EndTick,
    MicroBatchFinished,
    NotifyComplete,
    PollSource,
    PublishTable,
    RecordCut,
    RowAppended,
    RowUnknown,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    SliceOffered,
    SourceIdle,
    StopKind,
    StopRequested,
    SubtaskOutput,
    TablePublished,
    TablesChecked,
    TickOutcome,
    TimeAdvanced,
)
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder
from checkpointing.trace import TickStarted, read
from jobs.tick.driver import Clock, DoorFailedError, Driver, Inbox
from jobs.tick.listener import Narrator, TickListener
from jobs.tick.request_watcher import RequestWatcher
from jobs.tick.trace_files import TraceWriter
from jobs.warehouse.lease import this_process
from jobs.warehouse.requests import AnswerStatus, RequestFolder
from jobs.warehouse.warehouse import Warehouse, system_clock_ms

SOURCE, SINK, TABLE = VertexId("numbers"), VertexId("bronze"), TableName("bronze/numbers")
ROWS = 100


def setup_of(limits: TickLimits | None = None, **config: object) -> JobSetup:
    """Return the set-up of a job with one split and one append table."""
    source = Vertex(SOURCE, VertexKind.SOURCE, 1, splits=(SplitId("a"),))
    sink = Vertex(SINK, VertexKind.STATELESS, 1, (Table(TABLE, TableMode.APPEND),))
    claim = Claim(
        generation=Generation(1),
        holder=Holder(host="h", pid=1, started="s"),
        first_id=CheckpointId(1),
        last_id=CheckpointId(1000),
        at_ms=1,
        nonce="n",
    )
    return JobSetup(
        graph=JobGraph((source, sink), (EdgeId(SOURCE, SINK),)),
        config=CheckpointConfig(**({"every_rows": 40, "slice_rows_max": 20, "micro_batch_rows_max": 20} | config)),
        job=JobName("numbers"),
        claim=claim,
        at_version=1,
        limits=limits or TickLimits(),
        idle_poll_ms=20,
    )


class InMemory:
    """Effects in memory: a source of a hundred rows, files with only names, and a table that is a list of files."""

    def __init__(self) -> None:
        self.published: list[FileHandle] = []
        self.completed: list[CheckpointId] = []
        self.version = 1

    def end(self):
        """No effect here can be ended early."""

    def carry_out(self, effect):  # noqa: PLR0911 - an answer for each effect
        match effect:
            case PollSource():
                start = int(effect.position or 0)
                end = min(start + effect.max_rows, ROWS)
                if start == end:
                    return SourceIdle(effect.source, effect.split)
                piece = SourceSlice(effect.source, effect.split, str(start), str(end), "", end - start, end - start)
                return SliceOffered(piece)
            case RunMicroBatch():
                rows = sum(segment.rows for entry in effect.inputs for segment in entry.segments)
                file = FileHandle(f"{TABLE}/_data/1/{effect.micro_batch}", rows, rows, 0)
                return MicroBatchFinished(effect.vertex, effect.micro_batch, (SubtaskOutput(staged=((TABLE, file),)),))
            case CheckTables():
                return TablesChecked(effect.checkpoint, ())
            case AppendRow():
                self.version += 1
                return RowAppended(effect.row.nonce, self.version)
            case PublishTable():
                self.published.extend(effect.publication.adds)
                return TablePublished(effect.checkpoint, effect.publication.table, len(self.published))
            case RecordCut():
                return CutRecorded(effect.checkpoint)
            case NotifyComplete():
                self.completed.append(effect.checkpoint)
                return None
            case _:
                return None


class Ride:
    """Drives the door with these handlers, and keeps the end and the trace of the drive."""

    def __init__(
        self, path: Path, handlers: InMemory, setup: JobSetup, *, inbox: Inbox | None = None, clock=None
    ) -> None:
        self.door = JobDoor(setup)
        self.narrator = Narrator(TickListener())
        self._path, self._setup = path, setup
        with TraceWriter(path) as trace:
            self.driver = Driver(
                self.door, handlers, inbox or Inbox(), trace, self.narrator, Clock(clock or system_clock_ms)
            )
            self.end, self.late = self.driver.run(setup, 5_000)

    @property
    def bodies(self) -> list[object]:
        return [entry.body for entry in read(self._path.read_bytes().splitlines(keepends=True))]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "1.ndjson"


def test_the_door_is_driven_until_it_has_caught_up(trace):
    """Every row is published once, every checkpoint is notified, and nothing runs when the loop ends."""
    handlers = InMemory()
    ride = Ride(trace, handlers, setup_of())
    assert (EndTick(TickOutcome.CAUGHT_UP), ()) == (ride.end, ride.late)
    assert ROWS == sum(file.rows for file in handlers.published)
    assert [1, 2, 3] == handlers.completed == [record.checkpoint for record in ride.narrator.completed]
    assert handlers.version == ride.driver.at_version


def test_time_is_told_before_every_fact_and_never_goes_back(trace):
    """For the door, time only advances, even if the machine's clock jumps back."""
    ticks = itertools.count(1_000, 7)
    ride = Ride(trace, InMemory(), setup_of(), clock=lambda: next(ticks) * (-1) ** next(ticks) + 5_000)
    started, *bodies = ride.bodies
    assert isinstance(started, TickStarted)
    facts = [body for body in bodies if type(body).__name__ in {"TimeAdvanced", "SliceOffered", "RowAppended"}]
    assert all(
        isinstance(one, TimeAdvanced) for one, two in itertools.pairwise(facts) if not isinstance(two, TimeAdvanced)
    )
    times = [body.now_ms for body in bodies if isinstance(body, TimeAdvanced)]
    assert sorted(times) == times


def test_timers_fire_without_a_fact(trace):
    """A job without rows to read still takes its periodic checkpoints, because the clock wakes the driver."""
    handlers = InMemory()
    limits = TickLimits(until_caught_up=False, checkpoints=4)
    ride = Ride(trace, handlers, setup_of(limits, every_rows=None, interval_ms=30))
    assert TickOutcome.FAILED is not ride.end.outcome
    assert 4 <= len(handlers.completed)


def test_an_attempt_gets_what_comes_in_while_it_runs_and_no_other_attempts_answers():
    """An attempt gets waiting facts, and facts that come while it runs.

    Late answers to an attempt do not reach the next attempt.
    """
    tick = Inbox()
    tick.put(SourceIdle(SOURCE, SplitId("a")))
    with tick.attempt() as first:
        tick.put(SourceIdle(SOURCE, SplitId("b")))
        assert [SourceIdle(SOURCE, SplitId("a")), SourceIdle(SOURCE, SplitId("b"))] == [first.get(0), first.get(0)]
        first.put(SourceIdle(SOURCE, SplitId("left")))
    first.put(SourceIdle(SOURCE, SplitId("late")))
    tick.put(StopRequested(StopKind.NOW))
    with tick.attempt() as second:
        assert [StopRequested(StopKind.NOW), None] == [second.get(0), second.get(0)]
    assert (True, None) == (tick.stop_requested, tick.get(0))


def test_notices_come_in_order_however_long_one_takes(trace):
    """A slow notice delays only later notices, and no notice overtakes it."""
    told = []

    class Slow(InMemory):
        def carry_out(self, effect):
            if isinstance(effect, NotifyComplete):
                time.sleep(0.3 / effect.checkpoint)
                told.append(effect.checkpoint)
            return super().carry_out(effect)

    Ride(trace, Slow(), setup_of())
    assert [1, 2, 3] == told


def test_a_stop_that_came_before_the_start_is_obeyed(trace):
    """After a request to stop at once, nothing is committed."""
    inbox = Inbox()
    inbox.put(StopRequested(StopKind.NOW))
    ride = Ride(trace, InMemory(), setup_of(), inbox=inbox)
    assert TickOutcome.STOPPED is ride.end.outcome
    assert [] == [body for body in ride.bodies if isinstance(body, AppendRow)]


def test_a_row_of_unknown_fate_ends_the_tick(trace):
    """If it is unknown whether the entry was appended, the tick fails and publishes nothing of the entry."""

    class Doubtful(InMemory):
        def carry_out(self, effect):
            return RowUnknown(effect.row.nonce, "lost") if isinstance(effect, AppendRow) else super().carry_out(effect)

    handlers = Doubtful()
    ride = Ride(trace, handlers, setup_of())
    assert (TickOutcome.FAILED, []) == (ride.end.outcome, handlers.published)
    assert "lost" in ride.end.message


def test_an_effect_that_has_no_failure_fact_ends_the_tick_by_name(trace):
    """If a cut cannot be recorded, the driver ends the tick without asking the door. The message names the effect."""

    class Full(InMemory):
        def carry_out(self, effect):
            if isinstance(effect, RecordCut):
                raise OSError("disk full")
            return super().carry_out(effect)

    ride = Ride(trace, Full(), setup_of())
    assert (TickOutcome.FAILED, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE) == (
        ride.end.outcome,
        ride.end.reason,
    )
    assert "RecordCut: OSError: disk full" == ride.end.message == ride.bodies[-1].error


def test_a_door_that_raises_is_a_bug_and_says_where_the_trace_is(trace):
    """A fact that no effect asked for makes the door raise an error. The fact is the last but one line of the trace."""
    inbox = Inbox()
    inbox.put(RowAppended("nobody", 3))
    with pytest.raises(DoorFailedError, match=str(trace)):
        Ride(trace, InMemory(), setup_of(), inbox=inbox)
    *_, fact, broken = [entry.body for entry in read(trace.read_bytes().splitlines(keepends=True))]
    assert RowAppended("nobody", 3) == fact
    assert "UnexpectedFactError" in broken.error


def test_what_still_runs_at_the_end_is_waited_for_in_bounds_and_named(trace):
    """A micro-batch that hangs does not keep a stopped tick from ending."""
    hang = threading.Event()

    class Hanging(InMemory):
        def carry_out(self, effect):
            if isinstance(effect, RunMicroBatch):
                inbox.put(StopRequested(StopKind.NOW))
                hang.wait(10)
            return super().carry_out(effect)

    inbox = Inbox()
    setup = setup_of()
    door = JobDoor(setup)
    with TraceWriter(trace) as writer:
        driver = Driver(door, Hanging(), inbox, writer, Narrator(TickListener()), Clock(system_clock_ms))
        end, late = driver.run(setup, 50)
    hang.set()
    assert (TickOutcome.STOPPED, ("RunMicroBatch",)) == (end.outcome, late)


# ------------------------------------------------------------------
# SIGTERM ends a process within a limited time, whatever its main thread waits for.


PROGRAM = """
import os, signal, socket, sys, threading
from jobs.tick.interrupts import Deadline, stopping_on_interrupt
deadline = Deadline(lambda said: print(said, file=sys.stderr, flush=True), 0.5)
with stopping_on_interrupt(lambda: os.write(1, b"asked\\n")):  # the signal may come while `ready` is printed
    print("ready", flush=True)
    HANGS
"""
NEVER = "a, b = socket.socketpair()\n    while True:\n        a.recv(1)"
LATE = "deadline.done(7)\n    threading.Event().wait()"


def ended(hangs: str) -> tuple[int, str, str, float]:
    """Start the program, and send SIGTERM. Return its exit code, stdout, stderr and how long it took to end."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("HANGS", hangs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout.readline() == "ready\n"
    begun = time.monotonic()
    program.send_signal(signal.SIGTERM)
    out, said = program.communicate(timeout=60)
    return program.returncode, out, said, time.monotonic() - begun


@pytest.mark.timeout(120)
def test_a_tick_that_does_not_stop_is_ended_with_a_sentence():
    """The main thread waits for a socket. The tick is first asked to stop, and gets some time for it."""
    code, out, said, took_s = ended(NEVER)
    assert (128 + signal.SIGTERM, "asked\n") == (code, out)
    assert "ended by SIGTERM: something did not stop" in said
    assert "the next tick takes over" in said
    assert 0.5 <= took_s < 10


@pytest.mark.timeout(120)
def test_a_command_that_is_done_keeps_its_exit_code():
    """Only another thread hangs, for example one that waits for a server. The command prints nothing about it."""
    assert (7, "") == ended(LATE)[::2][:2]


# ------------------------------------------------------------------
# The watcher between a job's request folder and its driver: every request is delivered once and answered once.


class Facts:
    """Keeps the facts that a driver's inbox would get."""

    def __init__(self):
        self.got = []
        self._new = threading.Condition()

    def put(self, fact):
        with self._new:
            self.got.append(fact)
            self._new.notify_all()

    def wait_for(self, number):
        with self._new:
            assert self._new.wait_for(lambda: len(self.got) >= number, timeout=10), self.got
            return self.got[number - 1]


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path, ProtocolPaths("numbers"))


@contextmanager
def watching(warehouse, facts):
    watcher = RequestWatcher(warehouse, facts.put)
    with watcher.attempt():
        yield watcher
    watcher.close()


def ask(warehouse, kind=SavepointKind.PLAIN):
    return RequestFolder(warehouse).ask(kind, this_process()).request


def answer_to(warehouse, request):
    limit = time.monotonic() + 10
    while (answer := RequestFolder(warehouse).answer_to(request)) is None:
        assert time.monotonic() < limit, "no answer came"
        time.sleep(0.01)
    return answer


def test_a_request_becomes_a_fact_and_the_effect_its_answer(warehouse):
    """A request from before or after the tick's start is delivered once, and answered with the savepoint's id."""
    facts = Facts()
    early = ask(warehouse)
    with watching(warehouse, facts) as watcher:
        assert SavepointRequested(early, SavepointKind.PLAIN) == facts.wait_for(1)
        late = ask(warehouse, SavepointKind.SUSPEND)
        assert SavepointRequested(late, SavepointKind.SUSPEND) == facts.wait_for(2)
        watcher.answer(SavepointTaken(early, CheckpointId(5)))
        watcher.answer(SavepointFailed(late, CheckpointFailureReason.QUALITY, "a suite said no"))
        taken, failed = answer_to(warehouse, early), answer_to(warehouse, late)
    assert (AnswerStatus.TAKEN, 5) == (taken.status, taken.checkpoint)
    assert (AnswerStatus.FAILED, None, "a suite said no") == (failed.status, failed.checkpoint, failed.message)
    assert 2 == len(facts.got)


def test_what_the_tick_did_not_answer_is_told_that_it_ended(warehouse):
    facts = Facts()
    with watching(warehouse, facts):
        request = ask(warehouse)
        facts.wait_for(1)
    answer = answer_to(warehouse, request)
    assert (AnswerStatus.ENDED, "the tick ended before there was a savepoint") == (answer.status, answer.message)


def test_a_cancellation_becomes_a_stop_and_is_answered_when_the_tick_is_over(warehouse):
    """The stop is delivered once. The end of the tick is the answer."""
    facts = Facts()
    with watching(warehouse, facts):
        request = RequestFolder(warehouse).ask_to_cancel(this_process()).request
        assert StopRequested(StopKind.NOW) == facts.wait_for(1)
        time.sleep(2 * warehouse.storage.look_ms / 1000)
        assert RequestFolder(warehouse).is_waiting(request)
        assert 1 == len(facts.got)
    ended = answer_to(warehouse, request)
    assert (AnswerStatus.ENDED, "the tick ended") == (ended.status, ended.message)


@pytest.mark.parametrize(
    "reason",
    [CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND],
)
def test_the_end_of_an_attempt_is_no_refusal(warehouse, reason):
    """If only the attempt ends, the savepoint has not failed. The requester gets an answer when the tick is over."""
    facts = Facts()
    with watching(warehouse, facts) as watcher:
        request = ask(warehouse)
        facts.wait_for(1)
        watcher.answer(SavepointFailed(request, reason, ""))
        assert RequestFolder(warehouse).is_waiting(request)
    assert AnswerStatus.ENDED is answer_to(warehouse, request).status


def test_a_request_that_an_attempt_left_is_asked_of_the_next(warehouse):
    """A restarted job takes the savepoint that its failed attempt did not take."""
    facts = Facts()
    watcher = RequestWatcher(warehouse, facts.put)
    request = ask(warehouse)
    with watcher.attempt():
        facts.wait_for(1)
    with watcher.attempt():
        assert SavepointRequested(request, SavepointKind.PLAIN) == facts.wait_for(2)
        watcher.answer(SavepointTaken(request, CheckpointId(9)))
    watcher.close()
    assert 9 == answer_to(warehouse, request).checkpoint


def test_a_malformed_request_is_answered_and_harms_nothing(warehouse):
    """The answer names the mistake in the request. Another request is still delivered."""
    facts = Facts()
    with watching(warehouse, facts):
        request = ask(warehouse)
        (warehouse.path(warehouse.paths.requests) / "broken.json").write_text("{")
        answer = answer_to(warehouse, "broken")
        facts.wait_for(1)
    assert AnswerStatus.UNREADABLE is answer.status
    assert "EOF" in answer.message
    assert [request] == [fact.request for fact in facts.got]


def test_a_withdrawn_request_gets_no_answer(warehouse):
    """The savepoint may still be taken, but no file answers the request."""
    facts = Facts()
    with watching(warehouse, facts) as watcher:
        request = ask(warehouse)
        facts.wait_for(1)
        RequestFolder(warehouse).withdraw(request)
        watcher.answer(SavepointTaken(request, CheckpointId(5)))
    assert [] == list(warehouse.path(warehouse.paths.requests).iterdir())


def test_a_tick_that_never_began_answers_nobody(warehouse):
    """If another process holds the job, it answers the requests."""
    request = ask(warehouse)
    RequestWatcher(warehouse, Facts().put).close()
    assert RequestFolder(warehouse).is_waiting(request)
