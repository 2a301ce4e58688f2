"""Holds the parts of Flink that only Flink's own test cases need. `python -m spec.flink.vectors` drives them.

No run of the product reaches this code. `FlinkCoordinator`, `FlinkGate`, `FlinkCheckpointStore` and `FlinkRegistry`
extend the product's classes by what Flink's cases ask for. Some modules here repeat work that the product does
elsewhere. In the product, `commit.fencing` and `job.ids` hand out checkpoint ids, `job.savepoints` and `job.ending`
stop a job with a savepoint, and `job.restoring` restores a job and its rows in flight. `jobs.tick.at_rest.cancellation`
deletes what a cancelled job does not retain.
"""
