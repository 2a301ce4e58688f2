"""The ports of a user's code that a tick calls: checkpoint listeners (F2), reports and master hooks (A8)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final, Protocol

from pydantic import JsonValue

from checkpointing.identifiers import CheckpointId, HookName, hook_name
from jobs.pipeline.failures import InvalidPipelineError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobs.reading.cut import Cut

DEFAULT_TIMEOUT_S: Final = 30.0


class CheckpointListener(Protocol):
    """Is called when a checkpoint completes or fails (Flink: `CheckpointListener`). See `Pipeline.listen`."""

    def notify_checkpoint_complete(self, checkpoint: CheckpointId) -> None:
        """React to a completed checkpoint: every table shows it.

        Called at least once. After a crash or a restart, the tick calls it again for the checkpoint that it restored. A
        call covers all older checkpoints too: there may be no call for an older one.
        """
        ...

    def notify_checkpoint_aborted(self, checkpoint: CheckpointId, reason: str) -> None:
        """React to a failed checkpoint. Its rows belong to a later one. Called at most once for each checkpoint."""
        ...


class Report(Protocol):
    """A function of the newest cut that returns a text, or anything else that Rich can print. See `Pipeline.report`."""

    def __call__(self, cut: "Cut", /) -> "RenderableType":
        """Return the text or renderable to show."""
        ...


class MasterHook(ABC):
    """A user's code that is asked for its state at each checkpoint (Flink: `MasterTriggerRestoreHook`).

    Declare it with `Pipeline.hook`. It runs in the tick's process, in a thread of its own, one call at a time. Each
    call must end within the hook's time limit.
    """

    @abstractmethod
    def trigger_checkpoint(self, checkpoint: CheckpointId, timestamp_ms: int) -> JsonValue:
        """Return the state that belongs to a checkpoint which begins now; None keeps nothing.

        The state is JSON: None, texts, numbers, bools, lists, and dicts with text keys; at most 1 MiB of it. The
        barriers are sent once every hook has answered. If the hook raises, is late, or returns anything else, the
        checkpoint fails and the job goes on, as `tolerable_failures` allows. A checkpoint whose hooks have answered may
        still fail, so change nothing outside that such a failure would make wrong.
        """
        ...

    @abstractmethod
    def restore_checkpoint(self, checkpoint: CheckpointId, state: JsonValue) -> None:
        """Go back to a checkpoint. `state` is what this hook returned for it; None if the checkpoint holds none.

        It is called whenever a tick, or another attempt of it, begins from a checkpoint, before any row is read. If it
        raises or is late, the attempt fails.
        """
        ...

    def reset(self) -> None:  # noqa: B027 - a hook may do without
        """Go back to the start. It is called in place of `restore_checkpoint` as long as there is no checkpoint."""

    def close(self) -> None:  # noqa: B027 - a hook may do without
        """Let go of what the hook opened; it is called at the end of each attempt."""


@dataclass(frozen=True, slots=True)
class DeclaredHook:
    """A master hook under its name, and how long each of its calls may take, in ms."""

    name: HookName
    hook: MasterHook
    timeout_ms: int


def declared_hook(name: str, hook: MasterHook, timeout_s: float) -> DeclaredHook:
    """Return the hook as it is declared; raise InvalidNameError, or InvalidPipelineError naming the hook."""
    if not isinstance(hook, MasterHook):
        raise InvalidPipelineError(f"hook {name}: {hook!r} is no MasterHook; derive its class from tidemark.MasterHook")
    if not isfinite(timeout_s) or timeout_s < 1 / 1000:
        raise InvalidPipelineError(f"hook {name}: timeout_s is {timeout_s}, it must be at least 0.001 and finite")
    return DeclaredHook(hook_name(name), hook, round(timeout_s * 1000))
