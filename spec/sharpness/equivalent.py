"""Slips that change nothing that anybody could see, each with the reason: they are not counted."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

EQUIVALENT: Final[Mapping[str, str]] = MappingProxyType({})
