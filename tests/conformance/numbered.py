"""Names without chance: what the product draws at random is counted, so that the same choices do the same again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from uuid import UUID, uuid4


class Numbers:
    """Gives out UUIDs in their order."""

    def __init__(self) -> None:
        self._next = count(1)

    def __call__(self) -> UUID:
        return UUID(int=next(self._next))

    def again(self) -> None:
        """Begin anew: a fresh warehouse has seen none of them."""
        self._next = count(1)


NUMBERS = Numbers()


@contextmanager
def numbered_names() -> Iterator[None]:
    drawing = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("jobs.") and vars(module).get("uuid4") is uuid4
    ]
    for module in drawing:
        vars(module)["uuid4"] = NUMBERS
    try:
        yield
    finally:
        for module in drawing:
            vars(module)["uuid4"] = uuid4
