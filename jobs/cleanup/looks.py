"""Stores what earlier clean-ups observed, in a small file. If it is lost, the grace period starts again."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.commit.cleanup import CleanUpLook, TableSeen, noted
from checkpointing.identifiers import TableName
from jobs.stores.files import replace
from jobs.stores.warehouse import Warehouse


class _Persisted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _TableFile(_Persisted):
    newest: int
    cuts: tuple[int, ...]
    in_every_cut: bool = False


class _LookFile(_Persisted):
    at_ms: int
    tables: dict[str, _TableFile]

    def look(self) -> CleanUpLook:
        return CleanUpLook(self.at_ms, {TableName(name): _seen(each) for name, each in self.tables.items()})


class _LooksFile(_Persisted):
    format: Literal[1] = 1
    looks: tuple[_LookFile, ...] = ()


def read_looks(warehouse: Warehouse) -> tuple[CleanUpLook, ...]:
    """Return the looks of earlier clean-ups; none if the file is missing or unreadable, which only delays deletions."""
    try:
        content = warehouse.path(warehouse.paths.cleanup_looks).read_bytes()
        return tuple(look.look() for look in _LooksFile.model_validate_json(content).looks)
    except (OSError, ValidationError):
        return ()


def note_look(
    warehouse: Warehouse, earlier: tuple[CleanUpLook, ...], now: CleanUpLook, grace_ms: int
) -> tuple[CleanUpLook, ...]:
    """Note a look, and return all kept looks. Two clean-ups at a time may lose one, which only delays deletions."""
    kept = noted(earlier, now, grace_ms)
    content = _LooksFile(looks=tuple(_persisted(look) for look in kept)).model_dump_json(indent=1)
    replace(warehouse.path(warehouse.paths.cleanup_looks), content.encode())
    return kept


def _seen(table: _TableFile) -> TableSeen:
    return TableSeen(table.newest, frozenset(table.cuts), table.in_every_cut)


def _persisted(look: CleanUpLook) -> _LookFile:
    return _LookFile(at_ms=look.at_ms, tables={str(table): _file(seen) for table, seen in look.tables.items()})


def _file(seen: TableSeen) -> _TableFile:
    return _TableFile(newest=seen.newest, cuts=tuple(sorted(seen.cuts)), in_every_cut=seen.in_every_cut)
