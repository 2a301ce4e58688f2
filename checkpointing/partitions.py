"""Says in which folder the files of one table partition lie, such as `day=2024-05-01/city=Graz`.

Each file of a partitioned table has rows of one partition only. Its folder's name has the partition's values, as texts
of Delta's protocol, so an entry needs no other record of them. In a folder's name, every byte but letters, digits, `_`,
`.` and `-` is written as `%` and two hexadecimal digits, as Hive does. Readers should take the values from the log, but
Polars takes them from the folder's name.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null in a folder's name, as everywhere with Delta and Hive. So no partition's value may be this text."""

PARTITION: Final = r"[A-Za-z0-9_.%-]+=[A-Za-z0-9_.%-]+"
"""The pattern of one folder's name."""

_SPECIAL: Final = re.compile(rb"[^A-Za-z0-9_.-]")
_ESCAPED: Final = re.compile(rb"%([0-9A-F]{2})")

Value = tuple[str, str | None]
"""A partition column and its value, as Delta's protocol writes it. None is null."""


def folder_of(values: Iterable[Value]) -> str:
    """Return the folder of a partition, in order of the table's partition columns. Empty without such columns."""
    return "/".join(f"{escaped(column)}={NO_VALUE if value is None else escaped(value)}" for column, value in values)


def values_of(folder: str) -> tuple[Value, ...]:
    """Return the values of a partition from its folder, in order of the table's partition columns."""
    parts = (part.partition("=") for part in folder.split("/") if part)
    return tuple((plain(column), None if text == NO_VALUE else plain(text)) for column, _, text in parts)


def escaped(text: str) -> str:
    """Return a text as it is written in a folder's name."""
    return _SPECIAL.sub(lambda found: b"%%%02X" % found[0][0], text.encode()).decode()


def plain(text: str) -> str:
    """Return the text of which `escaped` made this part of a folder's name."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), text.encode()).decode()


def is_escaped(text: str) -> bool:
    """Return whether `escaped` makes this text. A forged name may have another form, or bytes that are not UTF-8."""
    try:
        return escaped(plain(text)) == text
    except UnicodeDecodeError:
        return False


# ------------------------------------------------------------------
# Says in which folder the files of one version of an overwrite table lie, and which of two versions is the greater.
#
# Each file of an overwrite table has rows of one version only. Its folder's name has the version's kind and the
# version, such as `version.date.2024-05-01`. So an entry needs no other record of it, and two files can be compared
# without the pipeline. The name has no `=`, because some readers take `name=value` for a partition column. So it also
# differs from every partition's folder.


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
    """By its code points, as Spark and Arrow compare texts."""


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
        """The value by which versions of one kind are compared: the greater version has the greater value.

        All dates of a column have texts of one length, and so do its moments. So the order of the texts is the order of
        the dates or moments.
        """
        return (int(self.text), "") if self.kind is VersionKind.NUMBER else (0, self.text)


def version_of_folder(folder: str) -> TableVersion | None:
    """Return the version in a folder's name, or None for the name ''."""
    if not folder:
        return None
    _, kind, text = folder.split(".", 2)
    return TableVersion(VersionKind(kind), plain(text))
