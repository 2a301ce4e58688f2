"""Spark's plumbing: the session, a Connect server, jars, and the programs that must be there."""
