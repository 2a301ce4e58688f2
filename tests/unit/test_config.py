"""Every refused configuration names field and rule; every accepted one means what it says (H1)."""

import pytest
from pydantic import ValidationError

from checkpointing.config import CheckpointConfig, CheckpointingMode

REFUSED = [
    ({"interval_ms": 9}, "interval_ms", "greater than or equal to 10"),
    ({"interval_ms": True}, "interval_ms", "not true or false"),
    ({"every_rows": 0}, "every_rows", "greater than 0"),
    ({"timeout_ms": 9}, "timeout_ms", "greater than or equal to 10"),
    ({"min_pause_ms": -1}, "min_pause_ms", "greater than or equal to 0"),
    ({"min_pause_ms": 31_536_000_001}, "min_pause_ms", "less than or equal to 31536000000"),
    ({"max_concurrent": 0}, "max_concurrent", "greater than or equal to 1"),
    ({"tolerable_failures": -1}, "tolerable_failures", "greater than or equal to 0"),
    ({"retained": 0}, "retained", "greater than or equal to 1"),
    ({"max_parallelism": 0}, "max_parallelism", "greater than or equal to 1"),
    ({"max_parallelism": 32_769}, "max_parallelism", "less than or equal to 32768"),
    ({"micro_batch_rows_max": 0}, "micro_batch_rows_max", "greater than 0"),
    ({"slice_rows_max": 0}, "slice_rows_max", "greater than 0"),
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
]


@pytest.mark.parametrize(("values", "field", "rule"), REFUSED)
def test_a_refusal_names_field_and_rule(values, field, rule):
    """Each value or combination that means nothing is refused, with the field and the rule in the message."""
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
    ],
)
def test_what_means_something_is_accepted_and_unchanged(values):
    """Nothing is silently corrected."""
    config = CheckpointConfig(**values)
    assert values == {
        field: list(value) if isinstance(value := getattr(config, field), tuple) else value for field in values
    }


def test_every_field_has_a_refusal():
    """A new field comes with its rules: only switches can't be wrong."""
    switches = {"retain_on_cancellation", "after_tasks_finish"}
    assert CheckpointConfig.model_fields.keys() - switches <= {field for _, field, _ in REFUSED}


def test_the_effective_interval_is_not_shorter_than_the_pause():
    """A trigger inside the pause would always be refused (Flink: baseInterval)."""
    assert CheckpointConfig(interval_ms=50, min_pause_ms=80).effective_interval_ms == 80
    assert CheckpointConfig(min_pause_ms=80).effective_interval_ms is None
