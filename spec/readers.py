"""Readers by cut that reserve what they read, while ticks and clean-ups go on beside them (K4)."""

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
    """The files that a reader may ask for, from when it has found its cut recorded, until its reservation ends."""

    paths: frozenset[str]
    until_ms: int


@dataclass(slots=True)
class Readers:
    """The reservations that are there, by reader, and what the readers count on."""

    reservations: dict[str, Reservation] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)

    def all(self) -> tuple[Reservation, ...]:
        """Return all reservations, those that have run out too."""
        return tuple(self.reservations.values())

    def cuts(self, now_ms: int) -> list[Mapping[TableName, int]]:
        """Return the table versions of every cut that is reserved now."""
        return [each.versions for each in standing(self.all(), now_ms)]

    def discardable(self, paths: Iterable[str], now_ms: int) -> tuple[str, ...]:
        """Return which of these files a tick or a disposal may delete, as the core decides it."""
        return discardable(paths, self.all(), now_ms)

    def counted_on(self, now_ms: int) -> frozenset[str]:
        """Return the files that readers count on now."""
        return frozenset[str]().union(*(each.paths for each in self.held.values() if now_ms < each.until_ms))

    def ends_ms(self) -> int:
        """Return when the last reservation has run out."""
        return max((each.ends_ms for each in self.all()), default=0)

    def leave(self, name: str) -> None:
        """Take a reader's reservation away."""
        self.reservations.pop(name, None)
        self.held.pop(name, None)


def reading(
    world: "World", name: str, checkpoint: CheckpointId, lease_ms: int, renewals: Collection[bool]
) -> Iterator[None]:
    """Read the cut of a checkpoint in so many steps; before each of them the reservation is renewed, or it is not.

    A reader that comes back too late learns that its reservation has run out, and reads no further. If its cut has lost
    log entries, it gets an error instead of rows.
    """
    readers, versions = world.readers, dict(world.cuts[checkpoint])
    entry = next((row for row in world.checkpoints() if row.checkpoint == checkpoint), None)
    named = named_files(entry) if entry is not None else frozenset[str]()
    yield
    reservation = Reservation(versions, world.now_ms, world.now_ms + lease_ms, named)
    readers.reservations[name] = reservation
    yield
    if world.cuts.get(checkpoint) != versions:
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
