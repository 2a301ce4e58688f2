"""A refused configuration names the field and the rule, and an accepted one is not changed (H1)."""

import pytest
from pydantic import ValidationError

from checkpointing.config import CheckpointConfig, CheckpointingMode, RestartStrategyKind

FIXED = {"restart_strategy": "fixed_delay"}
RATE = {"restart_strategy": "failure_rate"}
GROWING = {"restart_strategy": "exponential_delay"}

REFUSED = [
    ({"interval_ms": 9}, "interval_ms", "greater than or equal to 10"),
    ({"interval_ms": True}, "interval_ms", "not true or false"),
    ({"every_rows": 0}, "every_rows", "greater than 0"),
    ({"timeout_ms": 9}, "timeout_ms", "greater than or equal to 10"),
    ({"min_pause_ms": -1}, "min_pause_ms", "greater than or equal to 0"),
    ({"min_pause_ms": 31_536_000_001}, "min_pause_ms", "less than or equal to 31536000000"),
    ({"max_concurrent": 0}, "max_concurrent", "greater than or equal to 1"),
    ({"tolerable_failures": -1}, "tolerable_failures", "greater than or equal to 0"),
    ({"tolerable_poll_failures": -1}, "tolerable_poll_failures", "greater than or equal to 0"),
    ({"retained": 0}, "retained", "greater than or equal to 1"),
    ({"max_parallelism": 0}, "max_parallelism", "greater than or equal to 1"),
    ({"max_parallelism": 32_769}, "max_parallelism", "less than or equal to 32768"),
    ({"micro_batch_rows_max": 0}, "micro_batch_rows_max", "greater than 0"),
    ({"slice_rows_max": 0}, "slice_rows_max", "greater than 0"),
    ({"compact_files_min": 1}, "compact_files_min", "greater than or equal to 2"),
    ({"compacted_bytes_max": 0}, "compacted_bytes_max", "greater than or equal to 1"),
    ({"state_backend": "disk"}, "state_backend", "'incremental', 'full' or 'memory'"),
    ({"state_backend": "memory", "memory_state_bytes_max": 0}, "memory_state_bytes_max", "greater than or equal to 1"),
    (
        {"state_backend": "memory", "memory_state_bytes_max": 268_435_457},
        "memory_state_bytes_max",
        "less than or equal to 268435456",
    ),
    ({"memory_state_bytes_max": 5}, "memory_state_bytes_max", "needs state_backend memory"),
    ({"mode": "twice"}, "mode", "'exactly_once' or 'at_least_once'"),
    ({"colour": "red"}, "colour", "not permitted"),
    ({"unaligned": True, "mode": "at_least_once"}, "unaligned", "needs mode exactly_once"),
    ({"unaligned": True, "max_concurrent": 2}, "max_concurrent", "must be 1 with unaligned"),
    ({"alignment_timeout_ms": 5}, "alignment_timeout_ms", "needs unaligned"),
    ({"unaligned": True, "alignment_timeout_ms": -1}, "alignment_timeout_ms", "greater than or equal to 0"),
    ({"unaligned": True, "alignment_timeout_ms": 600_000}, "alignment_timeout_ms", "less than timeout_ms"),
    ({"max_alignment_bytes": 0}, "max_alignment_bytes", "must be positive, or -1"),
    ({"max_alignment_bytes": -2}, "max_alignment_bytes", "must be positive, or -1"),
    ({"max_alignment_bytes": 5, "mode": "at_least_once"}, "max_alignment_bytes", "needs mode exactly_once"),
    ({"max_alignment_bytes": 5, "unaligned": True}, "max_alignment_bytes", "can't go with unaligned"),
    ({"min_pause_ms": 5, "max_concurrent": 2}, "min_pause_ms", "needs max_concurrent 1"),
    ({"rows_of": ["flights"]}, "rows_of", "needs every_rows"),
    ({"rows_of": ["a", "a"], "every_rows": 5}, "rows_of", "must name each source once"),
    ({"slice_rows_max": 11, "micro_batch_rows_max": 10}, "slice_rows_max", "not be more than micro_batch_rows_max"),
    ({"restart_strategy": "often"}, "restart_strategy", "'fixed_delay', 'failure_rate' or 'exponential_delay'"),
    (FIXED | {"restart_attempts": 0}, "restart_attempts", "greater than or equal to 1"),
    (FIXED | {"restart_delay_ms": -1}, "restart_delay_ms", "greater than or equal to 0"),
    (RATE | {"restart_failures_max": 0}, "restart_failures_max", "greater than or equal to 1"),
    (RATE | {"restart_failures_interval_ms": 0}, "restart_failures_interval_ms", "greater than or equal to 1"),
    (GROWING | {"restart_delay_max_ms": 0}, "restart_delay_max_ms", "greater than or equal to 1"),
    (GROWING | {"restart_multiplier": 1}, "restart_multiplier", "greater than 1"),
    (GROWING | {"restart_multiplier": True}, "restart_multiplier", "not true or false"),
    (GROWING | {"restart_multiplier": float("inf")}, "restart_multiplier", "finite"),
    (GROWING | {"restart_reset_after_ms": 0}, "restart_reset_after_ms", "greater than or equal to 1"),
    (GROWING | {"restart_jitter": -0.1}, "restart_jitter", "greater than or equal to 0"),
    (GROWING | {"restart_jitter": 1.1}, "restart_jitter", "less than or equal to 1"),
    ({"restart_attempts": 3}, "restart_attempts", "needs restart_strategy fixed_delay or exponential_delay"),
    (RATE | {"restart_attempts": 3}, "restart_attempts", "needs restart_strategy fixed_delay or exponential_delay"),
    (
        {"restart_delay_ms": 3},
        "restart_delay_ms",
        "needs restart_strategy fixed_delay or failure_rate or exponential_delay",
    ),
    (FIXED | {"restart_failures_max": 3}, "restart_failures_max", "needs restart_strategy failure_rate"),
    (
        FIXED | {"restart_failures_interval_ms": 3},
        "restart_failures_interval_ms",
        "needs restart_strategy failure_rate",
    ),
    (FIXED | {"restart_delay_max_ms": 3}, "restart_delay_max_ms", "needs restart_strategy exponential_delay"),
    (RATE | {"restart_multiplier": 3}, "restart_multiplier", "needs restart_strategy exponential_delay"),
    (FIXED | {"restart_reset_after_ms": 3}, "restart_reset_after_ms", "needs restart_strategy exponential_delay"),
    (FIXED | {"restart_jitter": 0.5}, "restart_jitter", "needs restart_strategy exponential_delay"),
    (GROWING | {"restart_delay_ms": 0}, "restart_delay_ms", "must be at least 1: nothing grows from 0"),
    (GROWING | {"restart_delay_max_ms": 999}, "restart_delay_max_ms", "must not be less than restart_delay_ms"),
    (
        GROWING | {"restart_delay_ms": 300_001},
        "restart_delay_max_ms",
        "must not be less than restart_delay_ms, which is 300001",
    ),
]
LIMITS = {
    **dict.fromkeys(("interval_ms", "timeout_ms", "alignment_timeout_ms"), 3_153_600_000_000),
    **dict.fromkeys(("every_rows", "micro_batch_rows_max", "slice_rows_max"), 2**53 - 1),
    **dict.fromkeys(("max_alignment_bytes", "compacted_bytes_max"), 2**53 - 1),
    **dict.fromkeys(("tolerable_failures", "tolerable_poll_failures"), 2**31 - 1),
    "max_concurrent": 1_000,
    "retained": 10_000,
    "compact_files_min": 1_000,
}
"""The largest value of each number. Larger ones mean nothing, and some would end in an error much later."""
REFUSED += [({name: most + 1}, name, f"less than or equal to {most}") for name, most in LIMITS.items()]
REFUSED += [({name: 10**30}, name, "less than or equal to") for name in LIMITS]
REFUSED += [
    (FIXED | {"restart_delay_ms": 10**30}, "restart_delay_ms", "less than or equal to 3153600000000"),
    (FIXED | {"restart_attempts": 2**31}, "restart_attempts", "less than or equal to 2147483647"),
    (RATE | {"restart_failures_max": 2**31}, "restart_failures_max", "less than or equal to 2147483647"),
    (RATE | {"restart_failures_interval_ms": 10**13}, "restart_failures_interval_ms", "less than or equal to 31536"),
    (GROWING | {"restart_delay_max_ms": 10**13}, "restart_delay_max_ms", "less than or equal to 3153600000000"),
    (GROWING | {"restart_reset_after_ms": 10**13}, "restart_reset_after_ms", "less than or equal to 3153600000000"),
    (GROWING | {"restart_multiplier": 1e300}, "restart_multiplier", "less than or equal to 1000"),
    (GROWING | {"restart_multiplier": float("nan")}, "restart_multiplier", "finite"),
]


