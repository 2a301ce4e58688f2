"""The name and version of the installed distribution.

It is imported as `tidemark`, but package indexes have another tool of that name. So code that needs the distribution's
name takes it from here.
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
