"""The threads beside the driver: what the end of a tick waits for, and what it does not."""

import threading
import time

from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from jobs.runtime.crew import SPARK_THREADS, Crew

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


def micro_batch(number: int) -> RunMicroBatch:
    return RunMicroBatch("v", number, 1, (), (), ())


def test_the_end_waits_for_what_runs_and_not_for_what_was_never_begun():
    """One micro-batch more than there are threads: it is dropped, and is not waited for as if it ran."""
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
