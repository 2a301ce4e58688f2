"""Keyed state as files: key groups, merging of base and deltas, compaction, the worker's copy.

Authority is the handles in the checkpoint's row. What lies here only reads, merges and writes the
files they name, with real columns: `_key_group`, the key, the state, `_deleted`.
"""
