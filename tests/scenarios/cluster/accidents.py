"""What the tests of accidents on a cluster share: a reader beside the tick, and waiting for the tick."""

import threading
import time
from contextlib import suppress

import polars as pl

from jobs.pipelines.flights_report import accounting
from jobs.reading import Cuts

SMALL = ("--every-rows", "3000", "--set", "slice_rows_max=3000")
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


def ended(driver, process):
    """Wait for a tick's end; fail with what it said if it failed."""
    assert 0 == process.wait(400), (driver.folder / "tick.log").read_text()[-4000:]


def until_committed(driver, process, checkpoints=1):
    """Wait until a tick has published so many checkpoints."""
    while process.poll() is None:
        with suppress(Exception):
            if len(Cuts(driver.warehouse, "flights").all()) >= checkpoints:
                return
        time.sleep(0.3)
    raise AssertionError((driver.folder / "tick.log").read_text()[-4000:])
