"""What the fault tests share: what an undisturbed run leaves."""

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
    """The tables that a run leaves which nothing disturbed, and how often it crossed each boundary."""

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
# One case of the kill matrix: a process dies at a boundary, another makes up for it, a reader watches.


AT_A_TIME = 2
COMMITTED = "after:AppendRow#2"


@dataclass(frozen=True)
class Aftermath:
    """What is left after a case: the exit of each process, the errors that a reader saw, and the files."""

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
    """Return the order of a process that dies there. Two boundaries are reached only after a checkpoint has failed."""
    order = replace(order, kill_at=kill_at)
    if "NotifyAborted" in kill_at:
        return replace(order, strike=ForbidUpserts(At("before:CheckTables", (2,))))
    if "LookForRival" in kill_at:
        tolerant = order.config.model_copy(update={"tolerable_failures": 1})
        return replace(order, config=tolerant, strike=HalfWritten(GOLD, 1))
    return order


def kills(name: str, crossed: Counter[str]) -> tuple[str, ...]:
    """Return where each process of a case dies, '' for nowhere: in the middle of what a tick does, or in a recovery."""
    if "RollForward" in name:
        return COMMITTED, name, ""
    if "NotifyAborted" in name or "LookForRival" in name:
        return name, ""
    return f"{name}#{(crossed[name] + 1) // 2}", ""
