"""The configuration of one job's checkpoints, as one validated model. Every refusal names the field and the rule.

The rules are Flink's (`CheckpointConfig`, `CheckpointCoordinatorConfiguration`) where Flink has them. Flink silently
corrects some settings: unaligned with at least once, and a pause with several concurrent checkpoints. Here they are
refused, so that a configuration always means what it says.
"""

from enum import Enum
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from checkpointing.key_groups import KEY_GROUPS_MAX

SHORTEST_INTERVAL_MS = 10
"""The shortest interval and timeout. Flink: `CheckpointCoordinatorConfiguration.MINIMAL_CHECKPOINT_TIME`."""
LONGEST_PAUSE_MS = 365 * 24 * 60 * 60 * 1000
LONGEST_TIME_MS = 100 * LONGEST_PAUSE_MS
"""No time of the configuration is longer than a hundred years."""
COUNT_MAX = 2**53 - 1
"""No number of rows or bytes may be larger. Every reader of JSON reads numbers up to it exactly."""
RETAINED_MAX = 10_000
"""The most retained checkpoints. There is a limit because every start reads all of them."""
TIMES_MAX = 2**31 - 1
"""A limit of this many failures or restarts is no limit (Flink: the largest int)."""
"""`LONGEST_PAUSE_MS` is a year, Flink's longest time between checkpoints."""
MEMORY_STATE_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes of one subtask's state inside a checkpoint's entry. An entry with more is refused."""
DEFAULT_MAX_PARALLELISM = 128
UNLIMITED = -1
"""`max_alignment_bytes`: blocked input is buffered without a limit."""


class CheckpointingMode(Enum):
    """How often a row may count after a crash."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    """Gates count barriers and wait for none. After a crash some rows count twice, and none is lost."""


class StateBackendKind(Enum):
    """Where keyed state is stored, and how much of it each micro-batch writes. The results are the same for all."""

    INCREMENTAL = "incremental"
    """In files. A micro-batch writes the state that it changed, and from time to time all state."""
    FULL = "full"
    """In files. Each micro-batch writes all state of a subtask."""
    MEMORY = "memory"
    """Inside the checkpoint's entry, for small state."""


class RestartStrategyKind(Enum):
    """What a tick does after its job failed (G4; Flink: `RestartStrategyOptions`)."""

    NONE = "none"
    """The tick ends, and the next tick recovers."""
    FIXED_DELAY = "fixed_delay"
    """The tick restarts after a fixed delay, at most a number of times."""
    FAILURE_RATE = "failure_rate"
    """The tick restarts unless too many failures fell within an interval."""
    EXPONENTIAL_DELAY = "exponential_delay"
    """The tick restarts after a delay that grows with each failure."""


_ANY_RESTART = (
    RestartStrategyKind.FIXED_DELAY,
    RestartStrategyKind.FAILURE_RATE,
    RestartStrategyKind.EXPONENTIAL_DELAY,
)
_RESTART_FIELDS = {
    "restart_attempts": (RestartStrategyKind.FIXED_DELAY, RestartStrategyKind.EXPONENTIAL_DELAY),
    "restart_delay_ms": _ANY_RESTART,
    "restart_failures_max": (RestartStrategyKind.FAILURE_RATE,),
    "restart_failures_interval_ms": (RestartStrategyKind.FAILURE_RATE,),
    "restart_delay_max_ms": (RestartStrategyKind.EXPONENTIAL_DELAY,),
    "restart_multiplier": (RestartStrategyKind.EXPONENTIAL_DELAY,),
    "restart_reset_after_ms": (RestartStrategyKind.EXPONENTIAL_DELAY,),
    "restart_jitter": (RestartStrategyKind.EXPONENTIAL_DELAY,),
}
"""The strategies to which a field belongs. With another strategy the field would silently have no effect."""


def _whole_number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a whole number, not true or false")  # noqa: TRY004 - pydantic wraps ValueError only
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a number, not true or false")  # noqa: TRY004 - pydantic wraps ValueError only
    return value


Milliseconds = Annotated[int, BeforeValidator(_whole_number), Field(le=LONGEST_TIME_MS)]
Count = Annotated[int, BeforeValidator(_whole_number), Field(le=COUNT_MAX)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]


