"""The address of a warehouse or of input: a path, or the URL of a prefix in an object store."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SCHEMES: Final = ("s3", "gs", "abfss")
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<bucket>[^/]*)(?P<prefix>.*)", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_CONTAINER: Final = re.compile(r"[a-z0-9$][a-z0-9-]{1,62}@[a-z0-9]{3,24}\.dfs\.[a-z0-9.]+")
_PART: Final = re.compile(r"[A-Za-z0-9_.=+ -]+")
_INSTEAD: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "az": "abfss", "adl": "abfss"}


class InvalidAddressError(ValueError):
    """A URL is refused. The message says which part of it is wrong, and how to write it."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The URL of a folder in an object store, such as `s3://bucket/prefix`, without a slash at its end."""

    text: str

    def __str__(self) -> str:
        """Return the URL."""
        return self.text

    def __truediv__(self, part: str) -> "StoreUrl":
        """Return the URL of a folder below this one; raise InvalidAddressError if its name is not plain."""
        return StoreUrl(f"{self.text}/{_plain(part, of=self.text)}")

    @property
    def scheme(self) -> str:
        """Return the kind of the store."""
        return self.text.partition("://")[0]


Root = Path | StoreUrl
"""The address of a warehouse, or of input: a path or a URL."""


def parsed(text: str) -> Root:
    """Return the path or the URL of an address. Raise InvalidAddressError for a URL that is refused."""
    found = _URL.fullmatch(text)
    if found is None:
        return Path(text)
    scheme, bucket, prefix = found["scheme"], found["bucket"], found["prefix"].strip("/")
    if scheme not in _SCHEMES:
        instead = f"write {_INSTEAD[scheme]}://" if scheme in _INSTEAD else f"there are {', '.join(_SCHEMES)}"
        raise InvalidAddressError(f"a URL cannot begin with {_shown(scheme)}://: {instead}, or name a folder")
    named = _CONTAINER if scheme == "abfss" else _BUCKET
    if not named.fullmatch(bucket):
        example = "CONTAINER@ACCOUNT.dfs.core.windows.net" if scheme == "abfss" else "BUCKET"
        raise InvalidAddressError(
            f"the URL of a folder in {scheme} is {scheme}://{example}/PREFIX, and what stands before the prefix is "
            "not the name of a bucket; credentials are no part of it, they come from the environment"
        )
    for part in prefix.split("/") if prefix else ():
        _plain(part, of=f"{scheme}://{bucket}")
    return StoreUrl(f"{scheme}://{bucket}/{prefix}" if prefix else f"{scheme}://{bucket}")


def _plain(part: str, *, of: str) -> str:
    """Return a part of a URL's prefix. Raise InvalidAddressError for a part that libraries read in different ways."""
    if part in (".", "..") or not _PART.fullmatch(part):
        raise InvalidAddressError(
            f"{_shown(part)!r} in the prefix of {of} is not plain: write it of letters, digits and the characters "
            "_ - . = +"
        )
    return part


def is_same(one: Root, other: Root) -> bool:
    """Return True if two addresses name the same place, even through symbolic links."""
    return resolved(one) == resolved(other)


def is_inside(one: Root, other: Root) -> bool:
    """Return True if an address names the other place, or a place below it."""
    inner, outer = resolved(one), resolved(other)
    if isinstance(inner, Path) and isinstance(outer, Path):
        return inner.is_relative_to(outer)
    return f"{inner}/".startswith(f"{outer}/")


def resolved(root: Root) -> Root:
    """Return the absolute path with its symbolic links resolved, or the URL."""
    return root.resolve() if isinstance(root, Path) else root


def absolute(root: Root) -> Root:
    """Return an address that names the same place from every working directory."""
    return root.absolute() if isinstance(root, Path) else root


def _shown(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]
