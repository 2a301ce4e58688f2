"""The threads beside the driver: what the end of a tick waits for, and what it does not."""

import threading
import time

from checkpointing.messages import CancelJudgement, JudgeSuites, MicroBatchFinished, RunMicroBatch, SuitesJudged
from jobs.tick.effect_pool import FILE_THREADS, SPARK_THREADS, Crew

DRAIN_MS = 5_000


class Gated:
    """Handlers whose effects wait for a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)

    def carry_out(self, effect):
        self.begun.release()
        self.gate.wait(DRAIN_MS / 1000)
        return MicroBatchFinished(effect.vertex, effect.micro_batch, ())

    def end(self):
        """Nothing here ends early."""


def micro_batch(number: int) -> RunMicroBatch:
    return RunMicroBatch("v", number, 1, (), (), ())


def test_the_end_waits_for_what_runs_and_not_for_what_was_never_begun():
    """There is one micro-batch more than threads. It is dropped, and nothing waits for it."""
    handlers, answers = Gated(), []
    crew = Crew(handlers, answers.append)
    for number in range(SPARK_THREADS + 1):
        crew.start(micro_batch(number))
    for _ in range(SPARK_THREADS):
        handlers.begun.acquire()
    threading.Timer(0.1, handlers.gate.set).start()
    started = time.monotonic()
    assert () == crew.dismiss(DRAIN_MS)
    assert DRAIN_MS / 1000 > time.monotonic() - started
    assert sorted(range(SPARK_THREADS)) == sorted(answer.micro_batch for answer in answers)


class Judging(Gated):
    """Handlers whose judgements wait for a gate, or until they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[int] = []

    def carry_out(self, effect):
        self.begun.release()
        while not self.gate.is_set() and effect.checkpoint not in self.cancelled:
            time.sleep(0.01)
        return None if effect.checkpoint in self.cancelled else SuitesJudged("v", effect.checkpoint, True, "[]")

    def cancel(self, effect):
        self.cancelled.append(effect.checkpoint)


def test_a_cancelled_judgement_is_dropped_from_the_queue_or_told_to_end():
    """There is one judgement more than threads. The last never begins, the first ends early, and the others answer."""
    handlers, answers = Judging(), []
    crew = Crew(handlers, answers.append)
    for checkpoint in range(FILE_THREADS + 1):
        crew.start(JudgeSuites("v", checkpoint, ()))
    for _ in range(FILE_THREADS):
        handlers.begun.acquire()
    crew.cancel(CancelJudgement("v", FILE_THREADS))
    assert [] == handlers.cancelled
    crew.cancel(CancelJudgement("v", 0))
    assert [0] == handlers.cancelled
    handlers.gate.set()
    assert () == crew.dismiss(DRAIN_MS)
    assert list(range(1, FILE_THREADS)) == sorted(answer.checkpoint for answer in answers)
