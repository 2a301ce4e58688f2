"""Makes messages about a name that does not exist: lists the existing names, the nearest first.

All messages about a missing pipeline, table, operator, source or checkpoint are made here, so that they have the same
form. Each of the two classes of errors here has its own exit code.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class NotThereError(LookupError):
    """Nothing has this name or number. The message lists what exists."""


class WrongInputError(ValueError):
    """A user gave a wrong argument, setting or project file. The message says how to write it; nothing was started."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like the word, or None if no name is like it."""
    return next(iter(get_close_matches(word, sorted(known), n=1)), None)


def there_are(word: str, known: Iterable[object]) -> str:
    """Return `did you mean 'b'? there are a, b`, for the end of a message about an unknown word."""
    names = [str(name) for name in known]
    if not names:
        return "there is none"
    near = nearest(word, names)
    listed = f"there are {', '.join(names)}" if len(names) > 1 else f"there is only {names[0]}"
    return f"did you mean {near!r}? {listed}" if near is not None else listed
