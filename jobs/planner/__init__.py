"""From a pipeline to what runs: the protocol's graph, the operators' specifications, the tables' schemas.

`plan` is the door. Pure but for asking a source for its splits (`JobPlan.with_discovered_splits`): no
Spark session, no table and no file is touched.
"""

from jobs.planner.explain import PlanExplanation, explain
from jobs.planner.job_plan import JobPlan
from jobs.planner.planning import plan

__all__ = ["JobPlan", "PlanExplanation", "explain", "plan"]
