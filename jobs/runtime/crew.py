"""The threads that carry out slow effects: some for Spark jobs, some for files, so that neither waits for the other.

A micro-batch takes seconds; the commit path, which takes milliseconds, never queues behind it. Notices have one
thread, which keeps their order: a user's code runs in it, and may take its time. Each master hook has a thread of its
own, so that it delays no other, and one that hangs does not keep the process from ending.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, Protocol

from checkpointing.coordinator.effects import AskHook, CloseHook, ResetHook, RestoreHook
from checkpointing.messages import CancelJudgement, Fact, JudgeSuites, NotifyAborted, NotifyComplete, RunMicroBatch
from jobs.holding.boundaries import CarriedOut, boundary_of

SPARK_THREADS: Final = 4
"""Micro-batches at a time: Spark shares its cores among them."""

FILE_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class EffectBroke:
    """An effect raised that has no failure fact, or an error of the handlers themselves."""

    effect: str
    error: BaseException


Answer = Fact | EffectBroke


class Handlers(Protocol):
    """Whoever can carry out an effect."""

    def carry_out(self, effect: CarriedOut) -> Fact | None:
        """Return the answering fact, if the effect has one."""
        ...

    def cancel(self, effect: CancelJudgement) -> None:
        """Let a judgement that is under way end soon, without an answer."""
        ...


@dataclass(slots=True)
class _Line:
    """One thread that does one thing after the other. The process may end while it hangs, which no pool allows."""

    name: str
    _queue: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._work, name=self.name, daemon=True).start()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queue a call."""
        future: Future[None] = Future()
        self._queue.put((future, call))
        return future

    def end(self) -> None:
        """End the thread behind what is queued."""
        self._queue.put(None)

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            future, call = asked
            if future.set_running_or_notify_cancel():
                call()
                future.set_result(None)


class Crew:
    """Carries out effects beside the driver; every answer is handed to `answer`, from the effect's thread."""

    def __init__(self, handlers: Handlers, answer: Callable[[Answer], None]) -> None:
        """Nothing runs yet."""
        self._handlers = handlers
        self._answer = answer
        self._spark = ThreadPoolExecutor(SPARK_THREADS, thread_name_prefix="micro-batch")
        self._files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="effect")
        self._notices = ThreadPoolExecutor(1, thread_name_prefix="notice")
        self._hooks: dict[str, _Line] = {}
        self._running: dict[Future[None], CarriedOut] = {}

    def start(self, effect: CarriedOut) -> None:
        """Begin to carry out an effect. Only the driver's thread may call this."""
        future = self._submitted(effect)
        self._running[future] = effect
        self._running = {each: known for each, known in self._running.items() if not each.done()}

    def cancel(self, effect: CancelJudgement) -> None:
        """Drop a judgement that waits for a thread; tell one that is under way. Only the driver's thread may call."""
        for future, known in self._running.items():
            asked = isinstance(known, JudgeSuites) and (known.vertex, known.checkpoint)
            if asked == (effect.vertex, effect.checkpoint) and not future.cancel():
                self._handlers.cancel(effect)

    def dismiss(self, timeout_ms: int) -> tuple[str, ...]:
        """Start no waiting micro-batch, and ask no hook, any more; wait for all else.

        Returns what still runs after the timeout.
        """
        for future, effect in self._running.items():
            if isinstance(effect, AskHook):
                future.cancel()
        for line in self._hooks.values():
            line.end()
        self._spark.shutdown(wait=False, cancel_futures=True)
        self._files.shutdown(wait=False)
        self._notices.shutdown(wait=False)
        # A future that is cancelled in the queue never becomes what `wait` calls done.
        begun = [each for each in self._running if not each.cancelled()]
        _, late = wait(begun, timeout=timeout_ms / 1000)
        return tuple(sorted(boundary_of(self._running[each]) for each in late))

    def _submitted(self, effect: CarriedOut) -> Future[None]:
        if not isinstance(effect, AskHook | RestoreHook | ResetHook | CloseHook):
            return self._pool(effect).submit(self._carry_out, effect)
        if effect.hook not in self._hooks:
            self._hooks[effect.hook] = _Line(f"hook-{effect.hook}")
        return self._hooks[effect.hook].submit(lambda: self._carry_out(effect))

    def _pool(self, effect: CarriedOut) -> ThreadPoolExecutor:
        match effect:
            case RunMicroBatch():
                return self._spark
            case NotifyComplete() | NotifyAborted():
                return self._notices
            case _:
                return self._files

    def _carry_out(self, effect: CarriedOut) -> None:
        try:
            fact = self._handlers.carry_out(effect)
        except BaseException as error:  # noqa: BLE001 - nothing may die in silence in a thread
            self._answer(EffectBroke(boundary_of(effect), error))
            return
        if fact is not None:
            self._answer(fact)
