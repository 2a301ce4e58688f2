"""The tags of Dagster runs and assets: by them runs wait for each other, and a failed one is taken up again once."""

from typing import Final

JOB_TAG: Final = "tidemark/job"
"""Of assets and of runs that are ticks: their pipeline. dagster.yaml lets such runs wait for each other."""

ABOUT_TAG: Final = "tidemark/about"
"""Of runs that are no ticks but ask one or tidy up: their pipeline. They must not wait for a tick that runs."""

FAILURE_TAG: Final = "tidemark/failure"
"""Of a tick that failed in a way that the same tick would fail again: why, in a word."""

RECOVERS_TAG: Final = "tidemark/recovers"
"""Of a run that takes up a failed one: that one's id. Such a run is not taken up in its turn."""
