"""Finds out whether other packages of the same names hide Tidemark's own packages.

An installed wheel has only the package `tidemark`, with all other packages inside. In a checkout, and so in an editable
install, the other packages lie beside `tidemark`, and a project may have folders of the same names.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_BESIDE: Final = ("checkpointing", "jobs", "orchestration", "spec")
_HERE: Final = Path(__file__).resolve().parent


class HiddenPackageError(ImportError):
    """Another package hides one of Tidemark's packages. The message names both, and the way out."""


def must_be_ours() -> None:
    """Raise HiddenPackageError if importing one of Tidemark's packages would import a package of someone else."""
    if (_HERE / _BESIDE[0]).is_dir():
        return
    for name in _BESIDE:
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or [spec.origin or ""]) if spec else []
        if not any(Path(place).resolve() == _HERE.parent / name for place in places):
            raise HiddenPackageError(
                f"{places[0] if places else 'nothing'} is what Python finds as {name!r}, and it hides Tidemark's own "
                f"package of this name in {_HERE.parent}: rename it, or install Tidemark as a wheel, which has no "
                f"package of this name (pip install {_HERE.parent}, without --editable)"
            )


class MissingExtraError(ImportError):
    """An optional library is not installed. The message names it, and the command that installs it."""


def is_installed(module: str) -> bool:
    """Return whether a library is installed, without importing it."""
    return find_spec(module) is not None


def must_be_installed(module: str, extra: str) -> None:
    """Raise MissingExtraError if an extra's library is not installed."""
    if not is_installed(module):
        raise MissingExtraError(f"{module} is not installed: pip install 'tidemark-spark[{extra}]'")
