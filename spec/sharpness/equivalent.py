"""Lists the slips that change nothing visible, each with the reason. They are not counted.

A name with a number in brackets stands for one place in its function. Without a number it stands for all places where
the function has this code.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from spec.sharpness.slips import Slip

EQUIVALENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "checkpointing.coordinator.coordinator_state:initial_delay_ms other sign: seed + 11400714819323198485"
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
        "checkpointing.job.door:Wiring.__init__ off by one: 0 -> 1": "`start` sets the time before anybody reads it.",
        "checkpointing.job.drafts:EpochLog.ended off by one: 0 -> 1": (
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
        "checkpointing.coordinator.completion:Completion._subsume_older comparison flipped: pending.id <"
        " checkpoint -> pending.id <= checkpoint": ("The completed checkpoint is not pending any more."),
        "checkpointing.coordinator.completion:Completion._notify_complete other field:"
        " pending.plan.to_commit -> pending.plan.to_acknowledge": ("Both are the tasks that run."),
        "checkpointing.coordinator.completion:Completion._notify_aborted other field:"
        " pending.plan.to_commit -> pending.plan.to_acknowledge": ("As above."),
        "checkpointing.coordinator.failure_policy:FailurePolicy.succeeded comparison flipped: checkpoint"
        " > self.last_success -> checkpoint >= self.last_success": ("A checkpoint succeeds once."),
        "checkpointing.coordinator.failure_policy:FailurePolicy._is_past comparison flipped: checkpoint"
        " <= self.last_success -> checkpoint < self.last_success": ("A checkpoint that has succeeded does not fail."),
        "checkpointing.coordinator.coordinator_state:PeriodicScheduler.fire comparison flipped: now_ms < self.next_ms"
        " -> now_ms <= self.next_ms": ("A firing exactly on time is followed by the same time in both branches."),
        "checkpointing.coordinator.coordinator_state:initial_delay_ms off by one: 11400714819323198485 ->"
        " 11400714819323198486": ("Another draw in the same bounds."),
        "checkpointing.coordinator.coordinator_state:initial_delay_ms off by one: 30 -> 31": ("As above."),
        "checkpointing.coordinator.coordinator_state:initial_delay_ms off by one: 13787848793156543929 ->"
        " 13787848793156543930": ("As above."),
        "checkpointing.coordinator.coordinator_state:initial_delay_ms off by one: 27 -> 28": ("As above."),
        "checkpointing.coordinator.coordinator_state:initial_delay_ms off by one: 10723151780598845931 ->"
        " 10723151780598845932": ("As above."),
        "checkpointing.coordinator.coordinator_state:initial_delay_ms off by one: 31 -> 32": ("As above."),
        "checkpointing.coordinator.triggering:Triggering.__init__ off by one: 0 -> 1": (
            "Only the order of these numbers counts."
        ),
        "checkpointing.gate.aligner:Aligner._collect_end and for or: barrier is not None and"
        " self.alignment.complete -> barrier is not None or self.alignment.complete": (
            "A pending checkpoint has a barrier, and `end` has returned if none is pending."
        ),
        "checkpointing.gate.aligner:Alignment.__init__ off by one: 0 -> 1": (
            "The first alignment sets these numbers before anybody reads them."
        ),
        "checkpointing.gate.channels:Channel._before comparison flipped: self.newest_barrier < checkpoint"
        " -> self.newest_barrier <= checkpoint": (
            "After its barrier nothing of the channel waits. A newer barrier ends the checkpoint before its channel"
            " state is used."
        ),
        "checkpointing.gate.channels:Channel._before other field: self.newest_barrier -> self.recording_for": (
            "As above."
        ),
        "checkpointing.gate.channels:Channels.prioritise and for or: not isinstance(last, Barrier) or"
        " last.checkpoint != checkpoint -> not isinstance(last, Barrier) and last.checkpoint !="
        " checkpoint": ("Only barriers that wait at the end of their channel are announced still."),
        "checkpointing.gate.tracker:BarrierTracker.__init__ off by one: 0 -> 1": (
            "Only differences of this number are told."
        ),
        "checkpointing.gate.tracker:BarrierTracker.cancel off by one: 0 -> 1": (
            "Nobody reads when a checkpoint began that only a marker has named."
        ),
        "checkpointing.gate.tracker:BarrierTracker._complete and for or: count.aborted or count.barrier"
        " is None -> count.aborted and count.barrier is None": ("A count without a barrier is always aborted."),
        "checkpointing.task.subtask_checkpointing:AbortedCheckpoints.forget_before comparison flipped: n >= checkpoint"
        " -> n > checkpoint": ("Nobody asks again whether the last seen checkpoint was aborted."),
        "checkpointing.task.subtask_checkpointing:SubtaskCheckpointing._abort comparison flipped:"
        " checkpoint > self._last -> checkpoint >= self._last": ("As above."),
        "checkpointing.metadata.row_validity:valid_numbers off by one: 0 -> 1 [20]": (
            "0 and 1 are both valid numbers."
        ),
        "checkpointing.metadata.row_validity:_of_vertex off by one: 0 -> 1 [69]": "As above.",
        "checkpointing.tick.door:TickDoor.__init__ dropped assignment: self._now = Stamp(0, '') -> pass": (
            "Nobody reads this stamp: `start` sets it before the first step."
        ),
        "checkpointing.job.tick_end:Ending.__init__ off by one: 0 -> 1 [12]": (
            "`started` sets this time before anybody reads it."
        ),
        "checkpointing.tick.attempts:_jittered off by one: 1 -> 2 [23]": "Another draw in the same bounds.",
        "checkpointing.tick.attempts:_by_rate other sign: history.restarts + 1 -> history.restarts - 1": (
            "This strategy looks at the times of failures, and at no number of restarts."
        ),
        "checkpointing.job.drafts:Drafts.forget swapped arguments: self._said.pop(checkpoint, None)"
        " -> self._said.pop(None, checkpoint)": (
            "No id is used twice, so nobody asks for these words again. They only stay in memory until the tick ends."
        ),
        "checkpointing.job.hooks:SourceCoordinators.forget filter dropped:  for asked in self._asked if"
        " asked[1] != checkpoint ->  for asked in self._asked": (
            "The coordinator ignores answers for a checkpoint that has ended. The state only stays in memory until the"
            " tick ends."
        ),
        "checkpointing.commit.net_files:keyed_tables off by one: 0 -> 1": (
            "Nobody reads this version: these tables only tell names, modes and files."
        ),
        "checkpointing.commit.two_phase:TwoPhaseCommit.__init__ off by one: 0 -> 1 [37]": (
            "The first draft replaces these numbers before anybody reads them."
        ),
        "checkpointing.trace:FilesTakenOut._forget other sign: files + _REMEMBERED -> files - _REMEMBERED": (
            "Lists that no line needs are forgotten earlier. A trace without them says the same."
        ),
        "checkpointing.trace:FilesTakenOut.__init__ off by one: 0 -> 1 [13]": (
            "As above, one number earlier or later."
        ),
        "checkpointing.commit.cleanup:noted comparison flipped: look.at_ms <= now.at_ms -> look.at_ms < now.at_ms": (
            "Of two looks in one millisecond, the later one finds all that the earlier one finds."
        ),
        "checkpointing.commit.lost_publications:holes comparison flipped: row.checkpoint <= seen.logs[table].shows"
        " -> row.checkpoint < seen.logs[table].shows": "A table does not lack the entry that it shows.",
        "checkpointing.job.door:JobDoor._pass dropped call: self._run_vertices() -> pass [231]": (
            "The next pass runs them. Only the order changes: a split may be asked before the barrier's work begins."
        ),
    }
)


def is_equivalent(slip: Slip) -> bool:
    """Return whether the slip is listed."""
    return slip.key in EQUIVALENT or slip.identity in EQUIVALENT
