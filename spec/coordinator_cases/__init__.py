"""The environments in which the coordinator's test vectors run: one per unit, each around a real door."""
