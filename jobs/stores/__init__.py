"""Everything that touches Delta logs, by delta-rs and without Spark: rows, publications, cuts, the lease.

Duties of the callers: never call from a forked process (delta-rs panics there: spawn instead), and let
one thread at a time use one store.
"""
