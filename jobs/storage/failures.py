"""Words an error of an object store as one sentence, with the way out and without secrets."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from jobs.storage.address import StoreUrl

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
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidClientTokenId|ExpiredToken|Unauthenticated|InvalidToken",
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
"""The environment variables that ways out name, for each kind of store."""
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
    """Return the error for a client's answer to a request. Of an unknown error, it has only the first line."""
    known = known_failure(url, tried, name, said)
    if known is not None:
        return known
    what = f"{_attempt(url, tried, name)} ({said.partition(chr(10))[0][:300]})"
    return StoreError(what, "see what the store says of it, and try again")


def known_failure(url: StoreUrl, tried: str, name: str, said: str) -> StoreError | None:
    """Return the error for a client's answer to a request, or None if the answer names no cause that is known."""
    for words, cause, way_out in _KINDS:
        if re.search(words, said):
            return StoreError(
                f"{_attempt(url, tried, name)}, because {cause}", way_out.format_map(_VARIABLES[url.scheme])
            )
    return None


def _attempt(url: StoreUrl, tried: str, name: str) -> str:
    return f"{url}: cannot {tried} {name or 'the prefix'}"
