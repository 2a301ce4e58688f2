"""Events between a tick and its master hooks (A8)."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, Generation


@dataclass(frozen=True, slots=True)
class HookRestoring:
    """A generation restores a hook to a checkpoint's state (`state` None: it has none), or resets it."""

    generation: Generation
    hook: str
    checkpoint: CheckpointId | None
    state: str | None


@dataclass(frozen=True, slots=True)
class HookReady:
    """A hook answered that it is restored."""

    generation: Generation
    hook: str


@dataclass(frozen=True, slots=True)
class HookAsked:
    """A generation asked a hook for its state at a checkpoint."""

    generation: Generation
    hook: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class HookTold:
    """A hook answered with its state, or None for nothing to keep. If not `good`, it failed."""

    generation: Generation
    hook: str
    checkpoint: CheckpointId
    state: str | None
    good: bool
