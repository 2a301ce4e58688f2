"""Events between a tick and its master hooks (A8) and source coordinators (A7)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    HookAnswered,
    HookFailed,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import CoordinatorReset, Effect, Fact, HookRestored

CALLS: Final = (AskHook, RestoreHook, ResetHook, AskOperatorCoordinator, ResetOperatorCoordinator)
"""The effects that somebody answers who is no subtask."""


def coordinator_of(source: str) -> str:
    """Return the name under which these events speak of a source's coordinator."""
    return f"the coordinator of {source}"


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


def answered(generation: Generation, fact: Fact) -> Iterator[HookReady | HookTold]:
    """Yield what a hook or a coordinator answered, if the fact is an answer."""
    match fact:
        case HookRestored():
            yield HookReady(generation, fact.hook)
        case HookAnswered():
            yield HookTold(generation, fact.hook, fact.checkpoint, fact.state, good=True)
        case HookFailed():
            yield HookTold(generation, fact.hook, fact.checkpoint, None, good=False)
        case CoordinatorReset():
            yield HookReady(generation, coordinator_of(fact.source))
        case OperatorCoordinatorAnswered():
            yield HookTold(generation, coordinator_of(fact.coordinator), fact.checkpoint, fact.state, good=True)
        case OperatorCoordinatorFailed():
            yield HookTold(generation, coordinator_of(fact.coordinator), fact.checkpoint, None, good=False)
        case _:
            pass


def called(generation: Generation, effect: Effect) -> Iterator[HookRestoring | HookAsked]:
    """Yield the call of a hook or a coordinator, if the effect is one."""
    match effect:
        case RestoreHook():
            yield HookRestoring(generation, effect.hook, effect.checkpoint, effect.state)
        case ResetHook():
            yield HookRestoring(generation, effect.hook, None, None)
        case AskHook():
            yield HookAsked(generation, effect.hook, effect.checkpoint)
        case ResetOperatorCoordinator():
            yield HookRestoring(generation, coordinator_of(effect.coordinator), effect.checkpoint, effect.state)
        case AskOperatorCoordinator():
            yield HookAsked(generation, coordinator_of(effect.coordinator), effect.checkpoint)
        case _:
            pass
