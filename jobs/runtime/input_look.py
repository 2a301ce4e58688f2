"""Looks once at what the sources of a job pass over, and at sources that have never found a file."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.sources.folder_look import FolderLook
from jobs.sources.port import LiesInFolder, Source, SourceError, every_layer
from jobs.sources.position_words import START, PositionWords, positions_of


@dataclass(frozen=True, slots=True)
class InputLook:
    """One source's input. `never_found` means that it has no file, and that no checkpoint has read one."""

    source: VertexId
    folder: FolderLook
    never_found: bool

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield each problem with its way out; nothing if all is well."""
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
    """Return a look at each folder of files. One that cannot be listed is left out, since the poll names it."""
    return tuple(look for name, source in sources.items() for look in _looks(name, source, restored))


def _looks(name: VertexId, source: Source, restored: CheckpointRecord | None) -> Iterator[InputLook]:
    words, known = PositionWords({name: source}), positions_of(restored)
    at_start = all(words.named(*of, position) == START for of, position in known.items() if of[0] == name)
    for reads in (each for each in every_layer(source) if isinstance(each, LiesInFolder)):
        with suppress(SourceError):
            folder = reads.look()
            yield InputLook(name, folder, never_found=at_start and not folder.files)
