"""Enters a job's output tables into catalogs, where other engines find them by name."""
