"""Checks state that an entry holds itself: a JSON text of limited size, of a master hook (A8) or a source (A7)."""

import json
from typing import Final

INLINE_STATE_MAX: Final = 1024 * 1024
"""The most characters of one such state. Every entry of `checkpoints` holds it whole."""


class InvalidInlineStateError(ValueError):
    """A state that no entry may hold. The message says what is wrong."""


def must_be_inline_state(text: str) -> None:
    """Raise InvalidInlineStateError for a text that is too long or not JSON."""
    if len(text) > INLINE_STATE_MAX:
        raise InvalidInlineStateError(
            f"is {len(text):,} characters of JSON, and a checkpoint takes {INLINE_STATE_MAX:,}"
        )
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInlineStateError(f"is no JSON ({type(error).__name__}: {error})") from error
