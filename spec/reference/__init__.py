"""What a cut of the small pipeline must show, computed from its input alone."""
