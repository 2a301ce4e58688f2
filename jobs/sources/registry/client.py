"""Asks a schema registry with Confluent's interface, and caches the answers."""

import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from jobs.distribution import DISTRIBUTION
from jobs.sources.places import root_of
from jobs.sources.port import SourceAwayError, SourceError
from jobs.sources.registry.known_schema import KnownSchema
from jobs.sources.secrets import Secrets, WithheldSettings, looked_up, refuse_open_secrets, without
from jobs.storage.address import Root
from jobs.storage.place import StoragePlace, place_in

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_Answer = TypeVar("_Answer")
_Model = TypeVar("_Model", bound=BaseModel)
_QUICK: Final = {"max.retries": 2, "retries.wait.ms": 200, "retries.max.wait.ms": 1_000, "timeout": 10.0}
_REFUSED: Final = (401, 403)
_NOT_FOUND: Final = 404
_INVALID: Final = (409, 422)
_SERVER: Final = 500
_TOO_MANY: Final = 429
_OURS: Final = ("url",)
_AVRO: Final = "AVRO"


class RegistryAwayError(SourceAwayError):
    """The registry does not answer. It can answer later."""


class NotInRegistryError(SourceError):
    """The registry has no schema with this number, or no subject with this name."""


class Subject(BaseModel):
    """The numbers of a subject's schemas in the order of their versions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    numbers: tuple[int, ...]


class SchemaRegistry:
    """A schema registry, for a KafkaSource or a KafkaSink.

    | parameter | is                                                                                                |
    |-----------|---------------------------------------------------------------------------------------------------|
    | `url`     | where the registry is, as in "https://registry:8081"                                              |
    | `kept`    | a folder, or its URL, in which found schemas are stored. With it, the pipeline can be built       |
    |           | and its input be read while the registry is away. All processes of the job must reach it          |
    | `options` | settings of Confluent's client under its names, such as "ssl.ca.location"                           |
    | `secrets` | for each secret setting, such as "basic.auth.user.info" (USER:PASSWORD), its environment variable |
    |           | or a function that returns the values                                                             |
    """

    def __init__(
        self,
        url: str,
        *,
        kept: Root | str | None = None,
        options: Mapping[str, str] | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        """Connect to nothing yet. Raises SourceError for an invalid URL, and for a secret in plain text."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceError(f"{_shown(url)} is no URL of a schema registry: write http://HOST:PORT or https://…")
        if "@" in parts.netloc:
            raise SourceError(
                f"the URL of the schema registry at {parts.hostname} has a password in the open: take it out, and name "
                "an environment variable with USER:PASSWORD, as in secrets={'basic.auth.user.info': 'REGISTRY_LOGIN'}"
            )
        refuse_open_secrets(options or {}, "SchemaRegistry")
        for name in _OURS:
            if name in (options or {}):
                raise SourceError(f"options of a SchemaRegistry cannot set {name!r}: it is an argument of its own")
        self.url = url.rstrip("/")
        self._options, self._secrets = dict(options or {}), secrets
        self._folder: StoragePlace | None = None if kept is None else place_in(root_of(kept), "")
        self._known: dict[int, KnownSchema] = {}
        self._client: SchemaRegistryClient | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        """Return the registry without its secrets."""
        return f"SchemaRegistry({self.url})"

    def remember(self, schemas: Mapping[int, KnownSchema]) -> None:
        """Store the schemas of a checkpoint, so that the registry is not asked for them."""
        with self._lock:
            self._known |= schemas

    def schema(self, number: int) -> KnownSchema:
        """Return the schema with this number. The registry is asked only once for each number.

        Raises NotInRegistryError, RegistryAwayError, and SourceError.
        """
        with self._lock:
            found = self._known.get(number) or self._kept(f"schemas/{number}.json", KnownSchema)
            if found is None:
                found = self._asked(f"schema {number}", lambda client: self._resolved(client, number))
                self._keep(f"schemas/{number}.json", found)
            self._known[number] = found
            return found

    def versions(self, subject: str, *, anew: bool = False) -> tuple[KnownSchema, ...]:
        """Return the schemas of a subject, oldest first. With `anew`, ask the registry even if the folder has them.

        Raises NotInRegistryError, RegistryAwayError, and SourceError.
        """
        with self._lock:
            name = f"subjects/{quote(subject, safe='')}.json"
            found = None if anew else self._kept(name, Subject)
            if found is None:
                numbers = self._asked(f"subject {subject}", lambda client: _numbers(client, subject))
                found = Subject(name=subject, numbers=numbers)
                self._keep(name, found)
            return tuple(map(self.schema, found.numbers))

    def registered(self, subject: str, kind: str, text: str, references: tuple[tuple[str, str, int], ...] = ()) -> int:
        """Register a schema under a subject, and return its number. A schema that is registered keeps its number.

        Raises RegistryAwayError, and SourceError if the registry refuses the schema as not compatible.
        """
        _must_be_installed()
        from confluent_kafka.schema_registry import Schema, SchemaReference  # noqa: PLC0415 - an extra

        schema = Schema(text, kind, [SchemaReference(*each) for each in references])
        number: int = self._asked(f"subject {subject}", lambda client: client.register_schema(subject, schema))
        return number

    def close(self) -> None:
        """Close the connections. The next request opens them again."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _resolved(self, client: "SchemaRegistryClient", number: int) -> KnownSchema:
        found = client.get_schema(number)
        kind = found.schema_type or _AVRO
        return KnownSchema(
            number=number, kind=kind, text=str(found.schema_str), references=tuple(_references(client, found).items())
        )

    def _asked(self, what: str, question: Callable[["SchemaRegistryClient"], _Answer]) -> _Answer:
        _must_be_installed()
        from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError  # noqa: PLC0415
        from confluent_kafka.schema_registry.error import OAuthTokenError  # noqa: PLC0415
        from httpx2 import HTTPError  # noqa: PLC0415 - Confluent's client asks with it

        given = WithheldSettings({**_QUICK, **self._options}, looked_up(self._secrets), {"url": self.url})  # type: ignore[dict-item]
        try:
            if self._client is None:
                self._client = SchemaRegistryClient(dict(given))
            return question(self._client)
        except SchemaRegistryError as error:
            raise self._refusal(error, what) from None
        except (HTTPError, OSError, OAuthTokenError) as error:
            raise RegistryAwayError(
                f"the schema registry at {self.url} does not answer, and {what} is not known yet: start it, or correct "
                f"the url of the SchemaRegistry. The client said: {self._said(error)}"
            ) from None
        except ValueError as error:
            raise SourceError(
                f"Confluent's client does not take a setting of the SchemaRegistry: {self._said(error)}; correct its "
                "options"
            ) from None

    def _refusal(self, error: Any, what: str) -> SourceError:  # noqa: ANN401 - a SchemaRegistryError
        status, said = error.http_status_code, self._said(error.error_message)
        if status in _REFUSED:
            return SourceError(
                f"the schema registry at {self.url} refused the log-in: correct the secrets of the SchemaRegistry, or "
                f"give the user rights on {what}"
            )
        if status == _NOT_FOUND:
            return NotInRegistryError(f"the schema registry at {self.url} has no {what}")
        if status in _INVALID:
            return SourceError(f"the schema registry at {self.url} does not take the schema for {what}: {said}")
        if status >= _SERVER or status == _TOO_MANY:
            return RegistryAwayError(
                f"the schema registry at {self.url} cannot answer for {what} now ({status}): try again later. It said: "
                f"{said}"
            )
        return SourceError(f"the schema registry at {self.url} could not be asked for {what} ({status}): {said}")

    def _said(self, error: object) -> str:
        secrets = looked_up(self._secrets).values()
        return without(str(error), [part for each in secrets for part in (each, each.partition(":")[2])])

    def _kept(self, name: str, kind: type[_Model]) -> "_Model | None":
        """Return the folder's content under a name, or None if there is none."""
        if self._folder is None:
            return None
        place = self._folder / name
        try:
            return kind.model_validate_json(place.read())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValidationError) as error:
            raise SourceError(f"{place} cannot be read ({error}): delete it, and the registry is asked again") from None

    def _keep(self, name: str, said: BaseModel) -> None:
        if self._folder is None:
            return
        place = self._folder / name
        try:
            place.replace(said.model_dump_json().encode())
        except OSError as error:
            raise SourceError(
                f"{place} cannot be written ({error.strerror or error}): correct the rights of the folder that the "
                "SchemaRegistry has as kept="
            ) from error


def registry_of(given: "SchemaRegistry | str") -> SchemaRegistry:
    """Return the registry of an argument, which may be only a URL."""
    return SchemaRegistry(given) if isinstance(given, str) else given


def _must_be_installed() -> None:
    if find_spec("confluent_kafka") is None or find_spec("authlib") is None or find_spec("cachetools") is None:
        raise SourceError(f"the registry's client is not installed: pip install '{DISTRIBUTION}[registry]'")


def _numbers(client: "SchemaRegistryClient", subject: str) -> tuple[int, ...]:
    found = (client.get_version(subject, version) for version in sorted(client.get_versions(subject)))
    return tuple(dict.fromkeys(int(each.schema_id) for each in found))


def _references(client: "SchemaRegistryClient", schema: "Schema") -> dict[str, str]:
    """Return the texts of all schemas that a schema uses. A schema comes after the schemas that it uses."""
    found: dict[str, str] = {}
    for each in schema.references or ():
        other = client.get_version(each.subject, each.version).schema
        found |= {name: text for name, text in _references(client, other).items() if name not in found}
        found[each.name] = str(other.schema_str)
    return found


def _shown(url: str) -> str:
    return repr(url.rpartition("@")[2])
