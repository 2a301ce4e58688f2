"""Reads and writes everything in a warehouse besides Spark's files: Delta logs (by delta-rs), small files, the lease.

A forked process may not call it, because delta-rs panics there: spawn one. One thread at a time may use a store.
"""
