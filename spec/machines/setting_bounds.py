"""Lists the default of each setting, the last values that are accepted, and the first that are refused.

The values come from the documentation of the settings. If a setting needs another one, both are given together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from checkpointing.config import CheckpointingMode, RestartStrategyKind, StateBackendKind

Given = Mapping[str, Any]
_UNALIGNED: Final[Given] = MappingProxyType({"unaligned": True})
_MEMORY: Final[Given] = MappingProxyType({"state_backend": StateBackendKind.MEMORY})
_FIXED: Final[Given] = MappingProxyType({"restart_strategy": RestartStrategyKind.FIXED_DELAY})
_RATE: Final[Given] = MappingProxyType({"restart_strategy": RestartStrategyKind.FAILURE_RATE})
_GROWING: Final[Given] = MappingProxyType(
    {"restart_strategy": RestartStrategyKind.EXPONENTIAL_DELAY, "restart_delay_ms": 1}
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The default of a setting, the last values that are accepted, and the first that are refused."""

    default: object
    taken: tuple[object, ...] = ()
    refused: tuple[object, ...] = ()
    given: Given | None = None


BOUNDS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        "interval_ms": Bounds(None, (10,), (9, True)),
        "every_rows": Bounds(None, (1,), (0, True)),
        "rows_of": Bounds(()),
        "mode": Bounds(CheckpointingMode.EXACTLY_ONCE),
        "timeout_ms": Bounds(600_000, (10,), (9, True)),
        "min_pause_ms": Bounds(0, (0, 31_536_000_000), (-1, 31_536_000_001, True)),
        "max_concurrent": Bounds(1, (1,), (0, True)),
        "tolerable_failures": Bounds(0, (0,), (-1, True)),
        "tolerable_poll_failures": Bounds(3, (0,), (-1, True)),
        "retained": Bounds(1, (1,), (0, True)),
        "retain_on_cancellation": Bounds(default=True),
        "unaligned": Bounds(default=False),
        "alignment_timeout_ms": Bounds(None, (0, 599_999), (-1, 600_000, True), _UNALIGNED),
        "max_alignment_bytes": Bounds(None, (-1, 1), (-2, 0, True)),
        "max_parallelism": Bounds(128, (1, 32_768), (0, 32_769, True)),
        "micro_batch_rows_max": Bounds(1_000_000, (1,), (0, True), MappingProxyType({"slice_rows_max": 1})),
        "slice_rows_max": Bounds(100_000, (1, 1_000_000), (0, 1_000_001, True)),
        "state_backend": Bounds(StateBackendKind.INCREMENTAL),
        "memory_state_bytes_max": Bounds(None, (1, 268_435_456), (0, 268_435_457, True), _MEMORY),
        "compact_files_min": Bounds(10, (None, 2), (1, True)),
        "compacted_bytes_max": Bounds(134_217_728, (1,), (0, True)),
        "restart_strategy": Bounds(RestartStrategyKind.NONE),
        "restart_attempts": Bounds(None, (1,), (0, True), _FIXED),
        "restart_delay_ms": Bounds(None, (0,), (-1, True), _FIXED),
        "restart_failures_max": Bounds(None, (1,), (0, True), _RATE),
        "restart_failures_interval_ms": Bounds(None, (1,), (0, True), _RATE),
        "restart_delay_max_ms": Bounds(None, (1,), (0, True), _GROWING),
        "restart_multiplier": Bounds(None, (1.1,), (1, float("nan"), float("inf"), True), _GROWING),
        "restart_reset_after_ms": Bounds(None, (1,), (0, True), _GROWING),
        "restart_jitter": Bounds(None, (0, 1), (-0.1, 1.1, True), _GROWING),
    }
)

CONTRADICTIONS: Final[tuple[tuple[Given, Given], ...]] = (
    (_UNALIGNED, {"max_concurrent": 2}),
    (_UNALIGNED, {"mode": CheckpointingMode.AT_LEAST_ONCE}),
    (_UNALIGNED, {"max_alignment_bytes": 5}),
    ({"unaligned": True, "timeout_ms": 100}, {"alignment_timeout_ms": 100}),
    ({"unaligned": True, "alignment_timeout_ms": 100}, {"timeout_ms": 100}),
    ({}, {"alignment_timeout_ms": 5}),
    ({"mode": CheckpointingMode.AT_LEAST_ONCE}, {"max_alignment_bytes": -1}),
    ({"min_pause_ms": 1}, {"max_concurrent": 2}),
    ({"max_concurrent": 2}, {"min_pause_ms": 1}),
    ({}, {"memory_state_bytes_max": 5}),
    ({"state_backend": StateBackendKind.FULL}, {"memory_state_bytes_max": 5}),
    ({}, {"rows_of": ("a",)}),
    ({"every_rows": 3, "rows_of": ("a",)}, {"rows_of": ("a", "b", "a")}),
    ({"micro_batch_rows_max": 200_000}, {"slice_rows_max": 200_001}),
)
"""Settings that are accepted, and a further setting that contradicts them."""
