"""The machine of settings: each number of a configuration arrives where it is used, and a contradiction is refused.

All numbers of a configuration differ from one another, so a place that takes a wrong one is found. The reference is
written field by field, from what the documentation of the settings says.
"""

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from pydantic import ValidationError

from checkpointing.config import CheckpointConfig, CheckpointingMode, RestartStrategyKind, StateBackendKind
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.gate.messages import GateConfig
from checkpointing.tick.attempts import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
    strategy_of,
)
from spec.machines.judging import expect
from spec.machines.setting_bounds import BOUNDS, CONTRADICTIONS

ARRIVE: Final = "settings-arrive"
"""A setting has the effect that its documentation says, and no other."""
_SECOND_MS, _MINUTE_MS = 1_000, 60_000
_RESTARTS: Final[dict[RestartStrategyKind, tuple[str, ...]]] = {
    RestartStrategyKind.NONE: (),
    RestartStrategyKind.FIXED_DELAY: ("restart_attempts", "restart_delay_ms"),
    RestartStrategyKind.FAILURE_RATE: ("restart_failures_max", "restart_failures_interval_ms", "restart_delay_ms"),
    RestartStrategyKind.EXPONENTIAL_DELAY: (
        "restart_attempts",
        "restart_delay_ms",
        "restart_delay_max_ms",
        "restart_multiplier",
        "restart_reset_after_ms",
        "restart_jitter",
    ),
}
"""The settings that each strategy has."""
_FIELDS: Final = tuple(dict.fromkeys(field for fields in _RESTARTS.values() for field in fields))
_GROWING: Final = RestartStrategyKind.EXPONENTIAL_DELAY
MICRO_BATCH_ROWS: Final = 5
_numbers = st.permutations([11, 23, 37, 41, 53, 67, 71, 83])


