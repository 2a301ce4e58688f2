"""Parts of Flink that its own test cases need and no run reaches: `python -m spec.vectors` drives them.

`FlinkCoordinator`, `FlinkGate`, `FlinkCheckpointStore` and `FlinkRegistry` are the product's classes with the additions
that Flink's cases ask for. Where the product does the same work, it does so in other places: `commit.fencing` and
`job.ids` hand out checkpoint ids, `job.savepoints` and `job.ending` stop a job with a savepoint, `job.restoring`
restores a job and its rows in flight, and `jobs.at_rest.cancelling` deletes what a cancelled job does not retain.
"""
