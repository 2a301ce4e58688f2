"""Reports checkpoints to what watches a job from outside: Prometheus, OpenTelemetry, OpenLineage, a user's own class.

`events` says what is reported: one event for each checkpoint, built once from its entry. `reporting` calls the
reporters. Each of the other modules is one reporter, and only it imports its library, which is an extra.
"""
