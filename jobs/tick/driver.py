"""Drives the job door in one loop and one thread: takes a fact, steps the door, and starts the effects.

The door decides everything. Only the driver reads the clock, and it sends the door the time before every fact. The loop
ends when the door ends it, or with an error if the door or an effect raises an unexpected error.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from checkpointing.commit.recovery import completion
from checkpointing.failures import CheckpointFailureReason
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    Effect,
    EndTick,
    Fact,
    RowAppended,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    StopKind,
    StopRequested,
    TickOutcome,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.trace import TickBroken, TickStarted, Traced
from jobs.tick.effect_pool import Answer, Crew, EffectBroke, Handlers
from jobs.tick.listener import Narrator
from jobs.tick.trace_files import TraceWriter

STOP_DRAIN_MS = 2_000
"""The longest time that a tick with a request to stop at once waits for effects whose answers it does not need."""

IDLE_WAIT_MS = 1_000
"""The longest sleep. The door gets the time at least this often."""


class Door(Protocol):
    """The job door, as the driver uses it."""

    def start(self, now_ms: int) -> tuple[Effect, ...]:
        """Begin, and return the first effects."""
        ...

    def step(self, fact: Fact) -> tuple[Effect, ...]:
        """Take one fact, and return its effects."""
        ...


class DoorFailedError(RuntimeError):
    """The door raised an error, which is a bug of Tidemark. The message names the trace that reproduces the bug."""

    def __init__(self, error: Exception, trace: Path) -> None:
        super().__init__(
            f"the protocol broke ({type(error).__name__}: {error}). Nothing that was committed is lost, and the next "
            f"tick recovers. This is a bug of Tidemark: please report it with the trace {trace}"
        )
        self.trace = trace


class Inbox:
    """A queue of facts from any thread and from signal handlers. The driver takes them out one by one.

    A tick has an inbox, and each attempt has its own, so that late answers to one attempt never reach the next.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._queue: SimpleQueue[Answer] = SimpleQueue()
        self._open = self._queue
        """The queue that gets new facts: this inbox's own queue, or the running attempt's queue."""
        self.stop_requested = False
        """Whether the inbox ever got a StopRequested. If so, no attempt follows a failed one."""

    def put(self, answer: Answer) -> None:
        """Add a fact. It goes to the running attempt, if there is one."""
        if isinstance(answer, StopRequested):
            self.stop_requested = True
        self._open.put(answer)

    @contextmanager
    def attempt(self) -> "Iterator[Inbox]":
        """Yield an inbox for the attempt within this block.

        It gets the waiting facts, and the facts that arrive meanwhile.
        """
        inbox = Inbox()
        self._open = inbox._queue
        while (waiting := self.get(0)) is not None:
            inbox.put(waiting)
        try:
            yield inbox
        finally:
            self._open = self._queue

    def get(self, timeout_ms: int) -> Answer | None:
        """Return the oldest fact, or None if none comes in time."""
        try:
            return self._queue.get(timeout=max(timeout_ms, 0) / 1000)
        except Empty:
            return None


@dataclass(slots=True)
class Clock:
    """Gives milliseconds since the epoch. They never go back, even if the machine's clock does."""

    source: Callable[[], int]
    _last_ms: int = field(default=0)

    def now_ms(self) -> int:
        """Return the time."""
        self._last_ms = max(self._last_ms, self.source())
        return self._last_ms


