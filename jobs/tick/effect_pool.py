"""Carries out slow effects in threads: some for Spark jobs, some for files, one for notices, one for each master hook.

A micro-batch takes seconds, and the steps of a commit take milliseconds. So commits have their own threads, and never
queue behind micro-batches. Notices run a user's code in one thread, which keeps their order. A hook does not delay
other hooks, and a hook that hangs does not keep the process from ending.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, Protocol

from checkpointing.coordinator.messages import AskHook
from checkpointing.messages import CancelJudgement, Fact, JudgeSuites, NotifyAborted, NotifyComplete, RunMicroBatch
from jobs.warehouse.boundaries import CarriedOut, HookEffect, boundary_of

SPARK_THREADS: Final = 4
"""How many micro-batches run at a time. Spark shares its cores among them."""

FILE_THREADS: Final = 32
"""How many tables are published at a time. A publication mostly waits for the storage."""


@dataclass(frozen=True, slots=True)
class EffectBroke:
    """An effect that has no failure fact raised an error, or the handlers themselves raised one."""

    effect: str
    error: BaseException


Answer = Fact | EffectBroke


class Handlers(Protocol):
    """Carries out effects."""

    def carry_out(self, effect: CarriedOut) -> Fact | None:
        """Carry out an effect. Return the fact that answers it, if it has one."""
        ...

    def cancel(self, effect: CancelJudgement) -> None:
        """Make a running judgement end soon, without an answer."""
        ...

    def end(self) -> None:
        """End work soon if nobody waits for it any more."""
        ...


@dataclass(slots=True)
class _Line:
    """One thread for calls, in order.

    Unlike a pool's thread, a thread that hangs here does not keep the process alive.
    """

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
        """End the thread after the queued calls."""
        self._queue.put(None)

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            future, call = asked
            if future.set_running_or_notify_cancel():
                call()
                future.set_result(None)


class Crew:
    """Carries out effects in threads of its own. The effect's thread calls `answer` with the answer."""

    def __init__(self, handlers: Handlers, answer: Callable[[Answer], None]) -> None:
        """Prepare without starting an effect."""
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
        """Drop a judgement that waits for a thread, or end a running one. Only the driver's thread may call this."""
        for future, known in self._running.items():
            asked = isinstance(known, JudgeSuites) and (known.vertex, known.checkpoint)
            if asked == (effect.vertex, effect.checkpoint) and not future.cancel():
                self._handlers.cancel(effect)

    def dismiss(self, timeout_ms: int) -> tuple[str, ...]:
        """Drop waiting micro-batches and requests to hooks, and wait for the other effects.

        Returns the names of the effects that still run after the timeout.
        """
        self._handlers.end()
        for future, effect in self._running.items():
            if isinstance(effect, AskHook):
                future.cancel()
        for line in self._hooks.values():
            line.end()
        self._spark.shutdown(wait=False, cancel_futures=True)
        self._files.shutdown(wait=False)
        self._notices.shutdown(wait=False)
        # `wait` never treats a future as done if it was cancelled in the queue.
        begun = [each for each in self._running if not each.cancelled()]
        _, late = wait(begun, timeout=timeout_ms / 1000)
        return tuple(sorted(boundary_of(self._running[each]) for each in late))

    def _submitted(self, effect: CarriedOut) -> Future[None]:
        if not isinstance(effect, HookEffect):
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
        except BaseException as error:  # noqa: BLE001 - an error in a thread must not get lost
            self._answer(EffectBroke(boundary_of(effect), error))
            return
        if fact is not None:
            self._answer(fact)
