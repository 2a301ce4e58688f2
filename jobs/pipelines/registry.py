"""Finding a pipeline: by the name of one that comes with Tidemark, or as `module:attribute`."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from checkpointing.identifiers import InvalidNameError
from jobs.pipeline import InvalidPipelineError, Pipeline
from jobs.user_code import message_of

OWN: Final = {
    "flights": "jobs.pipelines.flights:build",
    "offsets_100_105": "jobs.pipelines.offsets_100_105:build",
}
"""The pipelines that come with Tidemark, by name."""


REFUSALS: Final = (InvalidPipelineError, InvalidNameError)
"""What Tidemark itself raises of a pipeline that is written wrong: these say already what is wrong, and where."""

PipelineReference = str | Pipeline | Callable[[Path], Pipeline]
"""A pipeline, a function of the data folder that returns one, or the name of either (see `find_pipeline`)."""


class UnknownPipelineError(LookupError):
    """A reference that leads to no pipeline: names it, what exists, and how to write one."""


class BrokenPipelineError(UnknownPipelineError):
    """A pipeline whose own code raised: names it, file and line, with the traceback below the sentence."""

    def __init__(self, name: str, did: str, error: BaseException) -> None:
        super().__init__(f"pipeline {name} {did}: {message_of(error, ': correct it and run again')}")


def find_pipeline(reference: PipelineReference, data: Path) -> Pipeline:
    """Return the pipeline of that name, or the one that `module:attribute` is or builds over the input under `data`.

    The attribute, or what stands in the place of a name, is a Pipeline or a function of the data folder that
    returns one. The module is imported, no other pipeline's is. Raises UnknownPipelineError; BrokenPipelineError for
    what the module or the function raises, except what the pipeline itself refuses (InvalidPipelineError and the like).
    """
    if not isinstance(reference, str):
        return _built(reference, f"{getattr(reference, '__name__', type(reference).__name__)!r}", "it", data)
    module, colon, attribute = OWN.get(reference, reference).partition(":")
    if not colon:
        raise UnknownPipelineError(
            f"there is no pipeline {reference!r}, only {', '.join(sorted(OWN))}; write your own as module:attribute"
        )
    return _built(_attribute(reference, module, attribute), repr(reference), attribute, data)


def _built(found: object, name: str, attribute: str, data: Path) -> Pipeline:
    built: object = _called(found, name, data) if callable(found) else found
    if not isinstance(built, Pipeline):
        raise UnknownPipelineError(
            f"pipeline {name}: {attribute} must be a Pipeline or a function of the data folder returning one, "
            f"but gave a {type(built).__name__}"
        )
    return built


def _called(build: Callable[[Path], object], name: str, data: Path) -> object:
    try:
        return build(data)
    except REFUSALS:
        raise
    except Exception as error:
        raise BrokenPipelineError(name, "could not be built", error) from error


def _imported(reference: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except REFUSALS:
        raise
    except Exception as error:
        raise BrokenPipelineError(repr(reference), "could not be imported", error) from error


def _attribute(reference: str, module: str, attribute: str) -> object:
    if not _exists(module):
        raise UnknownPipelineError(
            f"pipeline {reference!r}: there is no module {module!r}; install it, or put its folder on PYTHONPATH"
        )
    loaded = _imported(reference, module)
    if not hasattr(loaded, attribute):
        public = ", ".join(sorted(name for name in vars(loaded) if not name.startswith("_")))
        raise UnknownPipelineError(f"pipeline {reference!r}: module {module} has no {attribute!r}; it has {public}")
    return getattr(loaded, attribute)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
