"""Says in which folder or object store a source's files lie, and raises a store's errors as SourceErrors."""

from collections.abc import Iterator
from contextlib import contextmanager

from jobs.sources.port import SourceError
from jobs.storage.address import InvalidAddressError, Root, absolute, parsed
from jobs.storage.objects import StoreError


def root_of(given: Root | str) -> Root:
    """Return an address that does not depend on the working directory. Raise SourceError for an invalid URL."""
    try:
        return absolute(parsed(given) if isinstance(given, str) else given)
    except InvalidAddressError as error:
        raise SourceError(str(error)) from error


@contextmanager
def store_asked() -> Iterator[None]:
    """Raise SourceError, with the message of the StoreError, if an object store cannot be used."""
    try:
        yield
    except StoreError as error:
        raise SourceError(str(error)) from error
