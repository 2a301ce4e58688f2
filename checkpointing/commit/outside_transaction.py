"""Publishes a checkpoint once into a target that gets the rows and their checkpoint in one transaction (Kafka).

The target stores the checkpoint's number apart from the rows. In a database, one statement locks the number and raises
it. A target such as Kafka has no lock: a process reads the number, and another process can raise it before the first
one writes. So a process does four steps, in this order:

1. It reads the number. If the target has the checkpoint already, the process is done, and disturbs nobody.
2. It takes the target over. From then on the target refuses every process that took it over before. The target aborts a
   transaction that such a process has left open, and completes a transaction whose commit was decided.
3. It reads the number again, and waits until no commit is in progress. Nobody else can raise the number now.
4. It writes rows and number in one transaction. If the rows are changes, they are the changes since the checkpoint that
   it has read in step 3.

If a step fails, the process does not know what the target has: the commit may be in, and only its reply may be lost. So
the process begins again at step 1, and never concludes anything from a failure.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from checkpointing.commit.two_phase import UnexpectedFactError
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId

TRIES: Final = 3
"""How often the four steps are tried if another process takes the target over, or a reply is lost."""


@dataclass(frozen=True, slots=True)
class ReadNewest:
    """Read the newest checkpoint that the target has. `settled`: wait until no commit is in progress."""

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
    """The target refuses this step in its present state, so another try would not help."""

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