@pytest.mark.parametrize(("values", "field", "rule"), REFUSED)
def test_a_refusal_names_field_and_rule(values, field, rule):
    """Each value or combination without a meaning is refused. The message has the field and the rule."""
    with pytest.raises(ValidationError) as refused:
        CheckpointConfig(**values)
    assert field in str(refused.value)
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"unaligned": True, "alignment_timeout_ms": 0},
        {"max_alignment_bytes": -1},
        {"max_alignment_bytes": 1},
        {"every_rows": 12_000, "rows_of": ["flights"]},
        {"mode": CheckpointingMode.AT_LEAST_ONCE, "max_concurrent": 3},
        {"interval_ms": 10, "min_pause_ms": 0, "max_concurrent": 2},
        {"restart_strategy": RestartStrategyKind.FIXED_DELAY, "restart_attempts": 1, "restart_delay_ms": 0},
        {"restart_strategy": RestartStrategyKind.FAILURE_RATE, "restart_failures_max": 1, "restart_delay_ms": 0},
        {
            "restart_strategy": RestartStrategyKind.EXPONENTIAL_DELAY,
            "restart_delay_ms": 5,
            "restart_delay_max_ms": 5,
            "restart_jitter": 1.0,
        },
    ],
)
def test_a_valid_configuration_is_accepted_unchanged(values):
    """Nothing is silently corrected."""
    config = CheckpointConfig(**values)
    assert values == {
        field: list(value) if isinstance(value := getattr(config, field), tuple) else value for field in values
    }


