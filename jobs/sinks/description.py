"""What a pipeline says of an output table: comments and properties."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Description:
    """The comment of a table, the comments of its columns by name, and its properties by name.

    An empty comment, a column that is not named, and a property that is not named are not written.
    """

    comment: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


NOTHING_SAID: Final = Description()
