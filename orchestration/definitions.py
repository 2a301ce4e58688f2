"""What Dagster loads: the definitions of every pipeline named here."""

from typing import Final

import dagster as dg

from orchestration.pipelines import build_definitions

PIPELINES: Final = ("flights",)
"""Names or `module:attribute` of pipelines. Each gets assets, checks, jobs, schedules and sensors."""

OWNERS: Final = ("team:tidemark",)

defs = dg.Definitions.merge(*(build_definitions(pipeline, owners=OWNERS) for pipeline in PIPELINES))
