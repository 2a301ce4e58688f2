"""Reads and writes everything in a warehouse except Spark's files: Delta logs (with delta-rs), small files, the lease.

A forked process may not use this package, because delta-rs panics there. Spawn a process instead. Only one thread at a
time may use a store.
"""
