"""Turns a pipeline into the protocol's graph, the operators' specifications and the tables' schemas.

Call `plan`. It needs no Spark session, table or file. Only `JobPlan.with_discovered_splits` asks the sources for
their splits.
"""

from jobs.planner.job_plan import JobPlan
from jobs.planner.planning import plan

__all__ = ["JobPlan", "plan"]
