"""Reads the changes of PostgreSQL tables: a snapshot first, then each committed transaction (ADR 13)."""
