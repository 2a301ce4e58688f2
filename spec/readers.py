"""Simulates readers that reserve a cut and read it while ticks and clean-ups go on (K4)."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkpointing.commit.cleanup import Reservation, discardable, standing
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.paths import ROOT
from spec.named_files import named_files

if TYPE_CHECKING:
    from spec.world import World

NOTHING_FOUND = "a reader finds that its cut has gone"
RAN_OUT = "a reservation runs out"


@dataclass(frozen=True, slots=True)
class Held:
    """The files that a reader may ask for, from the time it finds its cut until its reservation ends."""

    paths: frozenset[str]
    until_ms: int


@dataclass(slots=True)
class Readers:
    """All reservations by reader, and the files that each reader relies on."""

    reservations: dict[str, Reservation] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)

    def all(self) -> tuple[Reservation, ...]:
        """Return all reservations, expired ones included."""
        return tuple(self.reservations.values())

    def cuts(self, now_ms: int) -> list[Mapping[TableName, int]]:
        """Return the table versions of every cut that is reserved now."""
        return [each.versions for each in standing(self.all(), now_ms)]

    def discardable(self, paths: Iterable[str], now_ms: int) -> tuple[str, ...]:
        """Return the files among these that a tick or a disposal may delete. The core decides this."""
        return discardable(paths, self.all(), now_ms)

    def counted_on(self, now_ms: int) -> frozenset[str]:
        """Return the files that readers rely on now."""
        return frozenset[str]().union(*(each.paths for each in self.held.values() if now_ms < each.until_ms))

    def ends_ms(self) -> int:
        """Return the time at which the last reservation expires."""
        return max((each.ends_ms for each in self.all()), default=0)

    def leave(self, name: str) -> None:
        """Delete a reader's reservation."""
        self.reservations.pop(name, None)
        self.held.pop(name, None)


def reading(
    world: "World", name: str, checkpoint: CheckpointId, lease_ms: int, renewals: Collection[bool]
) -> Iterator[None]:
    """Read the cut of a checkpoint. Each element of `renewals` is a step, and says whether it renews the reservation.

    A reader that comes back too late finds its reservation expired, and stops. If its cut has lost log entries, or if
    the log that it opens lacks the cut's version, it gets an error instead of rows.
    """
    readers, versions = world.readers, dict(world.cuts[checkpoint])
    entry = next((row for row in world.checkpoints() if row.checkpoint == checkpoint), None)
    named = named_files(entry) if entry is not None else frozenset[str]()
    yield
    reservation = Reservation(versions, world.now_ms, world.now_ms + lease_ms, named)
    readers.reservations[name] = reservation
    yield
    is_lost = any(version > _end_of_log(world, table) for table, version in versions.items())
    if is_lost or world.cuts.get(checkpoint) != versions:
        world.met[NOTHING_FOUND] += 1
        readers.leave(name)
        return
    shown = (world.table(table).versions[at] for table, at in versions.items() if entry or not table.startswith(ROOT))
    paths = named.union(*shown)
    readers.held[name] = Held(paths, reservation.lapses_ms)
    for renews in renewals:
        yield
        if world.now_ms >= reservation.lapses_ms:
            world.met[RAN_OUT] += 1
            break
        if renews:
            reservation = Reservation(versions, world.now_ms, world.now_ms + lease_ms, named)
            readers.reservations[name] = reservation
            if name in readers.held:
                readers.held[name] = Held(paths, reservation.lapses_ms)
    readers.leave(name)


def _end_of_log(world: "World", table: TableName) -> int:
    """Return the newest version that the reader sees. If stores fail, it may not see the newest one."""
    lags = world.faults is not None and world.faults.is_stale_for_readers()
    return max(0, world.table(table).version - lags)
