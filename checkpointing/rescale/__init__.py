"""Restoring operator state at another parallelism: who of the new subtasks gets which elements of the old ones (D1).

Pure plans over names and offsets; no file is read. Keyed state is in `checkpointing.key_groups`. No run reaches
this yet: it waits for operators with broadcast state (D1).
"""
