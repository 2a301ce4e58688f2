"""Parts of Flink that its own test cases need and no real run reaches: `python -m spec.vectors` drives them.

The product does the same work in other places. `commit.fencing` and `job.ids` hand out checkpoint ids, `job.savepoints`
and `job.ending` stop a job with a savepoint, `job.restoring` gives rows in flight to another number of subtasks, and
`coordinator.shared_state` knows who needs a file.
"""
