"""Removes credentials from texts that are shown or stored: messages, the doctor's page, traces, entries."""

import re
from typing import Final

HIDDEN: Final = "***"

_PASSWORD: Final = re.compile(r"(?P<begin>\b[a-z][a-z0-9+.-]*://[^\s/@:'\"]*):(?!\d+[/?])[^\s'\"]*@", re.IGNORECASE)
_PARAMETERS: Final = re.compile(r"(?P<begin>\bsc://[^\s;'\"]*;)(?P<parameters>[^\s'\"]+)", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"=[^;]*")
_WORDS: Final = r"password|passwd|token|secret|access[_.-]?key|api[_.-]?key|jaas[_.]config|ssl\.key\.pem|authorization"
_NAMED: Final = re.compile(
    rf"(?P<name>(?<![\w.-])[\w.-]*(?:{_WORDS}))(?P<is>\s?=\s?)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|(?:bearer |basic )?[^\s&;,'\")}\]]+)",
    re.IGNORECASE,
)
_OPEN: Final = ("use_ssl", "user_id", "user_agent", "session_id")
"""Parameters of a Connect URL that are not secret."""


def without_credentials(text: str) -> str:
    """Return a text with `***` for the password of a URL, for the values of a Connect URL, and for `token=...`.

    A Connect URL may have headers of any name (`x-my-key=...`). So all its values are hidden, except a few known ones.
    """
    shown = _PASSWORD.sub(lambda found: f"{found['begin']}:{HIDDEN}@", text)
    shown = _PARAMETERS.sub(lambda found: found["begin"] + _parameters(found["parameters"]), shown)
    return _NAMED.sub(lambda found: f"{found['name']}{found['is']}{HIDDEN}", shown)


def _parameters(text: str) -> str:
    each = (one if one.partition("=")[0] in _OPEN else _PARAMETER.sub(f"={HIDDEN}", one) for one in text.split(";"))
    return ";".join(each)
