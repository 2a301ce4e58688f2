"""The protocol: Flink's checkpointing for micro-batches. Pure: facts in, decisions out.

No clock, no I/O, no threads, no Spark, no Dagster. The rooms read in the order in which a record and its
barrier travel: `gate` (a vertex's inputs), `task` (a subtask's checkpoint life), `coordinator`, `commit`;
`job` composes them into one machine, `metadata` is what is persisted.
"""
