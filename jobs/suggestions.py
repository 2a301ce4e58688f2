"""Answers a name that does not exist with those that do, the nearest first.

Every message about a missing pipeline, table, operator, source or checkpoint is made here, so that all of them read
alike, and every error that carries one is a `NotThereError`, so that a script can tell it by one exit code.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class NotThereError(LookupError):
    """Something asked for by its name or number does not exist; the message names those that do."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that the word most looks like, None if it looks like none."""
    return next(iter(get_close_matches(word, sorted(known), n=1)), None)


def there_are(word: str, known: Iterable[object]) -> str:
    """Return `did you mean 'b'? there are a, b`, for the end of a message about a word that is none of them."""
    names = [str(name) for name in known]
    if not names:
        return "there is none"
    near = nearest(word, names)
    listed = f"there are {', '.join(names)}" if len(names) > 1 else f"there is only {names[0]}"
    return f"did you mean {near!r}? {listed}" if near is not None else listed
