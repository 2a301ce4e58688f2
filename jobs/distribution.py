"""The name and version of the installed distribution, and the versions that all processes of a job must share.

It is imported as `tidemark`, but package indexes have another tool of that name. So code that needs the distribution's
name takes it from here.
"""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "tidemark-spark"
PYTHON: Final = "Python"
_SHARED: Final = (DISTRIBUTION, "polars", "pyarrow")
"""Functions and rows travel between the driver and its workers. Both need the same version of these."""


def installed_version() -> str | None:
    """Return the installed version, or None if Tidemark is not installed and Python finds only its source."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return this process's versions of Python and of the shared packages. A missing package has an empty text."""
    found = {PYTHON: ".".join(platform.python_version_tuple()[:2])}
    for name in _SHARED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found
