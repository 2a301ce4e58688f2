"""A warehouse in an object store: the storage port, implemented with obstore.

Like delta-rs, obstore is built on Rust's object_store.

Options and credentials come from the environment and the machine's role, under the names that delta-rs reads. A request
without an answer, or with an answer 5xx, is repeated for some seconds, with growing pauses. A repeated put can find
that its first try has succeeded. So every new object has a random word in its metadata, by which the put recognizes its
own object.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from jobs.storage.address import StoreUrl
from jobs.storage.port import ChangedError, Content, Listed

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, UpdateVersion
    from obstore.store import BackoffConfig
    from obstore.store import ObjectStore as Client


# ------------------------------------------------------------------
# Turns an error of an object store into one sentence, with the way out and without secrets.


_KINDS: Final = (
    (
        r"RequestTimeTooSkewed|difference between the request time|RequestExpired",
        "this machine's clock differs too much from the store's",
        "set the clock (timedatectl set-ntp true)",
    ),
    (
        r"instance metadata|InstanceCredential|169\.254\.169\.254|metadata\.google",
        "there are no credentials, neither in the environment nor from the machine's role",
        "set {key}",
    ),
    (
        (
            r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidClientTokenId|ExpiredToken|Unauthenticated|InvalidToken"
            r"|AuthenticationFailed|Server failed to authenticate"
        ),
        "the store does not accept the credentials",
        "set {key} to a key that is valid",
    ),
    (
        r"NoSuchBucket|bucket does not exist|ContainerNotFound",
        "the bucket does not exist",
        "make it, or name another one",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|301 Moved|different region",
        "the bucket lies in another region",
        "set AWS_REGION to its region",
    ),
    (
        r"AccessDenied|PermissionDenied|403 Forbidden|lacked the required privileges",
        "the store forbids it",
        "give the key the rights to list, read, write and delete objects there",
    ),
    (
        r"503 Service Unavailable|503 Slow Down|SlowDown|429 Too Many",
        "the store is too busy",
        "try again later, and let fewer processes use this prefix at a time",
    ),
    (
        r"builder error",
        "the endpoint begins with http://, which is not encrypted",
        "set {kind}_ALLOW_HTTP=true if that is meant, or write https:// there",
    ),
    (
        r"error sending request|dns error|Connection refused|timed out|trying to connect",
        "the store cannot be reached",
        "check {endpoint} and the network",
    ),
)
_VARIABLES: Final = {
    "s3": {
        "kind": "AWS",
        "key": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "endpoint": "AWS_ENDPOINT_URL",
    },
    "gs": {
        "kind": "GOOGLE",
        "key": "GOOGLE_APPLICATION_CREDENTIALS",
        "endpoint": "gcs_base_url in GOOGLE_SERVICE_ACCOUNT_KEY, if you have set it,",
    },
    "abfss": {
        "kind": "AZURE",
        "key": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        "endpoint": "AZURE_STORAGE_ENDPOINT, if you have set it,",
    },
}
"""The environment variables that messages name, for each kind of store."""
_GONE: Final = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")


class StoreError(OSError):
    """A request to an object store failed. `what` names the store, the operation and the cause."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(f"{what}: {way_out}")
        self.what = what
        self.way_out = way_out


@contextmanager
def store_error(url: StoreUrl, tried: str, name: str) -> Iterator[None]:
    """Raise StoreError for an error of the store's client, and FileNotFoundError for a missing object."""
    try:
        yield
    except FileNotFoundError as error:
        if _GONE.search(str(error)):
            raise worded(url, tried, name, str(error)) from None
        raise FileNotFoundError(2, "No such object", f"{url}/{name}") from None
    except OSError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("obstore"):
            raise
        raise worded(url, tried, name, f"{type(error).__name__}: {error}") from None


def worded(url: StoreUrl, tried: str, name: str, said: str) -> StoreError:
    """Return the error for a client's error at a request. For an unknown cause, it quotes the first line."""
    known = known_failure(url, tried, name, said)
    if known is not None:
        return known
    what = f"{_attempt(url, tried, name)} ({said.partition(chr(10))[0][:300]})"
    return StoreError(what, "see what the store says of it, and try again")


