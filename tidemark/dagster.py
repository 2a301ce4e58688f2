"""Tidemark in a Dagster project: a pipeline as definitions or as a component, and readers of its cuts.

```python
from tidemark.dagster import build_definitions

defs = build_definitions("shop.pipeline:build", cron="*/15 * * * *")
```
docs/DAGSTER.md shows each name at work.
"""

from tidemark._packages import must_be_installed, must_be_ours

must_be_ours()
must_be_installed("dagster", extra="dagster")
must_be_installed("sqlglot", extra="dagster")

from orchestration.alerts import Alert, alert_sensor
from orchestration.component import CheckpointedPipelineComponent
from orchestration.cut_resource import CutIOManager, CutResource
from orchestration.deployment import Limits
from orchestration.lineage import InvalidOwnerError
from orchestration.naming import InvalidNamingError
from orchestration.pipelines import build_definitions
from orchestration.tick_config import TickConfig

__all__ = [
    "Alert",
    "CheckpointedPipelineComponent",
    "CutIOManager",
    "CutResource",
    "InvalidNamingError",
    "InvalidOwnerError",
    "Limits",
    "TickConfig",
    "alert_sensor",
    "build_definitions",
]
