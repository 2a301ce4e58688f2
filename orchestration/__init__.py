"""Dagster's view of the pipelines: assets, checks, jobs and schedules. No protocol decision is made here.

What a Dagster project needs of it is public as `tidemark.dagster`; see docs/DAGSTER.md.
"""
