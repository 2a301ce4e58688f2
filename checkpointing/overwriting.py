"""Decides which files an overwrite table shows: of each partition those of the greatest version that was read.

The invariant: at every cut, the table shows the rows of the batch query `rows where version = max(version) over
(partition by its partition columns)`, over the rows before the barrier. It depends on no order of arrival, and not on
where micro-batches and epochs were cut. Two facts make it so:

- A file has rows of one version of one partition, and is never written again.
- A file that is left out has a smaller version than another file of its partition that was read. No later file can
  bring it back, since a greatest version only rises. So the files that are shown are all that a cut has to know.
"""

from collections.abc import Iterable

from checkpointing.handles import KeyedFile
from checkpointing.metadata.paths import staged_name_in
from checkpointing.table_versions import version_of_folder


class NoVersionError(ValueError):
    """A file of an overwrite table does not lie in the folder of a version. Micro-batches write no such file."""


def newest(files: Iterable[KeyedFile]) -> tuple[KeyedFile, ...]:
    """Return those of the files with the greatest version of their partition, in the same order. Each comes once.

    All files belong to one overwrite table. Raises NoVersionError.
    """
    known = {keyed.file.path: keyed for keyed in files}
    places = {path: _place(path) for path in known}
    versions: dict[str, set[str]] = {}
    for partition, version in places.values():
        versions.setdefault(partition, set()).add(version)
    greatest = {partition: max(found, key=_order) for partition, found in versions.items()}
    return tuple(keyed for path, keyed in known.items() if greatest[places[path][0]] == places[path][1])


def _place(path: str) -> tuple[str, str]:
    """Return the folder of a file's partition, and that of its version inside. Equal values have equal folders."""
    name = staged_name_in(path)
    if name is None or not name.version:
        raise NoVersionError(f"{path} does not lie in the folder of a version")
    return name.partition, name.version


def _order(folder: str) -> tuple[int, str]:
    version = version_of_folder(folder)
    return version.order if version is not None else (0, "")
