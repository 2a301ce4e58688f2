"""Finds the sizes of many files at once."""

from collections.abc import Collection
from typing import Final

from jobs.storage.place import StoragePlace
from jobs.storage.port import Storage
from jobs.storage.together import together

LISTED_FROM: Final = 20
"""A folder with this many files to look up, or more, is listed instead.

One LIST returns a thousand sizes, but costs more money.
"""


def sizes_of(storage: Storage, names: Collection[str]) -> dict[str, int | None]:
    """Return the bytes of each file, or None for a missing file. Raises OSError."""
    by_folder: dict[str, list[str]] = {}
    for name in names:
        by_folder.setdefault(name.rpartition("/")[0], []).append(name)
    folders = [folder for folder, inside in by_folder.items() if len(inside) >= LISTED_FROM]
    listed = {
        f"{folder}/{name}": size
        for folder, found in together(storage, lambda folder: (folder, _files_in(storage, folder)), folders)
        for name, size in found.items()
    }
    single = [name for folder, inside in by_folder.items() if len(inside) < LISTED_FROM for name in inside]
    asked = together(storage, lambda name: StoragePlace(storage, name).size(), single)
    return {name: listed.get(name) for name in names} | dict(zip(single, asked, strict=True))


def _files_in(storage: Storage, folder: str) -> dict[str, int]:
    return {each.name: each.size for each in storage.list(folder) if not each.is_folder}
