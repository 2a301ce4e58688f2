"""Finds a pipeline by a name that the project registers, by a built-in pipeline's name, or as `module:attribute`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from checkpointing.identifiers import InvalidNameError
from jobs.pipeline import InvalidPipelineError, Pipeline
from jobs.project import OWN, Project, here, make_importable, project_above, unknown_pipeline, working_directory
from jobs.sources.port import SourceAwayError
from jobs.storage.address import Root
from jobs.suggestions import NotThereError, nearest
from jobs.user_code import message_of

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

REFUSALS: Final = (InvalidPipelineError, InvalidNameError, SourceAwayError)
"""Tidemark's own errors for a wrong pipeline, or for a server that does not answer. They say what is wrong, and where.
"""

PipelineReference = str | Pipeline | Callable[[Path], Pipeline]
"""A pipeline, a function of the data folder that returns a pipeline, or a name of either (see `find_pipeline`)."""


class UnknownPipelineError(NotThereError):
    """A reference leads to no pipeline. The message lists the pipelines, and says how to write a reference."""


class BrokenPipelineError(Exception):
    """A pipeline's own code raised an error. The message names pipeline, file and line, with the traceback below."""

    def __init__(self, name: str, did: str, error: BaseException) -> None:
        super().__init__(f"pipeline {name} {did}: {message_of(error, ': correct it and run again')}")


def project_of(reference: PipelineReference) -> Project | None:
    """Return the project of a pipeline: the project of its module, or else of the working directory.

    A daemon may work in any folder, so the module comes first. A registered name belongs to the project of the working
    directory, which registers it. Raises InvalidProjectError.
    """
    at_hand, folder = here(), working_directory()
    for each in (at_hand.root if at_hand else None, folder):
        if each is not None:
            make_importable(each)
    file = _file_of(reference)
    if file is None or _INSTALLED & set(file.parts):
        return at_hand
    return project_above(file.parent) or at_hand


def find_pipeline(reference: PipelineReference, data: Root, project: Project | None = None) -> Pipeline:
    """Return the pipeline of that name or `module:attribute`, built over the input under `data`.

    A reference is a name, `module:attribute`, a Pipeline, or a function of the data folder that returns one. Only the
    pipeline's own module is imported. `project` is the project whose registered names are known. Raises
    UnknownPipelineError, also for a pipeline that is registered under another name than its own. Raises
    BrokenPipelineError for an error of the module or the function, except for Tidemark's own errors about the pipeline
    (InvalidPipelineError and the other `REFUSALS`).
    """
    if not isinstance(reference, str):
        return _built(reference, f"{getattr(reference, '__name__', type(reference).__name__)!r}", "it", data)
    known = OWN | dict(project.pipelines if project else {})
    module, colon, attribute = known.get(reference, reference).partition(":")
    if not colon:
        raise UnknownPipelineError(unknown_pipeline(reference, project))
    found = _built(_attribute(reference, module, attribute), repr(reference), attribute, data)
    if reference in known and found.name != reference:
        where = f" in {project.file}" if project else ""
        raise UnknownPipelineError(
            f"pipeline {reference!r} calls itself {found.name!r}: register it{where} under its own name, which is the "
            "name of its folder in the warehouse"
        )
    return found


def _file_of(reference: PipelineReference) -> Path | None:
    """Return the file of the module that a function is in, or that `module:attribute` names."""
    if isinstance(reference, Pipeline):
        return None
    if not isinstance(reference, str):
        loaded = sys.modules.get(getattr(reference, "__module__", None) or "")
        name = getattr(loaded, "__file__", None)
        return Path(name).resolve() if name else None
    module, colon, _ = reference.partition(":")
    if not colon or not _exists(module):
        return None
    spec = find_spec(module)
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


def _built(found: object, name: str, attribute: str, data: Root) -> Pipeline:
    built = found
    if callable(found):
        with _blaming(name, "could not be built"):
            built = found(data)
    if not isinstance(built, Pipeline):
        raise UnknownPipelineError(
            f"pipeline {name}: {attribute} must be a Pipeline or a function of the data folder returning one, "
            f"but gave a {type(built).__name__}"
        )
    return built


@contextmanager
def _blaming(name: str, did: str) -> Iterator[None]:
    """Raise BrokenPipelineError for an error of the pipeline's code.

    Tidemark's own errors (`REFUSALS`) are not converted.
    """
    try:
        yield
    except REFUSALS:
        raise
    except Exception as error:
        raise BrokenPipelineError(name, did, error) from error


def _attribute(reference: str, module: str, attribute: str) -> object:
    if not _exists(module):
        raise UnknownPipelineError(
            f"pipeline {reference!r}: there is no module {module!r}; install it, or type the command in the folder of "
            "its project"
        )
    with _blaming(repr(reference), "could not be imported"):
        loaded = import_module(module)
    if not hasattr(loaded, attribute):
        public = sorted(name for name in vars(loaded) if name.isidentifier() and not name.startswith("_"))
        near = nearest(attribute, public)
        hint = f"did you mean {module}:{near}? " if near else ""
        raise UnknownPipelineError(
            f"pipeline {reference!r}: module {module} has no {attribute!r}: {hint}it has {', '.join(public)}"
        )
    return getattr(loaded, attribute)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
