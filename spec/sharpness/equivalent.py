"""Lists the slips that change nothing visible, each with the reason. They are not counted."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

EQUIVALENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "checkpointing.coordinator.scheduler:initial_delay_ms other sign: seed + 11400714819323198485"
        " -> seed - 11400714819323198485": "Another draw in the same bounds.",
        "checkpointing.commit.live_files:_differ swapped arguments: zip_longest(lists, were, fillvalue=())"
        " -> zip_longest(were, lists, fillvalue=())": (
            "Only a shortcut fails: the last line compares all paths, and says the same."
        ),
        "checkpointing.tick.door:TickDoor.__init__ swapped arguments: Stamp(0, '') -> Stamp('', 0)": (
            "Nobody reads this stamp: `start` replaces it before the first step."
        ),
        "checkpointing.tick.door:TickDoor.__init__ off by one: 0 -> 1": "As above.",
        "checkpointing.metadata.row_validity:_Judge._table_name dropped call: self._known.add(table) -> pass": (
            "The name is only checked more often."
        ),
        "checkpointing.metadata.row_validity:_Judge._staged_below dropped call: self._known.add(folder) -> pass": (
            "As above, a folder."
        ),
        "checkpointing.metadata.row_validity:_Judge._folder dropped call: self._known.add(folder) -> pass": "As above.",
        "checkpointing.job.wiring:Wiring.__init__ off by one: 0 -> 1": "`start` sets the time before anybody reads it.",
        "checkpointing.job.epochs:EpochLog.ended off by one: 0 -> 1": (
            "The commit replaces the time of the commit before anybody reads it."
        ),
    }
)
