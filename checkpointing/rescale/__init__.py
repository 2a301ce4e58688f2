"""Restoring at another parallelism: who of the new subtasks gets which state of the old ones (D1, D3).

Pure plans over names, ranges and offsets; no file is read. Keyed state is in `checkpointing.key_groups`.
"""
