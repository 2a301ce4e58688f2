"""Two readers while a tick runs: one polls by cut, one takes the newest of each table; only one of them is ever misled.

The tick is held at every checkpoint between the publications of its two tables until both have looked, so the
plain reader meets every mixture that there is; in between both look whenever the tick has done something.
"""

import threading
from collections import Counter
from pathlib import Path

import polars as pl
from deltalake.exceptions import TableNotFoundError

from checkpointing.config import CheckpointConfig
from checkpointing.messages import TickOutcome
from jobs.reading import Cut, Cuts, NoSuchCutError
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.refusals import NeverRunError
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine, build

CHECKPOINTS = 50
PATIENCE_S = 60
CONFIG = CheckpointConfig(every_rows=4, slice_rows_max=4, micro_batch_rows_max=8, retained=2)
ROWS = {"a": 2 * CHECKPOINTS, "b": 2 * CHECKPOINTS}


def gold_of(bronze: pl.DataFrame) -> list:
    """Return the only right content of gold, and of the state behind it, for these rows of bronze."""
    return sorted(bronze.group_by("key").agg(pl.len().cast(pl.Int64), pl.sum("value")).rows())


class ByCut:
    """Reads both tables and the state at the newest cut."""

    def __init__(self, root: Path) -> None:
        """Nothing is there yet."""
        self._cuts = Cuts(root, JOB)
        self.seen: Counter[int] = Counter()
        self.mixed: list[int] = []

    def look(self) -> None:
        """Read the newest cut, if there is one."""
        try:
            cut = self._cuts.latest()
        except (NeverRunError, NoSuchCutError):
            return
        self.seen[cut.checkpoint] += 1
        self.mixed += [] if self._is_one(cut) else [cut.checkpoint]

    @staticmethod
    def _is_one(cut: Cut) -> bool:
        expected = gold_of(cut.polars(BRONZE).select("key", "value").collect())
        gold = sorted(cut.polars(GOLD).select("key", "rows", "total").collect().rows())
        state = sorted(cut.state("by_key").polars().select("key", "rows", "total").collect().rows())
        return expected == gold == state


class Plain:
    """Reads the newest version of each table."""

    def __init__(self, root: Path) -> None:
        """Nothing is there yet."""
        self._root = root
        self.mixtures = 0

    def look(self) -> None:
        """Read both tables, if they are there."""
        try:
            bronze = pl.read_delta(str(self._root / BRONZE)).select("key", "value")
            gold = pl.read_delta(str(self._root / GOLD)).select("key", "rows", "total")
        except TableNotFoundError:
            return
        self.mixtures += gold_of(bronze) != sorted(gold.rows())


class Polling:
    """A thread that reads as often as it can, each time that something has happened."""

    def __init__(self, look) -> None:
        """Begin to wait."""
        self._look = look
        self._news = threading.Condition()
        self._asked = self._looked = 0
        self._ended = False
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self) -> int:
        """Say that something has happened; return the number of the look that will see it."""
        with self._news:
            self._asked += 1
            self._news.notify_all()
            return self._asked

    def has_looked(self) -> bool:
        """Wait until a look has ended that began after now."""
        wanted = self.tell()
        with self._news:
            return self._news.wait_for(lambda: self._looked >= wanted, PATIENCE_S)

    def end(self) -> None:
        """Look a last time and stop."""
        assert self.has_looked()
        with self._news:
            self._ended = True
            self._news.notify_all()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._asked > self._looked or self._ended)
                if self._ended:
                    return
                asked = self._asked
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the test says what it was
                self.errors.append(error)
            with self._news:
                self._looked = asked
                self._news.notify_all()


class HeldBetweenTables:
    """A boundary that lets gold be published only when bronze is, and both readers have looked in between."""

    def __init__(self, readers: list[Polling]) -> None:
        """Hold for these readers."""
        self._readers = readers
        self._bronze_is_out = threading.Event()
        self.holds = 0

    def __call__(self, name: str) -> None:
        """Cross a boundary."""
        if name == f"after:PublishTable:{BRONZE}":
            self._bronze_is_out.set()
        elif name == f"before:PublishTable:{GOLD}":
            assert self._bronze_is_out.wait(PATIENCE_S)
            self._bronze_is_out.clear()
            assert all(reader.has_looked() for reader in self._readers)
            self.holds += 1
        elif name in ("after:AppendRow", "after:RecordCut"):
            self._readers[self.holds % 2].tell()  # one at a time: the tick goes on meanwhile


def test_by_cut_nothing_is_ever_mixed_and_plainly_it_is(tmp_path):
    """At each of 50 cuts, gold and the state are the sums of bronze.

    The newest versions of the tables sometimes are not.
    """
    by_cut, plain = ByCut(tmp_path), Plain(tmp_path)
    readers = [Polling(by_cut.look), Polling(plain.look)]
    held = HeldBetweenTables(readers)
    report = run_tick(
        build(ROWS, config=CONFIG), RuntimeSettings(warehouse=tmp_path), engine=LocalEngine(), boundary=held
    )
    for reader in readers:
        reader.end()
    completed = [record.checkpoint for record in report.completed]
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert [[], []] == [reader.errors for reader in readers]
    assert len(completed) == held.holds >= CHECKPOINTS
    assert completed == sorted(by_cut.seen)
    assert [] == by_cut.mixed
    assert plain.mixtures >= held.holds
    assert 2 == len(Cuts(tmp_path, JOB).all())
