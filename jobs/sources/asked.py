"""Names the source in the commands of an error's message, if the source does not know its own name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from checkpointing.identifiers import VertexId
from jobs.sources.port import SourceError

UNNAMED: Final = VertexId("SOURCE")
"""The name of a source that is asked something without being told its name."""


@contextmanager
def asked_as(name: VertexId) -> Iterator[None]:
    """Ask a source something. If it raises SourceError, the commands in the message name the source."""
    try:
        yield
    except SourceError as error:
        named = str(error).replace(f"PIPELINE {UNNAMED} ", f"PIPELINE {name} ")
        if named == str(error):
            raise
        raise type(error)(named) from error
