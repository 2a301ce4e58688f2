"""Calls a pipeline's master hooks. Each effect becomes one call of a user's code, and one fact (A8)."""

import json
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from pydantic import JsonValue

from checkpointing.coordinator.messages import AskHook, CloseHook, HookAnswered, HookFailed, ResetHook, RestoreHook
from checkpointing.messages import Fact, HookRestored, HookRestoreFailed
from jobs.holding.boundaries import HookEffect
from jobs.pipeline.ports import MasterHook
from jobs.user_code import message_of

_WAY_OUT: Final = ": correct it and run again"

_log = structlog.get_logger(__name__)


class UnfitStateError(ValueError):
    """A hook returned a state that JSON cannot hold unchanged. The message says what it may return."""


class HookCalls:
    """Calls the hooks of one tick, from any thread. Its caller keeps the calls of one hook in order."""

    def __init__(self, hooks: Mapping[str, MasterHook]) -> None:
        """Call these hooks, by name."""
        self._hooks = hooks

    def carry_out(self, effect: HookEffect) -> Fact | None:
        """Return the fact that answers the effect. If the hook raises, the fact says so."""
        hook = self._hooks[effect.hook]
        match effect:
            case AskHook():
                return _asked(hook, effect)
            case RestoreHook():
                state = None if effect.state is None else json.loads(effect.state)
                return _restored(effect.hook, lambda: hook.restore_checkpoint(effect.checkpoint, state))
            case ResetHook():
                return _restored(effect.hook, hook.reset)
            case CloseHook():
                _close(effect.hook, hook)
                return None


def _asked(hook: MasterHook, effect: AskHook) -> Fact:
    try:
        state = as_json(hook.trigger_checkpoint(effect.checkpoint, effect.triggered_ms))
    except Exception as error:  # noqa: BLE001 - a user's code
        said = f"master hook {effect.hook!r} failed at checkpoint {effect.checkpoint}: {message_of(error, _WAY_OUT)}"
        return HookFailed(effect.hook, effect.checkpoint, said)
    return HookAnswered(effect.hook, effect.checkpoint, state)


def _restored(name: str, call: Callable[[], None]) -> Fact:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - a user's code
        return HookRestoreFailed(name, f"master hook {name!r} could not be restored: {message_of(error, _WAY_OUT)}")
    return HookRestored(name)


def _close(name: str, hook: MasterHook) -> None:
    """Close the hook. An error is only logged, since the attempt has ended anyway."""
    try:
        hook.close()
    except Exception as error:  # noqa: BLE001 - a user's code
        _log.warning("master hook not closed", hook=name, exc_info=error)


def as_json(state: JsonValue) -> str | None:
    """Return a hook's state as JSON text, None for no state; raise UnfitStateError if JSON would change it."""
    if state is None:
        return None
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnfitStateError(f"its state is no JSON: {error}; {_MAY_BE}") from error
    if json.loads(text) != state:
        raise UnfitStateError(f"its state would come back from JSON as another one; {_MAY_BE}")
    return text


_MAY_BE: Final = "return None, texts, finite numbers, bools, lists, and dicts with text keys"
