"""What the tests of accidents on a cluster share: a reader beside the tick, and waiting for the tick."""

import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress

import polars as pl

from jobs.pipelines.flights_report import accounting
from jobs.reading import Cuts
from jobs.storage.place import place_in

SMALL = ("--every-rows", "3000", "--set", "slice_rows_max=3000")
KILL_EVERY_S = 4
RESTARTS = ("--set", "restart_strategy=fixed_delay", "--set", "restart_attempts=20", "--set", "restart_delay_ms=500ms")


class Reader(threading.Thread):
    """Reads each new cut while ticks run and die. `problems` has every cut that is a mixture."""

    def __init__(self, warehouse):
        super().__init__(daemon=True)
        self._warehouse = warehouse
        self._over = threading.Event()
        self.seen, self.problems = [], []

    def run(self):
        while not self._over.wait(1):
            with suppress(Exception):  # there is no cut yet, or a later one has subsumed it
                self._look()

    def _look(self):
        cut = Cuts(self._warehouse, "flights").latest()
        if self.seen and cut.checkpoint == self.seen[-1]:
            return
        counted = accounting(cut)
        golds = {
            table: cut.polars(table).select(pl.col("flights").sum()).collect().item()
            for table in ("gold/delays_by_route", "gold/delays_by_wind")
        }
        self.seen.append(cut.checkpoint)
        if not counted.balanced or {counted.silver} != set(golds.values()):
            self.problems.append((cut.checkpoint, counted, golds))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()


def ended(driver, process, within_s=400):
    assert 0 == process.wait(within_s), (driver.folder / "tick.log").read_text()[-4000:]


def until_committed(driver, process, checkpoints=1):
    while process.poll() is None:
        with suppress(Exception):
            if len(Cuts(driver.warehouse, "flights").all()) >= checkpoints:
                return
        time.sleep(0.3)
    raise AssertionError((driver.folder / "tick.log").read_text()[-4000:])


@contextmanager
def beside(process, act, every_s):
    done, over = [], threading.Event()

    def go_on():
        while not over.wait(every_s) and process.poll() is None:
            done.extend(act())

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def executors_killed(process, cluster, warehouse):
    """Kill a random executor by SIGKILL every few seconds while a tick runs. Yield the list of those that were killed.

    The next one is killed only after tasks have written something since. A slow machine would get nowhere otherwise.
    """
    written = [0]

    def kill_one():
        found = place_in(warehouse, "").storage.list("", deep=True)
        objects = sum("/_data/" in each.name for each in found)
        executors = cluster.executors() if objects > written[0] else []
        chosen = chance.sample(executors, min(1, len(executors)))
        written[0] = max(objects, written[0])
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)
        return chosen

    chance = random.Random(1)  # noqa: S311 - which one does not matter
    return beside(process, kill_one, KILL_EVERY_S)
