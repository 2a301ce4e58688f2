"""Closes the sources of a pipeline at the end of a tick, or of a command that used them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from checkpointing.identifiers import VertexId
from jobs.sources.port import Closes, Source, every_layer

_log = structlog.get_logger(__name__)


@contextmanager
def closing(sources: Mapping[VertexId, Source]) -> Iterator[None]:
    """Close the sources at the end of the block, also if the block raises."""
    try:
        yield
    finally:
        close_all(sources)


def close_all(sources: Mapping[VertexId, Source]) -> None:
    """Close every source that can be closed. An error is logged, and the other sources are closed too."""
    for name, source in sources.items():
        for layer in every_layer(source):
            if isinstance(layer, Closes):
                try:
                    layer.close()
                except Exception as error:  # noqa: BLE001 - a user's code, at a time when nothing depends on it
                    _log.warning("source not closed", source=name, exc_info=error)
