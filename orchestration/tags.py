"""The tags of Dagster runs and assets. They let runs wait for each other, and limit recovery to one run."""

from typing import Final

JOB_TAG: Final = "tidemark/job"
"""The pipeline, on assets and on runs of ticks. dagster.yaml lets such runs wait for each other."""

ABOUT_TAG: Final = "tidemark/about"
"""The pipeline, on other runs such as a savepoint or a clean-up. They must not wait for a running tick."""

FAILURE_TAG: Final = "tidemark/failure"
"""On a failed tick that would fail again in the same way: the reason, in a word."""

RECOVERS_TAG: Final = "tidemark/recovers"
"""On a recovery run: the id of the failed run. If a recovery run fails, no further one is started."""

PIPELINE: Final = "pipeline"
"""The metadata of a partition's materialization that names the pipeline, whose cut a run of the partition reads."""
