"""Recovers a job before its first epoch: damaged files, tables ahead of or behind their cut, renames, rollbacks."""
