"""Counts the files of a folder that a file source reads, and counts and names those that it ignores.

Hidden files and unfinished files are ignored silently (`input_folder`). Any other ignored file may be input that a user
expects in the tables.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from jobs.storage.address import Root

_HIDDEN: Final = (".", "_")
_IN_THE_MAKING: Final = (".tmp", "._COPYING_")
_NAMED_AT_MOST: Final = 3


class Why(Enum):
    """Why a file is ignored, and what to do about it. The words follow a number of files in a message."""

    SUFFIX = ("whose names do not end in {suffix}", "write those as {format}, or rename them")
    NESTED = ("in folders inside a split's folder", "move those up into the split's folder")
    BESIDE = ("beside the folders of splits", "move those into one of the folders")
    NO_FILE = ("that cannot be opened as files (broken links?)", "repair or remove those")

    def __init__(self, found: str, way_out: str) -> None:
        self.found = found
        self.way_out = way_out


@dataclass(slots=True)
class FolderLook:
    """The files under a source's root: the number that the source reads, and the names of those that it ignores."""

    root: Root
    pattern: str
    """The pattern of the paths that the source reads."""
    files_are: tuple[str, str]
    """The endings of the names of the source's files, and the name of their format."""
    splits: int = 0
    files: int = 0
    passed_over: dict[Why, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return how many files are ignored."""
        return sum(len(names) for names in self.passed_over.values())

    def pass_over(self, why: Why, name: str) -> None:
        """Count and remember a file that the source ignores."""
        self.passed_over.setdefault(why, []).append(name)

    def told(self) -> tuple[str, str] | None:
        """Return a message about the ignored files, with the way out, or None if there are none."""
        if not self.count:
            return None
        kinds = {why: sorted(self.passed_over[why]) for why in Why if why in self.passed_over}
        suffix, kind = self.files_are
        found = " and ".join(
            f"{len(names)} {why.found.format(suffix=suffix)} ({_few(names)})" for why, names in kinds.items()
        )
        what = f"passes over {self.count} {'file' if self.count == 1 else 'files'} in {self.root}: {found}"
        read = " and ".join(why.way_out.format(format=kind) for why in kinds)
        return what, f"to have them read, {read}; to silence this message, let their names begin with an underscore"


def is_hidden(name: str) -> bool:
    """Return True if a file or folder of that name is ignored silently."""
    return name.startswith(_HIDDEN) or name.endswith(_IN_THE_MAKING)


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, without hidden names. Raise OSError if it cannot be listed."""
    with os.scandir(folder) as found:
        return [entry for entry in found if not is_hidden(entry.name)]


def files_below(folder: str) -> Iterator[str]:
    """Yield the files below a folder, without hidden ones. Do not follow links to folders."""
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        yield from (f"{where}/{name}" for name in files if not is_hidden(name))


def _few(names: list[str]) -> str:
    shown = ", ".join(name if name.isprintable() else repr(name)[1:-1] for name in names[:_NAMED_AT_MOST])
    more = len(names) - _NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown
