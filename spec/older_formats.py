"""Takes entries through the real codec, sometimes as an older version of Tidemark would have written them."""

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

from checkpointing.metadata.codec import decode, encode
from checkpointing.metadata.record import Row

Rewrite = Callable[[Row], Row]
OLDER: Final = 0.3
"""The probability that an entry is written in an older format, if that format knows all that the entry says."""
Fields = dict[str, Any]


def as_stored(random: Random) -> Rewrite:
    """Return a function that takes an entry to text and back."""

    def rewrite(row: Row) -> Row:
        envelope = json.loads(encode(row, writer="spec"))
        for number, takes_away in ((5, _before_6), (4, _before_5), (3, _before_4), (2, _before_3)):
            if random.random() > OLDER or not takes_away(envelope["row"]):
                break
            envelope["format"] = envelope["row"]["format"] = number
        return decode(json.dumps(envelope))

    return rewrite


def _gone(fields: Fields, *names: str) -> bool:
    """Remove these fields if they are all empty. Return whether they were."""
    says_nothing = not any(fields.get(name) for name in names)
    for name in names if says_nothing else ():
        fields.pop(name, None)
    return says_nothing


def _before_6(row: Fields) -> bool:
    for table in row.get("tables", []):
        table.pop("of_snapshots")
    return _gone(row, "manifests")


def _before_5(row: Fields) -> bool:
    return _gone(row.get("statistics", {}), "counts") and _gone(row, "renames", "hooks")


def _before_4(row: Fields) -> bool:
    vertices = row.get("vertices", [])
    return not vertices and _gone(row, "columns")


def _before_3(row: Fields) -> bool:
    return not row.get("tables") and _gone(row, "abandoned")
