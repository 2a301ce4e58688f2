"""Stores what earlier clean-ups observed, in a small file. If it is lost, the grace period starts again."""

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from checkpointing.commit.cleanup import CleanUpLook, noted
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class _LooksFile:
    format: Literal[1] = 1
    looks: tuple[CleanUpLook, ...] = ()


_FILE: Final = TypeAdapter(_LooksFile)


def read_looks(warehouse: Warehouse) -> tuple[CleanUpLook, ...]:
    """Return the looks of earlier clean-ups; none if the file is missing or unreadable, which only delays deletions."""
    try:
        content = warehouse.place(warehouse.paths.cleanup_looks).read()
        return _FILE.validate_json(content).looks
    except (OSError, ValidationError):
        return ()


def note_look(
    warehouse: Warehouse, earlier: tuple[CleanUpLook, ...], now: CleanUpLook, grace_ms: int
) -> tuple[CleanUpLook, ...]:
    """Note a look, and return all kept looks. Two clean-ups at a time may lose one, which only delays deletions."""
    kept = noted(earlier, now, grace_ms)
    content = _FILE.dump_json(_LooksFile(looks=kept), indent=1)
    warehouse.place(warehouse.paths.cleanup_looks).replace(content, durable=False)
    return kept
