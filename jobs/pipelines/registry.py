"""Finding a pipeline: by the name of one that comes with Tidemark, or as `module:attribute`."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from jobs.pipeline import Pipeline

OWN: Final = {
    "flights": "jobs.pipelines.flights:build",
    "offsets_100_105": "jobs.pipelines.offsets_100_105:build",
}
"""The pipelines that come with Tidemark, by name."""


PipelineReference = str | Pipeline | Callable[[Path], Pipeline]
"""A pipeline, a function of the data folder that returns one, or the name of either (see `find_pipeline`)."""


class UnknownPipelineError(LookupError):
    """A reference that leads to no pipeline: names it, what exists, and how to write one."""


def find_pipeline(reference: PipelineReference, data: Path) -> Pipeline:
    """Return the pipeline of that name, or the one that `module:attribute` is or builds over the input under `data`.

    The attribute, or what stands in the place of a name, is a Pipeline or a function of the data folder that
    returns one. The module is imported, no other pipeline's is. Raises UnknownPipelineError, and whatever the
    module or the function raises.
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
    built: object = found(data) if callable(found) else found
    if not isinstance(built, Pipeline):
        raise UnknownPipelineError(
            f"pipeline {name}: {attribute} must be a Pipeline or a function of the data folder returning one, "
            f"but gave a {type(built).__name__}"
        )
    return built


def _attribute(reference: str, module: str, attribute: str) -> object:
    if not _exists(module):
        raise UnknownPipelineError(
            f"pipeline {reference!r}: there is no module {module!r}; install it, or put its folder on PYTHONPATH"
        )
    loaded = import_module(module)
    if not hasattr(loaded, attribute):
        public = ", ".join(sorted(name for name in vars(loaded) if not name.startswith("_")))
        raise UnknownPipelineError(f"pipeline {reference!r}: module {module} has no {attribute!r}; it has {public}")
    return getattr(loaded, attribute)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
