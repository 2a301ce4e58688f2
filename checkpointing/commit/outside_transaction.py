"""Publishes a checkpoint once into a target that keeps its number apart from the rows, in the same transaction (Kafka).

In a database, one statement locks the number and raises it. Such a target has no lock: a process reads the number, and
another one may raise it before the first one writes. So a process does four steps, in this order:

1. It reads the number. If the target has the checkpoint, the process ends and disturbs nobody.
2. It takes the target over. From then on the target refuses every process that took it over before. A transaction that
   such a process has left open is aborted. One whose commit was decided is completed.
3. It reads the number again, and waits until no commit is on its way. Nobody else can raise it now.
4. It writes rows and number in one transaction. If the rows are changes, they are those since the checkpoint that it
   has read in step 3.

If a step fails, the process does not know what the target has. A reply may be lost, and the commit may be in. So it
begins again at step 1, and never concludes anything from a failure.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from checkpointing.commit.two_phase import UnexpectedFactError
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId

TRIES: Final = 3
"""How often the four steps are done if the target is lost meanwhile."""


@dataclass(frozen=True, slots=True)
class ReadNewest:
    """Read the newest checkpoint that the target has. `settled`: wait until no commit is on its way."""

    settled: bool


@dataclass(frozen=True, slots=True)
class TakeOverTarget:
    """Shut out all earlier processes, and end the transaction that one of them may have left."""


@dataclass(frozen=True, slots=True)
class WriteInTransaction:
    """Write the rows and the checkpoint's number, in one transaction. The target has the checkpoint `since` so far."""

    since: CheckpointId


@dataclass(frozen=True, slots=True)
class TargetHas:
    """The newest checkpoint that the target has, or 0."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class TargetDone:
    """The target confirmed that it was taken over, or that the transaction is committed."""


@dataclass(frozen=True, slots=True)
class TargetLost:
    """No reply came, or another process has taken the target over. Nobody knows whether the step was done."""

    why: str


@dataclass(frozen=True, slots=True)
class TargetRefused:
    """The target does not do this step as it is, so another try would not help."""

    why: str


TargetStep = ReadNewest | TakeOverTarget | WriteInTransaction
TargetAnswer = TargetHas | TargetDone | TargetLost | TargetRefused
Publishing = Generator[TargetStep, TargetAnswer, TargetLost | TargetRefused | None]

STEPS: Final[tuple[TargetStep, ...]] = (ReadNewest(settled=False), TakeOverTarget(), ReadNewest(settled=True))
"""The steps before the write."""


def published_once(checkpoint: CheckpointId) -> Publishing:
    """Yield the steps, and take their answers. Return None once the target has the checkpoint, else what failed."""
    for left in reversed(range(TRIES)):
        failed = yield from _tried(checkpoint)
        if not isinstance(failed, TargetLost) or not left:
            return failed
    return None


def _tried(checkpoint: CheckpointId) -> Publishing:
    since = NO_CHECKPOINT
    for step in STEPS:
        answer = yield step
        match answer:
            case TargetLost() | TargetRefused():
                return answer
            case TargetHas(newest) if isinstance(step, ReadNewest):
                if newest >= checkpoint:
                    return None
                since = newest
            case TargetDone() if not isinstance(step, ReadNewest):
                pass
            case _:
                raise UnexpectedFactError(f"{answer} as the answer to {step}")
    answer = yield WriteInTransaction(since)
    match answer:
        case TargetLost() | TargetRefused():
            return answer
        case TargetDone():
            return None
        case TargetHas():
            raise UnexpectedFactError(f"{answer} as the answer to a write")
