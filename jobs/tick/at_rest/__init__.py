"""Changes a job while no tick runs: savepoint, import, rollback, reset, disposal, cancellation. No Spark."""
