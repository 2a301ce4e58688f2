"""The protocol: Flink's checkpointing for micro-batches. It is pure: it takes facts and returns decisions.

It has no clock, no I/O, no threads, no Spark and no Dagster. Read its folders in the order in which a row and its
barrier travel: `gate` (a vertex's inputs), `task` (a subtask's checkpoints), `coordinator`, `commit`. `job` joins them
into one machine. `tick` claims the job and releases it around that machine. `metadata` is what is persisted.
"""
