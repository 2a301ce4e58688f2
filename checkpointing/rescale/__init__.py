"""Decides which new subtasks get which elements of operator state when the parallelism changes (D1).

The plans consist of names and offsets, and no file is read. Keyed state is in `checkpointing.key_groups`. No run
reaches this yet: it waits for operators with broadcast state (D1).
"""
