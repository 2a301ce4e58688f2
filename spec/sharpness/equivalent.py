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
        "checkpointing.commit.fencing:newest_claim other field: claim.last_id -> claim.first_id": (
            "The blocks of ids of one generation do not overlap, so both ends have the same order."
        ),
        "checkpointing.commit.fencing:decide_claim swapped arguments: MayClaim(Generation(1),"
        " CheckpointId(NO_CHECKPOINT + 1), 'nobody has held the job before')"
        " -> MayClaim(CheckpointId(NO_CHECKPOINT + 1), Generation(1), 'nobody has held the job before')": (
            "The first generation and the first id are both 1."
        ),
        "checkpointing.commit.columns:_now swapped arguments: differ(was.columns, declared)"
        " -> differ(declared, was.columns)": "Two lists differ from each other in the same way.",
        "checkpointing.commit.recovery:completion other truth: True -> False": (
            "An entry with another number of splits than of subtasks is refused when it is read."
        ),
    }
)
