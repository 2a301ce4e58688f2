"""How a job is checkpointed: one validated model. Every refusal names the field and the rule.

The rules are Flink's (`CheckpointConfig`, `CheckpointCoordinatorConfiguration`) where Flink has them;
what Flink silently corrects (unaligned with at least once, a pause with several concurrent
checkpoints) is refused here, so that a configuration always means what it says.
"""

from enum import Enum
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SHORTEST_INTERVAL_MS = 10
"""Flink: `CheckpointCoordinatorConfiguration.MINIMAL_CHECKPOINT_TIME`; of the interval and the timeout."""
LONGEST_PAUSE_MS = 365 * 24 * 60 * 60 * 1000
"""A year, Flink's longest time between checkpoints."""
KEY_GROUPS_MAX = 32768
"""Flink: `KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM`."""
MEMORY_STATE_BYTES_MAX = 256 * 1024 * 1024
"""What one subtask's state may take at most inside a checkpoint's row; a row that holds more is refused."""
DEFAULT_MAX_PARALLELISM = 128
UNLIMITED = -1
"""`max_alignment_bytes`: blocked input is buffered without a limit."""


class CheckpointingMode(Enum):
    """What a crash may do to the records of an epoch."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    """Barriers are counted, never waited for: after a crash some records count twice, none is lost."""


class StateBackendKind(Enum):
    """Where keyed state lies, and how much of it is written each time; the results are the same."""

    INCREMENTAL = "incremental"
    """In files: what a micro-batch changed, and now and then all of it."""
    FULL = "full"
    """In files: all of a subtask's state with each micro-batch."""
    MEMORY = "memory"
    """All of it inside the checkpoint's row, for small states."""


class RestartStrategyKind(Enum):
    """What becomes of a tick whose job failed (G4; Flink: `RestartStrategyOptions`)."""

    NONE = "none"
    """It ends; the next tick recovers."""
    FIXED_DELAY = "fixed_delay"
    """It goes on after a time, so many times."""
    FAILURE_RATE = "failure_rate"
    """It goes on unless too many failures fell within an interval."""
    EXPONENTIAL_DELAY = "exponential_delay"
    """It goes on after a time that grows from failure to failure."""


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
"""Which strategies a field belongs to: with another one it would silently mean nothing."""


def _whole_number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a whole number, not true or false")  # noqa: TRY004 - pydantic wraps ValueError only
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a number, not true or false")  # noqa: TRY004 - pydantic wraps ValueError only
    return value


Milliseconds = Annotated[int, BeforeValidator(_whole_number)]
Count = Annotated[int, BeforeValidator(_whole_number)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]


