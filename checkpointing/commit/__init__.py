"""Two-phase commit of a checkpoint, recovery as a pure decision, and the fence between coordinators."""
