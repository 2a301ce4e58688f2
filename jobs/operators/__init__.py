"""Runs a vertex: one Spark job for each micro-batch, in which each task writes its own staged files.

The planner fills the classes of `spec`, and the tick calls `execute.run_micro_batch`. `inputs` turns segments into
rows. `stateless_job` and `keyed_job` build the Spark job, and `planned_jobs` runs it; `stateless_task` and `keyed_task`
run inside it. Task modules import neither deltalake nor pydantic, because each Python worker pays for its imports.
"""