class SettingsMachine(RuleBasedStateMachine):
    """Configurations, one after the other. Nothing is kept in between."""

    @rule(kind=st.sampled_from([*RestartStrategyKind]), numbers=_numbers, left_out=st.sets(st.sampled_from(_FIELDS)))
    def restart(self, kind: RestartStrategyKind, numbers: list[int], left_out: set[str]) -> None:
        """A strategy has its own numbers. A number that is left out is Flink's default."""
        given = {field: float(number) for field, number in zip(_FIELDS, numbers, strict=False)}
        given |= {"restart_jitter": numbers[-1] / 100, "restart_delay_max_ms": 100_000.0}
        own = {field: given[field] for field in _RESTARTS[kind] if field not in left_out}
        config = CheckpointConfig(restart_strategy=kind, **_whole(own))
        made, due = strategy_of(config), _strategy(kind, own)
        expect(made == due, ARRIVE, f"{own} make {made}, due is {due}")

    @rule(kind=st.sampled_from([*RestartStrategyKind]), field=st.sampled_from(_FIELDS))
    def give_to_another_strategy(self, kind: RestartStrategyKind, field: str) -> None:
        """A number that the strategy does not have is refused."""
        value = 0.5 if field == "restart_jitter" else 2_000
        taken = _is_taken({"restart_strategy": kind, field: value})
        expect(taken == (field in _RESTARTS[kind]), ARRIVE, f"{field} with {kind.value}: taken {taken}")

    @rule(numbers=_numbers, periodic=st.booleans(), paused=st.booleans(), retains=st.booleans())
    def coordinate(self, numbers: list[int], *, periodic: bool, paused: bool, retains: bool) -> None:
        """The coordinator has its own numbers. Its interval is never shorter than the pause."""
        interval, pause, timeout, concurrent, tolerable, *_ = numbers
        config = CheckpointConfig(
            interval_ms=interval if periodic else None,
            min_pause_ms=pause if paused else 0,
            timeout_ms=timeout,
            max_concurrent=1 if paused else concurrent,
            tolerable_failures=tolerable,
            retain_on_cancellation=retains,
        )
        made = CoordinatorSettings.of("job", config, ("hook",), ("source",))
        due = {
            "job": "job",
            "interval_ms": (max(interval, pause) if paused else interval) if periodic else None,
            "min_pause_ms": pause if paused else 0,
            "timeout_ms": timeout,
            "max_concurrent": 1 if paused else concurrent,
            "tolerable_failures": tolerable,
            "hooks": ("hook",),
            "operator_coordinators": ("source",),
        }
        for name, value in due.items():
            expect(getattr(made, name) == value, ARRIVE, f"{name} is {getattr(made, name)}, due is {value}")

    @rule(
        unaligned=st.booleans(),
        mode=st.sampled_from([*CheckpointingMode]),
        concurrent=st.sampled_from([1, 2]),
        timeout=st.sampled_from([None, 99, 100, 101]),
        buffer=st.sampled_from([None, -2, -1, 0, 1]),
        pause=st.sampled_from([0, 1]),
    )
    def contradict(
        self,
        *,
        unaligned: bool,
        mode: CheckpointingMode,
        concurrent: int,
        timeout: int | None,
        buffer: int | None,
        pause: int,
    ) -> None:
        """What cannot go together is refused, and all else is taken."""
        aligns = mode is CheckpointingMode.EXACTLY_ONCE
        alone = concurrent == 1
        due = (
            (aligns and alone if unaligned else timeout is None)
            and (timeout is None or timeout < 100)  # noqa: PLR2004 - the checkpoint's own timeout
            and (buffer is None or (aligns and not unaligned and (buffer == -1 or buffer > 0)))
            and (alone or not pause)
        )
        given = {
            "unaligned": unaligned,
            "mode": mode,
            "max_concurrent": concurrent,
            "timeout_ms": 100,
            "alignment_timeout_ms": timeout,
            "max_alignment_bytes": buffer,
            "min_pause_ms": pause,
        }
        expect(_is_taken(given) == due, ARRIVE, f"{given}: taken {not due}")

    @rule(name=st.sampled_from([*BOUNDS]))
    def bound(self, name: str) -> None:
        """A setting has its default, is taken up to its bounds, and is refused beyond them."""
        bounds, default = BOUNDS[name], getattr(CheckpointConfig(), name)
        expect(default == bounds.default, ARRIVE, f"{name} is {default} by default, due is {bounds.default}")
        for value in bounds.taken:
            expect(_is_taken({**(bounds.given or {}), name: value}), ARRIVE, f"{name} {value} is refused")
        for value in bounds.refused:
            expect(not _is_taken({**(bounds.given or {}), name: value}), ARRIVE, f"{name} {value} is taken")

    @rule(pair=st.sampled_from(CONTRADICTIONS))
    def contradict_once(self, pair: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
        """Settings that are taken are refused if one setting is added that contradicts them."""
        given, wrong = pair
        expect(_is_taken({**given}), ARRIVE, f"{given} is refused")
        expect(not _is_taken({**given, **wrong}), ARRIVE, f"{given} is taken with {wrong}")

    @rule(first=st.sampled_from([0, 1, 5, 300_000, 300_001]), longest=st.sampled_from([1, 4, 5, 6, None]))
    def grow(self, first: int, longest: int | None) -> None:
        """A growing delay begins with a millisecond or more, and not above its limit: five minutes by default."""
        given = {"restart_strategy": _GROWING, "restart_delay_ms": first, "restart_delay_max_ms": longest}
        due = 1 <= first <= (5 * _MINUTE_MS if longest is None else longest)
        expect(_is_taken(given) == due, ARRIVE, f"{given}: taken {not due}")

    @rule(backend=st.sampled_from([*StateBackendKind]), most=st.sampled_from([None, 11, 4_000_000]))
    def keep_in_memory(self, backend: StateBackendKind, most: int | None) -> None:
        """Only state in memory has a limit. It is one mebibyte unless it is set."""
        in_memory = backend is StateBackendKind.MEMORY
        given = {"state_backend": backend, "memory_state_bytes_max": most, "every_rows": 13, "compact_files_min": 17}
        expect(_is_taken(given) == (in_memory or most is None), ARRIVE, f"{given}: wrongly taken or refused")
        if in_memory:
            made = CheckpointConfig(**given).memory_state_limit_bytes
            expect(made == (most or 1_048_576), ARRIVE, f"{given}: at most {made} bytes")

    @rule(limit=st.sampled_from([-2, -1, 0, 1]))
    def buffer(self, limit: int) -> None:
        """A gate's limit of buffered bytes is a positive number, or -1 for no limit."""
        try:
            GateConfig(max_alignment_bytes=limit)
        except ValueError:
            expect(limit in (-2, 0), ARRIVE, f"a gate refuses the limit {limit}")
        else:
            expect(limit in (-1, 1), ARRIVE, f"a gate takes the limit {limit}")

    @rule(slice_rows=st.sampled_from([4, 5, 6]), sources=st.sampled_from([(), ("a",), ("a", "b"), ("a", "a")]))
    def read(self, slice_rows: int, sources: tuple[str, ...]) -> None:
        """A slice fits into a micro-batch, and a source is counted once."""
        for every in (None, 10):
            given = {
                "slice_rows_max": slice_rows,
                "micro_batch_rows_max": MICRO_BATCH_ROWS,
                "rows_of": sources,
                "every_rows": every,
            }
            due = slice_rows <= MICRO_BATCH_ROWS and len({*sources}) == len(sources)
            due = due and (every is not None or not sources)
            expect(_is_taken(given) == due, ARRIVE, f"{given}: taken {not due}")


def _is_taken(given: dict[str, Any]) -> bool:
    try:
        CheckpointConfig(**given)
    except ValidationError:
        return False
    return True


def _whole(own: dict[str, float]) -> dict[str, Any]:
    return {
        name: value if name in ("restart_multiplier", "restart_jitter") else int(value) for name, value in own.items()
    }


def _strategy(kind: RestartStrategyKind, own: dict[str, float]) -> RestartStrategy:
    """Return the strategy as the documentation of the settings says it."""
    delay_ms = int(own.get("restart_delay_ms", _SECOND_MS))
    attempts = own.get("restart_attempts")
    if kind is RestartStrategyKind.FIXED_DELAY:
        return FixedDelay(int(attempts or 1), delay_ms)
    if kind is RestartStrategyKind.FAILURE_RATE:
        most, within = own.get("restart_failures_max", 1), own.get("restart_failures_interval_ms", _MINUTE_MS)
        return FailureRate(int(most), int(within), delay_ms)
    if kind is RestartStrategyKind.EXPONENTIAL_DELAY:
        return ExponentialDelay(
            initial_ms=delay_ms,
            max_ms=int(own.get("restart_delay_max_ms", 5 * _MINUTE_MS)),
            multiplier=own.get("restart_multiplier", 2.0),
            reset_after_ms=int(own.get("restart_reset_after_ms", 60 * _MINUTE_MS)),
            jitter=own.get("restart_jitter", 0.1),
            attempts=None if attempts is None else int(attempts),
        )
    return NoRestart()
