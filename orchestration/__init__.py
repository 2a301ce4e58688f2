"""Dagster's view of the pipelines: assets, checks, jobs and schedules. No protocol decision is made here."""
