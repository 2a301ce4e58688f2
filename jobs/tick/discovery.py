"""Asks the sources what they offer after a cut, without Spark: how many rows, and how old the oldest of them is.

A source that knows its lag is asked for it (`port.KnowsLag`). Any other source is polled once for each split, which
reads no row. If a lag does not have the number of rows, one poll finds out whether there is any row.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.job.polling import in_first_part
from checkpointing.messages import PollSource
from checkpointing.metadata.record import CheckpointRecord
from jobs.sources.folder_look import FolderLook
from jobs.sources.port import (
    KnowsLag,
    Lag,
    LiesInFolder,
    Source,
    SourceError,
    asked_as,
    begins_of,
    closing,
    every_layer,
    in_parts,
    is_bounded,
    layers,
)
from jobs.sources.position_words import START, PositionWords, ended_splits, positions_of

ENDLESS: Final = 1_000_000_000_000
"""A split that offers this many rows at once counts as endless."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one split offers after a position. `mark` changes when the offer changes."""

    lag: Lag
    any: bool
    mark: str


_NOTHING: Final = Offer(Lag(0, 0.0), any=False, mark="ended")
"""The offer of a split that has ended."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What the splits of one source offer after the cut. A source that has `ended` offers nothing ever again."""

    splits: Mapping[SplitId, Offer]
    ended: bool = False

    @property
    def any(self) -> bool:
        """Whether there is a row to read."""
        return any(offer.any for offer in self.splits.values())

    @property
    def rows(self) -> int | None:
        """How many rows there are, as far as the source knows. None: it does not know, or a split has no end."""
        known = [offer.lag.rows for offer in self.splits.values() if offer.lag.rows is not None]
        return sum(known) if len(known) == len(self.splits) else None

    @property
    def estimated(self) -> bool:
        """Whether the number of rows is an estimate."""
        return any(offer.lag.estimated for offer in self.splits.values() if offer.lag.rows)

    @property
    def seconds(self) -> float | None:
        """How old the oldest unread row is in seconds, or 0 if there is none. None: the source does not know."""
        known = [offer.lag.seconds for offer in self.splits.values() if offer.lag.seconds is not None]
        return max(known, default=None)

    @property
    def digest(self) -> str:
        """A short text that changes exactly if the offers change."""
        canonical = json.dumps({split: offer.mark for split, offer in self.splits.items()}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def discover(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> dict[VertexId, Discovered]:
    """Return what each source offers after the restored cut (None: from its start), and close the sources.

    Raises SourceError.
    """
    with closing(sources):
        found: dict[VertexId, Discovered] = {}
        for name, source in sources.items():
            with asked_as(name):
                found[name] = _discovered(name, source, restored)
        return found


def _discovered(name: VertexId, source: Source, restored: CheckpointRecord | None) -> Discovered:
    """Return what one source offers. Ended splits are not asked, and an ended part is not asked for new splits."""
    restored = None if restored is None else in_first_part(restored, {name: begins_of(source)})
    positions = {split: at for (vertex, split), at in positions_of(restored).items() if at and vertex == name}
    ended = ended_splits(restored, name)
    found: dict[SplitId, Offer] = {}
    goes_on = False
    for part, own in in_parts(source, ended):
        over = {split: _NOTHING for split in own if ended[split]} if is_bounded(part) else {}
        if not over or len(over) < len(own):
            goes_on = True
            found |= _offers(name, part, positions)
        found |= over
    return Discovered(found, ended=not goes_on)


@dataclass(frozen=True, slots=True)
class Ahead:
    """How many rows all sources have to read. `rows` is None if the number is unknown, or if a split has no end."""

    rows: int | None
    estimated: bool = False


def rows_ahead(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> "Ahead":
    """Return the unread rows of all sources, for a progress bar."""
    try:
        found = list(discover(sources, restored).values())
    except SourceError:
        return Ahead(None)
    known = [each.rows for each in found if each.rows is not None]
    rows = sum(known) if len(known) == len(found) else None
    return Ahead(rows, estimated=any(each.estimated for each in found))


def _offers(name: VertexId, source: Source, positions: Mapping[SplitId, str]) -> dict[SplitId, Offer]:
    knows = next((each for each in layers(source) if isinstance(each, KnowsLag)), None)
    if knows is None:
        return {split: _polled(name, source, split, positions.get(split)) for split in source.splits()}
    return {
        split: _polled(name, source, split, positions.get(split), lag)
        if lag.rows is None
        else Offer(lag, lag.rows > 0, f"{positions.get(split)} and {lag.rows}")
        for split, lag in knows.lag(positions).items()
    }


def _polled(name: VertexId, source: Source, split: SplitId, start: str | None, lag: Lag | None = None) -> Offer:
    """Poll the split once: for all its rows, or for one row if the lag does not show whether there is a row."""
    found = source.poll(PollSource(name, split, start, ENDLESS if lag is None else 1))
    if found is None:
        return Offer(Lag(0, 0.0), any=False, mark=str(start))
    rows = None if lag is not None or found.rows >= ENDLESS else found.rows
    return Offer(lag or Lag(rows, estimated=found.rows_estimated), any=True, mark=found.end)


# ------------------------------------------------------------------
# Looks once at the files that the sources of a job skip, and at sources that have never found a file.


@dataclass(frozen=True, slots=True)
class InputLook:
    """One source's input. `never_found` means that it has no file, and that no checkpoint has read one."""

    source: VertexId
    folder: FolderLook
    never_found: bool

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield each problem with its way out. If there is no problem, yield nothing."""
        if self.never_found:
            root, splits, pattern = self.folder.root, self.folder.splits, self.folder.pattern
            where = f"none of the {splits} folders there has such a file" if splits else "there is no folder in it"
            yield (
                f"source {self.source} has found no file under {root}: it reads {pattern}, and {where}",
                "put the input there, or name the right folder (--data)",
            )
        passed_over = self.folder.told()
        if passed_over is not None:
            what, way_out = passed_over
            yield f"source {self.source} {what}", way_out

    def sentences(self) -> Iterator[str]:
        """Yield the problems as sentences."""
        yield from (f"{what}; {way_out}" for what, way_out in self.findings())


def look_at_input(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> tuple[InputLook, ...]:
    """Return a look at each folder of files.

    Folders that cannot be listed are left out, because the poll reports them.
    """
    return tuple(look for name, source in sources.items() for look in _looks(name, source, restored))


def _looks(name: VertexId, source: Source, restored: CheckpointRecord | None) -> Iterator[InputLook]:
    words, known = PositionWords({name: source}), positions_of(restored)
    at_start = all(words.named(*of, position) == START for of, position in known.items() if of[0] == name)
    for reads in (each for each in every_layer(source) if isinstance(each, LiesInFolder)):
        with suppress(SourceError):
            folder = reads.look()
            yield InputLook(name, folder, never_found=at_start and not folder.files)
