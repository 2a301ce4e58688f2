"""Checks back-pressure on any run: no vertex sends into a full channel, and credit comes back."""

from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Effect, PollSource, RunMicroBatch
from spec.watching import DoorJudge, Split, Watched


class Credit(DoorJudge):
    """Judges polls and micro-batches: no vertex sends into a full channel, and credit comes back (C2).

    A vertex that could not write its rows holds credit until a barrier reaches it. The vertices may then send without
    it. A source of another job's cuts reads on to its cut without credit if a barrier waits for it.
    """

    def __init__(self, door: Watched) -> None:
        """Find the splits that only credit holds back."""
        super().__init__(door)
        self._free = _without_quota(door)

    def asked(self, effect: Effect) -> None:
        """Judge the sources and vertices that the door lets send more."""
        channels = self.door.channels
        match effect:
            case PollSource() if effect.source not in self.door.setup.cut_groups:
                full = channels.full(effect.source, channels.subtask(effect.source, effect.split))
                if full is not None:
                    self.wrong(f"split {effect.split} of {effect.source} is read, although {full} is full")
            case RunMicroBatch() if not self.door.held_back:
                for subtask in range(channels.graph.vertex(effect.vertex).parallelism):
                    full = channels.full(effect.vertex, subtask)
                    if full is not None:
                        self.wrong(f"{effect.vertex} runs, although {full} of subtask {subtask} is full")
            case _:
                pass

    def rested(self, given: tuple[CheckpointId, ...]) -> None:  # noqa: ARG002 - the form of a judge
        """Judge every split that is not being read: it waits for credit, or for its time to be asked again."""
        door = self.door
        if not door.reads:
            return
        for split, subtask in self._free.items():
            if split in door.polls or split in door.ended or door.is_held(split):
                continue
            if door.is_idle(split):
                self._sleeps(split)
            elif door.channels.full(split[0], subtask) is None:
                self.wrong(f"split {split[1]} of {split[0]} has credit, and is not read")

    def _sleeps(self, split: Split) -> None:
        """Judge whether the door wakes in time to ask an idle split again."""
        due_ms = self.door.idle_since[split] + self.door.setup.idle_poll_ms
        if self.door.wake_ms is None or self.door.wake_ms > due_ms:
            self.wrong(f"split {split[1]} of {split[0]} is idle until {due_ms}, the door wakes at {self.door.wake_ms}")


def _without_quota(door: Watched) -> dict[Split, int]:
    """Return the splits that no quota of rows holds back, with their subtasks."""
    setup = door.setup
    counted = {str(source) for source in setup.config.rows_of}
    found: dict[Split, int] = {}
    for source in setup.graph.sources():
        shares = setup.config.every_rows is not None and (not counted or source.id in counted)
        if not shares and source.id not in setup.rows_per_epoch and source.id not in setup.cut_groups:
            found |= {(source.id, split): index for index, split in enumerate(source.splits)}
    return found
