"""Shows pipelines in Dagster: assets, checks, jobs and schedules. Nothing of the protocol is decided here.

`tidemark.dagster` is its public part; see docs/DAGSTER.md.
"""