def test_every_field_has_a_refusal_here():
    """A new field needs rules. Only a switch cannot be wrong."""
    switches = {"retain_on_cancellation"}
    assert CheckpointConfig.model_fields.keys() - switches <= {field for _, field, _ in REFUSED}


def test_every_bound_of_a_field_is_tested():
    """If a new bound has no refusal above, this fails. Of two upper bounds the lower one counts."""
    bounds = {"ge": "greater than or equal to", "gt": "greater than", "le": "less than or equal to", "lt": "less than"}
    declared = {
        (field, name): f"{said} {getattr(bound, name)}"
        for field, info in CheckpointConfig.model_fields.items()
        for bound in sorted(info.metadata, key=lambda each: -getattr(each, "le", 0))
        for name, said in bounds.items()
        if hasattr(bound, name)
    }
    tested = {(field, rule) for _, field, rule in REFUSED}
    assert set() == {(field, rule) for (field, _), rule in declared.items()} - tested


def test_every_contradiction_is_tested():
    """If a new rule over several fields has no refusal of its own above, this fails."""
    for _, field, rule in CheckpointConfig().contradictions():
        tested = [words for _, named, words in REFUSED if named == field]
        assert any(words in rule or rule.startswith(words) for words in tested), f"{field}: {rule}"


def test_the_effective_interval_is_not_shorter_than_the_pause():
    """A trigger inside the pause would always be refused (Flink: baseInterval)."""
    assert CheckpointConfig(interval_ms=50, min_pause_ms=80).effective_interval_ms == 80
    assert CheckpointConfig(min_pause_ms=80).effective_interval_ms is None