def known_failure(url: StoreUrl, tried: str, name: str, said: str) -> StoreError | None:
    """Return the error for a client's error at a request, or None if its cause is unknown."""
    for words, cause, way_out in _KINDS:
        if re.search(words, said):
            return StoreError(
                f"{_attempt(url, tried, name)}, because {cause}", way_out.format_map(_VARIABLES[url.scheme])
            )
    return None


def _attempt(url: StoreUrl, tried: str, name: str) -> str:
    return f"{url}: cannot {tried} {name or 'the prefix'}"


_WORD: Final = "tidemarkwrite"
"""The metadata of an object that distinguishes one put from another. Azure allows no hyphen in its name."""
_PART_BYTES: Final = 64 * 1024
_TIMEOUT: Final = timedelta(seconds=30)
_RETRIES: Final = 7
_BACKOFF: Final["BackoffConfig"] = {
    "init_backoff": timedelta(seconds=0.1),
    "max_backoff": timedelta(seconds=4),
    "base": 3,
}
"""Each pause is random, between the first pause and three times the last one: about five seconds in all."""
DELTA_CLIENT: Final = {"retry_timeout": f"{_TIMEOUT.seconds}s"}
"""The limit for delta-rs, which by default repeats a request without an answer for three minutes.

Polars gets these options together with a table of delta-rs. It ignores names that it does not know, but it needs
numbers where delta-rs needs texts. So only names that Polars does not know are here.
"""
_BROKEN_OFF: Final = "response body error"
"""The client's error for an answer of which it got only a part."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Object(Listed):
    """An object or a prefix that a list found."""

    name: str
    is_folder: bool
    size: int = 0
    changed_ms: int = 0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """The objects below a URL. This holds no secret, so it can be sent to a task. Each process makes its own client."""

    root: StoreUrl

    def __post_init__(self) -> None:
        """Raise StoreError if the library is missing."""
        if find_spec("obstore") is None:
            raise StoreError(
                f"{self.root} needs obstore, which is not installed", "pip install 'tidemark-spark[object-stores]'"
            )

    @property
    def look_ms(self) -> int:
        """Return two seconds. A shorter time would cost more money for LIST requests."""
        return 2_000

    def read(self, name: str, *, start: int = 0, most: int | None = None) -> Content:
        """Return an object's bytes; see the port."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import GenericError  # noqa: PLC0415

        with store_error(self.root, "read", name):
            if most == 0:
                return _described(b"", obstore.head(self._client, name))
            options: GetOptions = {"range": {"offset": start}} if start else {}
            if most is not None and (start or most > _PART_BYTES):
                options = {"range": (start, start + most)}
            try:
                found = _answered(lambda: obstore.get(self._client, name, options=options))
                return _described(bytes(found.bytes())[:most], found.meta)
            except GenericError as error:
                if "416 Range Not Satisfiable" not in str(error):
                    raise
            # An empty object has no range, and a range can begin behind the end of any other object.
            return _described(b"", obstore.head(self._client, name))

    def write(self, name: str, content: bytes | memoryview, *, durable: bool = True) -> None:
        """Write a new object by a conditional put; see the port."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import AlreadyExistsError, NotModifiedError, PreconditionError  # noqa: PLC0415

        del durable  # it always is
        word = uuid4().hex
        with store_error(self.root, "write", name):
            try:
                _answered(
                    lambda: obstore.put(
                        self._client, name, bytes(content), mode="create", attributes={_WORD: word}, use_multipart=False
                    )
                )
            except (AlreadyExistsError, NotModifiedError, PreconditionError) as error:
                if obstore.get(self._client, name).attributes.get(_WORD) != word:
                    raise FileExistsError(f"{self.root}/{name} exists") from error

    def replace(
        self, name: str, content: bytes | memoryview, *, unchanged: str | None = None, durable: bool = True
    ) -> None:
        """Put an object; see the port."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import PreconditionError  # noqa: PLC0415

        del durable
        with store_error(self.root, "write", name):
            try:
                mode: Any = "overwrite" if unchanged is None else self._condition(name, unchanged)
                _answered(lambda: obstore.put(self._client, name, bytes(content), mode=mode, use_multipart=False))
            except (PreconditionError, FileNotFoundError) as error:
                if unchanged is None:
                    raise
                raise _changed(self.root, name) from error

    def list(self, name: str, *, deep: bool = False) -> Iterator[Listed]:
        """Yield objects and prefixes by LIST, a thousand at a time; see the port."""
        import obstore  # noqa: PLC0415 - an extra

        inside = len(name) + 1 if name else 0
        with store_error(self.root, "list", name):
            if deep:
                yield from (_object(each, inside) for each in _all_below(self._client, name or None))
                return
            found = _answered(lambda: obstore.list_with_delimiter(self._client, name or None))
        yield from (Object(prefix.rstrip("/")[inside:], is_folder=True) for prefix in found["common_prefixes"])
        yield from (_object(each, inside) for each in found["objects"])

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            with store_error(self.root, "delete", name):
                _answered(lambda: obstore.delete(self._client, name))
        except FileNotFoundError:
            return

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store."""
        import obstore  # noqa: PLC0415 - an extra

        with store_error(self.root, "copy", source):
            _answered(lambda: obstore.copy(self._client, source, target))

    def _condition(self, name: str, tag: str) -> "UpdateVersion":
        """Return the condition that an object still has this ETag. Raise ChangedError if it has already changed.

        Google Cloud Storage can compare only generations. So its condition is the present generation, if that has the
        ETag.
        """
        import obstore  # noqa: PLC0415 - an extra

        if self.root.scheme != "gs":
            return {"e_tag": tag}
        found = obstore.head(self._client, name)
        if found["e_tag"] != tag:
            raise _changed(self.root, name)
        return {"version": found["version"]}

    @property
    def _client(self) -> "Client":
        return _client_of(str(self.root))


def _answered(call: Callable[[], _Answer]) -> _Answer:
    """Return the answer to a request, and repeat the request if the answer breaks off. The client itself does not."""
    for _ in range(_RETRIES):
        try:
            return call()
        except Exception as error:
            if _BROKEN_OFF not in str(error):
                raise
    return call()


def _all_below(client: "Client", prefix: str | None) -> "Iterator[ObjectMeta]":
    """Yield all objects of a prefix, lazily. If a list breaks off, it goes on after the last object."""
    import obstore  # noqa: PLC0415 - an extra

    last: str | None = None
    for _ in range(_RETRIES):
        try:
            for part in obstore.list(client, prefix, offset=last):
                for each in part:
                    last = each["path"]
                    yield each
        except Exception as error:
            if _BROKEN_OFF not in str(error):
                raise
        else:
            return
    raise StoreError(f"{prefix} cannot be listed, because the store breaks off its answers", "try again later")


@lru_cache(maxsize=64)
def _client_of(url: str) -> "Client":
    """Return this process's client of a store."""
    from obstore.store import from_url  # noqa: PLC0415 - an extra

    return from_url(
        url,
        client_options={"timeout": _TIMEOUT, "connect_timeout": timedelta(seconds=5), "allow_http": _allows_http()},
        retry_config={"max_retries": _RETRIES, "retry_timeout": _TIMEOUT, "backoff": _BACKOFF},
    )


def _allows_http() -> bool:
    """Return whether the environment allows HTTP.

    obstore does not read this variable itself if it gets other options.
    """
    return any(os.environ.get(f"{kind}_ALLOW_HTTP", "").lower() in {"1", "true"} for kind in ("AWS", "AZURE", "GOOGLE"))


def _object(found: Any, inside: int) -> Object:  # noqa: ANN401 - a dict of obstore's
    return Object(found["path"][inside:], is_folder=False, size=found["size"], changed_ms=_ms(found["last_modified"]))


def _described(content: bytes, meta: Any) -> Content:  # noqa: ANN401 - a dict of obstore's
    return Content(content, meta["size"], _ms(meta["last_modified"]), meta["e_tag"] or "")


def _changed(root: StoreUrl, name: str) -> ChangedError:
    return ChangedError(f"{root}/{name} was changed by another process")


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
