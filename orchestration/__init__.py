"""Shows pipelines in Dagster: assets, checks, jobs and schedules. No protocol decision is made here.

`tidemark.dagster` is its public part; see docs/DAGSTER.md.
"""
