"""What a vertex runs: one Spark job per micro-batch, each task writing its own staged files.

`spec` is what the planner fills, `execute.run_micro_batch` is the door. `inputs` turns segments into
rows, `stateless_job` and `keyed_job` build the one Spark job, `stateless_task` and `keyed_task` run
inside it. Task modules import neither deltalake nor pydantic: a Python worker starts with each import.
"""
