"""Says in which folder the files of one version of an overwrite table lie, and which of two versions is the greater.

Each file of an overwrite table has rows of one version only. Its folder tells the version and the version's kind, as
`version.date.2024-05-01`. So an entry needs no other record of it, and two files can be compared without the pipeline.
The name has no `=`, because some readers take `name=value` for a partition column. So no partition's folder has such a
name.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from checkpointing.partitions import escaped, plain

FOLDER: Final = r"version\.(?:number\.-?[0-9]{1,20}|(?:date|time|text)\.[A-Za-z0-9_.%-]*)"
"""The pattern of the folder's name."""


class VersionKind(Enum):
    """How versions are compared."""

    NUMBER = "number"
    """By value. The text is a whole number in decimal digits."""
    DATE = "date"
    """By day. The text is `yyyy-mm-dd`."""
    TIME = "time"
    """By moment. The text is `yyyy-mm-ddThh:mm:ss.ffffff`, and ends with `Z` if the moment is one in UTC."""
    TEXT = "text"
    """By code points, as Spark and Arrow compare texts."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A value of a version column. `text` is written as its kind says."""

    kind: VersionKind
    text: str

    @property
    def folder(self) -> str:
        """The name of the folder of this version's files."""
        return f"version.{self.kind.value}.{escaped(self.text)}"

    @property
    def order(self) -> tuple[int, str]:
        """What is compared with the same of another version of this kind: the greater version has the greater one.

        Dates and moments have texts of one length for each column, so their texts are in their order.
        """
        return (int(self.text), "") if self.kind is VersionKind.NUMBER else (0, self.text)


def version_of_folder(folder: str) -> TableVersion | None:
    """Return the version that a folder tells, or None for the name ''."""
    if not folder:
        return None
    _, kind, text = folder.split(".", 2)
    return TableVersion(VersionKind(kind), plain(text))
