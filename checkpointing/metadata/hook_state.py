"""Checks the state of a master hook in a checkpoint: a JSON text of limited size (A8)."""

import json
from typing import Final

HOOK_STATE_MAX: Final = 1024 * 1024
"""The most characters of one hook's state. Every entry of `checkpoints` holds it whole."""


class InvalidHookStateError(ValueError):
    """A state that no entry may hold. The message says what is wrong."""


def must_be_hook_state(text: str) -> None:
    """Raise InvalidHookStateError for a text that is too long or not JSON."""
    if len(text) > HOOK_STATE_MAX:
        raise InvalidHookStateError(f"is {len(text):,} characters of JSON, and a checkpoint takes {HOOK_STATE_MAX:,}")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidHookStateError(f"is no JSON ({type(error).__name__}: {error})") from error
