"""The two-phase commit of a checkpoint, the decisions of recovery and clean-up, and the fence between coordinators."""
