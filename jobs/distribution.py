"""The distribution that this software is installed as: its name and version.

It is imported as `tidemark`, but a package index lists a stranger's tool under that name. So every place that asks
for installed metadata, or writes a dependency, takes the name from here.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "tidemark-spark"


def installed_version() -> str | None:
    """Return the installed version, None if Python only finds the source on its path."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None
