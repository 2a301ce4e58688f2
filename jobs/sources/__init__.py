"""Sources: where the records of a pipeline come from, each replayable from any position."""
