"""Places in PostgreSQL's write-ahead log, in the server's notation (`0/16B3748`) and as numbers.

A **horizon** is such a place. It stands for all transactions whose commit record begins before the place.
"""

from typing import Final

_HALF: Final = 32


def written(lsn: int) -> str:
    """Return a place in the server's notation."""
    return f"{lsn >> _HALF:X}/{lsn & (1 << _HALF) - 1:X}"


def parsed(text: str) -> int:
    """Return the number of a place in the server's notation. Raise ValueError for any other text."""
    high, _, low = text.partition("/")
    return (int(high, 16) << _HALF) + int(low, 16)
