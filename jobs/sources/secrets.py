"""Keeps the secrets of a source's settings out of entries, messages and logs.

A user names environment variables, or gives a function. The source looks the values up when a client needs them.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from jobs.sources.port import SourceError

Secrets = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""The name of an environment variable for each setting, or a function that returns the values of the settings."""

_SECRET: Final = re.compile(
    r"password|passwd|secret|token|credential|api_?key|access_?key|private_?key|jaas|user\.info|ssl\.key\.pem|keystore\.key",
    re.IGNORECASE,
)
"""Settings whose values are secret. A user must not give these values as plain text."""


class WithheldSettings(Mapping[str, str]):
    """Settings whose values no log and no traceback shows, not even one that shows local variables."""

    __slots__ = ("_settings",)

    def __init__(self, *parts: Mapping[str, str]) -> None:
        """Hold the settings of all `parts`. If two parts have the same setting, the later part wins."""
        self._settings = {name: value for part in parts for name, value in part.items()}

    def __getitem__(self, name: str) -> str:
        """Return the value of a setting."""
        return self._settings[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._settings)

    def __len__(self) -> int:
        """Return how many settings there are."""
        return len(self._settings)

    def __repr__(self) -> str:
        """Return only the number of settings."""
        return f"<{len(self)} settings>"


def refuse_open_secrets(names: Iterable[str], source: str) -> None:
    """Raise SourceError for an option whose value would be a secret in plain text."""
    for name in names:
        if _SECRET.search(name):
            raise SourceError(
                f"options of a {source} name {name!r}, and its value would be in the open: name an environment "
                f"variable that has it, as in secrets={{{name!r}: 'MY_SECRET'}}"
            )


def looked_up(secrets: Secrets | None) -> dict[str, str]:
    """Return the values of the secrets; raise SourceError if the environment lacks one."""
    if secrets is None:
        return {}
    if callable(secrets):
        return dict(secrets())
    return {name: _of_environment(name, variable) for name, variable in secrets.items()}


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which each secret is masked."""
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, "***") if value else text
    return text


def _of_environment(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise SourceError(f"the environment has no variable {variable!r}, which is to hold {name!r}: set it")
    return value
