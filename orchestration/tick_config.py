"""The launchpad's configuration of a tick's run as a class, for users who start runs from Python."""

from enum import Enum
from pathlib import Path

import dagster as dg
from pydantic import ConfigDict, ValidationInfo, field_validator

from checkpointing.config import CheckpointingMode, RestartStrategyKind, StateBackendKind

Time = int | str
"""Milliseconds, or a text with a unit: 500, "500ms", "30s", "5m", "2h"."""


class TickConfig(dg.Config):
    """Settings of one tick, for `dg.RunConfig(ops={"shop": TickConfig(checkpoints=1)})`; the op is called as the asset.

    docs/SETTINGS.md says what each setting means. None leaves a setting to the pipeline and the environment. A wrong
    type is refused here (pydantic.ValidationError). A value that breaks a rule is refused when the run starts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    until_caught_up: bool | None = None
    checkpoints: int | None = None
    hold: bool | None = None
    duration_ms: Time | None = None
    take_over: bool | None = None
    warehouse: str | Path | None = None
    data: str | Path | None = None
    report_every: int | None = None
    """Report each n-th checkpoint as materializations while the tick runs (default 5). The last is always reported."""

    interval_ms: Time | None = None
    every_rows: int | None = None
    rows_of: list[str] | None = None
    mode: CheckpointingMode | None = None
    timeout_ms: Time | None = None
    min_pause_ms: Time | None = None
    max_concurrent: int | None = None
    tolerable_failures: int | None = None
    tolerable_poll_failures: int | None = None
    retained: int | None = None
    unaligned: bool | None = None
    alignment_timeout_ms: Time | None = None
    max_alignment_bytes: int | None = None
    max_parallelism: int | None = None
    micro_batch_rows_max: int | None = None
    slice_rows_max: int | None = None
    state_backend: StateBackendKind | None = None
    memory_state_bytes_max: int | None = None
    compact_files_min: int | None = None
    compacted_bytes_max: int | None = None
    restart_strategy: RestartStrategyKind | None = None
    restart_attempts: int | None = None
    restart_delay_ms: Time | None = None
    restart_failures_max: int | None = None
    restart_failures_interval_ms: Time | None = None
    restart_delay_max_ms: Time | None = None
    restart_multiplier: float | None = None
    restart_reset_after_ms: Time | None = None
    restart_jitter: float | None = None
    parallelism: int | None = None
    spark_master: str | None = None
    spark_cores: int | None = None
    spark_memory: str | None = None
    spark_connect_url: str | None = None
    spark_archive: str | None = None
    allow_non_restored_state: bool | None = None
    reader_grace_ms: Time | None = None
    table_log_keep_ms: Time | None = None
    clean_up: bool | None = None
    reporters: list[str] | None = None
    prometheus_folder: str | Path | None = None
    prometheus_push_url: str | None = None
    catalog: str | None = None
    catalog_url: str | None = None
    catalog_schema: str | None = None

    @field_validator("*", mode="after")
    @classmethod
    def _as_in_the_launchpad(cls, value: object, info: ValidationInfo) -> object:
        """Return a value in the form of the launchpad's field, where a time, a fraction and a path are texts."""
        match value:
            case Enum():
                return value.value
            case int() if (info.field_name or "").endswith("_ms"):
                return str(value)
            case Path() | float():
                return str(value)
            case _:
                return value
