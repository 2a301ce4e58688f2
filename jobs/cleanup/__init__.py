"""Clean-up: what of a job's files nobody needs any more, found in its rows and its tables' logs, and deleted (K4)."""
