"""The tags of Dagster runs and assets.

By these tags, runs wait for each other, and a failed tick gets one recovery run.
"""

from typing import Final

JOB_TAG: Final = "tidemark/job"
"""Names the pipeline, on assets and on runs of ticks. With dagster.yaml, such runs wait for each other."""

ABOUT_TAG: Final = "tidemark/about"
"""Names the pipeline, on other runs such as a savepoint or a clean-up. These must not wait for a running tick."""

FAILURE_TAG: Final = "tidemark/failure"
"""On the run of a failed tick that would fail again in the same way: the reason, in a word."""

RECOVERS_TAG: Final = "tidemark/recovers"
"""On a recovery run: the id of the failed run. If a recovery run fails, no further one is started."""

PIPELINE: Final = "pipeline"
"""The metadata of a partition's materialization that names the pipeline, whose cut a run of the partition reads."""
