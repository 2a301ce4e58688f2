"""Reports checkpoints to systems that watch a job: Prometheus, OpenTelemetry, OpenLineage, a user's own class.

`events` defines what is reported: one event for each checkpoint, built once from its entry. `reporting` calls the
reporters. Most other modules are one reporter each. Only that module imports the reporter's library, which is an extra.
"""