class CheckpointConfig(BaseModel):
    """The configuration of one job's checkpoints; raises ValidationError naming field and rule.

    `interval_ms` None and `every_rows` None switch both triggers off: checkpoints come when asked for
    and when the job is caught up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    interval_ms: Milliseconds | None = Field(default=None, ge=SHORTEST_INTERVAL_MS)
    """Time between periodic triggers; None: no periodic trigger."""
    every_rows: Count | None = Field(default=None, gt=0)
    """Trigger when this many rows came since the last trigger; None: rows do not trigger."""
    rows_of: tuple[str, ...] = ()
    """The sources whose rows `every_rows` counts; empty: all."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    """Whether a gate waits for all barriers: exactly_once or at_least_once."""
    timeout_ms: Milliseconds = Field(default=600_000, ge=SHORTEST_INTERVAL_MS)
    """Time from the trigger until a checkpoint that has not completed expires."""
    min_pause_ms: Milliseconds = Field(default=0, ge=0, le=LONGEST_PAUSE_MS)
    """Least time between a completion and the next periodic trigger."""
    max_concurrent: Count = Field(default=1, ge=1)
    """Most checkpoints pending at a time; forced savepoints ignore it."""
    tolerable_failures: Count = Field(default=0, ge=0)
    """Consecutive counted failures that the job survives."""
    retained: Count = Field(default=1, ge=1)
    """Completed checkpoints that are kept."""
    retain_on_cancellation: bool = True
    """Whether a cancelled job's checkpoints stay."""
    unaligned: bool = False
    """Whether barriers overtake records, which then become channel state."""
    alignment_timeout_ms: Milliseconds | None = Field(default=None, ge=0)
    """With `unaligned`: start aligned and turn unaligned after this time; None: unaligned at once."""
    max_alignment_bytes: Count | None = None
    """None: a blocked channel is held back; else its input is buffered up to this, -1 without a limit."""
    after_tasks_finish: bool = True
    """Whether checkpoints go on after some subtasks have finished."""
    max_parallelism: Count = Field(default=DEFAULT_MAX_PARALLELISM, ge=1, le=KEY_GROUPS_MAX)
    """The number of key groups, fixed for the job's life."""
    micro_batch_rows_max: Count = Field(default=1_000_000, gt=0)
    """Most rows in one micro-batch of a vertex."""
    slice_rows_max: Count = Field(default=100_000, gt=0)
    """Most rows that a source reads at a time."""
    state_backend: StateBackendKind = StateBackendKind.INCREMENTAL
    """Where keyed state lies: incremental, full or memory; it may change between two ticks."""
    memory_state_bytes_max: Count | None = Field(default=None, ge=1, le=MEMORY_STATE_BYTES_MAX)
    """Most bytes of one subtask's state in a checkpoint's row, compressed (memory); None: 1,048,576; most: 256 MiB."""
    restart_strategy: RestartStrategyKind = RestartStrategyKind.NONE
    """What becomes of a tick whose job failed: none, fixed_delay, failure_rate or exponential_delay."""
    restart_attempts: Count | None = Field(default=None, ge=1)
    """Most restarts in a tick (fixed_delay; None: 1), or between two quiet times (exponential_delay; None: no end)."""
    restart_delay_ms: Milliseconds | None = Field(default=None, ge=0)
    """Time from a failure to the restart, the first one of exponential_delay; None: a second."""
    restart_failures_max: Count | None = Field(default=None, ge=1)
    """Most failures within the interval that the tick survives (failure_rate); None: 1."""
    restart_failures_interval_ms: Milliseconds | None = Field(default=None, ge=1)
    """The interval in which failures are counted (failure_rate); None: a minute."""
    restart_delay_max_ms: Milliseconds | None = Field(default=None, ge=1)
    """The delay's limit (exponential_delay); None: five minutes."""
    restart_multiplier: Number | None = Field(default=None, gt=1)
    """What the delay grows by from failure to failure (exponential_delay); None: 2."""
    restart_reset_after_ms: Milliseconds | None = Field(default=None, ge=1)
    """Time without a failure after which the delay starts anew (exponential_delay); None: an hour."""
    restart_jitter: Number | None = Field(default=None, ge=0, le=1)
    """Share of the delay by which it is spread either way (exponential_delay); None: 0.1."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for refused, field, rule in self.contradictions():
            if refused:
                raise ValueError(f"{field}: {rule}")
        return self

    def contradictions(self) -> tuple[tuple[bool, str, str], ...]:
        """Return the rules over several fields: whether this configuration breaks it, the field, and the rule."""
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
    def memory_state_limit_bytes(self) -> int:
        """What the memory backend may put into a row for one subtask: a MiB unless it is set (Flink: five)."""
        return 1_048_576 if self.memory_state_bytes_max is None else self.memory_state_bytes_max

    @property
    def first_restart_delay_ms(self) -> int:
        """The delay of a first restart: a second unless it is set (Flink's default)."""
        return 1_000 if self.restart_delay_ms is None else self.restart_delay_ms

    @property
    def longest_restart_delay_ms(self) -> int:
        """The limit of a delay that grows: five minutes unless it is set (Flink's default)."""
        return 300_000 if self.restart_delay_max_ms is None else self.restart_delay_max_ms

    @property
    def effective_interval_ms(self) -> int | None:
        """The period of the periodic trigger: never shorter than the minimum pause (Flink: `baseInterval`)."""
        return None if self.interval_ms is None else max(self.interval_ms, self.min_pause_ms)
