"""Handles Spark itself: the session, a Connect server, jars, and the programs that Spark needs."""
