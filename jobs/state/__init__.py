"""Keyed state as files: key groups, merging of bases and deltas, compaction, copies in workers.

The handles in the checkpoint's entry decide which files belong to the state. This package reads, merges and writes
these files. Their columns are `_key_group`, the key, the state and `_deleted`.
"""
