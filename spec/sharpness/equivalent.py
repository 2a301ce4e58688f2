"""Lists the slips that change nothing visible, each with the reason. They are not counted."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

EQUIVALENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "checkpointing.coordinator.scheduler:initial_delay_ms other sign: seed + 11400714819323198485"
        " -> seed - 11400714819323198485": "Another draw in the same bounds.",
    }
)
