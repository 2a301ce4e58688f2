"""Dagster's view of the pipelines: assets, checks, jobs and schedules. No protocol decision is made here.

`build_definitions(pipeline)` is all that a Dagster project needs; see docs/DAGSTER.md.
"""

from orchestration.limits import Limits
from orchestration.pipelines import build_definitions

__all__ = ["Limits", "build_definitions"]