class CheckpointConfig(BaseModel):
    """The configuration of one job's checkpoints. Raises ValidationError, naming field and rule.

    If `interval_ms` and `every_rows` are None, neither triggers a checkpoint. Checkpoints are then taken on request,
    and when the job is caught up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    interval_ms: Milliseconds | None = Field(default=None, ge=SHORTEST_INTERVAL_MS)
    """Time between two periodic triggers. None: no periodic trigger."""
    every_rows: Count | None = Field(default=None, gt=0)
    """Begin a checkpoint when this many rows were read since the last trigger. None: rows trigger nothing."""
    rows_of: tuple[str, ...] = ()
    """The sources whose rows `every_rows` counts. Empty: all sources."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    """exactly_once: gates wait for all barriers. at_least_once: they do not, so a crash may count rows twice."""
    timeout_ms: Milliseconds = Field(default=600_000, ge=SHORTEST_INTERVAL_MS)
    """A checkpoint expires if it has not completed this long after its trigger."""
    min_pause_ms: Milliseconds = Field(default=0, ge=0, le=LONGEST_PAUSE_MS)
    """The shortest time between the completion of a checkpoint and the next periodic trigger."""
    max_concurrent: Count = Field(default=1, ge=1, le=1_000)
    """How many checkpoints may be pending at a time. Forced savepoints ignore this."""
    tolerable_failures: Count = Field(default=0, ge=0, le=TIMES_MAX)
    """How many checkpoints in a row may fail before the job fails.
    A checkpoint counts if it expired, if a subtask declined it, or if it could not be written. A subtask also declines
    it if a suite could not be judged, or if rows could not be written. A suite that rejects rows, a changed table and a
    newer claim always fail the job.
    """
    tolerable_poll_failures: Count = Field(default=3, ge=0, le=TIMES_MAX)
    """How many polls of a source's split may fail in a row before the job fails.
    The split is polled again every half second. The other splits are read in the meantime.
    """
    retained: Count = Field(default=1, ge=1, le=RETAINED_MAX)
    """How many completed checkpoints are kept, at least 2. Savepoints are kept besides.
    The checkpoint before the newest is always kept, so that the job can go back to it if a table or sink never accepts
    the newest.
    """
    retain_on_cancellation: bool = True
    """Whether checkpoints are kept when the job is cancelled. If not, only savepoints are.
    Only a cancellation reads this setting.
    """
    unaligned: bool = False
    """Whether barriers overtake rows that wait. The checkpoint then stores these rows as channel state."""
    alignment_timeout_ms: Milliseconds | None = Field(default=None, ge=0)
    """With `unaligned`: a checkpoint starts aligned and turns unaligned after this time. None: unaligned at once."""
    max_alignment_bytes: Count | None = None
    """How many bytes may be buffered from channels that wait for a barrier.
    With more, the checkpoint is declined. None: nothing is buffered, and the sources of such channels stop reading. -1:
    no limit.
    """
    max_parallelism: Count = Field(default=DEFAULT_MAX_PARALLELISM, ge=1, le=KEY_GROUPS_MAX)
    """The number of key groups. It is fixed for the job's life: a tick with another number is refused."""
    micro_batch_rows_max: Count = Field(default=1_000_000, gt=0)
    """The largest number of rows in one micro-batch of a vertex."""
    slice_rows_max: Count = Field(default=100_000, gt=0)
    """The largest number of rows that a source reads at a time."""
    state_backend: StateBackendKind = StateBackendKind.INCREMENTAL
    """Where keyed state is stored: incremental, full or memory. You may change it between two ticks."""
    memory_state_bytes_max: Count | None = Field(default=None, ge=1, le=MEMORY_STATE_BYTES_MAX)
    """With state_backend memory: the largest compressed state of one subtask in bytes. None: 1 MiB. At most 256 MiB."""
    compact_files_min: Count | None = Field(default=10, ge=2, le=1_000)
    """How many small files of an append table a tick writes into one (for each partition). None: no compaction."""
    compacted_bytes_max: Count = Field(default=134_217_728, ge=1)
    """The largest size of a file made of small ones, in bytes. A file of more than half of it is not compacted."""
    restart_strategy: RestartStrategyKind = RestartStrategyKind.NONE
    """Whether a tick restarts after a failure: none, fixed_delay, failure_rate or exponential_delay."""
    restart_attempts: Count | None = Field(default=None, ge=1, le=TIMES_MAX)
    """How many restarts are allowed in a tick (fixed_delay; None: 1).
    For exponential_delay: in a row, until `restart_reset_after_ms` starts the count anew. None: any number.
    """
    restart_delay_ms: Milliseconds | None = Field(default=None, ge=0)
    """Time from a failure to the restart. For exponential_delay: to the first restart. None: a second."""
    restart_failures_max: Count | None = Field(default=None, ge=1, le=TIMES_MAX)
    """How many failures within the interval the tick survives (failure_rate). None: 1."""
    restart_failures_interval_ms: Milliseconds | None = Field(default=None, ge=1)
    """The interval in which failures are counted (failure_rate). None: a minute."""
    restart_delay_max_ms: Milliseconds | None = Field(default=None, ge=1)
    """The longest delay (exponential_delay). None: five minutes."""
    restart_multiplier: Number | None = Field(default=None, gt=1, le=1_000)
    """The factor by which the delay grows from failure to failure (exponential_delay). None: 2."""
    restart_reset_after_ms: Milliseconds | None = Field(default=None, ge=1)
    """After this time without a failure the delay starts anew (exponential_delay). None: an hour."""
    restart_jitter: Number | None = Field(default=None, ge=0, le=1)
    """A random share by which each delay is made longer or shorter (exponential_delay). None: 0.1."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for refused, field, rule in self.contradictions():
            if refused:
                raise ValueError(f"{field}: {rule}")
        return self

    def contradictions(self) -> tuple[tuple[bool, str, str], ...]:
        """Return the rules over several fields, as (whether the configuration breaks it, field, rule)."""
        return (*self._checkpoint_contradictions(), *self._restart_contradictions())

    def _checkpoint_contradictions(self) -> tuple[tuple[bool, str, str], ...]:
        exactly_once = self.mode is CheckpointingMode.EXACTLY_ONCE
        bytes_max = self.max_alignment_bytes
        timeout = self.alignment_timeout_ms
        return (
            (self.unaligned and not exactly_once, "unaligned", "needs mode exactly_once; at least once never aligns"),
            (
                self.unaligned and self.max_concurrent > 1,
                "max_concurrent",
                "must be 1 with unaligned: barriers of two unaligned checkpoints would overtake each other",
            ),
            (timeout is not None and not self.unaligned, "alignment_timeout_ms", "needs unaligned"),
            (
                timeout is not None and timeout >= self.timeout_ms,
                "alignment_timeout_ms",
                "must be less than timeout_ms, or the checkpoint expires before it turns unaligned",
            ),
            (
                bytes_max is not None and bytes_max != UNLIMITED and bytes_max <= 0,
                "max_alignment_bytes",
                f"must be positive, or {UNLIMITED} for no limit",
            ),
            (bytes_max is not None and not exactly_once, "max_alignment_bytes", "needs mode exactly_once"),
            (
                bytes_max is not None and self.unaligned,
                "max_alignment_bytes",
                "can't go with unaligned: nothing is buffered behind an unaligned barrier",
            ),
            (
                self.min_pause_ms > 0 and self.max_concurrent > 1,
                "min_pause_ms",
                "needs max_concurrent 1: a pause after each checkpoint leaves no two at a time",
            ),
            (
                self.memory_state_bytes_max is not None and self.state_backend is not StateBackendKind.MEMORY,
                "memory_state_bytes_max",
                "needs state_backend memory",
            ),
            (bool(self.rows_of) and self.every_rows is None, "rows_of", "needs every_rows"),
            (len(set(self.rows_of)) != len(self.rows_of), "rows_of", "must name each source once"),
            (
                self.slice_rows_max > self.micro_batch_rows_max,
                "slice_rows_max",
                "must not be more than micro_batch_rows_max: a slice must fit into one micro-batch",
            ),
        )

    def _restart_contradictions(self) -> tuple[tuple[bool, str, str], ...]:
        foreign = tuple(
            (
                getattr(self, field) is not None and self.restart_strategy not in kinds,
                field,
                f"needs restart_strategy {' or '.join(kind.value for kind in kinds)}",
            )
            for field, kinds in _RESTART_FIELDS.items()
        )
        exponential = self.restart_strategy is RestartStrategyKind.EXPONENTIAL_DELAY
        first_ms, longest_ms = self.first_restart_delay_ms, self.longest_restart_delay_ms
        return (
            *foreign,
            (exponential and first_ms < 1, "restart_delay_ms", "must be at least 1: nothing grows from 0"),
            (
                exponential and first_ms > longest_ms,
                "restart_delay_max_ms",
                f"must not be less than restart_delay_ms, which is {first_ms}",
            ),
        )

    @property
    def kept(self) -> int:
        """How many completed checkpoints are kept: `retained`, but at least the two newest.

        It may never be possible to publish a committed checkpoint, because a table or an outside sink refuses it for
        good. Then the job goes back to the checkpoint before.
        """
        return max(self.retained, 2)

    @property
    def memory_state_limit_bytes(self) -> int:
        """The most bytes of one subtask that the memory backend may put into an entry. Unset: 1 MiB (Flink: five)."""
        return 1_048_576 if self.memory_state_bytes_max is None else self.memory_state_bytes_max

    @property
    def first_restart_delay_ms(self) -> int:
        """The delay of the first restart: a second unless set (Flink's default)."""
        return 1_000 if self.restart_delay_ms is None else self.restart_delay_ms

    @property
    def longest_restart_delay_ms(self) -> int:
        """The limit of a growing delay: five minutes unless set (Flink's default)."""
        return 300_000 if self.restart_delay_max_ms is None else self.restart_delay_max_ms

    @property
    def effective_interval_ms(self) -> int | None:
        """The period of the periodic trigger. It is never shorter than the minimum pause (Flink: `baseInterval`)."""
        return None if self.interval_ms is None else max(self.interval_ms, self.min_pause_ms)
