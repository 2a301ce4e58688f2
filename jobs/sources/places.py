"""Says where a source's files lie, a folder or an object store, and words the errors of a store for its user."""

from collections.abc import Iterator
from contextlib import contextmanager

from jobs.sources.port import SourceError
from jobs.storage.address import InvalidAddressError, Root, absolute, parsed
from jobs.storage.objects import StoreError


def root_of(given: Root | str) -> Root:
    """Return an address that names the same place from every working directory. Raise SourceError for a wrong URL."""
    try:
        return absolute(parsed(given) if isinstance(given, str) else given)
    except InvalidAddressError as error:
        raise SourceError(str(error)) from error


@contextmanager
def store_asked() -> Iterator[None]:
    """Raise SourceError, in the words of the StoreError, if an object store cannot be used."""
    try:
        yield
    except StoreError as error:
        raise SourceError(str(error)) from error
