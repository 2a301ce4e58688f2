"""The simulated world: stores, ticks, people and faults around the real doors."""