class Driver:
    """Drives one door to its end."""

    def __init__(
        self, door: Door, handlers: Handlers, inbox: Inbox, trace: TraceWriter, narrator: Narrator, clock: Clock
    ) -> None:
        """Prepare without starting anything."""
        self._door = door
        self._inbox = inbox
        self._trace = trace
        self._narrator = narrator
        self._clock = clock
        self._crew = Crew(handlers, inbox.put)
        self._wake_ms: int | None = None
        self._end: EndTick | None = None
        self._renewing = False
        """The trace is full, so this attempt was asked to end. The tick goes on in another one."""
        self._hurries = False
        """Somebody has asked the tick to stop now."""
        self._stops: set[str] = set()
        self._stopped = False
        """The savepoint of a stop was taken, so no attempt follows."""
        self.at_version: int | None = None
        """The newest version of `checkpoints` that this tick has written for certain."""

    def run(self, setup: JobSetup, drain_ms: int) -> tuple[EndTick, tuple[str, ...]]:
        """Drive the door until it ends. Return how it ended, and the effects that still run `drain_ms` later.

        First notify the listeners again that the restored checkpoint is complete, because the tick that published the
        checkpoint may have died before it did so (Flink: at least once; a late notice does nothing). If the door raises
        an error, raise DoorFailedError after the effects have ended.
        """
        try:
            end = self._loop(setup)
        finally:
            late = self._crew.dismiss(min(drain_ms, STOP_DRAIN_MS) if self._hurries else drain_ms)
            self._trace.flush()
        return end, late

    @property
    def renews(self) -> bool:
        """Whether the attempt ended only because its trace was full."""
        ended = self._end is not None and self._end.outcome is TickOutcome.STOPPED
        return ended and self._renewing and not self._stopped

    def _loop(self, setup: JobSetup) -> EndTick:
        now_ms = self._clock.now_ms()
        self._note(TickStarted(setup, now_ms))
        if setup.restored is not None:
            self._crew.start(completion(setup.restored))
        self._step(lambda: self._door.start(now_ms))
        while self._end is None:
            self._turn(self._inbox.get(self._patience_ms()))
        return self._end

    def _turn(self, answer: Answer | None) -> None:
        now_ms = self._clock.now_ms()
        if self._wake_ms is not None and self._wake_ms <= now_ms:
            self._wake_ms = None
        self._tell(TimeAdvanced(now_ms))
        match answer:
            case None:
                return
            case EffectBroke():
                self._broke(answer)
            case _ as fact:
                if self._end is None:
                    self._tell(fact)

    def _tell(self, fact: Fact) -> None:
        self._note(fact)
        self._narrator.saw_fact(fact)
        self._hurries = self._hurries or fact == StopRequested(StopKind.NOW)
        if isinstance(fact, RowAppended):
            self.at_version = fact.version
            self._trace.flush()
        if isinstance(fact, SavepointRequested) and fact.kind is not SavepointKind.PLAIN:
            self._stops.add(fact.request)
        self._step(lambda: self._door.step(fact))
        if self._trace.is_full and not self._renewing:
            self._renewing = True
            self._inbox.put(StopRequested(StopKind.AFTER_CHECKPOINT))

    def _step(self, step: Callable[[], tuple[Effect, ...]]) -> None:
        try:
            effects = step()
        except Exception as error:
            self._note(TickBroken(f"{type(error).__name__}: {error}"))
            raise DoorFailedError(error, self._trace.path) from error
        self._carry_out(effects)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._note(effect)
            self._narrator.saw_effect(effect)
            match effect:
                case WakeAt():
                    self._wake_ms = effect.at_ms
                case CancelJudgement():
                    self._crew.cancel(effect)
                case EndTick():
                    self._end = effect
                case SavepointTaken() | SavepointFailed():
                    taken = isinstance(effect, SavepointTaken)
                    self._stopped = self._stopped or (taken and effect.request in self._stops)
                case AppendRow(row=CheckpointRecord() as record):
                    self._crew.start(replace(effect, row=self._narrator.with_failed(record)))
                case _:
                    self._crew.start(effect)

    def _broke(self, broke: EffectBroke) -> None:
        text = f"{broke.effect}: {type(broke.error).__name__}: {broke.error}"
        self._note(TickBroken(text))
        self._end = EndTick(TickOutcome.FAILED, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, text)
        self._narrator.saw_effect(self._end)

    def _note(self, body: Traced) -> None:
        self._trace.write(self._clock.now_ms(), (body,))

    def _patience_ms(self) -> int:
        if self._wake_ms is None:
            return IDLE_WAIT_MS
        return min(IDLE_WAIT_MS, max(0, self._wake_ms - self._clock.now_ms()))


# ------------------------------------------------------------------
# Makes Python's garbage collector run less often while a tick runs.
#
# The collector looks for objects that refer to each other in a cycle. By default it runs after every 700 new objects,
# and visits all live objects again and again. A coordinator of many subtasks holds a million objects, and creates tens
# of thousands in each checkpoint. Almost none of these objects is in a cycle, so nearly all of that work finds nothing.
# With 100,000 state files, a collection of all objects takes a quarter of a second.


NEW_OBJECTS: Final = 10_000
"""The collector runs after so many new objects."""


@contextmanager
def collecting_less_often() -> Iterator[None]:
    """Make the collector run less often inside this context. If the process has switched it off, it stays off."""
    new, *others = gc.get_threshold()
    if new:
        gc.set_threshold(max(new, NEW_OBJECTS), *others)
    try:
        yield
    finally:
        gc.set_threshold(new, *others)
