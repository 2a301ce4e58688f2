"""What the fault tests share: the tables of an undisturbed run, and the cases of the kill matrix."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.scenarios.faults.orders_job import GOLD, Rows
from tests.scenarios.faults.reader import Reader, final_tables, ids_used_twice, leftovers
from tests.scenarios.faults.strikes import At, ForbidUpserts, HalfWritten, Order, append_only
from tests.scenarios.processes import Ended


@dataclass(frozen=True)
class Undisturbed:
    """The tables that an undisturbed run leaves, and how often the run crossed each boundary."""

    tables: dict[str, Rows]
    crossed: Counter[str]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    root = tmp_path_factory.mktemp("undisturbed")
    with Reader(root) as reader:
        assert "caught_up" == Order(root=root, notes=root / "crossed").run().said["outcome"]
        reader.look()
    assert [] == reader.problems
    return Undisturbed(final_tables(root), Counter((root / "crossed").read_text().split()))


# ------------------------------------------------------------------
# One case of the kill matrix: a process dies at a boundary, another process recovers, and a reader watches.


AT_A_TIME = 2
COMMITTED = "after:AppendRow#2"


@dataclass(frozen=True)
class Aftermath:
    """The result of a case: how each process ended, what a reader saw, the tables, leftovers, and ids used twice."""

    ends: tuple[Ended, ...]
    seen: tuple[int, ...]
    problems: tuple[str, ...]
    tables: dict[str, Rows]
    leftovers: tuple[str, ...]
    twice: tuple[int, ...]


class Matrix:
    def __init__(self, folder: Path, crossed: Counter[str], connect_url: str | None) -> None:
        self._folder = folder
        self._crossed = crossed
        self._connect_url = connect_url
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="case")
        self._cases: dict[str, Future[Aftermath]] = {}

    def begin(self, names: Iterable[str]) -> None:
        for name in names:
            self._cases.setdefault(name, self._pool.submit(self._run, name))

    def aftermath(self, name: str) -> Aftermath:
        self.begin([name])
        return self._cases[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, name: str) -> Aftermath:
        root = self._folder / name.replace(":", "-").replace("/", "-")
        root.mkdir()
        order = Order(root=root, connect_url=self._connect_url)
        with Reader(root) as reader:
            ends = [self._tick(order, reader, kill_at) for kill_at in kills(name, self._crossed)]
        return Aftermath(
            tuple(ends),
            tuple(reader.seen),
            tuple(reader.problems),
            final_tables(root),
            tuple(leftovers(root)),
            tuple(ids_used_twice(root)),
        )

    def _tick(self, order: Order, reader: Reader, kill_at: str) -> Ended:
        ended = _struck(order, kill_at).run()
        if "NotifyAborted" in kill_at:
            append_only(order.root, value=False)
        reader.look()
        return ended


def _struck(order: Order, kill_at: str) -> Order:
    """Return the order of a process that dies at this boundary.

    A tick reaches two of the boundaries only after a failed checkpoint, so for these the order makes a checkpoint fail.
    """
    order = replace(order, kill_at=kill_at)
    if "NotifyAborted" in kill_at:
        return replace(order, strike=ForbidUpserts(At("before:CheckTables", (2,))))
    if "LookForRival" in kill_at:
        tolerant = order.config.model_copy(update={"tolerable_failures": 1})
        return replace(order, config=tolerant, strike=HalfWritten(GOLD, 1))
    return order


def kills(name: str, crossed: Counter[str]) -> tuple[str, ...]:
    """Return the boundary at which each process of a case dies, and '' for a process that lives to its end.

    A process dies at the middle one of a tick's crossings of the boundary, or in a recovery.
    """
    if "RollForward" in name:
        return COMMITTED, name, ""
    if "NotifyAborted" in name or "LookForRival" in name:
        return name, ""
    return f"{name}#{(crossed[name] + 1) // 2}", ""
