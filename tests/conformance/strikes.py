"""Where a real tick is struck: at the boundaries that it crosses, with the faults that the reference names.

A strike is an action at the next crossings of boundaries whose names begin in one way. Nothing is random here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROWS_COMMIT = "LogCommit:checkpoints"
TABLE_COMMIT = "LogCommit:tables"


class DiedError(BaseException):
    """The tick dies here, as if its process were killed: nothing in it may catch this."""


@dataclass(slots=True)
class Strike:
    """What happens at the `skip`-th crossing after this, and at those behind it if it is to stay."""

    at: str
    act: Callable[[], None]
    skip: int = 0
    stays: bool = False

    def cross(self, name: str) -> bool:
        if not name.startswith(self.at):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.act()
        return not self.stays


@dataclass(slots=True, eq=False)
class Boundaries:
    """The boundary of a tick: `watch` sees the warehouse after every step, then whatever is armed strikes."""

    watch: Callable[[str], None]
    armed: list[Strike] = field(default_factory=list)

    def __call__(self, name: str) -> None:
        if name.startswith("after:"):
            self.watch(name)
        for strike in tuple(self.armed):
            if strike in self.armed and strike.cross(name):
                self.armed.remove(strike)

    @contextmanager
    def struck(self, *strikes: Strike) -> Iterator[None]:
        self.armed += strikes
        try:
            yield
        finally:
            self.armed = [strike for strike in self.armed if strike not in strikes]


def death(at: str, skip: int = 0, *, stays: bool = False) -> Strike:
    """Return the end of the tick at a boundary; with `stays` nothing that it does on its way out succeeds either."""

    def die() -> None:
        raise DiedError(at)

    return Strike(at, die, skip, stays)


def silence(at: str, *, stays: bool = False) -> Strike:
    def fall_silent() -> None:
        raise ConnectionError("the store does not answer")

    return Strike(at, fall_silent, stays=stays)


@contextmanager
def lost_reply(boundaries: Boundaries, log: Path) -> Iterator[None]:
    """Within the block the next commit to `checkpoints` is in, its reply is lost, and the log cannot be read."""
    aside = log.with_name("_unreachable")

    def go_away() -> None:
        log.rename(aside)
        raise ConnectionError("the connection broke")

    with boundaries.struck(Strike(f"after:{ROWS_COMMIT}", go_away)):
        try:
            yield
        finally:
            if aside.exists():
                aside.rename(log)
